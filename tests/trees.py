"""Trees of arrays, such as parameters and their gradients, compared."""

import functools

import jax
import numpy as np


def assert_close(got, true, **tolerance):
    """Each array of a tree is that of the other, as `np.testing.assert_allclose` judges."""
    close = functools.partial(np.testing.assert_allclose, **tolerance)
    jax.tree.map(close, got, true)
