"""attnlab: attention = a score × a mask × a route, in JAX and Flax.

Values that say what is computed:

    scores      how alike a query and a key are
    masks       who may see whom
    biases      what is added to the logits
    routes      which pairs are visited at all
    positions   where a token stands
    platforms   which accelerator a program is for

Functions of arrays, parameters given: `attention` and its named forms.
Flax Linen modules: parameters and naming around them; `attnlab.nnx`: the same of NNX, imported by
itself.
`attnlab.models`, `testing`, and with the extras `data`, `training`, `bench`, `studies`, `runs`:
imported when used.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from attnlab import biases, masks, positions, scores
from attnlab.devices import platforms
from attnlab.devices.split import over
from attnlab.mechanisms.drawing import draw
from attnlab.modules.biases import AlibiBias, BiasModule, RelativePositionBias
from attnlab.modules.flax_interop import as_flax_attention_fn
from attnlab.modules.local import LocalAttention
from attnlab.modules.lsh import LSHSelfAttention
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.modules.scores import (
    AdditiveScore,
    ConcatScore,
    CosineScore,
    GeneralScore,
    LocationScore,
    ScoreModule,
)
from attnlab.modules.single_head import (
    AdditiveAttention,
    ConcatAttention,
    LocationAttention,
    MultiplicativeAttention,
)
from attnlab.ops import routes
from attnlab.ops.attention import (
    Pallas,
    attention,
    attention_weights,
)
from attnlab.ops.hard import Choice, hard_attention
from attnlab.ops.local import local_attention, window_attention
from attnlab.ops.lsh.attention import lsh_attention
from attnlab.ops.lsh.cross import lsh_cross_attention
from attnlab.ops.lsh.hashing import default_num_buckets, hash_buckets, make_rotations
from attnlab.ops.lsh.inputs import LSHOptions
from attnlab.ops.lsh.quality import hash_quality
from attnlab.ops.named import (
    additive_attention,
    concat_attention,
    cosine_attention,
    dot_product_attention,
    general_attention,
    location_attention,
)

if TYPE_CHECKING:
    from attnlab import bench as bench
    from attnlab import data as data
    from attnlab import models as models
    from attnlab import runs as runs
    from attnlab import studies as studies
    from attnlab import testing as testing
    from attnlab import training as training
else:
    _WHEN_USED = {"bench", "data", "models", "runs", "studies", "testing", "training"}

    def __getattr__(name: str) -> ModuleType:
        if name in _WHEN_USED:
            return importlib.import_module(f"attnlab.{name}")
        raise AttributeError(f"module 'attnlab' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*__all__, *_WHEN_USED, "__all__", "__doc__", "__file__", "__version__"})


__version__ = "0.2.0"

__all__ = [
    # values
    "LSHOptions",
    "biases",
    "masks",
    "platforms",
    "positions",
    "routes",
    "scores",
    # exact attention over all pairs
    "additive_attention",
    "attention",
    "attention_weights",
    "concat_attention",
    "cosine_attention",
    "dot_product_attention",
    "general_attention",
    "location_attention",
    # which pairs they see, as a picture
    "draw",
    # how they are computed, where a name is not enough
    "Pallas",
    # on which devices
    "over",
    # one key, sampled or the likeliest
    "Choice",
    "hard_attention",
    # exact within a window
    "local_attention",
    "window_attention",
    # approximate, by hashing
    "default_num_buckets",
    "hash_buckets",
    "hash_quality",
    "lsh_attention",
    "lsh_cross_attention",
    "make_rotations",
    # Flax Linen modules
    "AdditiveAttention",
    "ConcatAttention",
    "LSHSelfAttention",
    "LocalAttention",
    "LocationAttention",
    "MultiHeadAttention",
    "MultiplicativeAttention",
    # scores with parameters, for the modules
    "AdditiveScore",
    "ConcatScore",
    "CosineScore",
    "GeneralScore",
    "LocationScore",
    "ScoreModule",
    # biases of positions, for them
    "AlibiBias",
    "BiasModule",
    "RelativePositionBias",
    # inside Flax's own modules
    "as_flax_attention_fn",
]
