"""How good a translation is: BLEU by sacrebleu, exact match, and both over the source's length."""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np
from sacrebleu.metrics import BLEU

__all__ = [
    "OF_BLEU",
    "OF_EXACT_MATCH",
    "RESAMPLINGS",
    "Bleu",
    "Bucket",
    "Measure",
    "by_length",
    "corpus_bleu",
    "exact_match",
    "words",
]

LONGEST = (5, 10, 15, 20, 25, 30, 40, 50)
RESAMPLINGS = 1000
_CHINESE = "\u3400-\u9fff"
_OTHERS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"  # Thai, Lao, Myanmar, Khmer, kana
_WORD = re.compile(f"[{_CHINESE}{_OTHERS}]|[^\\s{_CHINESE}{_OTHERS}]+")


@dataclasses.dataclass(frozen=True)
class Bleu:
    """BLEU of a corpus, as sacrebleu computed it.

    Attributes:
      score: BLEU, 0 to 100.
      signature: signature of sacrebleu: references, case, tokenizer, smoothing and version. Scores
        compare only under the same one.
      brevity_penalty: penalty min(1, exp(1 − reference length / hypothesis length)).
      precisions: precisions of n-grams, n = 1 to 4, each 0 to 100.
      hypothesis_length: number of sacrebleu's tokens in all hypotheses.
      reference_length: number of sacrebleu's tokens in all references.
    """

    score: float
    signature: str
    brevity_penalty: float
    precisions: tuple[float, ...]
    hypothesis_length: int
    reference_length: int


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A measure of the sentences whose source has `shortest` to `longest` words.

    Attributes:
      shortest: fewest words of a source.
      longest: most words of a source; None where there is no limit.
      count: number of sentences.
      score: measure of these sentences.
      low: score below which 2.5 % of the resamplings of the sentences are.
      high: score above which 2.5 % of the resamplings are.
    """

    shortest: int
    longest: int | None
    count: int
    score: float
    low: float
    high: float

    @property
    def title(self) -> str:
        """`6–10`, or `> 50` where there is no limit."""
        if self.longest is None:
            return f"> {self.shortest - 1}"
        if self.longest == self.shortest:
            return f"{self.longest}"
        return f"{self.shortest}–{self.longest}"


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Bleu:
    """BLEU = BP · exp(¼ Σ_{n=1…4} log p_n), counted over the whole corpus, with case.

    Detokenized text with one reference a sentence. Where a p_n has no match, sacrebleu's default
    smoothing (exp) stands in; where no hypothesis has n tokens, the score is 0. Its tokenizer is
    "13a", which is what papers report as (detokenized) sacreBLEU; where at least half of the
    references' `words` are characters of scripts without blanks, it is "zh" of Chinese and "char"
    of others: to "13a" a sentence without blanks is one word.

    Args:
      hypotheses: translations to judge.
      references: right translation of each of them.

    Raises:
      ValueError: no sentences, or not as many of one as of the other.

    Source: Papineni et al. 2002; Post 2018.
    """
    _check(hypotheses, references)
    metric = BLEU(tokenize=_tokenizer_of(references))
    bleu = metric.corpus_score(list(hypotheses), [list(references)])
    return Bleu(
        score=bleu.score,
        signature=str(metric.get_signature()),
        brevity_penalty=bleu.bp,
        precisions=tuple(bleu.precisions),
        hypothesis_length=bleu.sys_len,
        reference_length=bleu.ref_len,
    )


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The share of hypotheses that are the reference, character for character; 0 to 1.

    >>> exact_match(["a b", "c", "d "], ["a b", "c", "d"])
    0.6666666666666666

    Raises:
      ValueError: no sentences, or not as many of one as of the other.
    """
    _check(hypotheses, references)
    pairs = zip(hypotheses, references, strict=True)
    return sum(hypothesis == reference for hypothesis, reference in pairs) / len(references)


def words(text: str) -> int:
    """How many words there are between white space.

    A character of a script without blanks is one: of Chinese, kana, Thai, Lao, Khmer, Burmese.

    >>> words("Ein Mann, der singt."), words("他唱歌"), words("うたう")
    (4, 3, 3)
    """
    return len(_WORD.findall(text))


