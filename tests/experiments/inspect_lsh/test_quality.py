"""Quality of hashing: plan, a small run from end to end, and refusals."""

import dataclasses
import signal

import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.bench import inputs
from attnlab.ops.lsh import LSHOptions, hash_quality
from attnlab.runs import figure_files
from attnlab.runs.errors import Invalid
from attnlab.training.curve import METRICS
from experiments.inspect_lsh import __main__ as inspect_lsh
from experiments.inspect_lsh import beside, figures, report
from experiments.inspect_lsh import model as byte_model
from experiments.inspect_lsh.beside import Beside
from experiments.inspect_lsh.quality import Line, Quality, measure, rounds_needed
from experiments.inspect_lsh.settings import Settings
from tests.experiments.tiny import rows_of

SMALL = Settings(
    rounds=(1, 3),
    chunk_sizes=(8, 4),
    bucket_factors=(1.0,),
    window_factors=(1.0, 0.25),
    merge=("union",),
    beside=("window-3",),
    length=48,
    num_layers=1,
    num_heads=2,
    head_dim=8,
    train_steps=2,
    top_k=3,
)
BASE = Line(8, 12, 8, "none", "union")


FLAGS = [
    f"--{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
    for name, value in SMALL.as_json().items()
    if value not in ([], None)
]


@pytest.fixture(autouse=True)
def _keep_signal_handlers():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def text(tmp_path):
    """A file of a text, in a folder where runs may go."""
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, that is the question. " * 10)
    return path


def run(text, *flags):
    """The status of a small run over a text, and its folder."""
    parent = text.parent / "results"
    command = ["inspect_lsh", *FLAGS, f"--input={text}", f"--output_dir={parent}", *flags]
    status = inspect_lsh.main(command)
    return status, max(parent.iterdir())


def row(line=BASE, num_hashes=1, mass=0.5, bits=3.5):
    means = dict.fromkeys(report.MEASURES, 0.25)
    means["captured_mass"] = mass
    heads = [[mass, mass - 0.1], [mass, mass]]
    heads = {name: heads for name in ("captured_mass", "top_k_recall", "relative_error")}
    return Quality(line, num_hashes, means, heads, bits)


def test_one_thing_is_varied_at_a_time():
    lines = Settings().lines()
    assert lines[0] == Line(64, 64, 64, "none", "union")
    assert lines[1:3] == [Line(32, 128, 32, "none", "union"), Line(128, 32, 128, "none", "union")]
    assert [line.window for line in lines[5:7]] == [16, 32]
    for line in lines[3:]:
        differs = [
            getattr(line, f.name) != getattr(lines[0], f.name) for f in dataclasses.fields(line)
        ]
        assert sum(differs) == 1
    assert len(lines) == len(set(lines)) == 9


def test_a_text_that_is_too_short_is_one_line_and_status_2(capsys):
    assert inspect_lsh.main(["inspect_lsh", "--length=9000000"]) == 2
    error = capsys.readouterr().err
    assert "--length=9000000 needs 18000001 bytes" in error and error.count("\n") == 1


def test_several_files_are_one_text(text):
    found = inputs.read([str(text), str(text)])
    assert found.name == f"{text} + {text}"
    assert found.data.tobytes() == 2 * text.read_bytes()


