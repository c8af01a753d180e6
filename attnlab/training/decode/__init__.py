"""Search and sampling for every `Decoder`, each one compiled program.

`greedy` and `sample` write one hypothesis a row, token by token; `beam_search` keeps several.
Letters: B batch, S source length, P prompt length, T the most new tokens, k beam, V vocabulary.
"""

from attnlab.training.decode.beam import beam_search, length_penalty_of
from attnlab.training.decode.single import greedy, sample
from attnlab.training.decode.state import Hypotheses

__all__ = ["Hypotheses", "beam_search", "greedy", "length_penalty_of", "sample"]
