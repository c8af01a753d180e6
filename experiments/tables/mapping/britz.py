"""Rows of Britz et al. 2017: fields of `Britz`, of what is counted and of what is trained alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["CELLS", "DEPTHS", "DIRECTIONS"]

Rows = Mapping[str, Mapping[str, Any]]  # by name; {} is the paper's baseline

_INPUT = {"input_transform": True}  # in Dec-4-Res and Dec-4-ResD, by their numbers of parameters

CELLS: Rows = {
    "LSTM": {"encoder_cell": "lstm", "decoder_cell": "lstm"},
    "GRU": {},
    "Vanilla-Dec": {"decoder_cell": "tanh"},
}
DEPTHS: Rows = {
    "Enc-2": {},
    "Enc-4": {"encoder_layers": 2},
    "Enc-8": {"encoder_layers": 4},
    "Enc-8-Res": {"encoder_layers": 4, "encoder_residual": "add"},
    "Enc-8-ResD": {"encoder_layers": 4, "encoder_residual": "dense"},
    "Dec-1": {"decoder_layers": 1},
    "Dec-2": {},
    "Dec-4": {"decoder_layers": 4},
    "Dec-4-Res": {"decoder_layers": 4, "decoder_residual": "add", **_INPUT},
    "Dec-4-ResD": {"decoder_layers": 4, "decoder_residual": "dense", **_INPUT},
    "Dec-8": {"decoder_layers": 8},
    "Dec-8-Res": {"decoder_layers": 8, "decoder_residual": "add"},
    "Dec-8-ResD": {"decoder_layers": 8, "decoder_residual": "dense"},
}
DIRECTIONS: Rows = {
    "Bidi-2": {},
    "Uni-1": {"direction": "forward"},
    "Uni-1R": {"direction": "backward"},
    "Uni-2": {"direction": "forward", "encoder_layers": 2},
    "Uni-2R": {"direction": "backward", "encoder_layers": 2},
    "Uni-4": {"direction": "forward", "encoder_layers": 4},
    "Uni-4R": {"direction": "backward", "encoder_layers": 4},
}
