"""Cells that need no training: which published table is which of our counts."""

from __future__ import annotations

from typing import Any

from experiments.tables.beside import Beside
from experiments.tables.exact import ExactTable
from experiments.tables.growth import Growth
from experiments.tables.logits import LogitVariance
from experiments.tables.mapping import britz
from experiments.tables.parameters import Count
from experiments.tables.paths import PathLength
from experiments.tables.stacks import StackGrowth
from experiments.tables.training_cost import TrainingCost

__all__ = ["EXACT"]


def _count(model: str, vocab_size: int | None, **fields: Any) -> Count:
    return Count(model, tuple(fields.items()), vocab_size)


def _transformer(**fields: Any) -> Count:
    # "About 37,000": of all numbers that round to it none gives the printed parameters; this one
    # gives all but one row's.
    return _count("transformer", 41_100, **fields)


_LARGE = {"num_layers": 24, "width": 1024, "hidden": 4096, "num_heads": 16}


def _bert(vocab_size: int = 30_522, **fields: Any) -> Count:
    return _count("bert", vocab_size, **fields)


def _britz(**fields: Any) -> Count:
    return _count("britz", 37_007, **fields)


def _of_britz(number: int, what: str, file: str, rows: britz.Rows) -> ExactTable:
    title = f"Parameters: Britz et al. 2017, Table {number}, {what}"
    counts = {row: _britz(**fields) for row, fields in rows.items()}
    return ExactTable(title, f"britz2017_{file}.csv", "params_millions", counts)


def _grows(layer: str, work: str = "products", **paper: float) -> Growth:
    return Growth(layer, work, tuple(paper.items()))


def _stack(model: str, work: str = "products", **paper: float) -> StackGrowth:
    return StackGrowth(model, work, tuple(paper.items()))


EXACT: dict[str, Beside] = {
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
    "reformer3_time": ExactTable(
        "Operations of a model: Kitaev et al. 2020, Table 3",
        "reformer2020_table3.csv",
        "time_complexity",
        {
            "Transformer": _stack("exact", l=2, f=1, N=1),
            "Reversible Transformer": _stack("reversible-exact", l=2, f=1, N=1),
            "Chunked Reversible Transformer": _stack("chunked-reversible-exact", l=2, f=1, N=1),
            "LSH Transformer": _stack("lsh-1", l=1, N=1, R=1),
            "Reformer": _stack("chunked-reversible-lsh-1", l=1, N=1, R=1),
        },
        note="Of a forward pass; l tokens; f is the paper's d_ff, N its n_l, R its n_r. Each grows"
        " where its term of the sum is the largest: of 512 tokens and more where attention is, of"
        " networks 16,384 wide and more where they are. c is that of Table 1.",
    ),
    "reformer3_memory": ExactTable(
        "Memory of a model over its layers: Kitaev et al. 2020, Table 3",
        "reformer2020_table3.csv",
        "memory_complexity",
        {
            "Transformer": _stack("exact", "memory", N=1),
            "Reversible Transformer": _stack("reversible-exact", "memory", N=0),
            "Chunked Reversible Transformer": _stack("chunked-reversible-exact", "memory", N=0),
            "LSH Transformer": _stack("lsh-1", "memory", N=1),
            "Reformer": _stack("chunked-reversible-lsh-1", "memory", N=0),
        },
        note="Between 16 and 64 layers, with the backward pass, beside parameters and their"
        " gradients; compiled for the machine below. Exact attention keeps its weights here, as in"
        " the paper.",
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
    "vaswani2_cost": ExactTable(
        "Operations of the training: Vaswani et al. 2017, Table 2",
        "vaswani2017_table2.csv",
        "FLOPs_EN_DE",
        {
            "Transformer (base)": TrainingCost(hours=12, steps=100_000),
            "Transformer (big)": TrainingCost(
                hours=3.5 * 24,
                steps=300_000,
                fields=(("width", 1024), ("hidden", 4096), ("num_heads", 16)),
            ),
        },
        note="The paper's column is no count: time × 8 P100 GPUs × 9.5 TFLOP/s, which comes out."
        " Counted are the products of matrices in the traced gradient, of 1000 sentences of 25 + 25"
        " tokens with 37,000 ids, times the steps. The other rows are other systems.",
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
    "britz2_parameters": _of_britz(2, "cells", "cell", britz.CELLS),
    "britz3_parameters": _of_britz(3, "depth", "depth", britz.DEPTHS),
    "britz4_parameters": _of_britz(4, "directions", "direction", britz.DIRECTIONS),
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
    "bert_parameters": ExactTable(
        "Parameters: Devlin et al. 2018, encoder and pooler, in closed form",
        "param_counts.csv",
        "exact_V37000",
        {
            "BERT base uncased": _bert(),
            "BERT large uncased": _bert(**_LARGE),
            "BERT base cased": _bert(28_996),
            "BERT large cased": _bert(28_996, **_LARGE),
            "BERT Table 6 L=3 H=768": _bert(num_layers=3),
            "BERT Table 6 L=6 H=768 (A=3 or 12)": _bert(num_layers=6, num_heads=3),
            "BERT Table 6 L=12 H=1024": _bert(**_LARGE | {"num_layers": 12}),
        },
        note="The column's name is that of another paper's vocabulary; here it is 30,522 ids, or"
        " 28,996 cased.",
    ),
    "bert_sizes": ExactTable(
        "Parameters: Devlin et al. 2018, §3, with the heads of pre-training",
        "bert2018_sizes.csv",
        "params_millions_published",
        {
            "BERT_BASE": _count("bert_pretraining", 30_522),
            "BERT_LARGE": _count("bert_pretraining", 30_522, **_LARGE),
        },
        note="No counting of the large model's arrays gives 340 million.",
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
}
