"""BLEU by hand and by sacrebleu, and measures over the source's length."""

import dataclasses
import math

import numpy as np
import pytest
import sacrebleu

from attnlab.training.bleu import OF_BLEU, OF_EXACT_MATCH, by_length, corpus_bleu

HYPOTHESES = ["the cat sat on the mat .", "a b"]
REFERENCES = ["the cat is on the mat .", "a c"]

CHINESE = ["我喜欢你，但是我不能去。", "他们在公园里玩。", "这个问题很难回答吗？"]
JAPANESE = ["今日はとても寒いです。", "犬がいます。", "あなたはどこへ行きますか"]


def test_bleu_by_hand():
    found = corpus_bleu(HYPOTHESES, REFERENCES)
    # n-grams that match, of all, over both sentences together
    matches, totals = (6 + 1, 4 + 0, 2, 1), (7 + 2, 6 + 1, 5, 4)
    precisions = [m / n for m, n in zip(matches, totals, strict=True)]
    assert found.precisions == pytest.approx([100 * p for p in precisions])
    assert found.brevity_penalty == 1
    assert found.score == pytest.approx(100 * math.prod(precisions) ** 0.25)
    assert (found.hypothesis_length, found.reference_length) == (9, 9)


def test_bleu_is_sacrebleus():
    hypotheses = ["A man, in a hat, looks on.", "Two dogs run across the green lawn!", "It's 5:00."]
    references = ["A man in a hat looks on.", "Two dogs run over the green grass!", "It's 6:00."]
    found = corpus_bleu(hypotheses, references)
    theirs = sacrebleu.corpus_bleu(hypotheses, [references])
    assert found.score == theirs.score > 0
    assert "case:mixed|eff:no|tok:13a|" in found.signature
    assert found.signature.endswith(f"version:{sacrebleu.__version__}")


@pytest.mark.parametrize(("texts", "tokenizer"), [(CHINESE, "zh"), (JAPANESE, "char")])
def test_what_is_right_is_right_without_blanks_too(texts, tokenizer):
    """To 13a a sentence without blanks is one word, of which there are no four in a row."""
    found = corpus_bleu(texts, texts)
    assert found.score == pytest.approx(100) and f"|tok:{tokenizer}|" in found.signature
    short, long = by_length(texts, texts, texts, longest=(8, 20))
    assert (short.count, long.count) == (1, 2) and short.score == pytest.approx(long.score) == 100
    assert "|tok:13a|" in corpus_bleu(["a 男 b c d"], ["a 男 b c d"]).signature


def test_buckets_end_at_their_longest():
    sources = ["w " * n for n in (5, 1, 6, 10, 21, 11, 40)]
    references = [f"this is the sentence {i}" for i in range(7)]
    hypotheses = [*references[:3], "", *references[4:]]
    found = by_length(sources, hypotheses, references, measure=OF_EXACT_MATCH, longest=(5, 10, 20))
    assert [dataclasses.astuple(bucket) for bucket in found] == [
        (1, 5, 2, 1.0, 1.0, 1.0),
        (6, 10, 2, 0.5, 0.0, 1.0),
        (11, 20, 1, 1.0, 1.0, 1.0),
        (21, None, 2, 1.0, 1.0, 1.0),
    ]
    assert [bucket.title for bucket in found] == ["1–5", "6–10", "11–20", "> 20"]


def test_a_bucket_without_sentences_is_left_out_and_bleu_is_of_its_sentences_alone():
    sources = ["w", "w w w w w w", "w w"]
    references = ["a b c d", "e f g h i", "a b c x"]
    hypotheses = ["a b c d", "e f g h k", "a b c d"]
    short, long = by_length(sources, hypotheses, references, longest=(2, 3, 4, 7))
    assert (short.shortest, short.longest, short.count) == (1, 2, 2)
    assert (long.shortest, long.longest, long.count) == (5, 7, 1)
    of_short, of_long = (corpus_bleu(hypotheses[some], references[some]).score
                         for some in (slice(0, 3, 2), slice(1, 2)))  # fmt: skip
    assert short.score == pytest.approx(of_short) and long.score == pytest.approx(of_long)
    assert of_short != of_long


def test_the_interval_is_that_of_the_bootstrap():
    """Of a share it is the binomial's, and of BLEU sacrebleu's own; both draw 1000 times."""
    found = np.arange(400) % 10 < 3
    statistics = np.stack([found, np.ones(400, int)], 1)
    wide = 1.96 * (0.3 * 0.7 / 400) ** 0.5
    assert OF_EXACT_MATCH.interval(statistics) == pytest.approx((0.3 - wide, 0.3 + wide), abs=0.01)
    assert OF_EXACT_MATCH.interval(statistics) == OF_EXACT_MATCH.interval(statistics)
    words = np.random.default_rng(1).integers(0, 9, (50, 2, 12))
    hypotheses, references = ([" ".join(map(str, side)) for side in words[:, i]] for i in (0, 1))
    low, high = OF_BLEU.interval(OF_BLEU.statistics(hypotheses, references))
    theirs = sacrebleu.BLEU().corpus_score(hypotheses, [references], n_bootstrap=1000)
    assert (low + high) / 2 == pytest.approx(theirs._mean, abs=0.3 * theirs._ci)
    assert (high - low) / 2 == pytest.approx(theirs._ci, rel=0.15)


def test_length_can_be_of_characters():
    (one,) = by_length(["1 May"], ["x"], ["x"], measure=OF_EXACT_MATCH, longest=(4, 5), length=len)
    assert (one.shortest, one.longest, one.title) == (5, 5, "5")
