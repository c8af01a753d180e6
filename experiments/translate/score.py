"""The scores of one trained model, as a row of results."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attnlab.models.seq2seq import Seq2Seq
from attnlab.runs import processes
from attnlab.training.bleu import OF_EXACT_MATCH, by_length, corpus_bleu, exact_match
from attnlab.training.curve import read_metrics
from attnlab.training.loop import Trained
from attnlab.training.training_curve import curve
from experiments.translate import drawn
from experiments.translate.corpus import Corpus
from experiments.translate.evaluate import (
    attention_entropy,
    date_alignment_error,
    translate,
)
from experiments.translate.recipes import Preset
from experiments.translate.table import Row
from experiments.translate.variants import Training

__all__ = ["score"]

CHARACTERS = (8, 11, 14, 17, 20, 25, 30)  # the longest date of each group


def score(
    training: Training,
    model: Seq2Seq,
    trained: Trained,
    corpus: Corpus,
    preset: Preset,
    folder: Path,
) -> Row:
    """Translates and scores the test split; writes translations and alignments to `folder`.

    Of several processes each translates a part, and the first writes.
    """
    test = corpus.splits["test"]
    examples = [test[i] for i in range(len(test))]
    sources, references = ([e[side] for e in examples] for side in ("source", "target"))
    tokenizers = corpus.tokenizers(preset.recipes[training.variant.model].joint_vocabulary)
    found = translate(
        model,
        trained.variables,
        corpus,
        tokenizers,
        beam_size=preset.beam_size,
        length_penalty=preset.length_penalty,
        max_length=preset.max_length + 20,
    )
    if processes.is_first():
        (folder / "translations.txt").write_text("\n".join(found) + "\n", encoding="utf-8")
        looked = drawn.alignments(model, trained.variables, corpus, tokenizers)
        drawn.write(looked, corpus.drawn, folder)
    metrics = read_metrics(folder)
    _, rates = curve(metrics, "training", "tokens_per_second")
    _, variances = curve(metrics, "validation", "gradient_variance")
    if is_bleu := corpus.measure == "BLEU":
        buckets = by_length(sources, found, references)
    else:
        buckets = by_length(
            sources, found, references, measure=OF_EXACT_MATCH, longest=CHARACTERS, length=len
        )
    return Row(
        model=training.variant.title,
        seed=training.seed,
        parameters=trained.num_parameters,
        steps=trained.steps,
        seconds=trained.seconds,
        tokens_per_second=float(np.median(rates)),
        perplexity=trained.validation.get("perplexity"),
        bleu=corpus_bleu(found, references) if is_bleu else None,
        exact_match=None if is_bleu else exact_match(found, references),
        alignment_error_rate=date_alignment_error(model, trained.variables, corpus, tokenizers),
        attention_entropy=attention_entropy(model, trained.variables, corpus, tokenizers),
        gradient_variance=float(np.median(variances)) if variances else None,
        buckets=tuple(buckets),
    )
