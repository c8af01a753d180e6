"""Settings of `check`."""

import contextlib
import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.mechanisms import own
from attnlab.runs import provenance
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, seed_flag
from attnlab.testing import (
    CONTRACTS,
    MODEL_CONTRACTS,
    Model,
    as_model,
    needs_host,
    subject_of,
)
from attnlab.testing.model import LONGEST
from experiments.check.public import VOCAB_SIZE

_CONTRACTS = (*CONTRACTS, *MODEL_CONTRACTS)
PUBLIC = tomllib.loads((Path(__file__).parent / "public.toml").read_text())["subject"]


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """The flags of `check`."""

    mechanisms: tuple[str, ...] = flag(
        (),
        f"What to check, also without the flag's name: {own.FORM}, in JAX, torch or NumPy; an"
        " attention of attnlab; or, with --vocab_size, a model.",
        repeated=True,
    )
    vocab_size: int | None = flag(
        None,
        "Number of tokens of a model, a function of tokens [B, T] that returns logits"
        " [B, T, vocab_size].",
        least=2,
    )
    length: int = flag(
        LONGEST, "Largest number of tokens that a model is given.", least=2, needs="vocab_size"
    )
    decode: str | None = flag(
        None,
        "Name of a function (cache, tokens [B, n]) that returns logits [B, n, vocab_size] and the"
        " next cache.",
        needs=("vocab_size", "initial"),
    )
    initial: str | None = flag(
        None, "Name of a function (batch, length) that returns an empty cache.", needs="decode"
    )
    contracts: tuple[str, ...] = flag(
        _CONTRACTS,
        "Contracts to hold it to, as far as they are of its kind.",
        choices=_CONTRACTS,
    )
    public: bool = flag(
        False,
        "Whether to check the public attentions and models of public.toml, as far as they are"
        " installed.",
        not_with="vocab_size",
    )
    seed: int = seed_flag("Seed of the arrays, or of the tokens.")
    json: bool = flag(
        False, "Whether standard output has the verdicts alone, as JSON; all else is on the other."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mechanisms:
            raise Invalid(
                "give what to check: launch/local check mine.py:Decay, or"
                " model.py:logits --vocab_size=256"
            )
        others = set(self.mechanisms) - {x["call"] for x in PUBLIC}
        if self.public and others:
            raise Invalid(f"--public has a list of its own; leave {', '.join(others)} out")
        for name in self.mechanisms:
            if not self.is_model(name):
                subject_of(name)

    @classmethod
    def implied(cls, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those of public.toml."""
        return {"mechanisms": tuple(x["call"] for x in PUBLIC)} if named.get("public") else {}

    def is_here(self, name: str) -> bool:
        """Whether what it is of is installed, as far as it is said."""
        packages = [x["package"] for x in PUBLIC if self.public and x["call"] == name]
        return "not installed" not in map(provenance.version, packages)

    def is_model(self, name: str) -> bool:
        """Whether it is a model, or an attention of another framework as the layer of one."""
        if self.public or self.vocab_size is not None:
            return True
        with contextlib.suppress(Invalid):  # as of a class that wants the fields of a layer
            return own.is_own(name) and needs_host(own.find(name))
        return False

    def make_model(self, name: str) -> Model:
        """The model of a name.

        Raises:
          Invalid: it is no model; one line.
        """
        vocab_size = self.vocab_size
        if any(x["call"] == name for x in PUBLIC if self.public and x.get("model")):
            vocab_size = VOCAB_SIZE
        about = {"decode": self.decode, "initial": self.initial}
        return as_model(name, vocab_size=vocab_size, length=self.length, **about)
