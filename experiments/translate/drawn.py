"""The weights of a trained model on a few sentences, in a file beside its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.data.batching import evaluation_batches
from attnlab.models.seq2seq import Seq2Seq
from attnlab.tokens import lengths
from attnlab.training.evaluation_figures import Alignment
from experiments.translate.corpus import Corpus, Drawn, Tokenizers
from experiments.translate.evaluate import attention_weights

__all__ = ["FILE", "alignments", "is_of", "read", "write"]

FILE = "alignments.json"


def alignments(
    model: Seq2Seq, variables: Any, corpus: Corpus, tokenizers: Tokenizers
) -> list[Alignment]:
    """The weights on the pairs that are drawn; empty for a model without attention."""
    if not model.attends or not corpus.drawn:
        return []
    pairs = [{"source": one.source, "target": one.target} for one in corpus.drawn]
    ((order, batch),) = evaluation_batches(pairs, *tokenizers, batch_size=len(pairs))
    weights = np.asarray(attention_weights(model, variables, batch["source"], batch["target"]))
    made = {}
    for row, place in enumerate(order):
        source, target = batch["source"][row], batch["target"][row]
        # If weights belong to the step that reads a token, EOS has none: no step reads it.
        s, t = int(lengths(source)), int(lengths(target)) - model.weights_follow_input
        made[int(place)] = Alignment(
            tokenizers.source.pieces(source[:s]),
            tokenizers.target.pieces(target[:t]),
            weights[row, :t, :s],
            known=corpus.drawn[place].known,
        )
    return [made[place] for place in range(len(pairs))]


def write(found: Sequence[Alignment], drawn: Sequence[Drawn], folder: Path) -> None:
    """Writes the alignments that a report draws, and their pairs, to a file."""
    kept = {
        "pairs": [[one.source, one.target] for one in drawn],
        "alignments": [
            {
                "source": list(one.source),
                "target": list(one.target),
                "weights": np.asarray(one.weights, np.float64).tolist(),
                "known": sorted(one.known),
            }
            for one in found
        ],
    }
    (folder / FILE).write_text(json.dumps(kept) + "\n", encoding="utf-8")


def read(folder: Path) -> list[Alignment]:
    """The alignments that `write` wrote."""
    kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return [
        Alignment(
            one["source"],
            one["target"],
            np.asarray(one["weights"]),
            known=frozenset((t, s) for t, s in one["known"]),
        )
        for one in kept["alignments"]
    ]


def is_of(drawn: Sequence[Drawn], folder: Path) -> bool:
    """Whether the file has the alignments of these pairs: --draw_file may have changed."""
    try:
        kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return kept["pairs"] == [[one.source, one.target] for one in drawn]
