"""LSH attention (Kitaev, Kaiser & Levskaya, "Reformer", 2020, section 2), step by step.

1. *Hash*: in each of R rounds a random rotation gives every token a bucket (`hashing`).
2. *Sort* the tokens of a round by (bucket, position) (`order`; `cross_order` for two sequences).
3. *Chunk*: cut that order into chunks of C; a query meets the keys of its own chunk and of the one
   before it (`published`; by default exactly the C tokens before it in its bucket instead, which
   lie there: `order.Geometry`).
4. *Attend* within these 2C keys, for all chunks at once (`rounds`, tile by tile as in `tiles`; or
   `kernel` on an accelerator; or `dense`, all pairs, where the input is short).
5. *Merge* the rounds by their log-sum-exp, back in the order of positions.

The same in NumPy, causal, one head, unit keys, c = 1/√H, a pair counted as often as it is shown:

>>> import jax, numpy as np
>>> from attnlab.ops.lsh import Published, hash_buckets, lsh_attention, make_rotations
>>> def lsh_round(qk, v, bucket, C):
...     order = np.argsort(bucket, kind="stable")  # 2. sort
...     def chunks(x):  # 3. chunk
...         return x[order].reshape(-1, C, *x.shape[1:])
...     def visited(x, nothing):  # of each chunk, itself and the one before it
...         x = chunks(x)
...         before = np.concatenate([np.full_like(x[:1], nothing), x[:-1]])
...         return np.concatenate([before, x], axis=1)
...     keys = visited(qk / np.linalg.norm(qk, axis=-1, keepdims=True), 0)
...     position = np.arange(len(qk))
...     seen = chunks(bucket)[:, :, None] == visited(bucket, -1)[:, None]
...     seen &= chunks(position)[:, :, None] > visited(position, 0)[:, None]  # the past
...     logits = np.einsum("cqh,ckh->cqk", chunks(qk), keys) / np.sqrt(qk.shape[-1])  # 4. attend
...     weights = np.where(seen, np.exp(logits), 0)
...     sums, total = weights @ visited(v, 0), weights.sum(-1)
...     back = np.argsort(order)
...     return sums.reshape(v.shape)[back], total.reshape(-1)[back]
>>> qk, v = np.random.default_rng(0).normal(size=(2, 96, 16))
>>> rotations = make_rotations(
...     jax.random.key(0), num_heads=1, head_dim=16, num_hashes=4, num_buckets=8
... )
>>> buckets = hash_buckets(qk[None, :, None], rotations)  # 1. hash: [1, R, L, 1]
>>> rounds = [lsh_round(qk, v, bucket, C=8) for bucket in np.asarray(buckets)[0, :, :, 0]]
>>> sums, total = (sum(part) for part in zip(*rounds))  # 5. merge
>>> context = np.where(total[:, None] > 0, sums / np.maximum(total, 1e-9)[:, None], v)
>>> options = Published(union=False, logit_scale=None, key_norm="l2")
>>> ours = lsh_attention(
...     qk[None, :, None], v[None, :, None], buckets, chunk_size=8, options=options
... )
>>> np.allclose(ours[0, :, 0], context, atol=1e-5)
True

`attention` and `cross` check arguments (`inputs`) and choose how to attend; `published` is what
others have, for parity. What runs for one row, an example and a head, stands in `rows`. `decode`
computes one more token from a state, `quality` measures what hashing finds of full
attention, and `route` puts all of it behind one value, `routes.LSH`.
"""

from attnlab.ops.lsh.attention import lsh_attention
from attnlab.ops.lsh.cross import lsh_cross_attention
from attnlab.ops.lsh.decode import DecodeState, empty_state, lsh_decode
from attnlab.ops.lsh.hashing import (
    Rotations,
    default_num_buckets,
    factorize,
    hash_buckets,
    make_rotations,
    running_center,
)
from attnlab.ops.lsh.inputs import STRICT, LSHOptions
from attnlab.ops.lsh.published import LUCIDRAINS, PAPER, TRAX, Published
from attnlab.ops.lsh.quality import HashQuality, hash_quality
from attnlab.ops.lsh.route import LSH

__all__ = [
    "LSH",
    "LUCIDRAINS",
    "PAPER",
    "STRICT",
    "TRAX",
    "DecodeState",
    "HashQuality",
    "LSHOptions",
    "Published",
    "Rotations",
    "default_num_buckets",
    "empty_state",
    "factorize",
    "hash_buckets",
    "hash_quality",
    "lsh_attention",
    "lsh_cross_attention",
    "lsh_decode",
    "make_rotations",
    "running_center",
]
