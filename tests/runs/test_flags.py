"""Settings whose fields are flags: what each may be, and the way to JSON and back."""

import dataclasses

import pytest

from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, seed_flag


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """One flag of each kind."""

    once = True

    lengths: tuple[int, ...] = flag((1, 2), "Lengths.", least=1)
    names: tuple[str, ...] = flag(("a",), "Names.", choices=("a", "b"))
    files: tuple[str, ...] = flag((), "Files.")
    offsets: tuple[int, ...] = flag((), "Offsets.", twice=True)
    rate: float = flag(0.5, "Rate.", above=0, below=1)
    devices: int | None = flag(None, "Devices.", least=1, most=8)
    dtype: str | None = flag(None, "Type.", choices=("float32", "bfloat16"))
    causal: bool = flag(True, "Causal.")
    seed: int = seed_flag("Seed.")


def test_what_may_be_is_taken():
    Settings(files=(), offsets=(1, 1), devices=None, dtype=None, seed=2**31 - 1, rate=0.999)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"color": "red"}, "settings of another experiment or version, with color; give a folder"),
        ({"lengths": 5}, "settings that cannot be read: lengths; start a new run"),
        ({"rate": "fast"}, "settings that cannot be read: '>' not supported"),
        ({"rate": 2.0}, "--rate=2 is too large"),
    ],
)
def test_settings_of_another_version_are_refused(change, message):
    with pytest.raises(Invalid, match=message):
        Settings.from_json(Settings().as_json() | change)
