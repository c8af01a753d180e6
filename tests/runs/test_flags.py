"""Settings whose fields are flags: what each may be, and the way to JSON and back."""

import dataclasses
import json

import pytest

from attnlab.runs.errors import Invalid
from attnlab.runs.flags import Flags, flag, seed_flag, structured


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


def test_settings_go_through_json():
    settings = Settings(lengths=(5,), devices=3, files=("x", "y"), dtype="bfloat16")
    assert Settings.from_json(json.loads(json.dumps(settings.as_json()))) == settings


def test_a_flag_that_came_later_has_its_default():
    values = Settings(lengths=(5,), devices=3, rate=0.5).as_json()
    older = {name: x for name, x in values.items() if name not in ("rate", "lengths")}
    assert Settings.later_than(older) == ["lengths", "rate"]
    assert Settings.from_json(older) == Settings(devices=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"color": "red"}, "settings of another version, with color; start a new run"),
        ({"lengths": 5}, "settings that cannot be read: lengths; start a new run"),
        ({"rate": "fast"}, "settings that cannot be read: '>' not supported"),
        ({"rate": 2.0}, "--rate=2 is too large"),
    ],
)
def test_settings_of_another_version_are_refused(change, message):
    with pytest.raises(Invalid, match=message):
        Settings.from_json(Settings().as_json() | change)


def test_settings_of_another_experiment_are_called_that():
    with pytest.raises(Invalid, match="settings of another experiment.*a folder of this one"):
        Settings.from_json({"task": "copy", "seed": 1})
    others = {f"another_{i}": 0 for i in range(len(dataclasses.fields(Settings)))}
    more = f"with another_0, another_1, another_2, {len(others) - 3} more; give a folder"
    with pytest.raises(Invalid, match=f"settings of another experiment, {more}"):
        Settings.from_json(dict(list(Settings().as_json().items())[1:]) | others)


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    near: tuple["Point", ...] = ()
    other: "Point | None" = None


def test_dataclasses_come_back_from_what_json_made_of_them():
    point = Point(1, (Point(2), Point(3)), Point(4, (Point(5),)))
    plain = json.loads(json.dumps(dataclasses.asdict(point) | {"derived": 7}))
    assert structured(Point, plain) == point
    with pytest.raises(TypeError):
        structured(Point, {"near": []})