def _tokenizer_of(references: Sequence[str]) -> str:
    """The tokenizer of sacrebleu: "13a" of words; of scripts without blanks "zh" or "char"."""
    text = "".join(references)
    chinese = len(re.findall(f"[{_CHINESE}]", text))
    others = len(re.findall(f"[{_OTHERS}]", text))
    if 2 * (chinese + others) < max(1, sum(map(words, references))):
        return "13a"
    return "char" if others > chinese / 10 else "zh"


@dataclasses.dataclass(frozen=True)
class Measure:
    """A measure of a corpus that is a function of sums over its sentences.

    Attributes:
      statistics: function of hypotheses and references that returns an array [sentences, k].
      score: function of the sum [k] of these rows that returns the measure.
    """

    statistics: Callable[[Sequence[str], Sequence[str]], np.ndarray]
    score: Callable[[np.ndarray], float]

    def interval(self, statistics: np.ndarray) -> tuple[float, float]:
        """95 % of the scores of `RESAMPLINGS` corpora, as large, drawn from the sentences.

        The draws are seeded, so that the same sentences have the same interval.

        Source: Koehn 2004, §3 (percentiles of the bootstrap).
        """
        sentences = len(statistics)
        draw = np.random.default_rng(0)
        times = draw.multinomial(sentences, [1 / sentences] * sentences, RESAMPLINGS)
        low, high = np.percentile([self.score(sums) for sums in times @ statistics], [2.5, 97.5])
        return float(low), float(high)


def _bleu_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    metric = BLEU(tokenize=_tokenizer_of(references))
    statistics = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        bleu = metric.corpus_score([hypothesis], [[reference]])
        statistics.append([*bleu.counts, *bleu.totals, bleu.sys_len, bleu.ref_len])
    return np.array(statistics)


def _bleu_of(sums: np.ndarray) -> float:
    *ngrams, found_length, wanted_length = map(int, sums)
    return BLEU.compute_bleu(
        ngrams[:4], ngrams[4:], found_length, wanted_length, smooth_method="exp"
    ).score


def _matches(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    return np.array([[a == b, 1] for a, b in zip(hypotheses, references, strict=True)], int)


OF_BLEU = Measure(_bleu_statistics, _bleu_of)
OF_EXACT_MATCH = Measure(_matches, lambda sums: float(sums[0] / sums[1]))


def by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    measure: Measure = OF_BLEU,
    longest: Sequence[int] = LONGEST,
    length: Callable[[str], int] = words,
) -> list[Bucket]:
    """A measure of each group of sentences of like source length (Bahdanau 2014, Figure 2).

    A source of n words is in the first bucket with n ≤ `longest`, or in the last, which has no
    limit. Buckets without a sentence are left out. Each has the interval of `Measure.interval`.

    Args:
      sources: sentences that were translated.
      hypotheses: translations to judge.
      references: right translation of each source.
      measure: measure of each group, taken as a corpus.
      longest: source lengths at which the buckets end, rising.
      length: function of a source that gives its length; `len` counts characters.

    Returns:
      The buckets, short sources first.

    Raises:
      ValueError: the three are not of one length, or empty, or `longest` does not rise.
    """
    _check(hypotheses, references)
    if len(sources) != len(references):
        raise ValueError(
            f"{len(sources)} sources for {len(references)} references; give one for each"
        )
    ends = list(longest)
    if not ends or ends[0] < 1 or ends != sorted(set(ends)):
        raise ValueError(f"longest={ends} must rise from 1 or more; sort it")
    members: list[list[int]] = [[] for _ in range(len(ends) + 1)]
    for i, source in enumerate(sources):
        bucket = bisect.bisect_left(ends, length(source))
        members[bucket].append(i)
    statistics = measure.statistics(hypotheses, references)
    return [
        Bucket(
            ends[b - 1] + 1 if b else 1,
            ends[b] if b < len(ends) else None,
            len(some),
            measure.score(statistics[some].sum(0)),
            *measure.interval(statistics[some]),
        )
        for b, some in enumerate(members)
        if some
    ]


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(texts, str):  # a string is a sequence of strings, and would be measured
            raise ValueError(f"{name} is one string; give a list of them")
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise ValueError(f"{name} must be strings; got {wrong[0]!r} among them")
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} hypotheses for {len(references)} references; give one for each"
        )
    if not len(references):
        raise ValueError("there are no sentences to measure; give at least one")
