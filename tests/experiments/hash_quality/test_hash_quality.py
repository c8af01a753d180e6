"""The experiment on hash quality: plan, a small run from end to end, report and refusals."""

import dataclasses
import io
import json

import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.runs.errors import Invalid
from experiments.hash_quality import __main__ as experiment
from experiments.hash_quality import figures as hash_quality_figures
from experiments.hash_quality import report as hash_quality_report
from experiments.hash_quality import run as hash_quality_run
from experiments.hash_quality.lines import Line, Row, Settings, measure, plan, rounds_needed
from experiments.hash_quality.model import ByteModel, activations, train

SMALL = Settings(
    rounds=(1, 3),
    chunk_sizes=(8, 4),
    bucket_factors=(1.0,),
    windows=(0, 2),
    merge=("union",),
    length=48,
    num_layers=1,
    num_heads=2,
    head_dim=8,
    train_steps=2,
    top_k=3,
)
BASE = Line(8, 12, 8, "none", "union")


def row(line=BASE, num_hashes=1, mass=0.5, **changed):
    means = {name: 0.25 for name, _ in hash_quality_report.MEASURES}
    means |= {"captured_mass": mass, "used_buckets": 4.0, "bucket_sizes": [1.0, 2.0, 0.5]}
    flags = dataclasses.asdict(SMALL)
    where = {"device": "a processor", "platform": "cpu", "system": "Linux", "python": "3.11"}
    where |= {"versions": {"jax": "1"}, "revision": "abc"}
    where |= {"input": {"name": "a text", "bytes": 1000, "sha256": "0" * 64}}
    heads = [[mass, mass - 0.1], [mass, mass]]
    heads = {name: heads for name in ("captured_mass", "top_k_recall", "relative_error")}
    sizes = [[1.0, 2.0, 0.5], [2.0, 1.0, 0.0]]
    return Row(line, num_hashes, means, heads, sizes, 3.5, flags | changed, where, "now")


def test_one_thing_is_varied_at_a_time():
    lines = plan(Settings())
    assert lines[0] == Line(64, 64, 64, "none", "union")
    assert lines[1:3] == [Line(32, 128, 32, "none", "union"), Line(128, 32, 128, "none", "union")]
    for line in lines[3:]:
        differs = [
            getattr(line, f.name) != getattr(lines[0], f.name) for f in dataclasses.fields(line)
        ]
        assert sum(differs) == 1
    assert len(lines) == len(set(lines)) == 9


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rounds": ()}, "--rounds= is empty"),
        ({"rounds": (4, 0)}, "--rounds: 0 is too small; give 1 or more"),
        ({"seed": 2**31}, "--seed=2147483648: give less than 2147483648"),
        ({"train_steps": -1}, "--train_steps: -1 is too small; give 0 or more"),
        ({"bucket_factors": (0.0,)}, "--bucket_factors: 0 is not positive"),
        ({"centering": ("mean",)}, "--centering=mean: choose from none, running"),
        ({"merge": ()}, "--merge=: choose from union, multiset"),
        ({"windows": (65,)}, "--windows: 65 is more than the first of --chunk_sizes, 64"),
        ({"target_mass": 90.0}, "--target_mass=90: give a share above 0, at most 1"),
        ({"num_heads": 1, "head_dim": 5}, "their product is the width of sines"),
        ({"data_files": ("missing.txt",)}, "--data_files=missing.txt: no such file"),
    ],
)
def test_refuses_bad_settings(changed, message):
    with pytest.raises(Invalid) as refused:
        Settings(**changed)
    assert message in str(refused.value)


