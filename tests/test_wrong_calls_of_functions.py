"""Wrong calls of functions and values: each is refused in a line with the rule and the remedy."""

import numpy as np
import pytest

from attnlab import masks, routes

TOKENS = np.ones((2, 5), bool)

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
]


@pytest.mark.parametrize(
    ("call", "error", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_a_wrong_call_is_refused(call, error, words):
    with pytest.raises(error, match=words) as raised:
        call()
    assert type(raised.value) is error and "\n" not in str(raised.value)
