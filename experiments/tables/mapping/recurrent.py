"""Rows of trained recurrent models: which row of a published table is which run."""

from __future__ import annotations

import functools
from typing import Any

from experiments.tables.beside import Beside
from experiments.tables.lengths import LengthTable, TranslationsByLength
from experiments.tables.mapping import britz
from experiments.tables.trained import TrainedTable
from experiments.tables.trainings import Translations, sized

__all__ = ["RECURRENT"]


def _luong(
    score: str | None, window: str = "global", *, at_paper: bool = False, **fields: Any
) -> tuple[str, ...]:
    if window != "global":
        fields = {"window": window, "half_width": 10 if at_paper else 4} | fields
    elif at_paper:  # whose preset has a local window
        fields = {"window": window} | fields
    return sized("luong", score=score, **fields)


def _of_britz(number: int, what: str, file: str, rows: britz.Rows, **given: Any) -> TrainedTable:
    return TrainedTable(
        f"{what}: Britz et al. 2017, Table {number}",
        f"britz2017_{file}.csv",
        "BLEU_newstest2013_mean",
        Translations({row: sized("britz", **fields) for row, fields in rows.items()}),
        **given,
    )


def _attention(kind: str, width: int) -> tuple[str, ...]:
    return sized("britz", attention=kind, attention_features=width)


_LUONG_WINDOW = (
    "Sentences are half as long as the paper's, and so are the windows: D is 4, not 10, which it is"
    " at scale paper."
)


def _scores_and_windows(*, at_paper: bool = False) -> dict[str, tuple[str, ...]]:
    written = {"concat": "concat (footnote 15)"}
    return {
        f"{window}, {written.get(score, score)}": _luong(score, window, at_paper=at_paper)
        for window in ("global", "local-m", "local-p")
        for score in ("location", "dot", "general", "concat")
        if score != "location" or window == "global"
    }


def _luong4(column: str, score: str, *, tie: float) -> TrainedTable:
    return TrainedTable(
        f"Scores and windows, {score}: Luong et al. 2015, Table 4",
        "luong2015_table4.csv",
        column,
        Translations(_scores_and_windows(), at_paper=_scores_and_windows(at_paper=True)),
        score=score,
        base="global, location",
        tie=tie,
        keys=2,
        note=_LUONG_WINDOW + " Here concat learns all of W_a; the authors fixed a half of it.",
    )


def _xu1(title: str, *, of_text: bool, **given: Any) -> TrainedTable:
    return TrainedTable(
        f"{title}: Xu et al. 2015, Table 1",
        "xu2015_table1.csv",
        "BLEU4",
        Translations(
            {
                f"COCO, {name}-Attention": (
                    *sized("rnn_search", attention=name.lower()),
                    "--gradient_batches=4",
                )
                for name in ("Soft", "Hard")
            },
            of_text=of_text,
            scales=["cpu", "gpu"] if of_text else ["cpu"],
        ),
        base="COCO, Soft-Attention",
        keys=2,
        **given,
    )


def _longest(short: int, long: int) -> dict[str, tuple[str, ...]]:
    return {
        f"{name}-{words}": (f"--models={model}", f"--max_length={tokens}")
        for words, tokens in ((30, short), (50, long))
        for name, model in (("RNNencdec", "rnn_encdec"), ("RNNsearch", "rnn_search"))
    }


_BAHDANAU: dict[str, Any] = {
    "models": _longest(15, 25),
    "at_paper": _longest(30, 50),
    "languages": ("en", "fr"),
}
_BAHDANAU_LENGTHS = (
    "Sentences are half as long as the paper's, and so are the limits: 15 and 25 subwords for -30"
    " and -50 words, which leave 42 and 91 % of the pairs; 30 and 50 subwords at scale paper. A"
    " translation ends 20 subwords after them."
)


def _ladder(*, at_paper: bool = False) -> dict[str, tuple[str, ...]]:
    """Luong's Table 1, each row with something more than the one above it."""
    fed = functools.partial(_luong, at_paper=at_paper)
    bare = functools.partial(fed, input_feeding=False)
    return {
        "Base": bare(None, reverse_source=False, dropout_rate=0.0),
        "Base + reverse": bare(None, dropout_rate=0.0),
        "Base + reverse + dropout": bare(None),
        "Base + reverse + dropout + global (location)": bare("location"),
        "Base + reverse + dropout + global (location) + feed": fed("location"),
        "Base + reverse + dropout + local-p (general) + feed": fed("general", "local-p"),
    }


