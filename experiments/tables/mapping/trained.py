"""Cells whose models are trained: which row of a published table is which run."""

from __future__ import annotations

from typing import Any

from experiments.tables.beside import Beside
from experiments.tables.lengths import LengthTable, TranslationsByLength
from experiments.tables.mapping import britz
from experiments.tables.trained import TrainedTable
from experiments.tables.trainings import SCALES, Classifications, Duplications, Translations

__all__ = ["TRAINED"]


def _set(model: str, **fields: Any) -> tuple[str, ...]:
    """Flags of `translate`: a model, and its fields that are not its recipe's."""
    written = {name: str(x).lower() for name, x in fields.items()}
    return (f"--models={model}", *(f"--set={model}.{name}={x}" for name, x in written.items()))


def _luong(score: str | None, window: str = "global", **fields: Any) -> tuple[str, ...]:
    local = {"window": window, "half_width": 4} if window != "global" else {}
    return _set("luong", score=score, **local, **fields)


def _vaswani(**fields: Any) -> tuple[str, ...]:
    return _set("transformer", **fields)


def _of_britz(number: int, what: str, file: str, rows: britz.Rows, **given: Any) -> TrainedTable:
    return TrainedTable(
        f"{what}: Britz et al. 2017, Table {number}",
        f"britz2017_{file}.csv",
        "BLEU_newstest2013_mean",
        Translations({row: _set("britz", **fields) for row, fields in rows.items()}),
        **given,
    )


def _attention(kind: str, width: int) -> tuple[str, ...]:
    return _set("britz", attention=kind, attention_features=width)


_LUONG_WINDOW = "Sentences are half as long as the paper's, and so are the windows: D is 4, not 10."


def _luong4(column: str, score: str, *, tie: float) -> TrainedTable:
    return TrainedTable(
        f"Scores and windows, {score}: Luong et al. 2015, Table 4",
        "luong2015_table4.csv",
        column,
        Translations(
            {
                "global, location": _luong("location"),
                "global, dot": _luong("dot"),
                "global, general": _luong("general"),
                "global, concat (footnote 15)": _luong("concat"),
                "local-m, dot": _luong("dot", "local-m"),
                "local-m, general": _luong("general", "local-m"),
                "local-m, concat (footnote 15)": _luong("concat", "local-m"),
                "local-p, dot": _luong("dot", "local-p"),
                "local-p, general": _luong("general", "local-p"),
                "local-p, concat (footnote 15)": _luong("concat", "local-p"),
            }
        ),
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
                    *_set("rnn_search", attention=name.lower()),
                    "--gradient_batches=4",
                )
                for name in ("Soft", "Hard")
            },
            of_text=of_text,
            scales=SCALES if of_text else ["cpu"],
        ),
        base="COCO, Soft-Attention",
        keys=2,
        **given,
    )


_BAHDANAU = {
    "RNNencdec-30": ("--models=rnn_encdec", "--max_length=15"),
    "RNNsearch-30": ("--models=rnn_search", "--max_length=15"),
    "RNNencdec-50": ("--models=rnn_encdec", "--max_length=25"),
    "RNNsearch-50": ("--models=rnn_search", "--max_length=25"),
}
_BAHDANAU_LENGTHS = (
    "Sentences are half as long as the paper's, and so are the limits: 15 and 25 subwords for -30"
    " and -50 words, which leave 42 and 91 % of the pairs. A translation ends 20 subwords after"
    " them."
)

