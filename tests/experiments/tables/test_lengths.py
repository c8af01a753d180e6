"""Scores by the length of the source: from the rows of `translate` to a verdict and a figure."""

import dataclasses

from attnlab.training.bleu import Bucket
from experiments.tables import report, verdicts
from experiments.tables.mapping import all_tables

TABLE = all_tables()["bahdanau2"]
COUNTS = ((1, 5, 24), (6, 10, 500), (11, 15, 50), (16, None, 49))


def rows(changes):
    """Lines of results.jsonl, a seed each, whose BLEU changes so from 6–10 words to 11–15."""
    found = []
    for seed, change in enumerate(changes):
        scores = (30.0, 20.0, 20.0 + change, 99.0)
        buckets = [
            Bucket(a, b, n, score, score - 1, score + 1)
            for (a, b, n), score in zip(COUNTS, scores, strict=True)
        ]
        buckets = [dataclasses.asdict(one) for one in buckets]
        row = {"cell": {"seed": seed}, "scores": {"BLEU": 20.0}, "environment": seed}
        found.append(row | {"details": {"buckets": buckets}})
    return found


def found(**changes):
    read = {row.replace("_", "-"): some for row, some in changes.items()}
    return {
        row: [values for values, _ in TABLE.read(row, rows(some)).values()]
        for row, some in read.items()
    }


AS_IN_THE_PAPER = {
    "RNNencdec_30": (-9.0, -9.5, -10.0),
    "RNNsearch_30": (-3.0, -3.5, -4.0),
    "RNNencdec_50": (-5.0, -5.5, -6.0),
    "RNNsearch_50": (0.5, 0.0, -0.5),
}


def test_the_papers_courses_are_told_from_their_opposites():
    paper = TABLE.paper(report.read_published(["bahdanau2"])["bahdanau2"])
    assert list(paper) == list(TABLE.rows)
    same = TABLE.verdicts(paper, found(**AS_IN_THE_PAPER))
    assert set(same.values()) == {verdicts.REPRODUCED}
    swapped = {row: (0.05, -0.05, 0.0) for row in AS_IN_THE_PAPER}
    other = TABLE.verdicts(paper, found(**swapped | {"RNNsearch_50": (-5.0, -5.1, -5.2)}))
    assert list(other.values()) == [verdicts.NO_DIFFERENCE] * 3 + [verdicts.DIFFERENCE]
    # Neither a fall nor none: Student's interval of such seeds has both.
    for row, changes in (("RNNencdec_50", (-2.0, -8.0, -2.0)), ("RNNsearch_50", (-3.0, 3.0, 0.0))):
        wide = TABLE.verdicts(paper, found(**AS_IN_THE_PAPER | {row: changes}))
        assert verdicts.kind(wide[row.replace("_", "-")]) == verdicts.UNDECIDED
    alone = found(**AS_IN_THE_PAPER | {"RNNencdec_30": (-9.0,)})
    assert TABLE.verdicts(paper, alone) == same | {
        row: "undecided: one seed shows no variance" for row in ("RNNencdec-30", "RNNsearch-30")
    }
