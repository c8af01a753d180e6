"""The study `translate`: models, also with other sizes, × seeds, tested by what they translate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.runs import command_line, processes
from attnlab.training import study
from attnlab.training.bleu import OF_EXACT_MATCH, by_length, corpus_bleu, exact_match
from attnlab.training.curve import read_metrics
from attnlab.training.loop import Trained
from attnlab.training.study import Cell, Evaluation, Row, Study, Training
from attnlab.training.training_curve import curve
from experiments import translate
from experiments.translate import evaluate, report
from experiments.translate.corpus import Corpus, open_corpus
from experiments.translate.settings import Settings
from experiments.translate.training import say_corpus, task
from experiments.translate.variants import Variant

__all__ = ["Translate", "main"]

CHARACTERS = (8, 11, 14, 17, 20, 25, 30)  # the longest date of each group


class Translate(Study[Settings, Corpus]):
    """Models that translate; a second evaluation has where they look in some pairs."""

    flags = Settings
    title = "Translation"
    axes = {"model": "models", "changed": "set"}
    scores = {
        "BLEU": ".1f",
        "exact match": ".1%",
        "AER": ".3f",
        "entropy of the weights": ".2f",
        "variance of the gradient": ".2g",
        "validation perplexity": ".2f",
    }
    note = (
        "The Transformer's source and target share one vocabulary, those of the other models have"
        " one each: compare their scores, not their losses and perplexities, which are means over"
        " tokens of different lengths. The parameters are those with the smallest loss in"
        " validation; with `--average` the mean of the last checkpoints (Vaswani et al. 2017,"
        " §6.1). Figures are of the first seed."
    )
    shown = "preset", "max_length", "beam_size", "average", "steps", "batch_size"
    free = "data_dir", "draw_file"
    packages = "optax", "grain", "sacrebleu", "sentencepiece"

    @staticmethod
    def open(settings: Settings) -> Corpus:
        corpus = open_corpus(settings)
        say_corpus(corpus, settings)
        return corpus

    @staticmethod
    def batch_sizes(settings: Settings) -> list[int]:
        return [settings.recipe(variant).batch_size for variant in settings.variants()]

    def cells(self) -> list[Cell]:
        return [
            Cell({"model": variant.model, "changed": variant.changes}, seed)
            for seed in self.settings.seeds
            for variant in self.settings.variants()
        ]

    def variant(self, cell: Cell) -> Variant:
        """The model that a cell trains, with its changed sizes."""
        variants = {(x.model, x.changes): x for x in self.settings.variants()}
        return variants[cell["model"], cell["changed"]]

    def training(self, cell: Cell) -> Training:
        variant = self.variant(cell)
        return Training(
            task(variant, cell.seed, self.settings, self.data, self.part),
            self.settings.recipe(variant).optimizer,
            self.settings.loop_of(variant, seed=cell.seed),
        )

    def evaluations(self, cell: Cell) -> list[str]:
        return ["", self.data.drawn_name]

    def evaluate(
        self, cell: Cell, training: Training, trained: Trained, place: Path
    ) -> Iterator[Evaluation]:
        joint = self.settings.recipe(self.variant(cell)).joint_vocabulary
        model = training.task.model, trained.variables, self.data, self.data.tokenizers(joint)
        yield self._test(model, training, trained, place)
        drawn = [
            {
                "source": list(alignment.source),
                "target": list(alignment.target),
                "weights": np.round(np.asarray(alignment.weights, np.float64), 4).tolist(),
                "known": sorted(alignment.known),
            }
            for alignment in evaluate.alignments(*model)
        ]
        yield Evaluation({}, self.data.drawn_name, {"alignments": drawn})

    def _test(self, model: Any, training: Training, trained: Trained, place: Path) -> Evaluation:
        """The scores of the test split, whose translations are written beside the checkpoints."""
        settings, test = self.settings, self.data.splits["test"]
        examples = [test[i] for i in range(len(test))]
        sources, references = ([e[side] for e in examples] for side in ("source", "target"))
        found = evaluate.translate(
            *model,
            beam_size=settings.beam_size,
            length_penalty=settings.length_penalty,
            max_length=settings.max_length + 20,
        )
        if processes.is_first():
            (place / "translations.txt").write_text("\n".join(found) + "\n", encoding="utf-8")
        metrics = read_metrics(place)
        _, rates = curve(metrics, "training", "tokens_per_second")
        steps, variances = curve(metrics, "validation", "gradient_variance")
        details: dict[str, Any] = {
            "steps": training.loop.steps,
            "tokens_per_second": float(np.median(rates)),
        }
        scores: dict[str, float | None] = {
            "AER": evaluate.date_alignment_error(*model),
            "entropy of the weights": evaluate.attention_entropy(*model),
            "variance of the gradient": float(np.median(variances)) if variances else None,
            "validation perplexity": trained.validation.get("perplexity"),
        }
        if self.data.measure == "BLEU":
            bleu = corpus_bleu(found, references)
            scores["BLEU"], details["bleu"] = bleu.score, dataclasses.asdict(bleu)
            buckets = by_length(sources, found, references)
        else:
            scores["exact match"] = exact_match(found, references)
            buckets = by_length(
                sources, found, references, measure=OF_EXACT_MATCH, longest=CHARACTERS, length=len
            )
        details["buckets"] = [dataclasses.asdict(one) for one in buckets]
        if variances:
            details["gradient_variance"] = [steps, variances]
        named = {name: scores[name] for name in self.scores if name in scores}
        return Evaluation({k: x for k, x in named.items() if x is not None}, details=details)

    def results(self, rows: Sequence[Row]) -> str:
        return super().results([row for row in rows if row.scores])

    def columns(self, rows: Sequence[Row]) -> Mapping[str, str]:
        return report.columns(rows)

    def sections(self, rows: Sequence[Row]) -> Iterable[str]:
        return report.sections(rows)

    def figures(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        return report.figures(rows)


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return study.main(argv, Translate, translate)


if __name__ == "__main__":
    command_line.start(main)
