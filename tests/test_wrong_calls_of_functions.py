"""Wrong calls of functions and values: each is refused in a line with the rule and the remedy."""

import collections

import jax.numpy as jnp
import numpy as np
import pytest

from attnlab import (
    LSHOptions,
    local_attention,
    lsh_attention,
    masks,
    positions,
    routes,
    scores,
)
from attnlab.devices.platforms import compiling_for
from attnlab.models import bert, reformer
from attnlab.models.hugging_face import Weights
from attnlab.training.bleu import corpus_bleu
from attnlab.training.classes import ClassCrossEntropy
from attnlab.training.masked import MaskedCrossEntropy
from attnlab.training.objective import BitsPerByte, TokenCrossEntropy, token_sums

TOKENS = np.ones((2, 5), bool)
X = np.ones((2, 5, 3, 4), np.float32)  # B, T, N, H
BUCKETS = np.zeros((2, 1, 5, 3), int)
F8 = jnp.asarray(X, jnp.float8_e4m3fn)
ZERO = collections.defaultdict(float)


def by(score=None, x=X, *, via=None, **options):
    return (via or routes.AllPairs())(score or scores.Dot(), x, x, x, **options)


def look(mask):
    return by(mask=mask)


def local(**options):
    return local_attention(X, X, X, np.zeros((2, 5)), **options)


def dense_of(shape):
    weights = {"a.weight": np.ones(shape), "a.bias": np.ones(4)}
    return Weights(weights, "Model", "", np.float32).dense("a", (6,), (2, 2))


# Name, call, error, words of its message.
WRONG = [
    ("mask and mask", lambda: masks.Causal() and masks.Padding(3), TypeError, "true nor false.* &"),
    ("not mask", lambda: not masks.Causal(), TypeError, "true nor false; write a & b"),
    ("mask | mask", lambda: masks.Causal() | masks.Padding(3), TypeError, r"as_array\(T, S\)"),
    ("array | mask", lambda: TOKENS | masks.Causal(), TypeError, r"combine with & alone.*as_array"),
    ("~mask", lambda: ~masks.Causal(), TypeError, r"~mask\.as_array\(T, S\)"),
    ("mask & True", lambda: masks.Causal() & True, TypeError, "mask or a boolean array; got True"),
    ("1 & mask", lambda: 1 & masks.Causal(), TypeError, "mask or a boolean array; got 1"),
    ("masks.Window(8)", lambda: masks.Window(8), ValueError, r"got Window\(8\): .* Window\(8, 8\)"),
    ("routes.Window(8)", lambda: routes.Window(8), ValueError, r"got Window\(8\): .* Window\(8, "),
    (
        "routes.Window of all",
        lambda: routes.Window(None, 0),
        ValueError,
        r"AllPairs\(\), and masks",
    ),
    (
        "much smoothing",
        lambda: TokenCrossEntropy(1.5),
        ValueError,
        r"smoothing .*\[0, 1\]; got 1.5",
    ),
    ("minus smoothing", lambda: TokenCrossEntropy(-1), ValueError, r"smoothing .*\[0, 1\]; got -1"),
    ("smoothed sums", lambda: token_sums(X, BUCKETS, label_smoothing=2), ValueError, r"got 2\.0"),
    ("union", lambda: LSHOptions(union="yes"), ValueError, "union .*True, False; got 'yes'"),
    ("logit_scale", lambda: LSHOptions(logit_scale=np.nan), ValueError, "finite number; got nan"),
    ("causal", lambda: lsh_attention(X, X, BUCKETS, causal="no"), ValueError, "causal .*got 'no'"),
    ("Dot", lambda: scores.Dot(np.inf), ValueError, r"Dot\.scale .* one finite number; got inf"),
    ("platform", lambda: compiling_for("x").__enter__(), ValueError, "a Platform, such.*got 'x'"),
    ("centers", lambda: local_attention(X, X, X, TOKENS), ValueError, "centers .*got booleans"),
    ("rotary", lambda: positions.rotary(X, TOKENS), ValueError, "positions .*got booleans"),
    ("sinusoids", lambda: positions.sinusoids(None, 4), ValueError, "positions .*rs; got None"),
    ("Padding", lambda: look(masks.Padding(None)), ValueError, r"Padding\.kv_lengths .*; got None"),
    ("Causal", lambda: look(masks.Causal(None)), ValueError, r"Causal\.q_offset .*; got None"),
    ("Segments", lambda: look(masks.Segments(None)), ValueError, r"Segments\.q_ids .*; got None"),
    ("Cosine", lambda: by(scores.Cosine("1")), ValueError, r"Cosine\.scale .*numbers; got '1'"),
    ("Cosine()", lambda: by(scores.Cosine(None)), ValueError, r"Cosine\.scale .*rs; got None"),
    ("General", lambda: by(scores.General("w")), ValueError, r"General\.w .*numbers; got 'w'"),
    ("seed", lambda: routes.LSH(seed="a"), ValueError, r"seed must be an int in .*; got 'a'"),
    ("float8", lambda: by(x=F8), ValueError, "q .*16 bits or more; got float8_e4m3fn"),
    ("float8 bias", lambda: by(bias=F8[0, :3, :1]), ValueError, "bias .*16 bits or more.*float8"),
    (
        "float8, hashed",
        lambda: by(x=F8, via=routes.LSH()),
        ValueError,
        "got float8.*16 bits or more",
    ),
    ("float8, LSH", lambda: lsh_attention(F8, F8, BUCKETS), ValueError, "got float8.*16 bits"),
    ("BERT", lambda: bert.from_hugging_face({}, {}), ValueError, r"have 'hidden_act'.*got \[\]"),
    ("Reformer", lambda: reformer.from_hugging_face({}, {}), ValueError, "have 'hidden_act'"),
    ("turned", lambda: dense_of((6, 4)), ValueError, r"'a.weight' \(6, 4\), not \[4, 6\]"),
    ("flat", lambda: dense_of((24,)), ValueError, r"'a.weight' \(24,\), not \[4, 6\]"),
    ("local", lambda: local(mask=TOKENS), ValueError, r"got \(2, 5\) \(real.*masks\.from_padding"),
    ("BLEU", lambda: corpus_bleu([None], ["a"]), ValueError, "hypotheses .*strings; got None"),
    ("BLEU of 3", lambda: corpus_bleu(["a"], [3]), ValueError, "references .*strings; got 3"),
    ("means", lambda: TokenCrossEntropy().means(ZERO, ZERO), ValueError, "over tokens; got none"),
    ("of bytes", lambda: BitsPerByte().means(ZERO, ZERO), ValueError, "over bytes; got none"),
    ("of labels", lambda: ClassCrossEntropy().means(ZERO, ZERO), ValueError, "labels; got none"),
    ("masked", lambda: MaskedCrossEntropy().means(ZERO, ZERO), ValueError, "masked; got none"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_a_wrong_call_is_refused(call, error, words):
    with pytest.raises(error, match=words) as raised:
        call()
    assert type(raised.value) is error and "\n" not in str(raised.value)