RECURRENT: dict[str, Beside] = {
    "luong1": TrainedTable(
        "The ladder: Luong et al. 2015, Table 1",
        "luong2015_table1.csv",
        "BLEU_tokenized",
        Translations(_ladder(), at_paper=_ladder(at_paper=True)),
        note=_LUONG_WINDOW,
    ),
    "luong4": _luong4("BLEU_before_unk", "BLEU", tie=0.3),
    "luong4_perplexity": _luong4("ppl", "perplexity", tie=0.1),
    "luong6": TrainedTable(
        "Alignment: Luong et al. 2015, Table 6",
        "luong2015_table6.csv",
        "AER",
        Translations(
            {
                "global (location)": _luong("location"),
                "local-m (general)": _luong("general", "local-m"),
                "local-p (general)": _luong("general", "local-p"),
            },
            of_text=False,
            scales=["cpu"],
        ),
        score="AER",
        base="global (location)",
        tie=0.01,
        not_comparable={
            "local-m (general)": "most characters of a date lie outside its window",
        },
        note="Of dates read as characters, whose links are known. The parts of a date change their"
        " order, as those of the paper's two languages seldom do; windows have D = 4.",
    ),
    "bahdanau1": TrainedTable(
        "Lengths of training: Bahdanau et al. 2014, Table 1",
        "bahdanau2014_table1.csv",
        "BLEU_all",
        Translations(**_BAHDANAU),
        base="RNNencdec-30",
        note=_BAHDANAU_LENGTHS,
    ),
    "bahdanau2": LengthTable(
        "BLEU over the length of the source: Bahdanau et al. 2014, Figure 2",
        "bahdanau2014_figure2.csv",
        "BLEU_over_length",
        TranslationsByLength(**_BAHDANAU),
        less={"RNNsearch-30": "RNNencdec-30"},
        note=f"The trainings of `bahdanau1`. {_BAHDANAU_LENGTHS}",
    ),
    "xu1": _xu1(
        "Soft and hard attention, of text",
        of_text=True,
        note="The paper describes images; here RNNsearch translates. Only the order of the two can"
        " be compared. Hard attention has the paper's mixture with the soft weights, its baseline,"
        " and λ_e = 0.01; λ_r = 0.03 was chosen among 1, 0.1 and 0.03 by the validation loss on"
        " dates, with one seed.",
    ),
    "xu1_dates": _xu1(
        "Soft and hard attention, of dates",
        of_text=False,
        score="exact match",
        note="As `xu1`, of dates read as characters, where each target has one right form: the"
        " score is the percentage of exact matches, where the paper's is BLEU, so that their gaps"
        " have the same order or another, and no more.",
    ),
    "britz2": _of_britz(
        2,
        "Cells",
        "cell",
        britz.CELLS,
        base="GRU",
        note="The gates begin at 0; those of the authors' program begin at 1.",
    ),
    "britz3": _of_britz(
        3,
        "Depths",
        "depth",
        britz.DEPTHS,
        base="Enc-2",
        not_comparable={"Dec-2": "the same model as Enc-2"},
        note="As deep as in the paper, and as long trained as the others; what is deep may need"
        " longer. Dropout at scale cpu is 0.1, not 0.2.",
    ),
    "britz4": _of_britz(
        4,
        "Directions",
        "direction",
        britz.DIRECTIONS,
        base="Bidi-2",
        note="Uni-1R, Uni-2R and Uni-4R read the source backwards.",
    ),
    "britz5": TrainedTable(
        "Kinds and widths of attention: Britz et al. 2017, Table 5",
        "britz2017_attention.csv",
        "BLEU_newstest2013_mean",
        Translations(
            {
                **{f"Mul-{n}": _attention("mul", n) for n in (128, 256, 512, 1024)},
                **{f"Add-{n}": _attention("add", n) for n in (128, 256, 512, 1024)},
                "None-State": sized("britz", attention="none-state"),
                "None-Input": sized("britz", attention="none-input"),
                **{f"scaled Mul-{n}": _attention("scaled-mul", n) for n in (128, 256, 512, 1024)},
            }
        ),
        base="Mul-512",
        note="At scale cpu only attention is as wide as in the paper: states and embeddings have"
        " 128 units, not 512. The paper's Mul is not divided by the root of its width; in the last"
        " rows ours is.",
    ),
}
