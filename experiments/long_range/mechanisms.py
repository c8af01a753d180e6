"""The mechanisms by name, as self-attention of an encoder."""

from __future__ import annotations

import re

from attnlab import AdditiveScore, ConcatScore, CosineScore, GeneralScore, MultiHeadAttention
from attnlab.models.transformer import TransformerConfig
from attnlab.ops import routes
from attnlab.runs.errors import Invalid

__all__ = ["attention", "of_paper", "require_mechanism", "streams"]

_SIZED = re.compile(r"(window|lsh)-([1-9]\d*)")
_SCORES = {
    "additive": AdditiveScore,
    "concat": ConcatScore,
    "cosine": CosineScore,
    "general": GeneralScore,
}
_PLAIN = ("full", *_SCORES, "hard")
_PAPER = {"full": "Transformer", "window": "Local Attention", "lsh": "Reformer"}


def require_mechanism(name: str) -> None:
    """Refuses a name that is no mechanism's.

    Raises:
      Invalid: the names there are.
    """
    if name not in _PLAIN and not _SIZED.fullmatch(name):
        raise Invalid(
            f"--mechanisms: no {name!r}; valid: {', '.join(_PLAIN)}, window-R for R tokens on "
            "either side, lsh-R for R hash rounds"
        )


def attention(name: str, config: TransformerConfig, chunk_size: int) -> MultiHeadAttention:
    """The self-attention of a name.

    Args:
      name: name of the mechanism; "hard" takes one key, straight-through.
      config: configuration of the encoder.
      chunk_size: number of slots of LSH that are attended together.
    """
    if name in _SCORES:
        return config.attention(score=_SCORES[name]())
    if name == "hard":
        return config.attention(routes.Hard(straight_through=True), dropout_rate=0.0)
    kind, _, size = name.partition("-")
    if kind == "window":
        return config.attention(routes.Window(int(size), int(size)))
    if kind == "lsh":
        return config.attention(routes.LSH(num_hashes=int(size), chunk_size=chunk_size))
    return config.attention()


def streams(name: str) -> tuple[str, ...]:
    """The random numbers that training draws."""
    more = {"lsh": ("hash",), "hard": ("sample",)}.get(name.partition("-")[0], ())
    return ("dropout", *more)


def of_paper(name: str) -> str | None:
    """The row of Long Range Arena's tables that is nearest; None = it has none."""
    return _PAPER.get(name.partition("-")[0])
