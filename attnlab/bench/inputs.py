"""Realistic inputs: the bytes of a text, embedded with positions, as three separate streams.

An input made of one tensor, `attention(x, x, x)`, puts the largest logit on the diagonal and gives
hashing an easy day; random normal queries spread evenly over the buckets, which text does not.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attnlab.data.lines import raw_lines
from attnlab.runs.errors import Invalid

STREAMS = ("query", "key", "value")


@dataclasses.dataclass(frozen=True)
class Text:
    """The bytes of a text, and where they came from."""

    name: str
    data: np.ndarray  # uint8 [bytes]

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the bytes: which input a result belongs to."""
        return hashlib.sha256(self.data.data).hexdigest()

    def windows(self, batch: int, length: int) -> np.ndarray:
        """Consecutive windows [batch, length] of the text, from its beginning again at its end.

        >>> Text("abc", np.frombuffer(b"abc", np.uint8)).windows(2, 2).tobytes()
        b'abca'
        """
        return np.resize(self.data, batch * length).reshape(batch, length)

    def cycles(self, batch: int, length: int) -> bool:
        """Whether `windows` uses a byte twice."""
        return batch * length > self.data.size


def read(paths: str | Sequence[str] | None = None) -> Text:
    """Reads the bytes of a file, or of several one after the other, unpacked if it is one of gzip.

    Args:
      paths: path of a file, or paths of several; without any, the project's own sources and
        README, in sorted order.

    Raises:
      Invalid: a file is missing or empty.
    """
    if not paths:
        package = Path(__file__).resolve().parents[1]
        root = package.parent
        files = sorted(package.rglob("*.py"))
        if (root / "pyproject.toml").exists():  # a checkout rather than an installed package
            files += sorted(root.glob("experiments/**/*.py")) + sorted(root.glob("README.md"))
        return Text("the project's sources", _bytes(b"\n".join(f.read_bytes() for f in files)))
    names = [paths] if isinstance(paths, str) else paths
    return Text(" + ".join(names), _bytes(b"".join(map(_read, names))))


def streams(text: Text, *, batch: int, length: int, width: int) -> dict[str, np.ndarray]:
    """The query, key and value streams [batch, length, width], float32, of unit variance.

    x = E[byte] + P[position], then x W_query, x W_key and x W_value, with E and W drawn from one
    seed: the same text gives the same streams at every length, on every device. On the host, so
    that preparing an input compiles nothing.
    """
    rng = np.random.default_rng(0)
    table = rng.standard_normal((256, width), np.float32)
    weights = rng.standard_normal((len(STREAMS), width, width), np.float32) / (2 * width) ** 0.5
    x = table[text.windows(batch, length)] + 2**0.5 * _sinusoids(length, width)[None]
    return {name: x @ w for name, w in zip(STREAMS, weights, strict=True)}


def _sinusoids(length: int, width: int) -> np.ndarray:
    """Vaswani et al. 2017, 3.5."""
    rate = 10_000.0 ** (-np.arange((width + 1) // 2) * 2 / width)
    angle = np.arange(length)[:, None] * rate[None]
    waves = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, -1)
    return waves[:, :width].astype(np.float32)


def _bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def _read(path: str) -> bytes:
    try:
        data = b"".join(raw_lines(Path(path)))  # packed, it would be noise
    except Invalid as error:
        raise Invalid(f"--input={error}") from None
    if not data:
        raise Invalid(f"--input={path}: the file is empty; give a file of text")
    return data
