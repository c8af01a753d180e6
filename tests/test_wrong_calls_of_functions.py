"""Wrong calls of functions and values: each is refused in a line with the rule and the remedy."""

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
from attnlab.platforms import compiling_for
from attnlab.training.objective import TokenCrossEntropy, token_sums

TOKENS = np.ones((2, 5), bool)
X = np.ones((2, 5, 3, 4), np.float32)  # B, T, N, H
BUCKETS = np.zeros((2, 1, 5, 3), int)

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
    ("strict", lambda: LSHOptions(strict="yes"), ValueError, "strict .*True, False; got 'yes'"),
    ("wrap", lambda: LSHOptions(wrap="no"), ValueError, "wrap .*True, False; got 'no'"),
    ("logit_scale", lambda: LSHOptions(logit_scale=np.nan), ValueError, "one number; got nan"),
    ("causal", lambda: lsh_attention(X, X, BUCKETS, causal="no"), ValueError, "causal .*got 'no'"),
    ("Dot", lambda: scores.Dot(np.inf), ValueError, r"Dot\.scale must be one number; got inf"),
    ("platform", lambda: compiling_for("x").__enter__(), ValueError, "a Platform, such.*got 'x'"),
    ("centers", lambda: local_attention(X, X, X, TOKENS), ValueError, "centers .*got booleans"),
    ("rotary", lambda: positions.rotary(X, TOKENS), ValueError, "positions .*got booleans"),
    ("sinusoids", lambda: positions.sinusoids(None, 4), ValueError, "positions .*rs; got None"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_a_wrong_call_is_refused(call, error, words):
    with pytest.raises(error, match=words) as raised:
        call()
    assert type(raised.value) is error and "\n" not in str(raised.value)
