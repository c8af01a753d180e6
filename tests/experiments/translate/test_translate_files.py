"""`translate` on files: from end to end, and what it says of files that it cannot use."""

import json

import jax
import jax.numpy as jnp
import pytest

from attnlab.models import Transformer, TransformerConfig
from attnlab.runs import figure_files
from attnlab.training.curve import METRICS, read_metrics
from experiments.translate import __main__ as translate
from experiments.translate import evaluate
from experiments.translate.corpus import open_corpus
from experiments.translate.settings import Settings
from experiments.translate.variants import Variant
from tests.experiments import tiny

SOURCES = [f"Hund {i} bellt" for i in range(120)]  # short: all batches have one shape
TARGETS = [f"a dog {i} barks" for i in range(120)]


@pytest.fixture
def given(tmp_path):
    """Flags for small files, and the paths of the two."""
    paths = tmp_path / "a.de", tmp_path / "a.en"
    for path, lines in zip(paths, (SOURCES, TARGETS), strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    flags = {
        "data_files": f"{paths[0]},{paths[1]}",
        "cache_dir": tmp_path / "cache",
        "output_dir": tmp_path / "results",
        "vocab_size": 40,
        "devices": 1,
    }
    return flags, *paths


def run(flags):
    return tiny.run(translate, *(f"--{name}={value}" for name, value in flags.items()))


@pytest.mark.slow
def test_files_are_scored_in_bleu(given, monkeypatch):
    monkeypatch.setattr(translate, "build", tiny.build)
    drawn = {}
    monkeypatch.setattr(figure_files, "save", lambda figures, folder: drawn.update(figures))
    searched, search = [], evaluate.translate

    def translations(*model, split, length_penalty, **sizes):
        searched.append((split, length_penalty))
        if split == "validation":
            return TARGETS if length_penalty == 2 else SOURCES
        return search(*model, split=split, length_penalty=length_penalty, **sizes)

    monkeypatch.setattr(evaluate, "translate", translations)
    flags, source, target = given
    flags |= {"validation_files": f"{source},{target}", "test_files": f"{source},{target}"}
    (drawn_pairs := source.with_name("drawn.tsv")).write_text("Hund\tdog\n")
    flags |= {"models": "transformer,luong", "steps": 2, "beam_size": 2, "max_length": 30}
    flags |= {"draw_file": drawn_pairs, "length_penalty": "0.5,2,1"}
    status, out, err = run(flags)
    assert (status, err) == (0, "") and "train 120, validation 120, test 120 pairs" in out
    (folder,) = flags["output_dir"].iterdir()
    (written_file,) = (folder / "transformer-seed0").glob("translations*.txt")
    assert written_file.name == "translations-beam-2-best-penalty-of-0.5-2-1.txt"
    translations = written_file.read_text()
    assert translations.count("\n") == len(TARGETS)
    result, *others = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    assert len(others) == 3 and "exact match" not in result["scores"]
    signature = result["details"]["bleu"]["signature"]
    assert signature.startswith("nrefs:1")
    tried = [("validation", exponent) for exponent in (0.5, 2, 1)]
    assert searched == [*tried, ("test", 2)] * 2 and result["details"]["length_penalty"] == 2
    (_, worse), (_, best), _ = result["details"]["length_penalties"]
    assert worse < 1 and round(best) == 100
    written = (folder / "report.md").read_text()
    for text in ("evaluated as beam 2, best", "length penalty", "95 % of 1,000 corpora", signature):
        assert text in written
    assert "Not done yet" not in written
    # In a vocabulary of both sides so small, words do not begin with a piece of their own.
    for name, pieces in (("luong", "dog</s>"), ("transformer", "␣·dog</s>")):
        (panel, *_) = drawn[f"alignment_{name}"].axes
        assert "".join(label.get_text() for label in panel.get_yticklabels()) == pieces
    assert drawn["by_length"].axes[0].get_xlabel().startswith("length of the source (words)")


def test_what_is_trained_translates_again_by_another_search(given, no_figures, monkeypatch):
    """The rows and translations of the first search stay, and nothing is trained again."""
    monkeypatch.setattr(translate, "build", tiny.build)
    flags, _, _ = given
    assert run(flags | {"models": "rnn_search", "steps": 2, "beam_size": 1})[0] == 0
    (folder,) = flags["output_dir"].iterdir()
    place = folder / "rnn_search-seed0"
    before = (folder / "results.jsonl").read_text()
    kept = {path: path.read_bytes() for path in (place / METRICS, place / "translations.txt")}
    again = ["translate", f"--resume={folder}", "--beam_size=3", "--length_penalty=0.5"]
    assert translate.main(again) == 0
    assert {path: path.read_bytes() for path in kept} == kept
    assert (place / "translations-beam-3-penalty-0.5.txt").exists()
    rows = (folder / "results.jsonl").read_text()
    assert rows.startswith(before)
    names = [json.loads(row)["evaluated"] for row in rows.splitlines() if json.loads(row)["scores"]]
    assert names == ["", "beam 3, penalty 0.5"]
    report = (folder / "report.md").read_text()
    assert "| rnn_search  " in report
    assert "| rnn_search, evaluated as beam 3, penalty 0.5 |" in report


def test_an_embedding_is_shared_where_the_vocabulary_is(given, monkeypatch):
    flags, source, target = given
    settings = Settings(
        preset="paper",
        data_files=(str(source), str(target)),
        cache_dir=str(flags["cache_dir"]),
        vocab_size=40,
        num_workers=2,
    )
    corpus = open_corpus(settings)
    workers, batches = [], translate.train_batches
    monkeypatch.setattr(
        translate,
        "train_batches",
        lambda *given, **named: workers.append(named["num_workers"]) or batches(*given, **named),
    )
    for name, vocabularies in (("transformer", 1), ("rnn_search", 2)):
        task = translate.task(Variant(name), 0, settings, corpus)
        assert len(set(task.identity["tokenizers"])) == vocabularies
        assert task.objective.over == ("tokens", "sentences")[vocabularies - 1]
        tokens = jnp.ones((2, 3), int)
        shapes = jax.eval_shape(task.model.init, jax.random.key(0), tokens, tokens)
        paths = [path for path, _ in jax.tree.leaves_with_path(shapes)]
        assert sum(path[-1].key == "embedding" for path in paths) == vocabularies
    assert workers == [2, 2]


@pytest.mark.slow
def test_packed_rows_hold_several_pairs(given, no_figures, monkeypatch):
    def build(name, sizes, *, source_vocab_size, target_vocab_size, dtype):
        sizes = {"num_layers": 1, "width": 4, "hidden": 4, "num_heads": 1}
        sizes |= {"source_vocab_size": source_vocab_size}
        return Transformer(TransformerConfig(target_vocab_size, **sizes))

    monkeypatch.setattr(translate, "build", build)
    flags, _, _ = given
    flags |= {"models": "transformer", "steps": 1, "beam_size": 1, "max_length": 64}
    flags |= {"batch_size": 2, "pack": "true"}
    status, _, err = run(flags)
    assert (status, err) == (0, "")
    (folder,) = flags["output_dir"].iterdir()
    (row,) = [r for r in read_metrics(folder / "transformer-seed0") if r["kind"] == "training"]
    # Two rows of 64, filled but for less than one pair; a pair alone has at most 17 tokens a side.
    assert 2 * (64 - 17) <= row["tokens"] <= 2 * 64


def misaligned(flags, source, target):
    target.write_text("\n".join(TARGETS[:-1]) + "\n")
    return f"{source} has 120 lines and {target} has 119"


def too_long(flags, source, target):
    flags["max_length"] = 3
    return "--max_length=3: the first 118 pairs all have more tokens; give a larger one"


def a_pair_that_no_position_is_left_for(flags, source, target):
    """Long pairs are left out of training, and tested all the same."""
    source.write_text("\n".join([*SOURCES[:-1], "Hund " * 99]) + "\n")
    flags |= {"models": "transformer", "set": "transformer.positions=learned", "max_length": 20}
    flags["pad_to"] = 1000
    given = f"--set={flags['set']}"
    return f"{given}: there are positions for max_length=512 tokens; got 1000"


@pytest.mark.parametrize("spoil", [misaligned, too_long, a_pair_that_no_position_is_left_for])
def test_bad_input_is_one_line_and_status_2_and_makes_nothing(given, spoil):
    message = spoil(*given)
    flags, *_ = given
    status, _, err = run(flags)
    assert status == 2 and err.startswith(f"translate: {message}") and err.count("\n") == 1
    assert not flags["output_dir"].exists()
