"""Which cell of which published table is which number of ours: the one place that says it."""

from __future__ import annotations

from typing import Any

from attnlab.models.cells import LSTMCell, TanhCell
from experiments.tables.beside import Beside
from experiments.tables.exact import ExactTable
from experiments.tables.growth import Growth
from experiments.tables.logits import LogitVariance
from experiments.tables.parameters import Count
from experiments.tables.paths import PathLength
from experiments.tables.trained import TrainedTable
from experiments.tables.trainings import SCALES as TRAINED_SCALES
from experiments.tables.trainings import Duplications, Translations

__all__ = ["SCALES", "TABLES"]

SCALES = ("exact", *TRAINED_SCALES)


def _count(model: str, vocab_size: int | None, **fields: Any) -> Count:
    return Count(model, tuple(fields.items()), vocab_size)


def _transformer(**fields: Any) -> Count:
    # "About 37,000": of all numbers that round to it none gives the printed parameters; this one
    # gives all but one row's.
    return _count("transformer", 41_100, **fields)


def _britz(**fields: Any) -> Count:
    return _count("britz", 37_007, **fields)


def _of_britz(number: int, what: str, file: str, **counts: Count) -> ExactTable:
    title = f"Parameters: Britz et al. 2017, Table {number}, {what}"
    rows = {row.replace("_", "-"): count for row, count in counts.items()}
    return ExactTable(title, f"britz2017_{file}.csv", "params_millions", rows)


def _grows(layer: str, work: str = "products", **paper: float) -> Growth:
    return Growth(layer, work, tuple(paper.items()))


def _set(model: str, **fields: Any) -> tuple[str, ...]:
    """Flags of `translate`: a model, and its fields that are not its recipe's."""
    written = {name: str(x).lower() for name, x in fields.items()}
    return (f"--models={model}", *(f"--set={model}.{name}={x}" for name, x in written.items()))


def _luong(score: str | None, window: str = "global", **fields: Any) -> tuple[str, ...]:
    local = {"window": window, "half_width": 4} if window != "global" else {}
    return _set("luong", score=score, **local, **fields)


def _vaswani(**fields: Any) -> tuple[str, ...]:
    return _set("transformer", **fields)


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


_LSTM = {"encoder_cell": LSTMCell, "decoder_cell": LSTMCell}
_INPUT = {"input_transform": True}

