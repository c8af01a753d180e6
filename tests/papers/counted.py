"""The counted numbers as their page and `tables --claims` have them, and the rules of verdicts."""

import csv
import re
from collections.abc import Mapping

from attnlab.runs.published import Table, read
from experiments.tables.claims import COUNTED
from experiments.tables.mapping import PUBLISHED
from experiments.tables.verdicts import EXACT, NOT_EXACT, TOLERANCE

# The published file and its column, in the order of the page.
COLUMNS = {
    "bahdanau_parameters": ("param_counts", "exact_V37000"),
    "bert_parameters": ("param_counts", "exact_V37000"),
    "bert_sizes": ("bert2018_sizes", "params_millions_published"),
    "britz1_parameters": ("britz2017_embedding", "params_millions"),
    "britz2_parameters": ("britz2017_cell", "params_millions"),
    "britz3_parameters": ("britz2017_depth", "params_millions"),
    "britz4_parameters": ("britz2017_direction", "params_millions"),
    "britz5_parameters": ("britz2017_attention", "params_millions"),
    "reformer_parameters": ("param_counts", "published_millions"),
    "reformer1_time": ("reformer2020_table1", "time_complexity"),
    "reformer1_memory": ("reformer2020_table1", "memory_complexity"),
    "reformer3_time": ("reformer2020_table3", "time_complexity"),
    "reformer3_memory": ("reformer2020_table3", "memory_complexity"),
    "vaswani1_complexity": ("vaswani2017_table1", "complexity_per_layer"),
    "vaswani1_sequential": ("vaswani2017_table1", "sequential_operations"),
    "vaswani1_path": ("vaswani2017_table1", "maximum_path_length"),
    "vaswani_footnote4": ("vaswani2017_footnote4", "variance_of_the_logits"),
    "vaswani2_cost": ("vaswani2017_table2", "FLOPs_EN_DE"),
    "vaswani3_parameters": ("vaswani2017_table3", "params_millions"),
}


def read_rows() -> list[Mapping[str, str]]:
    """The kept rows: table, row, paper, ours, verdict and, of parameters, vocabularies."""
    with COUNTED.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


KEPT = {(row["table"], row["row"]): row for row in read_rows()}

PAGE_HEAD, *_sections = re.split(
    r"^## ", (COUNTED.parent / "report.md").read_text(encoding="utf-8"), flags=re.MULTILINE
)
SECTIONS = dict(zip(COLUMNS, _sections, strict=True))  # of the page, by table


def rows_of(*tables: str) -> list[tuple[str, str]]:
    """The keys of the rows of tables."""
    return [key for key in KEPT if key[0] in tables]


def read_published(table: str) -> Table:
    """The published table that a table of the page is beside."""
    file, _ = COLUMNS[table]
    return read(PUBLISHED / f"{file}.csv")


def judge_count(printed: str, count: int) -> str:
    """The verdict on a number of parameters: whether it is the paper's in the digits it prints."""
    if is_in_millions(printed):
        decimals = len(printed.partition(".")[2])
        ours = f"{count / 1e6:.{decimals}f}"
    else:
        ours = str(count)
    return EXACT if ours == printed else NOT_EXACT


def is_in_millions(printed: str) -> bool:
    """Whether it is rounded, and no whole count: no model has so few as 1000 parameters."""
    return float(printed) < 1000


def judge_exponents(paper: Mapping[str, float], ours: Mapping[str, float]) -> str:
    """The verdict on exponents by size: all of the paper's must be ours."""
    above = [ours[size] - exponent for size, exponent in paper.items()]
    if all(abs(x) <= TOLERANCE for x in above):
        return EXACT
    return f"{NOT_EXACT}: less" if all(x <= TOLERANCE for x in above) else NOT_EXACT


def format_exponents(ours: Mapping[str, float]) -> str:
    """Exponents behind their sizes."""
    return " ".join(f"{size}^{exponent:.2f}" for size, exponent in ours.items())


def require_kept(
    table: str, row: str, paper: Mapping[str, float], ours: Mapping[str, float]
) -> None:
    """Compares exponents that were counted with those of the page, and with the paper's."""
    kept = KEPT[table, row]
    assert kept["ours"] == format_exponents(ours)
    assert kept["verdict"] == judge_exponents(paper, ours)


def require_kept_about(
    table: str, row: str, paper: Mapping[str, float], ours: Mapping[str, float]
) -> None:
    """Compares exponents of a compiled program: other compilers have other last digits."""
    kept = KEPT[table, row]
    on_page = {
        size: float(exponent)
        for size, _, exponent in (one.partition("^") for one in kept["ours"].split())
    }
    assert kept["verdict"] == judge_exponents(paper, ours) == judge_exponents(paper, on_page)
    assert judge_exponents(on_page, ours) == EXACT
