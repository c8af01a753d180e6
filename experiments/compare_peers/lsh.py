"""Other people's LSH attention, without its projections; the queries are the keys too.

Each implementation hashes in its own way: attnlab and Hugging Face with 2·L/C buckets in two
factors and rotations for each head, reformer-pytorch with L/C buckets in one factor and one
rotation for all heads. Hashing is part of what is timed. Where values are compared, all get the
same buckets.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.bench import inputs
from attnlab.bench.case import Case
from attnlab.bench.mechanisms import Mechanism
from attnlab.ops import lsh
from attnlab.ops.lsh import factorize, hash_buckets, make_rotations
from experiments.compare_peers import pairs

_OPTIONS = {pairs.TRAX: lsh.TRAX, pairs.LUCIDRAINS: lsh.LUCIDRAINS}


def buckets_for(side: pairs.Side) -> np.ndarray:
    """Buckets [1, R, L, N] of the query stream, as many as the side's rule makes."""
    case = side.case
    streams = inputs.streams(inputs.read(), batch=1, length=case.length, width=case.width)
    qk = streams["query"].reshape(1, case.length, case.num_heads, case.head_dim)
    rotations = make_rotations(
        jax.random.key(0),
        num_heads=case.num_heads,
        head_dim=case.head_dim,
        num_hashes=case.attention.number or 1,
        num_buckets=_num_buckets(side.program, case),
    )
    return np.asarray(hash_buckets(jnp.asarray(qk), rotations))


def preset(program: str, case: Case, buckets: np.ndarray) -> Mechanism:
    """attnlab's attention with the preset that computes as a peer does, on given buckets."""
    constant = jnp.asarray(buckets)

    def apply(parameters: Any, qk: jax.Array, v: jax.Array) -> jax.Array:
        del parameters
        return lsh.lsh_attention(
            qk, v, constant, chunk_size=case.chunk_size, options=_OPTIONS[program]
        )

    return Mechanism(lambda key: {}, apply, ("query", "value"), split_heads=True)


def hugging_face(case: Case, buckets: np.ndarray | None) -> Callable[[Any, Any], Any]:
    """`LSHSelfAttention` as a function of qk, v [1, L, N·H], which replace its projections."""
    import torch
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    class Given(torch.nn.Module):
        """A projection whose result is given."""

        def forward(self, _: Any) -> Any:
            return self.result

    config = ReformerConfig(
        attn_layers=["lsh"],
        num_attention_heads=case.num_heads,
        attention_head_size=case.head_dim,
        hidden_size=case.width,
        lsh_attn_chunk_length=case.chunk_size,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0,
        num_hashes=case.attention.number or 1,
        num_buckets=list(factorize(_num_buckets(pairs.HUGGING_FACE, case))),
        is_decoder=case.causal,
        max_position_embeddings=case.length,
        hash_seed=0,
    )
    module = LSHSelfAttention(config)
    module.query_key, module.value = Given(), Given()
    offset = _with_offsets(buckets, _num_buckets(pairs.HUGGING_FACE, case))  # [1, N, R·L]

    def attend(qk: Any, v: Any) -> Any:
        module.query_key.result, module.value.result = qk, v
        return module(qk, buckets=offset).hidden_states

    return attend


def reformer_pytorch(case: Case, buckets: np.ndarray | None) -> Callable[[Any, Any], Any]:
    """`LSHAttention` as a function of qk, v [N, L, H]."""
    from reformer_pytorch import LSHAttention

    module = LSHAttention(
        bucket_size=case.chunk_size, n_hashes=case.attention.number or 1, causal=case.causal
    )
    offset = _with_offsets(buckets, _num_buckets(pairs.REFORMER_PYTORCH, case))
    if offset is not None:
        module.hash_vectors = lambda *_, **__: offset[0]

    return lambda qk, v: module(qk, v)[0]


def _num_buckets(program: str, case: Case) -> int:
    chunks = case.length // case.chunk_size
    return chunks if program in (pairs.REFORMER_PYTORCH, pairs.LUCIDRAINS) else 2 * chunks


def _with_offsets(buckets: np.ndarray | None, num_buckets: int) -> Any:
    """[1, R, L, N] to a tensor [1, N, R·L] in which no two rounds share a number."""
    if buckets is None:
        return None
    import torch

    rounds, length, heads = buckets.shape[1:]
    offsets = np.arange(rounds)[:, None, None] * num_buckets
    flat = np.moveaxis(buckets[0].astype(np.int64) + offsets, 2, 0)
    return torch.from_numpy(flat.reshape(1, heads, rounds * length))
