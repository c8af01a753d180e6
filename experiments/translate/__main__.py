"""The study `translate`: models, also with other sizes, × seeds, tested by what they translate."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.data.batching import evaluation_batches, train_batches
from attnlab.data.encoding import EncodePair, count_too_long
from attnlab.data.parts import WHOLE, Part
from attnlab.data.tasks import ENDLESS
from attnlab.mechanisms import attentions
from attnlab.models.rnn_search import RNNSearch
from attnlab.models.seq2seq import Seq2Seq
from attnlab.runs import command_line, processes
from attnlab.runs.command_line import say
from attnlab.runs.errors import Invalid
from attnlab.studies import command
from attnlab.studies.study import Cell, Evaluation, Row, Study, Training
from attnlab.training.attended import AttendedCrossEntropy
from attnlab.training.bleu import OF_EXACT_MATCH, by_length, corpus_bleu, exact_match
from attnlab.training.curve import read_metrics
from attnlab.training.gradient_noise import gradient_noise
from attnlab.training.loop import Task, Trained
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.training_curve import curve
from experiments import translate
from experiments.translate import evaluate, report
from experiments.translate.corpus import Corpus, open_corpus
from experiments.translate.models import build
from experiments.translate.recipes import Recipe
from experiments.translate.settings import Settings
from experiments.translate.variants import Variant, require_fits

MORE = 20  # tokens of a translation beyond --max_length
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
        " §6.1). A beam search is in the name of its rows, the others are greedy. Figures are of"
        " the first seed."
    )
    shown = "preset", "max_length", "average", "steps", "batch_size"
    free = "data_dir", "draw_file", "beam_size", "length_penalty"
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
        return [self.settings.search, self.data.drawn_name]

    def evaluate(
        self, cell: Cell, training: Training, trained: Trained, place: Path
    ) -> Iterator[Evaluation]:
        joint = self.settings.recipe(self.variant(cell)).joint_vocabulary
        model = training.task.model, trained.variables, self.data, self.data.tokenizers(joint)
        yield self._test(model, trained, place)
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

    def _test(self, model: Any, trained: Trained, place: Path) -> Evaluation:
        """The scores of the test split, whose translations are written beside the checkpoints."""
        settings = self.settings
        sources, references = self._sentences("test")
        tried = self._tried(model)
        best = max(tried, key=lambda one: one[1])[0] if tried else settings.length_penalty[0]
        translations = self._translate(model, "test", best)
        if processes.is_first():
            name = "-".join(["translations", *re.findall(r"[\w.]+", settings.search)])
            (place / f"{name}.txt").write_text(as_lines(translations), encoding="utf-8")
        metrics = read_metrics(place)
        _, rates = curve(metrics, "training", "tokens_per_second")
        steps, variances = curve(metrics, "validation", "gradient_variance")
        details: dict[str, Any] = {
            "steps": trained.steps,
            "tokens_per_second": float(np.median(rates)),
        }
        if tried:
            details |= {"length_penalty": best, "length_penalties": tried}
        scores: dict[str, float | None] = {
            "AER": evaluate.date_alignment_error(*model),
            "entropy of the weights": evaluate.attention_entropy(*model),
            "variance of the gradient": float(np.median(variances)) if variances else None,
            "validation perplexity": trained.validation.get("perplexity"),
        }
        by: dict[str, Any] = {}
        if self.data.measure == "BLEU":
            details["bleu"] = dataclasses.asdict(corpus_bleu(translations, references))
        else:
            by = {"measure": OF_EXACT_MATCH, "longest": CHARACTERS, "length": len}
        scores[self.data.measure] = self._score(translations, references)
        buckets = by_length(sources, translations, references, **by)
        details["buckets"] = [dataclasses.asdict(one) for one in buckets]
        if variances:
            details["gradient_variance"] = [steps, variances]
        known = {name: x for name in self.scores if (x := scores.get(name)) is not None}
        return Evaluation(known, settings.search, details)

    def _sentences(self, split: str) -> tuple[list[str], list[str]]:
        """The sources and the targets of a split."""
        pairs = [self.data.splits[split][i] for i in range(len(self.data.splits[split]))]
        return [pair["source"] for pair in pairs], [pair["target"] for pair in pairs]

    def _translate(self, model: Any, split: str, length_penalty: float) -> list[str]:
        return evaluate.translate(
            *model,
            split=split,
            beam_size=self.settings.beam_size,
            length_penalty=length_penalty,
            max_length=self.settings.max_length + MORE,
        )

    def _tried(self, model: Any) -> list[tuple[float, float]]:
        """Exponents of the length penalty, and the score of the validation split with each."""
        if len(self.settings.length_penalty) == 1:
            return []
        _, references = self._sentences("validation")
        return [
            (exponent, self._score(self._translate(model, "validation", exponent), references))
            for exponent in self.settings.length_penalty
        ]

    def _score(self, translations: Sequence[str], references: Sequence[str]) -> float:
        if self.data.measure == "BLEU":
            return corpus_bleu(translations, references).score
        return exact_match(translations, references)

    def results(self, rows: Sequence[Row]) -> str:
        return super().results([row for row in rows if row.scores])

    def columns(self, rows: Sequence[Row]) -> Mapping[str, str]:
        return report.columns(rows)

    def sections(self, rows: Sequence[Row]) -> Iterable[str]:
        return report.sections(rows)

    def figures(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        return report.figures(rows)


def task(
    variant: Variant, seed: int, settings: Settings, corpus: Corpus, part: Part = WHOLE
) -> Task[Seq2Seq]:
    """The training of one model: model, loss and data.

    Raises:
      Invalid: the validation split has fewer batches than --gradient_batches asks for.
    """
    recipe, corpus = settings.recipe(variant), corpus.of_seed(seed)
    joint = recipe.joint_vocabulary
    tokenizers = corpus.tokenizers(joint)
    model = build(
        variant.model,
        recipe.sizes,
        source_vocab_size=None if joint else tokenizers.source.vocab_size,
        target_vocab_size=tokenizers.target.vocab_size,
        dtype=settings.dtype,
    )
    alike = settings.has_text  # sentences and their translations in length; dates are not
    batches = train_batches(
        corpus.splits["train"],
        *tokenizers,
        batch_size=recipe.batch_size,
        max_length=settings.max_length,
        seed=seed,
        pad_to=settings.pad_to,
        same_length=alike,
        pack=settings.pack,
        part=part,
        num_workers=settings.num_workers,
    )
    whole = [
        batch
        for _, batch in evaluation_batches(
            corpus.splits["validation"],
            *tokenizers,
            batch_size=recipe.batch_size,
            pad_to=settings.pad_to,
            same_length=alike,
        )
    ]
    validation = [part.of(batch) for batch in whole]
    identity = {"tokenizers": [side.digest for side in tokenizers], "recipe": recipe.as_json()}
    objective = _objective(model, recipe, settings)
    samples = isinstance(model, RNNSearch) and model.attention != "soft"
    streams: tuple[str, ...] = ("dropout", "sample") if samples else ("dropout",)
    if variant.model == "transformer":
        streams = attentions.streams(recipe.sizes.get("attention", "exact"))
    watch = None
    if settings.gradient_batches is not None:
        watched = whole[: settings.gradient_batches]  # of every process, else it is of fewer rows
        if len(watched) < settings.gradient_batches:
            raise Invalid(
                f"--gradient_batches={settings.gradient_batches}: the validation split has "
                f"{len(watched)} batches; give at most so many"
            )
        watch = gradient_noise(model, objective, watched, streams=streams)
    return Task(
        model, objective, batches, lambda: validation, identity, streams=streams, watch=watch
    )


def _objective(model: Seq2Seq, recipe: Recipe, settings: Settings) -> TokenCrossEntropy:
    """The cross entropy, with terms of the attention where they are asked for."""
    plain = TokenCrossEntropy(recipe.label_smoothing, recipe.gradient_mean_over)
    hard = isinstance(model, RNNSearch) and model.attention == "hard"
    if not hard and settings.doubly_stochastic is None:
        return plain
    reinforce = 0.03 if settings.reinforce is None else settings.reinforce
    entropy = 0.01 if settings.entropy is None else settings.entropy
    return AttendedCrossEntropy(
        **dataclasses.asdict(plain),
        reinforce=reinforce if hard else 0.0,
        entropy=entropy if hard else 0.0,
        doubly_stochastic=settings.doubly_stochastic or 0.0,
    )


def as_lines(texts: Iterable[str]) -> str:
    """Texts as the lines of a file, each in one: ends of lines in it, Unicode's too, are blanks."""
    return "".join(" ".join(text.splitlines()) + "\n" for text in texts)


