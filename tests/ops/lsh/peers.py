"""Hugging Face's LSH attention, with the buckets given."""

import numpy as np
import torch
import transformers
from transformers.models.reformer import modeling_reformer

from tests.ops.lsh.plain import CHUNK


class Given(torch.nn.Module):
    """Stands for a projection whose result is known."""

    def __init__(self, x):
        super().__init__()
        self.x = torch.from_numpy(x.reshape(*x.shape[:2], -1))

    def forward(self, _):
        return self.x


def hugging_face_module(qk, v, *, rounds, causal, num_buckets=8):
    num_heads, width = qk.shape[2:]
    config = transformers.ReformerConfig(
        attn_layers=["lsh"],
        num_attention_heads=num_heads,
        attention_head_size=width,
        hidden_size=num_heads * width,
        lsh_attn_chunk_length=CHUNK,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0,
        num_hashes=rounds,
        num_buckets=num_buckets,
        is_decoder=causal,
        hash_seed=0,
    )
    module = modeling_reformer.LSHSelfAttention(config).double().eval()
    module.query_key, module.value = Given(qk), Given(v)
    return module


def hugging_face(qk, v, buckets, *, causal, valid=None):
    module = hugging_face_module(qk, v, rounds=buckets.shape[1], causal=causal)
    mask = None if valid is None else torch.from_numpy(valid)
    if valid is not None:  # padding has a bucket of its own, the last
        buckets = np.where(valid[:, None, :, None], buckets, buckets.max() + 1)
    offset = buckets + np.arange(buckets.shape[1])[:, None, None] * (buckets.max() + 1)
    batch, _, num_heads, _ = qk.shape
    flat = torch.from_numpy(
        np.moveaxis(offset, 3, 1).reshape(batch, num_heads, -1).astype(np.int64)
    )
    out = module(module.value.x, buckets=flat, attention_mask=mask).hidden_states
    return out.detach().numpy().reshape(v.shape)
