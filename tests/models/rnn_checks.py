"""What is asked of every recurrent model: one batch of sentences, and decoding it in pieces."""

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.core.tokens import BOS, EOS, shift_right
from tests.trees import assert_close

SOURCE_VOCAB, TARGET_VOCAB = 11, 13
SOURCE_LENGTHS, TARGET_LENGTHS = (5, 2, 1), (4, 5, 3)
TARGETS = 5
IN_PIECES = (1, 2, 2)
EXACT = {"rtol": 1e-11, "atol": 1e-12}


def rows(lengths, vocab, *, width=None, seed=0):
    """Token ids, padded at the end; each row ends with EOS."""
    rng = np.random.default_rng(seed)
    tokens = np.zeros((len(lengths), width or max(lengths)), np.int32)
    for row, length in zip(tokens, lengths, strict=True):
        row[: length - 1] = rng.integers(4, vocab, length - 1)
        row[length - 1] = EOS
    return tokens


def batch(*, source_width=None):
    source = rows(SOURCE_LENGTHS, SOURCE_VOCAB, width=source_width)
    return source, rows(TARGET_LENGTHS, TARGET_VOCAB, seed=1)


def random_params(model, *, seed=0):
    """Large enough that every gate is somewhere between open and shut."""
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *batch()))["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape).astype(x.dtype), shapes)


def sentences(source, target):
    """One at a time, without their padding: (row, source, what the decoder reads)."""
    for b, (s, t) in enumerate(zip(source, target, strict=True)):
        read = [BOS, *t[t != 0][:-1]]
        yield b, list(s[s != 0]), read


def forward(model, params, source, target, *, return_weights=False):
    """Under teacher forcing: the logits, or logits and weights; and the memory of the source."""

    @jax.jit
    def run(params, source, target):
        def both(model):
            memory = model.encode(source)
            read = shift_right(target)
            return model.decode(memory, read, return_weights=return_weights), memory

        return model.apply({"params": params}, method=both)

    return run(params, source, target)


def decode(model, params, memory, target, splits, *, return_weights=False):
    """The same from the cache, the target in pieces of the given sizes."""
    read = shift_right(jnp.asarray(target))

    @jax.jit
    def step(variables, memory, piece):
        return model.apply(
            variables,
            memory,
            piece,
            decode=True,
            return_weights=return_weights,
            mutable=["cache", "static"],
            method="decode",
        )

    state, outputs, start = {}, [], 0
    for size in splits:
        out, new = step({"params": params, **state}, memory, read[:, start : start + size])
        state |= new
        outputs.append(out)
        start += size
    assert start == read.shape[1]
    return jax.tree.map(lambda *x: np.concatenate(x, 1), *outputs)


def assert_is(oracle, model, *settings, in_pieces=True):
    """Each sentence alone, by the oracle, gives its logits and weights; so do pieces of the target.

    Returns the weights, None of a model without attention. `settings` are names of those attributes
    of the model that the oracle is told.
    """
    source, target = batch(source_width=6)
    params, options = random_params(model), {name: getattr(model, name) for name in settings}
    found, memory = forward(model, params, source, target, return_weights=model.attends)
    logits, weights = found if model.attends else (found, None)
    for b, s, read in sentences(source, target):
        true, alignment = oracle(params, s, read, **options)
        np.testing.assert_allclose(logits[b, : len(read)], true, **EXACT)
        if weights is not None:
            np.testing.assert_allclose(weights[b, : len(read), : len(s)], alignment, **EXACT)
            assert not weights[b, :, len(s) :].any()
    if in_pieces:
        again = decode(model, params, memory, target, IN_PIECES, return_weights=model.attends)
        assert_close(again, found, **EXACT)
    return weights


def assert_drops(model):
    """Under two keys the model trains to different logits, float32 and finite."""
    params, (source, target) = random_params(model), batch()

    @jax.jit
    def train(key):
        rngs = {"dropout": key}
        return model.apply({"params": params}, source, target, deterministic=False, rngs=rngs)

    one, two = (train(key) for key in jax.random.split(jax.random.key(0), 2))
    assert one.dtype == jnp.float32
    assert np.isfinite(one).all() and np.isfinite(two).all()
    assert abs(one - two).max() > 0.01


def count(model):
    """Parameters, from shapes alone."""
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *batch()))
    return sum(int(np.prod(x.shape)) for x in jax.tree.leaves(shapes["params"]))
