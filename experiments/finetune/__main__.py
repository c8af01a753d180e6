"""The study `finetune`: what a model starts from × seeds, tested on one task."""

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from attnlab.mechanisms import own
from attnlab.models.bert import BertClassifier
from attnlab.runs import command_line, figure_files, intervals
from attnlab.runs.command_line import say
from attnlab.runs.errors import Lost
from attnlab.runs.markdown import markdown_table
from attnlab.runs.palette import SERIES
from attnlab.studies import command
from attnlab.studies.study import Cell, Evaluation, Row, Study, Training, by_title
from attnlab.training.classes import ClassCrossEntropy
from attnlab.training.loop import Task, Trained
from experiments import finetune
from experiments.finetune.data import Data, in_order, open_data, shuffle
from experiments.finetune.score import have_entities, out_of_reach, scores_of
from experiments.finetune.settings import Settings

_LABELLED = {"classify": "sequence", "tag": "tokens", "span": "span"}


class Finetune(Study[Settings, Data]):
    """A pre-trained BERT, all of it or a classifier on its states, beside one from scratch."""

    flags = Settings
    title = "Fine-tuning of BERT"
    axes = {"start": "starts", "pretraining": "init_from"}
    scores = {"f1": ".1%", "exact match": ".1%", "accuracy": ".1%"}
    curve = "loss", "−log p (nats an example)"
    note = (
        "Scores are of the test examples, with the parameters that have the smallest loss of the"
        " dev examples. `tuned` trains all of a pre-trained model, `frozen` a classifier on its"
        " states, `scratch` a model of the same sizes that was not pre-trained. Where several"
        " seeds begin with one pre-training, ± is that of the tuning, and says nothing of another"
        " pre-training."
    )
    packages = "optax", "grain", "sentencepiece"

    @staticmethod
    def open(settings: Settings) -> Data:
        data = open_data(settings)
        if settings.kind == "tag":
            have_entities(data.labels)  # refuses what they cannot be
        rows = data.rows["test"]
        if lost := out_of_reach(rows, data.examples["test"]):
            said = "answers to test on are no whole tokens, or were cut off: no model finds them"
            say(f"{lost} of {len(rows)} {said}")
        return data

    def cells(self) -> list[Cell]:
        return [
            Cell({"start": start, "pretraining": title}, seed)
            for seed in self.settings.seeds
            for start in self.settings.started()
            for title in ([""] if start == "scratch" else self.data.models)
        ]

    def training(self, cell: Cell) -> Training:
        settings, data = self.settings, self.data
        start = data.start(cell["pretraining"], cell.seed)
        config, attention = start.sizes.build(start.vocab_size)
        frozen = cell["start"] == "frozen"
        classes = max(len(data.labels), 2)
        sources = {"own": x} if (x := own.digests(start.sizes.attention)) else {}
        kind = _LABELLED[settings.kind]
        model = BertClassifier(config, classes, kind, attention, frozen=frozen)
        validation = in_order(data.rows["dev"], data.length, settings.batch_size)
        task = Task(
            model,
            ClassCrossEntropy(),
            shuffle(data.rows["train"], data.length, settings.batch_size, cell.seed),
            lambda: validation,
            {"tokenizer": start.tokenizer.digest, "start": start.digest, **sources},
            streams=start.sizes.streams,
            start=None if start.params is None else start.encoder,
        )
        an_epoch = -(-len(data.rows["train"]) // settings.batch_size)
        steps = settings.steps or settings.epochs * an_epoch
        parts = 5 if settings.plateau is None else 10
        validate_every = settings.validate_every or max(1, steps // parts)
        loop = settings.loop(steps=steps, validate_every=validate_every, seed=cell.seed)
        return Training(task, settings.optimizer(frozen=frozen, steps=steps), loop)

    def evaluate(
        self, cell: Cell, training: Training, trained: Trained, place: Path
    ) -> Iterator[Evaluation]:
        logits = predict(
            training.task.model, trained.variables, self.data, self.settings.batch_size
        )
        begun = self.data.start(cell["pretraining"], cell.seed)
        details = {"pretraining_seed": begun.seed} if cell["pretraining"] else {}
        yield Evaluation(scores_of(self.settings.kind, logits, self.data), details=details)

    def columns(self, rows: Sequence[Row]) -> Mapping[str, str]:
        seeds = {x for row in rows if (x := row.details.get("pretraining_seed")) is not None}
        return {"pre-trainings": f"{len(seeds)}" if seeds else ""}

    def sections(self, rows: Sequence[Row]) -> Iterator[str]:
        settings = self.settings
        if settings.made is None and settings.path_of("test") == settings.path_of("dev"):
            yield (
                "**Tested are the dev examples, by which the parameters were chosen; "
                "`--test_file` gives others.**"
            )
        yield from gap_sections(rows, self.measures(rows)[0])

    def figures(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        return {"scores": scores_figure(rows, self.measures(rows)[0])}


def predict(model: BertClassifier, variables: Any, data: Data, batch_size: int) -> np.ndarray:
    """The logits of the test examples."""
    apply = jax.jit(lambda v, tokens, types: model.apply(v, tokens, types))
    logits = [
        np.asarray(apply(variables, jnp.asarray(batch["tokens"]), jnp.asarray(batch["types"])))
        for batch in in_order(data.rows["test"], data.length, batch_size)
    ]
    made = np.concatenate(logits)[: len(data.rows["test"])]
    if np.isnan(made).any():  # taken for the largest
        raise Lost("the logits of the test examples are NaN")
    return made


def gaps_of(rows: Sequence[Row], measure: str) -> dict[tuple[str, str], list[float]]:
    """How far the first of two models is above the second, in points, by the seeds of both."""
    scores = {
        title: {row.cell.seed: 100 * row.scores[measure] for row in some}
        for title, some in by_title(rows).items()
    }
    return {
        (a, b): [scores[a][seed] - scores[b][seed] for seed in both]
        for a, b in itertools.combinations(scores, 2)
        if (both := sorted(scores[a].keys() & scores[b].keys()))
    }


def gap_sections(rows: Sequence[Row], measure: str) -> Iterator[str]:
    """The figure, and the gaps."""
    yield "![Scores of all seeds](scores.svg)"
    gaps, lines = gaps_of(rows, measure), []
    for (a, b), differences in gaps.items():
        mean, all_of = statistics.fmean(differences), {"comparisons": len(gaps)}
        width = intervals.half_width(differences, **all_of)
        side = intervals.side(0, differences, **all_of)
        verdict = "decided"
        if side is None:
            verdict = intervals.describe_undecided(0, differences, **all_of)
        interval = "" if len(differences) < intervals.FEWEST else f" ± {width:.1f}"
        said = f"{mean:+.1f}{interval} points"
        lines.append([f"{a} − {b}", str(len(differences)), said, verdict])
    if lines:
        yield "## Between two models"
        yield (
            "A gap is that of the scores of the same seeds, ± half of its 95 % interval (Student's"
            " t; of several gaps all at once); it is *decided* where it is more than that, and"
            f" from {intervals.FEWEST} seeds on; else the seeds are named that would decide it if"
            " they vary as these, or the bound that the effect is within."
        )
        yield markdown_table(["gap", "seeds", measure, ""], lines)


def scores_figure(rows: Sequence[Row], measure: str) -> Figure:
    """The score of every training, a line a model, the best of each start first."""
    means = {
        title: statistics.fmean(100 * row.scores[measure] for row in some)
        for title, some in by_title(rows).items()
    }
    starts = ("tuned", "frozen", "scratch")
    models = sorted(
        by_title(rows).items(),
        key=lambda model: (starts.index(model[1][0].cell["start"]), -means[model[0]]),
    )
    with figure_files.style():
        drawn = Figure(figsize=(7.2, 1.1 + 0.32 * len(models)), layout="constrained")
        axes = drawn.subplots()
        dashed = "; dashed: scratch" if "scratch" in means else ""
        for i, (title, some) in enumerate(models):
            color, marker = SERIES[starts.index(some[0].cell["start"])]
            scores = [100 * row.scores[measure] for row in some]
            axes.plot(scores, [i] * len(some), marker, color=color, markersize=5, alpha=0.7)
            axes.plot([means[title]] * 2, [i - 0.3, i + 0.3], color=color)
            if some[0].cell["start"] == "scratch":
                axes.axvline(means[title], color=color, linewidth=0.9, linestyle="--", zorder=1)
        axes.set_yticks(range(len(models)), [title for title, _ in models])
        axes.set_ylim(len(models) - 0.5, -0.5)
        axes.set_xlabel(f"{measure}, test (%): a mark a seed, a bar their mean{dashed}")
        axes.set_title("BERT fine-tuned, frozen, or trained from scratch")
        axes.grid(axis="x")
    return drawn


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return command.main(argv, Finetune, finetune)


if __name__ == "__main__":
    command_line.start(main)
