"""The papers' tables beside a run's rows: the figures are those of the files, the verdicts ours."""

import csv
import dataclasses
from pathlib import Path

import pytest

from attnlab.bench.case import PASSES, Result
from attnlab.runs.errors import Invalid
from experiments.compare_lengths import published
from tests.bench import rows

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "published"
TABLES = published.load(FOLDER)
LENGTHS = (512, 1024, 2048, 3072, 4096, 8192)


def exact(length: int, passes: str, way: str | None = None, **fields) -> Result:
    """Multi-head attention that takes as long and as much as `lsh` at 1024, then grows as n²."""
    row = rows.row("dot", length, passes, **fields)
    lsh = rows.row("lsh", 1024, passes)
    growth = (length / 1024) ** 2
    return dataclasses.replace(
        row,
        case=dataclasses.replace(row.case, mechanism="multi_head", implementation=way),
        seconds=tuple(s * growth for s in lsh.seconds),
        temporary_bytes=round(lsh.memory_bytes * growth),
        resident_peak_bytes=None,
    )


def run(lengths=LENGTHS, ways=(None,)) -> list[Result]:
    made = [exact(n, p, way) for way in ways for n in lengths for p in PASSES]
    return made + [rows.row("lsh", n, p) for n in lengths for p in PASSES]


def text_of(results, tables=TABLES) -> str:
    return "\n\n".join(published.sections(results, tables))


def cells(text: str, title: str) -> list[list[str]]:
    """The table under a heading that begins so, without its rule."""
    part = text.split(f"### {title}")[1].split("###")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [table[0], *table[2:]]


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_read_as_they_are_in_the_files(name):
    lines = (FOLDER / name).read_text().splitlines()
    table = TABLES[name]
    assert lines[0] == f"# source: {table.source}"
    header = lines[1].split(",")
    for row, number in table.lines.items():
        fields = next(csv.reader([lines[number - 1]]))
        assert fields[0] == row
        printed = {c: float(x) for c, x in zip(header, fields, strict=True) if x and c != header[0]}
        assert table.cells[row] == printed
    assert len(table.lines) == len(lines) - 2


def test_the_papers_ratios_are_those_of_their_figures():
    lra, memory = TABLES[published.LRA], TABLES[published.FLASH_MEMORY]
    assert lra.ratio("Reformer", "Transformer", "steps_per_s_1K") == 4.4 / 8.1
    assert lra.ratio("Reformer", "Transformer", "steps_per_s_4K") == 1.1 / 1.4
    assert memory.ratio("Reformer", "FlashAttention", "memory_MB_8192") == 24134 / 1672  # 14.4
    assert memory.ratio("Reformer", "FlashAttention", "memory_MB_16384") is None  # out of memory


def test_forward_and_backward_of_appendix_e_is_the_longer_table():
    forward, both = TABLES[published.FLASH_FORWARD], TABLES[published.FLASH_BOTH]
    for n in (1024, 2048, 4096, 8192):
        for row in ("Reformer", "FlashAttention"):
            assert both.cells[row][f"ms_{n}"] > 2 * forward.cells[row][f"ms_{n}"]


def test_report_sets_our_speed_beside_lra():
    text = text_of(run())
    header, *lines = cells(text, "Speed")
    assert header[-1] == "ours: lsh over multi_head"
    assert [line[:3] for line in lines] == [
        ["1K", "1024", "0.543×"],
        ["2K", "2048", "0.449×"],
        ["3K", "3072", "0.652×"],
        ["4K", "4096", "0.786×"],
    ]
    ours = [float(line[3].rstrip("×")) for line in lines]
    assert ours == pytest.approx([1, 2**0.95, 3**0.95, 4**0.95], rel=5e-3)  # n² over n^1.05
    assert "Reformer is not faster at n = 1024, 2048, 3072, 4096 (0.449× to 0.786×)" in text
    assert (
        "`lsh` is faster at n = 2048, 3072, 4096 (1.93× to 3.73×) and not faster at n = 1024"
        in text
    )
    assert "`lra2020_table2.csv`, line 6 over line 3: Tay et al. 2020" in text
    assert "not Reformer" in text and "batch 32" in text and "batch 1, float32, causal" in text