def test_every_setting_is_a_flag():
    names = {field.name for field in dataclasses.fields(Settings)}
    assert names == set(experiment._HELP)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rounds=1,two"], "--rounds=1,two: give whole numbers"),
        (["--no_such=1"], "Unknown command line flag"),
        (["more"], "'more' is not a flag"),
        (["--length=1000000"], "--length=1000000 needs 2000001 bytes"),
    ],
)
def test_a_bad_flag_is_one_line_and_status_2(flags, message, capsys):
    assert experiment.main(["hash_quality", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_small_run_from_end_to_end(quick_compile, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 10)
    settings = dataclasses.replace(SMALL, data_files=(str(text),))
    out = io.StringIO()
    assert hash_quality_run.run(settings, output_dir=tmp_path / "results", out=out) == 0
    (folder,) = (tmp_path / "results").iterdir()
    names = ["buckets.png", "buckets.svg", "quality.png", "quality.svg"]
    names += ["report.md", "results.jsonl", "settings.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
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
    report = (folder / "report.md").read_text()
    assert "How many rounds do I need?" in report and "cut short" not in report
    assert hash_quality_report.MEASURES[0][1] in out.getvalue()


def test_an_interrupted_run_keeps_its_rows_and_goes_on(
    quick_compile, tmp_path, monkeypatch, capsys
):
    text = tmp_path / "text.txt"
    text.write_text("abcdefghij" * 20)
    done = []

    def stop_at_third(line, num_hashes, qk, v, **options):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(line)
        return row(line, num_hashes, mass=0.1 * num_hashes)

    monkeypatch.setattr(hash_quality_run, "measure", stop_at_third)
    settings = dataclasses.replace(SMALL, train_steps=0, data_files=(str(text),))
    out = io.StringIO()
    assert hash_quality_run.run(settings, output_dir=tmp_path / "r", out=out) == 130
    (folder,) = (tmp_path / "r").iterdir()
    assert len((folder / "results.jsonl").read_text().splitlines()) == 2
    assert "2 of 8 rows: cut short" in (folder / "report.md").read_text()
    resume = ["hash_quality", f"--resume={folder}"]
    kept = (folder / "results.jsonl").read_text()
    (folder / "results.jsonl").write_text(kept + '\n{"line": {"chu')  # as a kill leaves it
    monkeypatch.setattr(hash_quality_run, "measure", lambda line, n, *_, **__: row(line, n))
    monkeypatch.setattr(hash_quality_figures, "save", lambda rows, folder: None)
    assert experiment.main(resume) == 0
    measured = (folder / "results.jsonl").read_text()
    assert measured.startswith(kept) and len(hash_quality_run.kept_rows(folder)) == 8
    report = (folder / "report.md").read_text()
    assert "cut short" not in report
    # Nothing is missing now: no model is trained, the report comes out of the rows.
    monkeypatch.delattr(hash_quality_run, "train")
    (folder / "report.md").unlink()
    assert experiment.main(resume) == 0 and (folder / "report.md").read_text() == report
    assert (folder / "results.jsonl").read_text() == measured
    refused = {"made with other settings": [*resume, "--seed=1"]}
    refused["no rows of this job"] = ["hash_quality", f"--resume={tmp_path}"]
    (folder / "results.jsonl").write_text(kept)
    text.write_text("klmnopqrst" * 20)
    refused["measured on another text"] = resume
    for message, argv in refused.items():
        assert experiment.main(argv) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_the_fewest_rounds_that_are_enough():
    rows = [row(num_hashes=n, mass=mass) for n, mass in ((1, 0.3), (4, 0.9), (2, 0.89), (8, 0.95))]
    found = rounds_needed(rows, 0.9)
    assert found is not None and found.num_hashes == 4
    assert rounds_needed(rows, 0.96) is None


def test_the_answer_is_computed_from_the_rows():
    some = [row(num_hashes=n, mass=mass) for n, mass in ((1, 0.3), (4, 0.9), (8, 0.95))]
    said = hash_quality_report.answer(some)
    assert "How many rounds do I need? 4, to capture 90%" in said
    assert "it captures 90.0%, the worst head 80%" in said
    assert "No line that was measured gets there with fewer comparisons (64 keys" in said
    assert "Of the 3 keys of largest weight, the base's 8 rounds showed 25.0%, not 90%." in said
    seen = dataclasses.replace(some[1], means=some[1].means | {"top_k_recall": 0.92})
    said = hash_quality_report.answer([some[0], seen, some[2]])
    assert "4 rounds showed 92.0%, which is enough." in said
    cheaper = row(dataclasses.replace(BASE, chunk_size=16), num_hashes=1, mass=0.93)
    said = hash_quality_report.answer([*some, cheaper])
    assert (
        "The fewest comparisons: chunk 16, 12 buckets, window 8, no center, union, 1 round" in said
    )
    said = hash_quality_report.answer(some[:1])
    assert "More than 1 with chunk 8" in said and "1 round captured 30.0%" in said
    assert "No line that was measured gets there; the nearest is chunk 8" in said


def test_figures_of_one_line_and_of_many(tmp_path):
    alone = [row(num_hashes=n, mass=0.1 * n) for n in (1, 3)]
    others = [dataclasses.replace(BASE, centering="running"), dataclasses.replace(BASE, window=2)]
    many = alone + [row(line, n, 0.12 * n) for line in others for n in (1, 3)]
    for name, rows in (("alone", alone), ("many", many)):
        folder = tmp_path / name
        folder.mkdir()
        paths = hash_quality_figures.save(rows, folder)
        assert all(path.stat().st_size > 1000 for path in paths) and len(paths) == 4
    figure = hash_quality_figures._quality(many)
    figure.draw_without_rendering()
    legends = [axes for axes in figure.axes if axes.get_legend()]
    panels = [axes for axes in figure.axes if not axes.get_legend()]
    titles = [axes.get_ylabel() for axes in panels[:3]]
    assert titles == ["attention mass captured", "recall of the 3 largest", "error of the context"]
    for i, axes in enumerate(legends):
        named = [text.get_text() for text in axes.get_legend().get_texts()]
        for panel in panels[3 * i : 3 * i + 3]:
            lines = [line for line in panel.get_lines() if not line.get_label().startswith("_")]
            assert [line.get_label() for line in lines] == named  # nothing else is in the legend
            low, high = panel.collections[0].get_segments()[1][:, 1]  # of the heads, 3 rounds
            assert (low, high) == pytest.approx((0.2, 0.3))
            for legend in legends:
                box = legend.get_legend().get_window_extent()
                assert not box.overlaps(panel.get_window_extent())
    empty = [axes.patches[0].get_height() for axes in hash_quality_figures._buckets(many).axes]
    assert empty == [12 - 3.5, 12 - 3]
    drawn = (tmp_path / "many" / "quality.svg").read_text()
    for words in ("running mean", "Window", "Centering", "attention mass captured", "target 90%"):
        assert words in drawn
    before = (tmp_path / "many" / "buckets.svg").read_bytes()
    hash_quality_figures.save(many, tmp_path / "many")
    assert (tmp_path / "many" / "buckets.svg").read_bytes() == before


def test_training_lowers_the_loss_and_seeded_weights_are_the_same_each_time(quick_compile):
    data = np.frombuffer(b"to be or not to be. " * 30, np.uint8)
    model = ByteModel(1, 2, 8)
    given = dict(length=16, seed=3, progress=print)
    params, bits = train(model, data, steps=0, **given)
    again, _ = train(model, data, steps=0, **given)
    assert bits is None
    trained, bits = train(model, data, steps=60, **given)
    assert bits is not None and bits < 4  # of 8 bits, of which it starts out with about that
    tokens = data[None, :16]
    (qk, v), (same, _), (other, _) = (
        activations(model, p, tokens)[0] for p in (params, again, trained)
    )
    assert qk.shape == v.shape == (1, 16, 2, 8)
    np.testing.assert_array_equal(qk, same)
    assert np.abs(qk - other).max() > 0.1


def test_activations_are_what_attention_sees(quick_compile):
    # One byte more at the end changes no activation before it, and one at the start changes all.
    model = ByteModel(2, 2, 8)
    data = np.frombuffer(b"to be or not to be. " * 3, np.uint8)
    params, _ = train(model, data, length=16, steps=0, seed=0, progress=print)
    before = data[None, :16]
    last, first = before.copy(), before.copy()
    last[0, -1], first[0, 0] = 0, 0
    qk, v = activations(model, params, before)[1]
    for x, y in zip(activations(model, params, last)[1], (qk, v), strict=True):
        np.testing.assert_allclose(x[:, :-1], y[:, :-1], atol=1e-5)
    other, _ = activations(model, params, first)[1]
    assert np.all(np.abs(other - qk).max((0, 2, 3)) > 1e-4)


def test_the_first_rounds_are_the_same_however_many_there_are(quick_compile):
    qk, v = np.random.default_rng(0).normal(size=(2, 1, 40, 2, 8)).astype(np.float32)
    given = (jnp.asarray(qk), jnp.asarray(v))
    masses = [measure(BASE, n, *given, top_k=3, seed=1).means["captured_mass"] for n in (1, 3)]
    assert masses[0] < masses[1]
    larger = measure(BASE, 1, *given, top_k=3, seed=1).means["visible_pairs"]
    centered = dataclasses.replace(BASE, centering="running")
    assert measure(centered, 1, *given, top_k=3, seed=1).means["visible_pairs"] != larger
