"""A training step of a Reformer, ours and Hugging Face's: forward, backward and Adam's update.

Both are byte models of the same layers: all of LSH with the case's rounds and chunks, ours strictly
causal, reversible, feed-forward networks for 1024 positions at a time, no dropout. Hugging Face's
positions are axial, ours sinusoids, which is a difference of some thousand parameters.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from attnlab.bench import inputs, training_programs
from attnlab.bench.case import Case
from attnlab.ops.lsh import default_num_buckets, factorize
from attnlab.runs import provenance
from attnlab.tokens import NUM_SPECIAL
from attnlab.training.step import TrainState

LEARNING_RATE = 1e-3


def tokens(case: Case) -> np.ndarray:
    """The ids of the first bytes of the text, [1, L]."""
    return inputs.read().windows(1, case.length).astype(np.int32) + NUM_SPECIAL


def ours(case: Case) -> Callable[[], Any]:
    """A call is a step of the state that the call before left."""
    step = training_programs.lower(case, jax.local_devices()[:1]).compile()
    batch = {"tokens": jax.numpy.asarray(tokens(case))}
    state: TrainState = jax.block_until_ready(
        jax.jit(lambda: training_programs.initial_state(case))()
    )

    def call() -> Any:
        nonlocal state
        state, metrics = jax.block_until_ready(step(state, batch))
        return metrics

    return call


def hugging_face(case: Case) -> Callable[[], Any]:
    """The same of `ReformerModelWithLMHead`, in training mode."""
    import torch
    from transformers import ReformerConfig, ReformerModelWithLMHead

    torch.set_num_threads(provenance.cores())  # as many as XLA has
    torch.manual_seed(0)
    config = ReformerConfig(
        attn_layers=["lsh"] * (case.num_layers or 0),
        is_decoder=True,
        num_attention_heads=case.num_heads,
        attention_head_size=case.head_dim,
        hidden_size=case.width,
        feed_forward_size=4 * case.width,
        chunk_size_feed_forward=min(training_programs.FEED_FORWARD_CHUNK, case.length),
        vocab_size=case.vocab_size,
        max_position_embeddings=case.length,
        axial_pos_shape=[64, case.length // 64],
        axial_pos_embds_dim=[case.width // 4, case.width - case.width // 4],
        num_hashes=case.attention.number or 1,
        num_buckets=_buckets(case),
        lsh_attn_chunk_length=case.chunk_size,
        hidden_act="relu",
        hidden_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0,
    )
    model = ReformerModelWithLMHead(config).train()
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    ids = torch.from_numpy(tokens(case).astype(np.int64))

    def call() -> Any:
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return call


def _buckets(case: Case) -> list[int]:
    """As many as ours has, in factors."""
    number = default_num_buckets(case.length, case.chunk_size)
    return list(factorize(number) if isinstance(number, int) else number)
