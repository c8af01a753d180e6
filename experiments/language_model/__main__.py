"""The study `language_model`: a text at some lengths, and a far copy, × models × seeds."""

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from attnlab.bench.model_programs import memory_of_step
from attnlab.data.windows import random_windows
from attnlab.models.transformer import LanguageModel
from attnlab.runs import command_line
from attnlab.runs.units import duration, human
from attnlab.studies import command
from attnlab.studies.study import Cell, Evaluation, Row, Study, Training
from attnlab.training.curve import means_of, read_metrics
from attnlab.training.loop import Task, Trained
from attnlab.training.objective import BitsPerByte
from attnlab.training.parallel import ShardedJit
from attnlab.training.training_curve import curve
from experiments import language_model
from experiments.language_model import copying, report
from experiments.language_model.corpus import Corpus, read
from experiments.language_model.measure import mass_seen
from experiments.language_model.models import ablate, build, can_be_ablated, streams, with_rounds
from experiments.language_model.report import NO_ATTENTION
from experiments.language_model.settings import Settings


class LanguageModels(Study[Settings, Corpus]):
    """Models that differ in their attention alone, on as many tokens of a text; and a far copy."""

    flags = Settings
    title = "Language models: quality against cost"
    axes = {"task": "tasks", "length": "lengths", "model": "models"}
    scores = {"bits per byte": ".3f", "symbols right": ".1%"}
    larger_is_better = False
    note = (
        "Bits per byte are of the whole test part of the text, in windows one after the other, each"
        " byte predicted once; the parameters are those with the best validation. *window-R* sees R"
        " tokens before its own; *lsh-R* hashes R times, shares queries and keys, and attends in"
        " chunks, strictly causally, with other rotations in each step of training; *shared* is the"
        " same in one chunk, which keeps the weights of all pairs. Time is that of a step over its"
        " tokens; memory is that of a step on one device, by the compiler. What copies has one"
        " layer of 2 heads × 64 and `--copy_steps` steps."
    )
    shown = (
        "num_layers", "num_heads", "head_dim", "chunk_size", "steps", "batch_size",
        "batch_tokens",
    )  # fmt: skip
    free = ("equal_bits",)
    open = staticmethod(read)

    @staticmethod
    def batch_sizes(settings: Settings) -> list[int]:
        text = settings.batch_sizes().values() if "text" in settings.tasks else ()
        return [*text, *[copying.BATCH] * ("copy" in settings.tasks)]

    def cells(self) -> list[Cell]:
        """Those of the text; behind the first seed's the copies, which have that seed alone."""
        settings, cells = self.settings, []
        for seed in settings.seeds:
            pairs = itertools.product(settings.lengths, settings.models)
            given = [("text", *pair) for pair in pairs] if "text" in settings.tasks else []
            if "copy" in settings.tasks and seed == settings.seeds[0]:
                given += [("copy", settings.copy_distance, name) for name in settings.copy_models]
            cells += [Cell(dict(zip(self.axes, one, strict=True)), seed) for one in given]
        return cells

    def model(self, cell: Cell) -> LanguageModel:
        """The model of a cell."""
        if cell["task"] == "copy":
            return copying.model(cell["model"], self.settings)
        vocab_size = self.data.tokenizer.vocab_size
        sizes = self.settings.sizes()
        return build(cell["model"], sizes, vocab_size=vocab_size, length=cell["length"])

    def training(self, cell: Cell) -> Training:
        settings, corpus = self.settings, self.data
        name, length = cell["model"], cell["length"]
        if cell["task"] == "copy":
            task, steps = copying.task(name, settings, cell.seed, self.part), settings.copy_steps
            loop = settings.loop(seed=cell.seed, steps=steps, validate_every=-(-steps // 8))
            return Training(task, copying.optimizer(steps), loop)
        rows = settings.batch_sizes()[length]
        task = Task(
            self.model(cell),
            BitsPerByte(bytes_of=corpus.tokenizer.bytes_of),
            random_windows(corpus.windows(length), batch_size=rows, seed=cell.seed, part=self.part),
            lambda: map(self.part.of, corpus.held_out("validation", length, rows)),
            streams=streams(name),
            watch=mass_seen(name, self.model(cell), settings, corpus.split.validation, length),
        )
        return Training(task, settings.optimizer(), settings.loop(seed=cell.seed))

    def evaluations(self, cell: Cell) -> list[str]:
        name, others = cell["model"], []
        if cell["task"] == "text":
            others = [with_rounds(name, n) for n in self.settings.evaluated_rounds(name)]
        return ["", *others, *[NO_ATTENTION] * can_be_ablated(name)]

    def evaluate(
        self, cell: Cell, training: Training, trained: Trained, place: Path
    ) -> Iterator[Evaluation]:
        for name in self.evaluations(cell):
            zeroed = name == NO_ATTENTION
            variables = ablate(cell["model"], trained.variables) if zeroed else trained.variables
            evaluated = cell["model"] if zeroed or not name else name
            model = self.model(Cell({**cell.axes, "model": evaluated}, cell.seed))
            details = {}
            if cell["task"] == "copy":
                score = copying.accuracy(model, variables, cell["length"], cell.seed + 2)
                scores = {"symbols right": score}
            else:
                rows = self.settings.batch_sizes()[cell["length"]]
                test = self.data.held_out("test", cell["length"], rows)
                objective = training.task.objective
                means = means_of(model, objective, variables, test)
                scores = {"bits per byte": means[objective.headline]}
                details = {} if name else self._details(cell, training, place)
            yield Evaluation(scores, name, details)

    def _details(self, cell: Cell, training: Training, place: Path) -> dict[str, Any]:
        """What a step costs, and what the rounds saw while training went on."""
        settings, metrics = self.settings, read_metrics(place)
        rows = settings.batch_sizes()[cell["length"]]
        tokens = rows * cell["length"]
        _, rates = curve(metrics, "training", "steps_per_second")
        # Under pmap each device has as much as under jit, whose program can be looked into.
        parallel = dataclasses.replace(settings, parallel="jit").over_devices(())
        assert isinstance(parallel, ShardedJit)
        batch = {"tokens": jax.ShapeDtypeStruct((rows, cell["length"]), jnp.int32)}
        details: dict[str, Any] = {
            "seconds_per_token": 1 / (statistics.median(rates) * tokens) if rates else None,
            "tokens": tokens,
            "memory": memory_of_step(
                training.task, training.optimizer, batch, parallel, settings.accumulate
            ),
        }
        seen = [row for row in metrics if row["kind"] == "validation" and "mass" in row]
        if seen:
            for ours, theirs in {"steps": "step", "masses": "mass", "pairs": "pairs"}.items():
                details[ours] = [row[theirs] for row in seen]
        return details

    def columns(self, rows: Sequence[Row]) -> Mapping[str, str]:
        details = rows[0].details
        if "tokens" not in details:
            return {}
        return {
            "time a token": duration(report.seconds_per_token(rows)),
            "tokens of a step": f"{details['tokens']:,}",
            "memory of a step": human(details["memory"]),
        }

    def answer(self, rows: Sequence[Row]) -> str:
        own = [row for row in rows if not row.evaluated]
        return report.answer(own, self.settings.equal_bits) or super().answer(own)

    def results(self, rows: Sequence[Row]) -> str:
        return super().results([row for row in rows if not row.evaluated])

    def sections(self, rows: Sequence[Row]) -> Iterator[str]:
        return report.sections(rows, self.settings.equal_bits)

    def figures(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        return report.draw(rows)


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return command.main(argv, LanguageModels, language_model)


if __name__ == "__main__":
    command_line.start(main)
