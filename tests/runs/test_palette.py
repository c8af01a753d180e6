"""Figures are read by everyone: colors apart in every form of color vision, and dark enough."""

import itertools

import numpy as np
import pytest

from attnlab.runs import palette

# Machado, Oliveira & Fernandes 2009, Table 1, severity 1; on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.072175],
        [0.0193339, 0.119192, 0.9503041],
    ]
)
WHITE = XYZ.sum(1)
LANGUAGE_MODELS = palette.REVERSIBLE | {
    name: palette.MECHANISMS[name] for name in ("exact", "additive", "window", "lsh")
}


def linear(color: str) -> np.ndarray:
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    x = XYZ @ np.clip(rgb, 0, 1) / WHITE
    x, y, z = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast_to_white(color: str) -> float:
    return 1.05 / (XYZ[1] @ linear(color) + 0.05)


@pytest.mark.parametrize("table", ["MECHANISMS", "MODELS", "SERIES", "LANGUAGE_MODELS"])
@pytest.mark.parametrize("vision", VISION)
def test_any_two_lines_look_different(table, vision):
    lines = getattr(palette, table) if table != "LANGUAGE_MODELS" else LANGUAGE_MODELS
    styles = list(lines.values() if isinstance(lines, dict) else lines)
    seen = {color: lab(np.array(VISION[vision]) @ linear(color)) for color, _ in styles}
    assert len(seen) == len({marker for _, marker in styles}) == len(styles)
    apart = {(a, b): np.linalg.norm(seen[a] - seen[b]) for a, b in itertools.combinations(seen, 2)}
    assert min(apart.values()) >= 16, min(apart.items(), key=lambda pair: pair[1])


@pytest.mark.parametrize("table", ["MECHANISMS", "MODELS", "REVERSIBLE"])
def test_lines_are_dark_enough(table):
    for name, (color, _) in getattr(palette, table).items():
        assert contrast_to_white(color) >= 3, name


def test_text_is_dark_enough():
    for color in (palette.INK, palette.MUTED):
        assert contrast_to_white(color) >= 4.5
