"""The study `long_range`: tasks × mechanisms × seeds, beside Long Range Arena's tables."""

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from attnlab.bench.model_programs import memory_of_step
from attnlab.mechanisms.attentions import parse, streams
from attnlab.models.classifier import EncoderClassifier
from attnlab.runs import command_line, published
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import group
from attnlab.runs.units import human, spread
from attnlab.studies import command
from attnlab.studies.study import Cell, Evaluation, Row, Study, Training
from attnlab.training.classes import ClassCrossEntropy
from attnlab.training.curve import means_of, read_metrics
from attnlab.training.loop import Task, Trained
from attnlab.training.parallel import ShardedJit
from attnlab.training.training_curve import curve
from experiments import long_range
from experiments.long_range.examples import Tasks, batches, fixed_batches, majority, open_tasks
from experiments.long_range.settings import Settings

PUBLISHED = Path(__file__).parents[1] / "published"
_COLUMN = {"listops": "ListOps", "text": "Text", "retrieval": "Retrieval"}
# The row of the paper that is nearest to an attention, by the first part of its name.
_PAPER = {"exact": "Transformer", "window": "Local Attention", "lsh": "Reformer"}
_BESIDE = """\
Tay et al. 2020, Tables 1 and 2: accuracy in percent, and speed over that of exact attention, \
which in the paper is of byte texts of 1K to 4K tokens on 4 × 4 TPUs v3. On ListOps it has 2,000 \
tokens and 6 layers, 512 wide. The examples are others, so the order of the rows can be compared, \
not the numbers. Its *Reformer* is another function than LSH attention: logits multiplied by √d, \
no masks, keys that are not normalized, a constant hash key, and heads reshaped without a \
transpose. Its local attention sees blocks of 20 to 50 tokens."""


class LongRange(Study[Settings, Tasks]):
    """Classifiers of long inputs, each with another attention."""

    flags = Settings
    title = "Classification over long inputs"
    axes = {"task": "tasks", "attention": "mechanisms", "start": "starts"}
    scores = {"accuracy": ".1%"}
    curve = "loss", "−log p (nats an input)"
    note = (
        "Accuracy is that of the test split with the parameters that did best in validation. The"
        " most frequent class would have the share *majority*. Memory is that of a training step,"
        " by the compiler. `pretrained` predicts masked tokens of the same inputs first."
    )
    shown = "length", "num_layers", "width", "num_heads", "pooling", "steps", "batch_size"
    free = ("data_dir",)
    open = staticmethod(open_tasks)

    def training(self, cell: Cell) -> Training:
        settings, examples = self.settings, self.data.examples[cell["task"]]
        config, attention = settings.layers(cell["attention"], examples.vocab_size)

        def training_of(
            classes: int, pooling: str, steps: int, mask_share: float | None
        ) -> Training:
            validation = fixed_batches(examples, "validation", settings.batch_size, mask_share)
            task = Task(
                EncoderClassifier(config, classes, pooling, attention),
                ClassCrossEntropy(),
                batches(examples, cell.seed, settings.batch_size, mask_share),
                lambda: validation,
                streams=streams(cell["attention"]),
            )
            loop = settings.loop(seed=cell.seed, steps=steps)
            return Training(task, settings.optimizer(steps), loop)

        trained = training_of(examples.num_classes, settings.pooling, settings.steps, None)
        if cell["start"] == "scratch":
            return trained
        before = training_of(
            examples.vocab_size, "none", settings.pretrain_steps, settings.mask_share
        )
        return dataclasses.replace(trained, before=before, kept=("encoder",))

    def evaluate(
        self, cell: Cell, training: Training, trained: Trained, place: Path
    ) -> Iterator[Evaluation]:
        examples = self.data.examples[cell["task"]]
        test = fixed_batches(examples, "test", self.settings.batch_size)
        shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in test[0].items()}
        on_one = ShardedJit(jax.local_devices()[:1])
        _, rates = curve(read_metrics(place), "training", "steps_per_second")
        means = means_of(training.task.model, ClassCrossEntropy(), trained.variables, test)
        yield Evaluation(
            {"accuracy": means["accuracy"]},
            details={
                "majority": majority(test),
                "steps_per_second": float(np.median(rates)),
                "memory": memory_of_step(
                    training.task, training.optimizer, shapes, on_one, self.settings.accumulate
                ),
            },
        )

    def columns(self, rows: Sequence[Row]) -> Mapping[str, str]:
        details = rows[0].details
        return {
            "majority": f"{details['majority']:.1%}",
            "steps/s": f"{_rate(rows):.2f}",
            "memory of a step": human(details["memory"]),
        }

    def sections(self, rows: Sequence[Row]) -> Iterator[str]:
        if any(row.cell["start"] == "pretrained" for row in rows):
            share, steps = self.settings.mask_share, self.settings.pretrain_steps
            yield f"Pre-training has {steps:,} steps more, and predicts {share:.0%} of the tokens."
        yield "## Beside Long Range Arena"
        yield _BESIDE
        scores = published.read(PUBLISHED / "lra2020_table1.csv")
        speeds = published.read(PUBLISHED / "lra2020_table2.csv")
        groups = group(rows, lambda row: tuple(row.cell.axes.values()))
        lines = []
        for (task, attention, start), some in groups.items():
            layer, *others = parse(attention)
            alone = not others and start == "scratch"
            name = _PAPER.get(layer.kind, "") if alone else ""
            printed = scores.cells[name].get(_COLUMN[task]) if name else None
            ratios = [
                speeds.ratio(name, "Transformer", f"steps_per_s_{length}")
                for length in ("1K", "4K")
                if name
            ]
            exact = groups.get((task, "exact", start))
            lines.append(
                [
                    some[0].cell.title,
                    spread([100 * row.scores["accuracy"] for row in some], ".1f"),
                    name,
                    "" if printed is None else f"{printed:.2f}",
                    f"{_rate(some) / _rate(exact):.2f}" if exact else "",
                    " to ".join(f"{ratio:.2f}" for ratio in ratios if ratio is not None),
                ]
            )
        header = [
            ", ".join(self.axes),
            "ours",
            "paper's row",
            "paper",
            "our speed",
            "paper's speed",
        ]
        yield markdown_table(header, lines)


def _rate(rows: Sequence[Row]) -> float:
    return statistics.median(row.details["steps_per_second"] for row in rows)


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return command.main(argv, LongRange, long_range)


if __name__ == "__main__":
    command_line.start(main)
