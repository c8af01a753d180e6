"""Models and attentions that others published, with random weights, as `check --public` calls them.

Each is a function of tokens [B, T] with a vocabulary of 32, or an attention of q, k, v.
"""

import importlib
import math
import os
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

import attnlab

VOCAB_SIZE = 32


class HuggingFace:
    """A causal model of transformers.

    Args:
      model_type: type of its configuration, such as "mistral".
      **config: other fields of the configuration.
    """

    def __init__(self, model_type: str, /, **config: Any) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(0)
        made = AutoConfig.for_model(model_type, vocab_size=VOCAB_SIZE, pad_token_id=0, **config)
        self.model = AutoModelForCausalLM.from_config(made).eval()
        if model_type == "reformer":  # whose cache has a form of its own
            self.decode = self.initial = None  # type: ignore[method-assign, assignment]

    def __call__(self, tokens: Any, attention_mask: Any = None) -> Any:
        """Logits [B, T, V]."""
        mask = None if attention_mask is None else attention_mask.long()
        return self.model(tokens, attention_mask=mask).logits

    def initial(self, batch: int, length: int) -> None:
        """An empty cache, which grows."""

    def decode(self, cache: Any, tokens: Any) -> tuple[Any, Any]:
        """Logits of some more tokens, and the cache."""
        result = self.model(tokens, past_key_values=cache, use_cache=True)
        return result.logits, result.past_key_values


class LucidrainsReformer:
    """reformer-pytorch's model of language, of whole buckets, with the same hashes each time."""

    def __init__(self, **options: Any) -> None:
        import torch
        from reformer_pytorch import ReformerLM

        torch.manual_seed(0)
        self.model = ReformerLM(VOCAB_SIZE, causal=True, **options).eval()

    def __call__(self, tokens: Any) -> Any:
        """Logits [B, T, V]."""
        import torch

        torch.manual_seed(0)
        padded = torch.nn.functional.pad(tokens, (0, -tokens.shape[1] % 32))
        return self.model(padded)[:, : tokens.shape[1]]


class XTransformers:
    """x-transformers' decoder, as it is by default."""

    def __init__(self) -> None:
        import torch

        torch.manual_seed(0)
        package = importlib.import_module("x_transformers")
        layers = package.Decoder(dim=32, depth=1, heads=4)
        sizes = {"num_tokens": VOCAB_SIZE, "max_seq_len": 129}
        self.model = package.TransformerWrapper(**sizes, attn_layers=layers).eval()

    def __call__(self, tokens: Any, mask: Any = None) -> Any:
        """Logits [B, T, V]."""
        return self.model(tokens, mask=mask)


class Linen:
    """A module of attention of Flax Linen between an embedding and its transpose.

    Args:
      name: name of the class in flax.linen, or "attnlab".
    """

    def __init__(self, name: str) -> None:
        is_ours = name == "attnlab"
        kind: Any = attnlab.MultiHeadAttention if is_ours else getattr(nn, name)
        self.module = kind(num_heads=4)
        self.decoding = self.module if is_ours else kind(num_heads=4, decode=True)
        self.options = {"decode": True} if is_ours else {}
        self.table = _draw_table()
        self.parameters = self.module.init(jax.random.key(0), self.table[None])["params"]

    def __call__(self, tokens: Any, mask: Any = None) -> Any:
        """Logits [B, T, V]."""
        variables = {"params": self.parameters}
        y = self.module.apply(variables, self.table[tokens], mask=_make_mask(tokens, mask))
        return y @ self.table.T

    def initial(self, batch: int, length: int) -> Any:
        """An empty cache."""
        x = jnp.zeros((batch, length, 32))
        return self.decoding.init(jax.random.key(0), x, **self.options)["cache"]

    def decode(self, cache: Any, tokens: Any) -> tuple[Any, Any]:
        """Logits of some more tokens, and the cache."""
        variables, x = {"params": self.parameters, "cache": cache}, self.table[tokens]
        y, changed = self.decoding.apply(variables, x, mutable=["cache"], **self.options)
        return y @ self.table.T, changed["cache"]


class Nnx:
    """`flax.nnx.MultiHeadAttention` between an embedding and its transpose."""

    def __init__(self) -> None:
        from flax import nnx

        self.module = nnx.MultiHeadAttention(4, 32, decode=False, rngs=nnx.Rngs(0))
        self.table = _draw_table()

    def __call__(self, tokens: Any, mask: Any = None) -> Any:
        """Logits [B, T, V]."""
        return self.module(self.table[tokens], mask=_make_mask(tokens, mask)) @ self.table.T

    def initial(self, batch: int, length: int) -> Any:
        """A module with an empty cache."""
        from flax import nnx

        made = nnx.clone(self.module)
        made.init_cache((batch, length, 32))
        return made

    def decode(self, cache: Any, tokens: Any) -> tuple[Any, Any]:
        """Logits of some more tokens, and the module with its cache."""
        return cache(self.table[tokens], decode=True) @ self.table.T, cache


def _draw_table() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (VOCAB_SIZE, 32))


def _make_mask(tokens: Any, mask: Any) -> Any:
    visible = True if mask is None else mask[:, None, None]
    return nn.make_causal_mask(tokens, dtype=bool) & visible


class Keras:
    """A layer of attention of Keras that is told to hide the future.

    Args:
      name: name of the class in keras.layers.
      scores: whether it is asked for its weights too.
      **options: options of the layer.
    """

    def __init__(self, name: str, *, scores: bool = False, **options: Any) -> None:
        os.environ.setdefault("KERAS_BACKEND", "jax")  # read when keras is first imported
        import keras

        self.layer = getattr(keras.layers, name)(**options)
        self.keywords = {"use_causal_mask": True, "return_attention_scores": scores}
        self.by_name = name == "MultiHeadAttention"

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        """The context of q, k and v [B, T, N, H]."""
        flat = [x.reshape(*x.shape[:2], math.prod(x.shape[2:])) for x in (q, v, k)]
        inputs: Any = flat if self.by_name else [flat]
        result = self.layer(*inputs, **self.keywords)
        context = result[0] if isinstance(result, tuple) else result
        return context.reshape(q.shape)


def flex_attention(q: Any, k: Any, v: Any, *, causal: bool = True) -> Any:
    """torch's FlexAttention of arrays [B, N, T, H] with a block mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length = q.shape[2]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cpu")
    return flex_attention(q, k, v, block_mask=mask if causal else None)


def scaled_dot_product_attention(q: Any, k: Any, v: Any, *, attn_mask: Any = None) -> Any:
    """torch's, which is given a mask of booleans."""
    from torch.nn import functional

    return functional.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)


def tokamax(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
    """tokamax's, with the implementation that it takes by itself."""
    import tokamax

    return tokamax.dot_product_attention(q, k, v, is_causal=is_causal)