@pytest.mark.slow
def test_a_small_run_from_end_to_end(text, capsys):
    status, folder = run(text)
    assert status == 0
    names = ["model", "pairs.svg", "quality.svg"]
    names += ["report.md", "results.jsonl", "settings.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    *rows, window = rows_of(folder)
    assert window["mechanism"] == "window-3" and 0 < window["means"]["captured_mass"] < 1
    assert [(r["line"]["chunk_size"], r["num_hashes"]) for r in rows[:4]] == [
        (8, 1),
        (8, 3),
        (4, 1),
        (4, 3),
    ]
    lines = {tuple(r["line"].values()): {} for r in rows}
    for r in rows:
        lines[tuple(r["line"].values())][r["num_hashes"]] = r["means"]
        assert np.shape(r["per_head"]["captured_mass"]) == (1, 2)
        assert r["flags"]["seed"] == 0 and r["environment"]["input"]["name"] == str(text)
        assert np.isfinite(r["bits"])
    for means in lines.values():
        assert means[1]["captured_mass"] < means[3]["captured_mass"] < 1
        assert means[1]["visible_pairs"] < means[1]["captured_mass"]
    words = (folder / "report.md").read_text()
    assert "Rounds for 90% of the attention mass: " in words and " so far" not in words
    assert "Rounds for 90% of the attention mass: " in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupted_run_keeps_its_rows_and_goes_on(text, monkeypatch, capsys):
    done = []

    def stop_at_third(line, num_hashes, *_, bits, **__):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(line)
        return row(line, num_hashes, 0.1 * num_hashes, bits)

    monkeypatch.setattr(inspect_lsh, "measure", stop_at_third)
    same = [dict.fromkeys(beside.MEASURES, x) for x in (0.3, [[0.3, 0.3]])]
    window = Beside("window-3", *same)
    monkeypatch.setattr(beside, "measure", lambda *_, **__: window)
    monkeypatch.setattr(figure_files, "save", lambda found, folder: None)
    status, folder = run(text)
    assert status == 130 and len(rows_of(folder)) == 2
    assert "2 of 9 rows so far" in (folder / "report.md").read_text()
    kept = (folder / "results.jsonl").read_text()
    curve = (folder / "model" / "metrics.jsonl").read_text()

    done.clear()
    done.append(BASE)  # so that it stops in the middle of a line
    resume = ["inspect_lsh", f"--resume={folder}"]
    assert inspect_lsh.main(resume) == 130
    monkeypatch.setattr(
        inspect_lsh, "measure", lambda line, n, *_, bits, **__: row(line, n, bits=bits)
    )
    assert inspect_lsh.main(resume) == 0
    measured = (folder / "results.jsonl").read_text()
    assert measured.startswith(kept) and len(rows_of(folder)) == 9
    # The model is the one that was trained, not another.
    assert (folder / "model" / "metrics.jsonl").read_text() == curve
    words = (folder / "report.md").read_text()
    assert " so far" not in words
    # Nothing is missing now: no model is needed, the report comes out of the rows.
    monkeypatch.delattr(byte_model, "train")
    (folder / "report.md").unlink()
    assert inspect_lsh.main(resume) == 0 and (folder / "report.md").read_text() == words
    assert (folder / "results.jsonl").read_text() == measured
    monkeypatch.undo()

    capsys.readouterr()
    (folder / "results.jsonl").write_text(kept.replace('"bits": ', '"bits": 1'))
    assert inspect_lsh.main(resume) == 1
    assert "are of a model with 1" in capsys.readouterr().out
    (folder / "results.jsonl").write_text(kept)
    text.write_text("klmnopqrst" * 42)
    assert inspect_lsh.main(resume) == 2
    error = capsys.readouterr().err
    assert "is about other data than" in error and error.count("\n") == 1


@pytest.mark.slow
def test_a_training_that_is_interrupted_goes_on(text, monkeypatch, capsys):
    def interrupted(data, size, length, seed):
        if len(data) == length:  # the validation, which the loop of the training asks for
            signal.raise_signal(signal.SIGINT)
        return windows(data, size, length, seed)

    windows = byte_model.windows
    monkeypatch.setattr(byte_model, "windows", interrupted)
    status, folder = run(text)
    assert status == 130 and not (folder / "report.md").exists()
    monkeypatch.undo()
    assert inspect_lsh.main(["inspect_lsh", f"--resume={folder}"]) == 0
    assert len(rows_of(folder)) == 9


def test_the_fewest_rounds_that_are_enough():
    rows = [row(num_hashes=n, mass=mass) for n, mass in ((1, 0.3), (4, 0.9), (2, 0.89), (8, 0.95))]
    found = rounds_needed(rows, 0.9)
    assert found is not None and found.num_hashes == 4
    assert rounds_needed(rows, 0.96) is None


def test_a_mark_has_the_number_of_a_window_and_no_part_of_a_files_name():
    others = [Beside(name, row().means, row().per_head) for name in ("my-file.py:Near", "window-3")]
    pairs = figures.draw([row(), *others], SMALL)["pairs"]
    assert [text.get_text() for text in pairs.axes[0].texts] == ["3", "1"]


def test_a_name_that_is_none_is_refused_by_its_flag():
    with pytest.raises(Invalid, match="^--beside=flax: no attention 'flax'; valid: exact, dot"):
        Settings(beside=("flax",))


TO_BE = np.frombuffer(b"to be or not to be. " * 30, np.uint8)


@pytest.mark.slow
def test_training_lowers_the_loss_and_seeded_weights_are_the_same_each_time(tmp_path):
    sizes = dataclasses.replace(SMALL, length=16, seed=3, train_steps=0)
    longer = dataclasses.replace(sizes, train_steps=100)

    def trained(settings, folder):
        return byte_model.train(settings, TO_BE, TO_BE[:16], tmp_path / folder)

    (first, bits), (again, _) = (trained(sizes, "none") for _ in range(2))
    assert bits is None and not list(tmp_path.iterdir())
    best, bits = trained(longer, "one")
    assert bits is not None and bits < 4  # it starts out with more than 8
    (qk, v), (same, _), (other, _) = (
        byte_model.activations(sizes, variables, TO_BE[:16]) for variables in (first, again, best)
    )
    assert qk.shape == v.shape == (1, 16, 2, 8)
    np.testing.assert_array_equal(qk, same)
    assert np.abs(qk - other).max() > 0.1
    with pytest.raises(Invalid, match="another training: seed is 3 there and 4 here"):
        trained(dataclasses.replace(longer, seed=4), "one")
    (tmp_path / "one" / METRICS).unlink()
    with pytest.raises(Invalid, match="one: its curve is gone; delete the folder"):
        trained(longer, "one")


@pytest.mark.slow
def test_activations_are_what_attention_sees(tmp_path):
    # A position reads the byte before it, so the last byte changes no activation, the one before
    # it the last activation alone, and the first byte all but the first.
    sizes = dataclasses.replace(SMALL, length=16, num_layers=2, train_steps=0)
    variables, _ = byte_model.train(sizes, TO_BE, TO_BE, tmp_path)

    def layer(changed):
        data = TO_BE[:16].copy()
        data[changed] = 0
        return byte_model.activations(sizes, variables, data)

    qk, v = byte_model.activations(sizes, variables, TO_BE[:16])
    for x, y in zip(layer([-1, -2]), (qk, v), strict=True):
        np.testing.assert_allclose(x[1, :-1], y[1, :-1], atol=1e-5)
        assert np.abs(x[1, -1] - y[1, -1]).max() > 1e-4
    np.testing.assert_array_equal(layer([-1])[0], qk)
    other, _ = layer([0])
    assert np.all(np.abs(other - qk)[1, 1:].max((1, 2)) > 1e-4)


@pytest.mark.parametrize("name", ["window-5", "MINE:first", "MINE:Near"])
def test_pairs_of_other_attention_count_as_those_of_one_bucket(name, tmp_path):
    """Where all tokens share a bucket, LSH's window is a window of the sequence."""
    (tmp_path / "mine.py").write_text(MINE)
    qk, v = np.random.default_rng(0).normal(size=(2, 2, 31, 3, 8)).astype(np.float32)
    buckets, window = np.zeros((2, 1, 31, 3), int), LSHOptions(window=5)
    of_lsh = hash_quality(qk, v, buckets, chunk_size=8, options=window, top_k=4)
    found = beside.measure(
        name.replace("MINE", f"{tmp_path / 'mine.py'}"), qk, v, top_k=4, bits=None
    )
    for field, per_head in found.per_head.items():
        np.testing.assert_allclose(per_head, getattr(of_lsh, field), rtol=1e-4, atol=1e-5)
        assert found.means[field] == pytest.approx(np.mean(per_head))


MINE = """
import attnlab
from attnlab import masks

def first(q, k, v, *, mask=None):
    return attnlab.dot_product_attention(q, k, v, mask=mask & masks.Window(5, 0))

class Near(masks.Mask):
    def visible(self, i, j):
        return abs(i - j) <= 5
"""


@pytest.mark.slow
def test_the_first_rounds_are_the_same_however_many_there_are():
    qk, v = np.random.default_rng(0).normal(size=(2, 1, 40, 2, 8)).astype(np.float32)
    given = (jnp.asarray(qk), jnp.asarray(v))
    masses = [measure(BASE, n, *given, top_k=3, seed=1).means["captured_mass"] for n in (1, 3)]
    assert masses[0] < masses[1]
    larger = measure(BASE, 1, *given, top_k=3, seed=1).means["visible_pairs"]
    centered = dataclasses.replace(BASE, centering="running")
    assert measure(centered, 1, *given, top_k=3, seed=1).means["visible_pairs"] != larger