def say_corpus(corpus: Corpus, settings: Settings) -> None:
    """Says how many pairs there are, and how many of them are too long to train on.

    Raises:
      Invalid: all pairs that were looked at are too long, or a pair to validate or to test on is
        longer than a model has positions for.
    """
    sizes = {name: len(split) for name, split in corpus.splits.items()}
    words = {name: "without end" if n == ENDLESS else f"{n:,}" for name, n in sizes.items()}
    counts = ", ".join(map(" ".join, words.items()))
    say(f"{corpus.name}: {counts} pairs")
    max_length = settings.max_length
    for joint in sorted({settings.recipe(x).joint_vocabulary for x in settings.variants()}):
        left_out, looked_at = count_too_long(
            corpus.splits["train"], *corpus.tokenizers(joint), max_length, sample=2000
        )
        if left_out == looked_at:
            raise Invalid(
                f"--max_length={max_length}: the first {looked_at} pairs all have more tokens; "
                "give a larger one"
            )
        if left_out:
            say(
                f"{left_out} of the first {looked_at} pairs have more than {max_length} tokens of "
                f"{'one joint vocabulary' if joint else 'a vocabulary each'} and are left out of "
                "training"
            )
        by, test = corpus.tokenizers(joint).target, corpus.splits["test"]
        references = [test[i]["target"] for i in range(len(test))]
        lost = [text for text in references if by.decode(by.encode(text)) != text]
        if lost:
            say(
                f"{len(lost)} of {len(references)} references have characters that no token "
                f"writes, as {lost[0][:60]!r}: no translation is right there; give training text "
                "that has them, and no ▁, <unk>, <s>, </s> or <pad>, which are the tokenizer's own"
            )
    for variant in settings.variants():
        if variant.changed:
            recipe = settings.recipe(variant)
            longest = _longest(corpus, settings, joint=recipe.joint_vocabulary)
            require_fits(variant, recipe.sizes, longest)


def _longest(corpus: Corpus, settings: Settings, *, joint: bool) -> int:
    """The number of tokens of the longest row that a model is given, or may write."""
    encode = EncodePair(*corpus.tokenizers(joint), max_length=None)
    tested = (split for name, split in corpus.splits.items() if name != "train")
    rows = (encode(split[i]) for split in tested for i in range(len(split)))
    longest = max(len(tokens) for row in rows for tokens in row.values())
    # Lengths of batches are multiples of pad_to.
    return max(settings.max_length + MORE, longest + -longest % settings.pad_to)


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return command.main(argv, Translate, translate)


if __name__ == "__main__":
    command_line.start(main)