TRAINED: dict[str, Beside] = {
    "luong1": TrainedTable(
        "The ladder: Luong et al. 2015, Table 1",
        "luong2015_table1.csv",
        "BLEU_tokenized",
        Translations(
            {
                "Base": _luong(None, input_feeding=False, reverse_source=False, dropout_rate=0.0),
                "Base + reverse": _luong(None, input_feeding=False, dropout_rate=0.0),
                "Base + reverse + dropout": _luong(None, input_feeding=False),
                "Base + reverse + dropout + global (location)": _luong(
                    "location", input_feeding=False
                ),
                "Base + reverse + dropout + global (location) + feed": _luong("location"),
                "Base + reverse + dropout + local-p (general) + feed": _luong("general", "local-p"),
            }
        ),
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
        Translations(_BAHDANAU),
        base="RNNencdec-30",
        note=_BAHDANAU_LENGTHS,
    ),
    "bahdanau2": LengthTable(
        "BLEU over the length of the source: Bahdanau et al. 2014, Figure 2",
        "bahdanau2014_figure2.csv",
        "BLEU_over_length",
        TranslationsByLength(_BAHDANAU),
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
        " longer. Dropout is 0.1, not 0.2.",
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
                "None-State": _set("britz", attention="none-state"),
                "None-Input": _set("britz", attention="none-input"),
                **{f"scaled Mul-{n}": _attention("scaled-mul", n) for n in (128, 256, 512, 1024)},
            }
        ),
        base="Mul-512",
        note="Only attention is as wide as in the paper: states and embeddings have 128 units, not"
        " 512. The paper's Mul is not divided by the root of its width; in the last rows ours is.",
    ),
    "vaswani2": TrainedTable(
        "Base and big, averaged checkpoints: Vaswani et al. 2017, Table 2",
        "vaswani2017_table2.csv",
        "BLEU_EN_DE",
        Translations(
            {
                "Transformer (base)": (
                    *_vaswani(num_heads=8),
                    "--checkpoint_every=10",
                    "--average=5",
                ),
                "Transformer (big)": (
                    *_vaswani(num_heads=16, width=256, hidden=512, dropout_rate=0.3),
                    "--learning_rate=0.0014",
                    "--checkpoint_every=2",
                    "--average=20",
                ),
                "Transformer (base), its best checkpoint": _vaswani(num_heads=8),
            },
            scales=["cpu"],
        ),
        base="Transformer (base)",
        note="The base model has a quarter of the paper's width and a third of its layers. The big"
        " one is to it what the paper's is: twice as wide, with twice as many heads, dropout 0.3"
        " and a learning rate divided by √2, as the paper's d_model^-0.5 says; but it is trained"
        " for as many steps, not three times as many. Tested is the mean of the last 5 and of the"
        " last 20 checkpoints (§6.1), which span 5 % of the steps, in the paper 7 and 4 % of the"
        " time. The learning rate falls to 0 at the end, in the paper as step^-0.5, so that the"
        " last checkpoints here are more alike. The last row is the base model without the mean,"
        " for which the paper prints no number; the paper's other rows are other systems.",
    ),
    "vaswani3": TrainedTable(
        "Heads, keys, positions: Vaswani et al. 2017, Table 3 (A), (B), (E)",
        "vaswani2017_table3.csv",
        "BLEU_dev",
        Translations(
            {
                "base": _vaswani(num_heads=8),
                "A1": _vaswani(num_heads=1),
                "A2": _vaswani(num_heads=4),
                "A3": _vaswani(num_heads=16),
                "A4": _vaswani(num_heads=32),
                "B1": _vaswani(num_heads=8, key_width=4),
                "B2": _vaswani(num_heads=8, key_width=8),
                "E positional embedding instead of sinusoids": _vaswani(
                    num_heads=8, positions="learned"
                ),
            },
            scales=["cpu"],
        ),
        base="base",
        note="A quarter of the paper's width, so heads are a quarter as wide; (B) divides the width"
        " of the keys by 4 and by 2, as the paper does. *entropy* is of the mean of the heads of"
        " the last layer, which is the larger the more there are.",
    ),
    "reformer2": TrainedTable(
        "Duplication of a word: Kitaev et al. 2020, Table 2",
        "reformer2020_table2.csv",
        {
            "full": "eval_full_pct",
            **{f"LSH-{rounds}": f"eval_LSH{rounds}_pct" for rounds in (8, 4, 2, 1)},
        },
        Duplications(),
        score="accuracy",
        base="Full, full",
        note="A row is what a model was trained with and what it was evaluated with. Words have 31"
        " symbols at scale cpu, 511 in the paper; a model that hashes once is trained twice as"
        " long. The report of `duplication` has the paper's statements and what explains them.",
    ),
    "lra1": TrainedTable(
        "ListOps: Tay et al. 2020, Table 1",
        "lra2020_table1.csv",
        "ListOps",
        Classifications(
            "listops",
            {"Transformer": "exact", "Local Attention": "window-16", "Reformer": "lsh-2"},
        ),
        score="accuracy",
        base="Transformer",
        not_comparable={"Reformer": "the paper's is another function"},
        note="Of at most 256 tokens at scale cpu, of 2000 at scale gpu, as in the paper. Local"
        " attention sees 16 tokens on either side, the paper's blocks. The paper's Reformer"
        " multiplies logits by √d, has no masks and a constant hash key, and reshapes heads without"
        " a transpose; ours is LSH attention.",
    ),
}
