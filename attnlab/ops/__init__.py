"""Pure functions of arrays: how attention is computed.

Decided once, for every mechanism, and tested:

| question | answer |
| --- | --- |
| mask | True = may attend; additive terms go to `bias` |
| bias | an array [*B, N, T, S], or a value of `attnlab.biases`: one of distances keeps T + S \
numbers a head; LSH and the kernels take none |
| causal with T ≠ S | top-left aligned as in `jax.nn`; `q_offset` for decoding |
| positions | windows, rotary positions and biases of the distance begin where the mask's \
`q_offset` says that the queries do |
| a query that may attend to nothing | output zero, gradient zero |
| values at masked positions | no finite value there changes any output or gradient, as long as a \
projection inside the score (`general`, `concat`) does not overflow; additive and concat scores \
keep it up to rounding where a query and a masked key are both beyond ±33 |
| grouped heads | query head n uses key/value head n // (N/K) |
| softmax and sums | at least float32; the result in the dtype of the input |
| dropout | on the weights, per element, the same weights whatever the implementation; within \
Flax's modules also one pattern for all examples and heads |
| randomness | explicit keys only; hashing has its own, so evaluation is deterministic |
| sizes | any T, S, chunk size and width from 1 on; an empty batch gives empty arrays |
| meshes | under `jit`, `attnlab.over(mesh, batch=…, heads=…, length=…)` divides the rows; inside \
`jax.shard_map` with its defaults; Explicit axes divide examples and heads by themselves |
| `implementation=` | named: used or refused, never replaced; None: the fastest exact one here |

| `implementation=` | how | serves |
| --- | --- | --- |
| `"dense"` | all logits at once, the textbook | everything |
| `"blockwise"` | online softmax over blocks, own backward | everything |
| `"cudnn"` | NVIDIA's flash attention by `jax.nn` | GPU: dot, half precision; causal, padding, a \
window of the past |
| `"splash"` | JAX's flash attention for TPU | TPU: dot, bfloat16; causal, window, segments |
| `"tokamax"` | the library of that name, if installed | TPU, GPU: dot, half precision; causal, \
window |
| `"pallas"`, `Pallas(block_q=…)` | our kernels: dot and additive over ranges of keys, and LSH | \
TPU, H100, H200; causal, window, padding |
| `None` | where they serve, cuDNN on NVIDIA, then pallas on H100 and H200, and splash on TPU (one \
device, or under `attnlab.over`, for the two last); else dense for at most 32 queries or keys and \
2048 of the others (a decoder's step), blockwise beyond, which for at most 8 queries leaves the \
keys where they are in memory; on a CPU both do so for one dot-product query | everything |

All but dense have a backward pass of their own, and so no forward mode. `jax.jvp` of `jax.grad`
goes through `"blockwise"`, `grad` of `grad` only without a mask. The additive and concat scores
have no forward mode: their second derivatives are `grad` of `grad`, under a mask with `"dense"`.

XLA does not partition the kernels of `"splash"`, `"pallas"` and `"tokamax"`, nor LSH attention:
compiled for several without `attnlab.over`, they are refused, not computed in full on each.
`"blockwise"` on a CPU then is computed in full. `attnlab.platforms.compiling_for` traces for a
device that is not the default one.

The mask says what is causal: with `mask=masks.Causal()` every function, route and module is causal.
Those that have LSH in their name also take `causal=`, a convenience of self-attention: True adds
`masks.Causal()` to the mask, False leaves it to the mask.

| | default of `causal=` | why |
| --- | --- | --- |
| `lsh_attention`, `hash_quality`, `LSHSelfAttention` | True | the Reformer is a language model |
| `lsh_cross_attention` | False | keys of another sequence are neither earlier nor later |
| `routes.LSH`, also in `MultiHeadAttention` | has none | it takes the place of any route, for \
which the mask says it |

Self-attention that decodes (`lsh_decode`, `decode=True`) is always causal.

Determinism. Nothing draws a number without a key, and no sum depends on which thread was first.

| what is equal bit for bit | where |
| --- | --- |
| one compiled program on the same inputs, also in another process | CPUs of one model, and one \
JAX; elsewhere equal up to rounding |
| a training that was stopped or killed, and went on (`training.loop`) | the same, with as many \
devices |
| a training in one process or several | CPU, with as many devices in all |
| the past of LSH attention, whatever the future holds | CPU with AVX-512, float32, `chunk_size` \
≤ 128, `rows_at_once=None`, no kernel; else it moves by some 1e-7 (`lsh_attention`) |
| one example of a batch, whatever the others hold | CPU |

Not equal but up to rounding: other values of `implementation=`, `rows_at_once` and block sizes;
eager calls beside `jit`; `vmap` beside a batch axis; another number of devices, as their sums have
another order (in bfloat16 also unless `XLA_FLAGS=--xla_allow_excess_precision=false`); other
versions of JAX. A CPU with two types of cores breaks the first row (XLA's issue 50022). On GPUs
XLA's autotuner may choose other products in another process, unless XLA_FLAGS has
`--xla_gpu_autotune_level=0`.

How to add a score: a pytree of its parameters with `prepare`, which ends in a product (`Dot`) or a
sum of tanh (`Additive`), or with `logits(q_block, k_block)` instead. Every mask, the engine in
linear memory, its backward pass and the modules then come for free:

>>> import attnlab, jax, jax.numpy as jnp
>>> from attnlab import masks
>>> class Euclidean(attnlab.scores.Score):
...     '''−‖q − k‖² / 2, which is q·k − ‖k‖² / 2 up to a constant of the query.'''
...
...     def prepare(self, q, k, *, precision=None):  # once a position: O(T + S)
...         ones = jnp.ones((*q.shape[:-1], 1), q.dtype)
...         half_square = (k * k).sum(-1, keepdims=True) / 2
...         return (
...             attnlab.scores.Dot(1.0),
...             jnp.concatenate([q, -ones], -1),
...             jnp.concatenate([k, half_square], -1),
...         )
>>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 7, 2, 4))
>>> y = attnlab.attention(Euclidean(), q, k, v, mask=masks.Causal())
>>> distance = ((q[0, -1:, 0] - k[0, :, 0]) ** 2).sum(-1) / 2
>>> bool(jnp.allclose(y[0, -1, 0], jax.nn.softmax(-distance) @ v[0, :, 0], atol=1e-5))
True

How to add a mask: a subclass of `masks.Mask` with `visible(i, j)`, as in `attnlab.masks`. What it
holds is static here; `key_range` would let the engine leave out blocks:

>>> import flax.struct
>>> class Strided(masks.Mask):
...     '''Query i sees keys whose distance is a multiple of `stride` (Child et al. 2019, §4.3).'''
...
...     stride: int = flax.struct.field(pytree_node=False)
...
...     def visible(self, i, j):
...         return (i - j) % self.stride == 0
>>> y = attnlab.attention(attnlab.scores.Dot(), q, k, v, mask=Strided(3) & masks.Causal())
>>> alone = attnlab.attention(attnlab.scores.Dot(), q[:, 6:], k[:, ::3], v[:, ::3])
>>> bool(jnp.allclose(y[:, 6:], alone, atol=1e-6))
True

A new route is a frozen dataclass with what `routes.Route` lists, most simply a subclass of
`routes.Exact`. Add it to the list in `tests/mechanism_cases.py` and the contract tests run on it.
"""
