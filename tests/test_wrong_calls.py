"""Wrong calls: each is refused in one line that says the rule, what was got, and the remedy."""

import jax
import jax.numpy as jnp
import pytest

from attnlab import (
    AdditiveAttention,
    LocationAttention,
    LSHSelfAttention,
    MultiHeadAttention,
    attention,
    masks,
    positions,
    routes,
    scores,
)

KEY = jax.random.key(0)
X, Q = jnp.ones((2, 7, 6)), jnp.ones((2, 7, 2, 4))


def decode(module, x=X[:, :1], of=None, mutable=("cache",), **options):
    """A step of the module, with the cache of another one where `of` is given."""
    variables = module.init(KEY, X, decode=True)
    if of is not None:
        variables |= {"cache": of.init(KEY, X, decode=True)["cache"]}
    return module.apply(variables, x, decode=True, mutable=list(mutable), **options)


LSH = LSHSelfAttention(2, route=routes.LSH(num_hashes=1, num_buckets=2, chunk_size=4))

# name, call, type of the error, words of its message
WRONG = [
    (
        "decode: smaller batch",
        lambda: decode(MultiHeadAttention(2), X[:1, :1]),
        ValueError,
        r"new keys must be .*\(2, 1, 2, 3\); got \(1, 1, 2, 3\) \(init with decode=True",
    ),
    (
        "decode: larger batch",
        lambda: decode(MultiHeadAttention(2), jnp.ones((3, 1, 6))),
        ValueError,
        r"new keys must be .*; got \(3, 1, 2, 3\)",
    ),
    (
        "decode: no batch",
        lambda: decode(MultiHeadAttention(2), X[0, :1]),
        ValueError,
        r"new keys must be .*; got \(1, 2, 3\)",
    ),
    (
        "decode: another batch of LSH",
        lambda: decode(LSH, X[:1, :1]),
        ValueError,
        r"new keys must be .*; got \(1, 1, 2, 3\)",
    ),
    (
        "decode: cache of other heads",
        lambda: decode(MultiHeadAttention(2), of=MultiHeadAttention(3)),
        ValueError,
        r"new keys must be .*\(2, 1, 3, 2\); got \(2, 1, 2, 3\)",
    ),
    (
        "decode: cache of other values",
        lambda: decode(MultiHeadAttention(2), of=MultiHeadAttention(2, value_features=8)),
        ValueError,
        r"new values must be .*\(2, 1, 2, 4\); got \(2, 1, 2, 3\)",
    ),
    (
        "decode: without mutable",
        lambda: decode(MultiHeadAttention(2), mutable=()),
        ValueError,
        r"decode=True writes the cache; got .*apply with mutable=\[.cache.\]",
    ),
    (
        "MHA(implementation=)",
        lambda: MultiHeadAttention(2, implementation="dense"),
        TypeError,
        r"no keyword implementation; .* route=routes.AllPairs\(implementation=…\)",
    ),
    (
        "MHA(score=a class)",
        lambda: MultiHeadAttention(2, score=scores.Cosine).init(KEY, X),
        ValueError,
        r"score must be a module that makes one, .* or a value of attnlab.scores; .*class Cosine",
    ),
    (
        "dropout_key: wrong size",
        lambda: attention(
            scores.Dot(), Q, Q, Q, dropout_rate=0.5, dropout_key=jnp.zeros(3, jnp.uint32)
        ),
        ValueError,
        r"dropout_key must be one PRNG key; got uint32\(3,\) \(make it with jax.random.key",
    ),
    (
        "dropout_key: two keys",
        lambda: attention(
            scores.Dot(), Q, Q, Q, dropout_rate=0.5, dropout_key=list(jax.random.split(KEY))
        ),
        ValueError,
        "dropout_key must be one PRNG key; got an instance of list",
    ),
    (
        "MHA(num_heads=None)",
        lambda: MultiHeadAttention(None).init(KEY, X),
        ValueError,
        "MultiHeadAttention.num_heads must be an int ≥ 1; got None",
    ),
    (
        "LSHSelfAttention(num_heads=None)",
        lambda: LSHSelfAttention(None).init(KEY, X),
        ValueError,
        "num_heads must be an int ≥ 1; got None",
    ),
    (
        "AdditiveAttention(features=None)",
        lambda: AdditiveAttention(None).init(KEY, X),
        ValueError,
        "AdditiveAttention.features must be an int ≥ 1; got None",
    ),
    (
        "LocationAttention(max_length=None)",
        lambda: LocationAttention(None).init(KEY, X),
        ValueError,
        "LocationAttention.max_length must be an int ≥ 1; got None",
    ),
    (
        "rotary: too few positions",
        lambda: positions.rotary(Q, jnp.arange(3)),
        ValueError,
        r"positions must be \[T\] or \[\*B, T\] .*; got \(3,\) for \(2, 7, 2, 4\)",
    ),
    (
        "rotary: another batch",
        lambda: positions.rotary(Q, jnp.zeros((3, 7))),
        ValueError,
        r"positions must be .*; got \(3, 7\) for \(2, 7, 2, 4\)",
    ),
    (
        "rotary: offsets of another batch",
        lambda: MultiHeadAttention(2, qkv_features=8, rotary=True).init(
            KEY, X, mask=masks.Causal(jnp.arange(3))
        ),
        ValueError,
        r"positions must be .*; got \(3, 7\) for \(2, 7, 2, 4\)",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_is_refused(call, error, words):
    with pytest.raises(error, match=words) as found:
        jax.eval_shape(call)
    assert "\n" not in str(found.value)
