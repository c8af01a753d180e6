"""A Transformer of 12 numbers a token, for the tests."""

import dataclasses

import numpy as np

from attnlab import routes
from attnlab.models.transformer import Transformer, TransformerConfig

V, D, N = 13, 12, 2
TINY = TransformerConfig(
    V, num_layers=N, width=D, hidden=17, num_heads=3, key_width=2, value_width=5, max_length=11
)
DENSE = routes.AllPairs("dense")  # compiles fastest
SOURCE = np.array([[5, 6, 7, 8, 9, 2, 0], [9, 4, 4, 2, 0, 0, 0]])
TARGET = np.array([[8, 4, 7, 11, 2], [12, 6, 2, 0, 0]])


def tiny(kind=Transformer, **changed):
    config = dataclasses.replace(TINY, **changed)
    options = (
        {"cross_attention": config.cross_attention(route=DENSE)} if kind is Transformer else {}
    )
    return kind(config, attention=config.attention(DENSE), **options)