TABLES: dict[str, Beside] = {
    "vaswani1_complexity": ExactTable(
        "Operations of a layer: Vaswani et al. 2017, Table 1",
        "vaswani2017_table1.csv",
        "complexity_per_layer",
        {
            "Self-Attention": _grows("self_attention", n=2, d=1),
            "Recurrent": _grows("recurrent", n=1, d=2),
            "Convolutional": _grows("convolutional", k=1, n=1, d=2),
            "Self-Attention (restricted)": _grows("restricted", r=1, n=1, d=1),
        },
        note="Without projections, which would add n·d²: the paper does not count them either.",
    ),
    "vaswani1_sequential": ExactTable(
        "Sequential operations of a layer: Vaswani et al. 2017, Table 1",
        "vaswani2017_table1.csv",
        "sequential_operations",
        {
            "Self-Attention": _grows("self_attention", "sequential", n=0),
            "Recurrent": _grows("recurrent", "sequential", n=1),
            "Convolutional": _grows("convolutional", "sequential", n=0),
            "Self-Attention (restricted)": _grows("restricted", "sequential", n=0),
        },
        note="Counted as the longest chain of matrix products, each of which needs the one before.",
    ),
    "vaswani1_path": ExactTable(
        "Longest path between two positions: Vaswani et al. 2017, Table 1",
        "vaswani2017_table1.csv",
        "maximum_path_length",
        {
            "Self-Attention": PathLength("self_attention", (("n", 0),)),
            "Recurrent": PathLength("recurrent", (("n", 1),)),
            "Convolutional": PathLength("convolutional", (("log n", 1), ("log k", -1))),
            "Self-Attention (restricted)": PathLength("restricted", (("n", 1), ("r", -1))),
        },
        note="Counted as the longest chain of matrix products in the fewest layers through which"
        " the last position depends on the first; the i-th convolution has gaps of kⁱ tokens.",
    ),
    "reformer1_time": ExactTable(
        "Operations of attention: Kitaev et al. 2020, Table 1",
        "reformer2020_table1.csv",
        "time_complexity",
        {
            "Scaled Dot-Product": _grows("self_attention", n=2),
            "Memory-Efficient": _grows("blockwise", n=2),
            "LSH Attention": _grows("lsh", n=1, R=1, c=2),
        },
        note="Here n is the paper's l, doubled with chunks as long as before, R its n_r, and"
        " c = l / n_c the length of a chunk. The paper writes that squared, in Table 3 too"
        " (c = 128²), but a query meets some chunks of keys, so that the work grows with c itself."
        " Hashing, which the paper does not count, is in ours. Of exact attention only the length"
        " is compared: the paper's b·n_h·l² leaves out the width.",
    ),
    "reformer1_memory": ExactTable(
        "Memory of attention: Kitaev et al. 2020, Table 1",
        "reformer2020_table1.csv",
        "memory_complexity",
        {
            "Scaled Dot-Product": _grows("self_attention", "memory", n=2),
            "Memory-Efficient": _grows("blockwise", "memory", n=2),
            "LSH Attention": _grows("lsh", "memory", n=1, R=1, c=2),
        },
        note="Sizes as above, of one layer with its backward pass, compiled for the machine below."
        " *Memory-Efficient* is exact attention in blocks, whose weights are not kept; of LSH"
        " attention's rounds and chunks not all are in memory at once.",
    ),
    "vaswani_footnote4": ExactTable(
        "Variance of the logits: Vaswani et al. 2017, footnote 4",
        "vaswani2017_footnote4.csv",
        "variance_of_the_logits",
        {
            "dot product": LogitVariance("mul", 1),
            "scaled dot product": LogitVariance("scaled-mul", 0),
        },
        note="Of the logits (W₁ h)·(W₂ s) of Britz's model before training: d is the number of rows"
        " of W₁. What it does to the weights is the column *entropy* of `britz5`.",
    ),
    "vaswani3_parameters": ExactTable(
        "Parameters: Vaswani et al. 2017, Table 3",
        "vaswani2017_table3.csv",
        "params_millions",
        {
            "base": _transformer(),
            "B1": _transformer(key_width=16),
            "B2": _transformer(key_width=32),
            "C1": _transformer(num_layers=2),
            "C2": _transformer(num_layers=4),
            "C3": _transformer(num_layers=8),
            "C4": _transformer(width=256),
            "C5": _transformer(width=1024),
            "C6": _transformer(hidden=1024),
            "C7": _transformer(hidden=4096),
            "big": _transformer(width=1024, hidden=4096, num_heads=16),
        },
    ),
    "britz1_parameters": ExactTable(
        "Parameters: Britz et al. 2017, Table 1, width of the embeddings",
        "britz2017_embedding.csv",
        "params_millions",
        {str(n): _britz(embed_features=n) for n in (128, 256, 512, 1024, 2048)},
    ),
    "britz2_parameters": _of_britz(
        2,
        "cells",
        "cell",
        LSTM=_britz(**_LSTM),
        GRU=_britz(),
        Vanilla_Dec=_britz(decoder_cell=TanhCell),
    ),  # fmt: skip
    "britz3_parameters": _of_britz(
        3,
        "depth",
        "depth",
        Enc_2=_britz(),
        Enc_4=_britz(encoder_layers=2),
        Enc_8=_britz(encoder_layers=4),
        Enc_8_Res=_britz(encoder_layers=4, encoder_residual="add"),
        Enc_8_ResD=_britz(encoder_layers=4, encoder_residual="dense"),
        Dec_1=_britz(decoder_layers=1),
        Dec_2=_britz(),
        Dec_4=_britz(decoder_layers=4),
        Dec_4_Res=_britz(decoder_layers=4, decoder_residual="add", **_INPUT),
        Dec_4_ResD=_britz(decoder_layers=4, decoder_residual="dense", **_INPUT),
        Dec_8=_britz(decoder_layers=8),
        Dec_8_Res=_britz(decoder_layers=8, decoder_residual="add"),
        Dec_8_ResD=_britz(decoder_layers=8, decoder_residual="dense"),
    ),  # fmt: skip
    "britz4_parameters": _of_britz(
        4,
        "directions",
        "direction",
        Bidi_2=_britz(),
        Uni_1=_britz(direction="forward"),
        Uni_1R=_britz(direction="backward"),
        Uni_2=_britz(direction="forward", encoder_layers=2),
        Uni_2R=_britz(direction="backward", encoder_layers=2),
        Uni_4=_britz(direction="forward", encoder_layers=4),
        Uni_4R=_britz(direction="backward", encoder_layers=4),
    ),  # fmt: skip
    "britz5_parameters": ExactTable(
        "Parameters: Britz et al. 2017, Table 5, attention",
        "britz2017_attention.csv",
        "params_millions",
        {
            **{f"Mul-{n}": _britz(attention_features=n) for n in (128, 256, 512, 1024)},
            **{
                f"Add-{n}": _britz(attention="add", attention_features=n)
                for n in (128, 256, 512, 1024)
            },
            "None-State": _britz(attention="none-state"),
            "None-Input": _britz(attention="none-input"),
        },
    ),
    "bahdanau_parameters": ExactTable(
        "Parameters: Bahdanau et al. 2014, in closed form",
        "param_counts.csv",
        "exact_V37000",
        {"Bahdanau RNNsearch": _count("rnn_search", 30_000)},
    ),
    "reformer_parameters": ExactTable(
        "Parameters: Reformer of enwik8",
        "param_counts.csv",
        "published_millions",
        {
            "Reformer enwik8 (HF google/reformer-enwik8 = trax 2020-01 gin)": _count(
                "reformer", None
            )
        },
    ),
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
        Translations(
            {
                "RNNencdec-30": ("--models=rnn_encdec", "--max_length=15"),
                "RNNsearch-30": ("--models=rnn_search", "--max_length=15"),
                "RNNencdec-50": ("--models=rnn_encdec", "--max_length=25"),
                "RNNsearch-50": ("--models=rnn_search", "--max_length=25"),
            }
        ),
        base="RNNencdec-30",
        note="Sentences are half as long as the paper's, and so are the limits: 15 and 25 subwords"
        " for -30 and -50 words, which leave 42 and 91 % of the pairs. A translation ends 20"
        " subwords after them.",
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
}