def test_lengths_of_a_thousand_are_those_of_lra_too():
    _, *lines = cells(text_of(run(lengths=(1000, 1024))), "Speed")
    assert [line[:3] for line in lines] == [["1K", "1000", "0.543×"], ["1K", "1024", "0.543×"]]


def test_report_sets_our_memory_and_time_beside_flash_attention():
    text = text_of(run())
    header, *lines = cells(text, "Cost")
    assert header[1] == "memory: paper [1]" and header[3:5] == ["time, forward: paper [2]", "ours"]
    assert [line[0] for line in lines] == [
        "512",
        "1024",
        "2048",
        "4096",
        "8192",
    ]  # 3072 is not there
    assert lines[1][1:] == ["14.4×", "1.00×", "14.3×", "1.00×", "11.3×", "1.00×"]
    assert lines[-1][1:3] == ["14.4×", "0.125×"]
    assert (
        "memory: paper 14.4× to 14.5×, ours 0.125× to 2.00×: lower than the paper's at every"
        in text
    )
    assert "below exact attention at n = 2048, 4096, 8192 only." in text
    assert "`flashattention2022_table21.csv`, line 5 over line 13: Dao et al. 2022" in text


def test_the_verdict_is_that_of_the_rows():
    def heavier(factor):
        def made(result):
            if result.case.mechanism != "lsh":
                return result
            heavy = round(result.temporary_bytes * factor)
            return dataclasses.replace(result, temporary_bytes=heavy, resident_peak_bytes=None)

        return text_of([made(result) for result in run()])

    assert "ours 12.5× to 200×: lower than the paper's at n = 8192 only" in heavier(100)
    assert "below exact attention at no common length." in heavier(100)
    assert "ours 125× to 2000×: lower than the paper's at no common length" in heavier(1000)


@pytest.mark.parametrize(
    ("ways", "speed", "cost"),
    [
        ((None, "dense", "blockwise"), "multi_head (dense)", "multi_head (blockwise)"),
        ((None, "cudnn"), "multi_head", "multi_head"),
        (("cudnn",), "multi_head (cudnn)", "multi_head (cudnn)"),
        (("dense",), "multi_head (dense)", None),
    ],
)
def test_lra_is_beside_dense_attention_and_flash_beside_linear_memory(ways, speed, cost):
    text = text_of(run(ways=ways))
    assert f"ours: lsh over {speed} |" in text
    assert (f"*Ours*: `lsh` over `{cost}`." in text) if cost else ("Appendix E" not in text)


def test_only_what_overlaps_is_shown():
    text = text_of(run(lengths=(512, 2048)))
    assert [line[0] for line in cells(text, "Speed")[1:]] == ["2K"]
    text = text_of(run(lengths=(512,)))
    assert "Long Range Arena" not in text and "Appendix E" in text
    text = text_of([r for r in run() if r.case.passes == "forward"])
    assert "Long Range Arena" not in text and "memory" not in cells(text, "Cost")[0]
    lost = [
        dataclasses.replace(r, status="too_slow", seconds=()) if r.case.length > 1024 else r
        for r in run()
    ]
    assert [line[0] for line in cells(text_of(lost), "Speed")[1:]] == ["1K"]


@pytest.mark.parametrize(
    "kept",
    [
        lambda r: r.case.mechanism != "lsh",
        lambda r: r.case.mechanism != "multi_head",
        lambda r: r.case.length == 3072 and r.case.passes == "forward",
        lambda r: False,
    ],
)
def test_nothing_is_said_where_there_is_nothing_to_compare(kept):
    assert published.sections([r for r in run() if kept(r)], TABLES) == []


def test_a_missing_or_nameless_table_is_one_clear_line(tmp_path):
    with pytest.raises(Invalid, match="lra2020_table2.csv: No such file or directory; use a whole"):
        published.load(tmp_path)
    path = tmp_path / "table.csv"
    path.write_text("model,x\nA,1\n")
    with pytest.raises(Invalid, match="line 1 must begin with '# source: '; got 'model,x'"):
        published.read(path)
