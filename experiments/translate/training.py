"""Makes the training of one model from settings and a corpus."""

from __future__ import annotations

import dataclasses

from attnlab import attentions
from attnlab.data.batching import evaluation_batches, train_batches
from attnlab.data.encoding import count_tokens, count_too_long
from attnlab.data.parts import WHOLE, Part
from attnlab.data.tasks import ENDLESS
from attnlab.models.rnn_search import RNNSearch
from attnlab.models.seq2seq import Seq2Seq
from attnlab.runs.command_line import say
from attnlab.runs.errors import Invalid
from attnlab.training.attended import AttendedCrossEntropy
from attnlab.training.gradient_noise import gradient_noise
from attnlab.training.loop import Task
from attnlab.training.objective import TokenCrossEntropy
from experiments.translate.corpus import Corpus
from experiments.translate.models import build
from experiments.translate.recipes import Recipe
from experiments.translate.settings import Settings
from experiments.translate.variants import Variant

__all__ = ["say_corpus", "task"]


def task(
    variant: Variant, seed: int, settings: Settings, corpus: Corpus, part: Part = WHOLE
) -> Task[Seq2Seq]:
    """The training of one model: model, loss and data.

    Args:
      variant: model, with its changed sizes.
      seed: seed of the order of the data, and of dates.
      settings: settings of the run.
      corpus: sentence pairs and tokenizers.
      part: part of each batch that this process computes.
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
    # Of several processes each encodes its own rows, which it can when all lengths are known.
    counts = settings.num_workers == 0
    lengths = count_tokens(corpus.splits["train"], *tokenizers) if counts else None
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
        lengths=lengths,
        num_workers=settings.num_workers,
    )
    validation = [
        part.of(batch)
        for _, batch in evaluation_batches(
            corpus.splits["validation"],
            *tokenizers,
            batch_size=recipe.batch_size,
            pad_to=settings.pad_to,
            same_length=alike,
        )
    ]
    identity = {
        "tokenizers": [side.digest for side in tokenizers],
        "recipe": recipe.as_json(),
    }
    objective = _objective(model, recipe, settings)
    samples = isinstance(model, RNNSearch) and model.attention != "soft"
    streams: tuple[str, ...] = ("dropout", "sample") if samples else ("dropout",)
    if variant.model == "transformer":
        streams = attentions.streams(recipe.sizes.get("attention", "exact"))
    watch = None
    if settings.gradient_batches is not None:
        watched = validation[: settings.gradient_batches]
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


def say_corpus(corpus: Corpus, settings: Settings) -> None:
    """Says how many pairs there are, and how many of them are too long to train on.

    Raises:
      Invalid: all pairs that were looked at are too long.
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
