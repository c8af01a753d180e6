"""The oracle's handwritten gradients against central differences, and its known values."""

import ast
from pathlib import Path

import numpy as np
import pytest

from attnlab.testing import Sizes
from tests import oracle, oracle_lsh
from tests.mechanism_cases import SCORES

SIZES = Sizes(batch=2, queries=2, keys=3, num_kv_heads=1, width=3, value_width=2, hidden=4)
STEP = 1e-5


def differences(function, x):
    """The gradient of `function` at x, an entry at a time."""
    grad = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = STEP
        grad[index] = (function(x + step) - function(x - step)) / (2 * STEP)
    return grad


@pytest.mark.parametrize("per_head", [True, False], ids=["per_head", "shared"])
@pytest.mark.parametrize("case", SCORES, ids=lambda case: case.name)
def test_gradients(case, per_head):
    rng = np.random.default_rng(0)
    parameters = case.parameters(rng, SIZES, per_head=per_head)
    arguments = [*case.qkv(rng, SIZES), *parameters]
    bias, factor = rng.normal(size=(2, 1, 3)), rng.uniform(0.5, 1, size=(2, 1, 2, 3))
    mask = np.ones((2, 1, 2, 3), bool)
    mask[0, 0, 0, 1:] = mask[1, 0, 1] = False  # one row sees one key, one sees none
    dcontext = rng.normal(size=(2, 2, 2, 2))

    def attend(*arguments):
        q, k, v, *parameters, bias, factor = arguments
        return oracle.attention(
            case.equation, q, k, v, parameters, mask=mask, bias=bias, factor=factor
        )

    arguments += [bias, factor]
    grads = attend(*arguments).pull_back(dcontext)
    found = (grads.q, grads.k, grads.v, *grads.parameters, grads.bias, grads.factor)
    for i, (grad, x) in enumerate(zip(found, arguments, strict=True)):

        def loss(moved, i=i):
            return (attend(*arguments[:i], moved, *arguments[i + 1 :]).context * dcontext).sum()

        np.testing.assert_allclose(grad, differences(loss, x), atol=1e-8, err_msg=str(i))


def test_local_centers_gradient():
    rng = np.random.default_rng(1)
    q, k, v = SCORES[0].qkv(rng, SIZES)
    centers = rng.uniform(0.1, 1.9, (2, 2))
    dcontext = rng.normal(size=(2, 2, 2, 2))

    def attend(centers):
        return oracle.local_attention(
            oracle.dot, q, k, v, centers, 2, gaussian=True, lengths=[3, 2]
        )

    found, of_centers = attend(centers)
    grad = of_centers(found.pull_back(dcontext).factor)
    loss = lambda moved: (attend(moved)[0].context * dcontext).sum()  # noqa: E731
    np.testing.assert_allclose(grad, differences(loss, centers), atol=1e-8)


def test_equal_keys_are_averaged_over_what_is_visible():
    q, k = np.ones((1, 2, 1, 3)), np.ones((1, 4, 1, 3))
    v = np.arange(4.0).reshape(1, 4, 1, 1)
    mask = np.array([[True, False, True, True], [False] * 4])
    found = oracle.attention(oracle.dot, q, k, v, mask=mask)
    np.testing.assert_allclose(found.context.ravel(), [(0 + 2 + 3) / 3, 0])


def test_masks_are_as_drawn():
    drawn = {
        "x..|xx.|xxx": oracle.causal(3, 3),
        ".x.|..x|...": oracle.window(3, 3, 0, 0, offset=1),
        "xx.|xxx|.xx": oracle.window(3, 3, 1, 1),
        "xx.|xx.|...": oracle.padding(3, 3, 2, 2),
        "x..|.xx|.xx": oracle.segments([0, 1, 1], [0, 1, 1]),
    }
    for picture, mask in drawn.items():
        assert "|".join("".join("x" if see else "." for see in row) for row in mask) == picture


@pytest.mark.parametrize("module", [oracle, oracle_lsh])
def test_the_oracle_shares_no_code(module):
    tree = ast.parse(Path(module.__file__).read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    assert names <= {"collections.abc", "math", "ml_dtypes", "numpy", "typing"}
