"""attnlab's modules as modules of Flax's NNX: the same names, fields, parameters and numbers.

It is imported by itself, as `import attnlab` imports no NNX.

>>> import attnlab.nnx, jax.numpy as jnp
>>> from flax import nnx
>>> from attnlab import masks, routes
>>> route = routes.LSH(chunk_size=32)
>>> mha = attnlab.nnx.MultiHeadAttention(8, 64, route=route, rotary=True, rngs=nnx.Rngs(0))
>>> mha(jnp.ones((2, 100, 64)), mask=masks.Causal()).shape
(2, 100, 64)
>>> mha.query_key.kernel.shape
(64, 8, 8)

A module differs from Linen's of the same name in that it is told `in_features` and `rngs` when it
is made, and holds what Linen is given with each call: parameters (`nnx.Param`), streams of random
numbers (`rngs`, which a call may be given too), and caches (`nnx.Cache`), which `init_cache` makes.
Scores and biases of positions are given as there, `score=attnlab.AdditiveScore()`, and get their
parameters when the module is made. `deterministic`, an attribute, is what `train()` and `eval()`
set. With `sow_weights=True` weights are sown as `nnx.Intermediate`; `nnx.capture` collects them,
and of a route that samples a `SampledChoice`.

What is checked, named and computed is written once, for both frameworks (`attnlab.modules.heads`
and `one_head`). These modules are no Linen modules behind `nnx.bridge.ToNNX`: such a module has no
parameters before it has seen inputs, no layers that another can stand in for, as LoRA does, and
draws new random numbers with every call. The models of `attnlab.models` are used so; `load` and
`from_nnx` carry their variables as well.
"""

from attnlab.nnx.base import HashStats, SampledChoice, SourceCache
from attnlab.nnx.multi_head import LSHSelfAttention, MultiHeadAttention
from attnlab.nnx.parameters import from_nnx, load, to_nnx
from attnlab.nnx.single_head import (
    AdditiveAttention,
    ConcatAttention,
    LocalAttention,
    LocationAttention,
    MultiplicativeAttention,
)

__all__ = [
    "AdditiveAttention",
    "ConcatAttention",
    "HashStats",
    "LSHSelfAttention",
    "LocalAttention",
    "LocationAttention",
    "MultiHeadAttention",
    "MultiplicativeAttention",
    "SampledChoice",
    "SourceCache",
    "from_nnx",
    "load",
    "to_nnx",
]
