"""LSH self-attention as in the Reformer."""

from __future__ import annotations

import dataclasses

from attnlab.core.checks import points_to
from attnlab.modules.heads import SelfHashed
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.ops.routes import LSH, Route


@points_to(
    **{field.name: f"use route=routes.LSH({field.name}=…)" for field in dataclasses.fields(LSH)}
)
class LSHSelfAttention(SelfHashed, MultiHeadAttention, kw_only=True):
    """Reformer's self-attention: shared queries and keys, hashed, sorted, attended in chunks.

    `MultiHeadAttention` with other defaults: the route is `routes.LSH`, tokens see earlier ones
    only, and projections have no biases. Source: Kitaev et al. 2020, §2. It differs from the paper
    in being strictly causal; see `ops.lsh`.

    Call it with [*B, L, D]; returns [*B, L, out_features]. With `decode=True` it computes the same
    a token at a time, or a prompt at once: each new token then costs O(rounds · chunk_size),
    however many came before.

    The keywords of `MultiHeadAttention` and of `AttentionModule` belong to it too; LSH has a score
    of its own, and takes no biases of the logits.

    Attributes:
      num_kv_heads: number of heads of the values, a divisor of N; None = N. Queries are the keys.
      route: route of the attention: its rounds, buckets, chunk size and the options of the hashing.
      use_bias: whether the projections have biases; as in the Reformer they have none.
      causal: whether a token sees only earlier tokens, as `masks.Causal()` in the mask says too;
        default True, because the Reformer is a language model. False leaves it to the mask.
    """

    route: Route = LSH()
    use_bias: bool = False
    causal: bool = True
