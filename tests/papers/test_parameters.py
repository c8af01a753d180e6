"""Numbers of parameters of the papers' models, counted without making one."""

import math

import jax
import jax.numpy as jnp
import pytest

from attnlab.models import Bert, BertPretraining, Britz, Reformer, RNNSearch, Transformer
from attnlab.models.transformer import TransformerConfig
from attnlab.runs import command_line
from attnlab.runs.published import read
from experiments.tables.mapping import PUBLISHED, all_tables
from experiments.translate.models import build
from experiments.translate.settings import Settings
from tests.daily import daily
from tests.papers.counted import KEPT, SECTIONS, judge_count, rows_of

CLOSED_FORMS = read(PUBLISHED / "param_counts.csv").cells
TOKENS = jax.ShapeDtypeStruct((1, 8), jnp.int32)
BERT_LARGE = {"num_layers": 24, "width": 1024, "hidden": 4096, "num_heads": 16}
BERT = {
    "BERT base uncased": {},
    "BERT large uncased": BERT_LARGE,
    "BERT base cased": {},
    "BERT large cased": BERT_LARGE,
    "BERT Table 6 L=3 H=768": {"num_layers": 3},
    "BERT Table 6 L=6 H=768 (A=3 or 12)": {"num_layers": 6, "num_heads": 3},
    "BERT Table 6 L=12 H=1024": BERT_LARGE | {"num_layers": 12},
    "BERT_BASE": {},
    "BERT_LARGE": BERT_LARGE,
}
VASWANI = {
    "base": {},
    "B1": {"key_width": 16},
    "B2": {"key_width": 32},
    "C1": {"num_layers": 2},
    "C2": {"num_layers": 4},
    "C3": {"num_layers": 8},
    "C4": {"width": 256},
    "C5": {"width": 1024},
    "C6": {"hidden": 1024},
    "C7": {"hidden": 4096},
    "big": {"width": 1024, "hidden": 4096, "num_heads": 16},
}


def vocabulary_of(table, row):
    """The number of ids, of each side."""
    match table:
        case "bahdanau_parameters":
            return 30_000
        case "bert_parameters" | "bert_sizes":
            return 28_996 if row.endswith(" cased") else 30_522
        case "vaswani3_parameters":
            # "About 37,000": of all numbers that round to it none gives the printed parameters.
            # This one gives all but one row's.
            return 41_100
        case _:
            return 37_007


def count(table, row, vocab_size):
    """The number of parameters of the model of a row."""
    # Scanned layers have as many parameters, and one is traced for all.
    match table:
        case "bahdanau_parameters":
            return count_arrays(RNNSearch(vocab_size, vocab_size), TOKENS, TOKENS)
        case "bert_parameters":
            config = TransformerConfig.bert(vocab_size, scan_layers=True, **BERT[row])
            return count_arrays(Bert(config), TOKENS, TOKENS)
        case "bert_sizes":
            config = TransformerConfig.bert(vocab_size, scan_layers=True, **BERT[row])
            return count_arrays(BertPretraining(config), TOKENS, TOKENS, masked=TOKENS)
        case "britz1_parameters":
            model = Britz(vocab_size, vocab_size, embed_features=int(row))
            return count_arrays(model, TOKENS, TOKENS)
        case "reformer_parameters":
            return count_arrays(Reformer.enwik8(), TOKENS)
        case "vaswani3_parameters":
            config = TransformerConfig.base(vocab_size, scan_layers=True, **VASWANI[row])
            return count_arrays(Transformer(config), TOKENS, TOKENS)
        case _:
            return count_arrays(build_as_trained(table, row, vocab_size), TOKENS, TOKENS)


def count_arrays(model, *inputs, **named):
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs, **named)
    return sum(x.size for x in jax.tree.leaves(shapes["params"]))


def build_as_trained(table, row, vocab_size):
    """The model that the command of a row of Britz et al. trains at the paper's scale."""
    trained = all_tables()[table.removesuffix("_parameters")]
    command = trained.trainings[row].runs["paper"]
    accepted = []
    words = [command.experiment, *command.flags]
    command_line.run(words, Settings, lambda settings, _: accepted.append(settings) or 0, doc="")
    (settings,) = accepted
    (variant,) = settings.variants()
    return build(
        "britz",
        settings.recipe(variant).sizes,
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        dtype="float32",
    )


def find_vocabularies(table, row, printed):
    """The numbers of ids with which a model has as many parameters as a paper prints.

    It prints millions; rounding leaves an interval.
    """
    with_one = count(table, row, 1)
    each = count(table, row, 2) - with_one
    with_none = with_one - each
    half = 10**6 // 10 ** len(printed.partition(".")[2]) // 2
    middle = round(float(printed) * 1e6)
    first = math.ceil((middle - half - with_none) / each)
    last = math.floor((middle + half - with_none) / each)
    return range(first, last + 1)


@pytest.mark.parametrize(
    ("table", "row"),
    daily(
        [key for key in KEPT if "parameters" in key[0] or key[0] == "bert_sizes"],
        ("vaswani3_parameters", "C5"),
        ("britz5_parameters", "None-Input"),
        ("bert_parameters", "BERT large cased"),
    ),
)
def test_the_number_of_parameters(table, row):
    vocab_size, kept = vocabulary_of(table, row), KEPT[table, row]
    found = count(table, row, vocab_size)
    assert (kept["ours"], kept["verdict"]) == (f"{found:,}", judge_count(kept["paper"], found))
    if kept["vocabularies"]:
        ids = find_vocabularies(table, row, kept["paper"])
        assert kept["vocabularies"] == f"{ids[0]:,} to {ids[-1]:,}"
        assert (kept["verdict"] == "exact") == (vocab_size in ids)


def test_the_transformer_has_the_numbers_of_closed_forms():
    column = "exact_V41100"
    closed = {
        key.split()[1]: f"{cells[column]:,.0f}"
        for key, cells in CLOSED_FORMS.items()
        if column in cells
    }
    del closed["A"]  # as the base
    assert closed == {row: KEPT["vaswani3_parameters", row]["ours"] for row in VASWANI}


@pytest.mark.parametrize(
    "table", dict.fromkeys(table for (table, _), row in KEPT.items() if row["vocabularies"])
)
def test_the_page_says_which_vocabularies_give_all_numbers(table):
    rows = [KEPT[key] for key in rows_of(table)]
    exact = [row["vocabularies"] for row in rows if row["verdict"] == "exact"]
    ends = [interval.replace(",", "").split(" to ") for interval in exact]
    first = max(int(first) for first, _ in ends)
    last = min(int(last) for _, last in ends)
    numbers = "all numbers" if len(exact) == len(rows) else f"{len(exact)} of {len(rows)} numbers"
    ids = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    said = f"Ours has {vocabulary_of(table, rows[0]['row']):,} ids."
    said += f" One vocabulary gives {numbers} of the paper: {ids} ids."
    assert f"\n{said}\n" in SECTIONS[table]
