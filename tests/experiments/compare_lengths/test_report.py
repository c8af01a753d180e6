import csv
import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from attnlab.bench import trends
from attnlab.bench.case import ACCURACY, PASS_TITLES, Case, Operations, Result
from attnlab.bench.roofline import UNITS, Peak, Unit
from attnlab.bench.tables import over_axis
from attnlab.runs import palette
from experiments.compare_lengths import report
from tests.bench import rows
from tests.words import hidden

KEPT = Path(report.__file__).parents[1] / "results/cpu/compare_peers_xeon/results.jsonl"
PEAKS = [Peak(Unit(name, "float32"), 1e11 if name == "products" else 1e9) for name in UNITS]


def test_table_shows_medians_spreads_and_reasons():
    lines = over_axis(rows.run(), "forward", "time").splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[1:-1]] == ["n", *rows.GROWTH]
    last = [cell.strip() for cell in lines[-1].split("|")[1:-1]]
    assert last == ["16384", "too slow", "5.12 s ±15%", "needs 32.0 GiB of 23.0 GiB", "1.10 s ±15%"]


def test_memory_marks_the_high_water_mark_where_that_is_more():
    low = rows.row("dot", 1024)
    high = rows.row("dot", 2048, resident_peak_bytes=2**25)
    table = over_axis([low, high], "forward", "memory")
    assert "8.00 MiB |" in table and "32.0 MiB * |" in table


def test_report_has_every_section():
    text = report.markdown(rows.told(rows.run()))
    assert "48 cases." in text and "Abacus 9000" in text and "0123456789ab" in text
    assert "**lsh-4** is faster than **dot** from n = 4096" in text
    assert "**dot** takes less memory than" not in text  # it does at every length
    assert "n^(2.00 ± 0.03)" in text and "n^(1.05 ± 0.03)" in text
    assert "needs 32.0 GiB of 23.0 GiB" in text
    assert "![memory over length](memory.svg)" in text
    assert "0.99 to 0.99 times" in text


def test_report_compares_the_devices_own_peak_where_there_is_one():
    row = rows.row("dot", 2048, resident_peak_bytes=None, device_peak_bytes=2**25)
    text = report.markdown(rows.told([row]))
    assert "allocator's peak was 2.00 to 2.00 times" in text and "high-water mark was" not in text


def test_report_of_an_unfinished_run_says_so():
    assert "2 of 48 cases so far." in report.markdown(rows.told(rows.run()[:2], planned=48))


def test_report_says_where_the_text_began_again():
    text = report.markdown(
        rows.told([rows.row("dot", 512), rows.row("dot", 4096, input_cycled=True)])
    )
    assert "for n = 4096: there it begins again" in text


def test_lines_that_cross_into_a_tie_are_no_crossover():
    times = {
        ("dot", 512): 1.0,
        ("dot:dense", 512): 2.0,
        ("dot", 1024): 4.0,
        ("dot:dense", 1024): 4.0,
    }
    found = [
        rows.row(name, n, seconds=(time,) * 3, temporary_bytes=n)
        for (name, n), time in times.items()
    ]
    text = report.markdown(rows.told(found))
    assert "None: no mechanism overtakes" in text.partition("## Crossovers")[2]


def test_values_were_compared_first_where_the_report_says_so():
    def ratios(**fields):
        one = rows.row("dot", 512, base_seconds=(1.0,))
        case = dataclasses.replace(one.case, against="exact", **fields)
        return "\n".join(report.ratios([dataclasses.replace(one, case=case)]))

    words = "Where both compute the same function their outputs"
    assert words in ratios(ops_only=True) and words in ratios(program="translate")
    assert ratios() and words not in ratios()


def test_a_pipe_in_a_message_does_not_break_the_table():
    text = report.markdown(rows.told([rows.row("dot", 512, status="failed", message="a | b\nc")]))
    assert "a \\| b c |" in text


def test_csv_has_a_line_a_case():
    lines = list(csv.DictReader(io.StringIO(report.csv_text(rows.run()))))
    assert len(lines) == 48
    first = lines[0]
    assert (first["mechanism"], first["length"], first["repeats"]) == ("additive", "512", "5")
    assert float(first["median_seconds"]) == pytest.approx(0.05)
    assert {line["status"] for line in lines} == {"ok", "too_large", "too_slow"}


def test_figures_of_nothing_are_not_drawn():
    lost = rows.row("dot", 512, status="failed", seconds=())
    assert [report.draw([lost], name, "") for name in ("time", "memory")] == [None, None]


@pytest.mark.parametrize("passes", PASS_TITLES)
def test_a_pass_is_drawn_where_the_report_shows_its_figure(passes):
    run = [rows.row("dot", n, passes) for n in (512, 1024)]
    text = report.markdown(rows.told(run))
    for quantity in ("time", "memory"):
        figure = report.draw(run, quantity, "")
        assert (f"]({quantity}.svg)" in text) == (figure is not None) == (passes != ACCURACY)
        assert figure is None or figure.axes[0].get_title("left") == PASS_TITLES[passes]


def test_load_and_repeated_cases_are_said():
    first = rows.row("dot", 512, load=9.0, busy=True, other_seconds=0.8)
    text = report.markdown(rows.told([first, rows.row("dot", 1024, load=0.5)]))
    assert "0.5 to 9.0" in text and "dot, n = 512, forward (9.0)." in text
    assert "dot, n = 512, forward: 5.00 ms, the other time 800 ms" in text


def test_a_busy_machine_is_said_first_and_counts_in_no_crossover_and_no_growth():
    """At 8192 tokens lsh was slow among other work: all that is known is until 4096."""
    slow = [
        dataclasses.replace(r, seconds=(99.0,), busy=True, load=9.0)
        if (r.case.label, r.case.length) == ("lsh-4", 8192)
        else r
        for r in rows.run()
        if r.case.length <= 8192
    ]
    text = report.markdown(rows.told(slow))
    first = "Busy machine: 2 of 40 cases, open marks, ran beside other work (load up to 9.0)"
    assert text.split("\n")[2].startswith(f"**{first}; they count in no crossover")
    assert "99.0 s (busy)" in text and "**lsh-4** is faster than **dot** from n = 4096" in text
    assert "n^(1.05 ± 0.03)" in text
    quiet = [dataclasses.replace(r, busy=False) for r in slow]
    assert "**lsh-4** is faster than **dot** from" not in report.markdown(rows.told(quiet))
    figure = report.draw(slow, "time", "")
    assert figure.texts[0].get_text().startswith(first)
    opened = [
        [*line.get_xdata()] for axes in figure.axes for line in axes.lines
        if line.get_markerfacecolor() == "white" and len(line.get_xdata())
    ]  # fmt: skip
    assert opened == [[8192], [8192]]
    memory = report.draw(slow, "memory", "")
    assert "Busy" not in memory.texts[0].get_text()
    assert "Open: measured" not in memory.texts[1].get_text()


def test_one_sample_has_no_spread():
    row = rows.row("dot", 512, seconds=(0.01,))
    assert "10.0 ms |" in over_axis([row], "forward", "time")


def test_what_a_module_does_less_of_is_said():
    assert "`lsh` shares one projection" in report.markdown(rows.told([rows.row("lsh-4", 512)]))
    assert "shares one projection" not in report.markdown(rows.told([rows.row("dot", 512)]))


def test_the_answer_is_the_three_least_at_the_largest_length_that_two_have():
    seconds = {
        "dot": {512: 0.1, 1024: 0.4, 2048: 1.6},
        "dot:dense": {1024: 0.5},
        "additive": {1024: 0.2},
        "lsh-4": {512: 0.2, 1024: 0.3},
    }
    run = [
        rows.row(label, length, seconds=(x,))
        for label, times in seconds.items()
        for length, x in times.items()
    ]
    busy = rows.row("lsh-4", 2048, seconds=(0.01,), load=9.0, busy=True)
    said = report.answer([*run, busy], trends.undisturbed, "{:.1f} s".format)
    assert said == "forward, n = 1024: 0.2 s (additive), 0.3 s (lsh-4), 0.4 s (dot)"
    assert not report.answer([busy], trends.undisturbed, "{:.1f} s".format)


def counted(label, length, products, **functions):
    """A row that takes 20 ms at 1024 tokens, `dot`, or 60 ms, `lsh`."""
    operations = Operations(products, functions)
    return dataclasses.replace(rows.row(label, length), operations=operations)


def test_a_share_is_the_least_time_over_the_median():
    results = [counted("dot", 1024, 1e9, exp=5e6), counted("lsh-4", 1024, 1e8, exp=2e6, tanh=4e6)]
    results.append(rows.row("dot", 2048))
    text = "\n".join(report.shares(results, PEAKS))
    squeezed = " ".join(text.split())
    assert "| n | dot | lsh-4 | | ---- | -----------: | ------------: |" in squeezed
    assert "| 1024 | 50% products | 10% functions |" in squeezed and "2048" not in squeezed
    assert "| matrix products | float32 | 100 GFLOP/s |" in squeezed
    assert "### Forward, share" in text and "backward" not in text


def test_a_case_that_is_faster_than_a_peak_is_the_peak():
    results = [counted("dot", 1024, 1e9), counted("lsh-4", 1024, 8e9)]  # 8 GFLOP in 60 ms
    said = " ".join("\n".join(report.shares(results, PEAKS)).split())
    assert "| 1024 | 37% products | 100% products |" in said  # not 50 % and 133 %


def test_without_a_peak_or_a_count_there_is_no_section():
    results = [counted("dot", 1024, 1e9)]
    lost = dataclasses.replace(PEAKS[0], rate=0.0, message="killed")
    assert report.shares(results, [lost, *PEAKS[1:]]) == []
    assert report.shares([rows.row("dot", 1024)], PEAKS) == []
    assert "## Share of the machine's peak" in report.markdown(rows.told(results), peaks=PEAKS)
    assert report.line(lost) == "killed"


def test_a_model_is_no_module_with_projections():
    row = rows.row("dot", 512)
    sizes = {"program": "translate", "num_layers": 3, "vocab_size": 300, "passes": "greedy"}
    model = dataclasses.replace(row, case=dataclasses.replace(row.case, **sizes))
    said = [report.summary(rows.told([x])) for x in (row, model)]
    assert ["with their projections" in x for x in said] == [True, False]
    assert "--program=translate`, 3 layers in each stack" in said[1] and "300 ids" in said[1]
    assert "causal" not in said[1]


def test_what_was_counted_in_place_of_a_kernel_is_said():
    one = dataclasses.replace(counted("dot", 1024, 1e9), operations_of="another program")
    assert report.shares([one], PEAKS)[-1] == "Counted is another program: dot."


@pytest.mark.parametrize(
    ("rate", "text"), [(2.5e12, "2.5 TFLOP/s"), (8.54e10, "85.4 GFLOP/s"), (5e8, "500 MFLOP/s")]
)
def test_a_rate_for_a_reader(rate, text):
    assert report.rate(Peak(Unit("products", "float32"), rate)) == text
    assert report.rate(Peak(Unit("exp", "float32"), rate)) == text.replace("FLOP", "")


def kept_ratios() -> list[Result]:
    """The rows of a kept run that were timed against others."""
    found = [json.loads(line) for line in KEPT.read_text().splitlines()]
    return [
        Result(Case(**row["case"]), "ok", seconds=row["seconds"], base_seconds=row["base_seconds"])
        for row in found
        if row["base_seconds"]
    ]


def test_the_figure_of_ratios_shows_the_numbers_of_the_rows():
    expected = {}
    for row in kept_ratios():
        logs = np.log(row.seconds) - np.log(row.base_seconds)
        ends = [logs.mean()]
        if len(logs) > 1:
            ends += stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
        place = row.case.against, PASS_TITLES[row.case.passes], row.case.label, row.case.length
        expected[place] = np.exp(ends)
    assert len(expected) == 30
    drawn = {}
    figure = report.draw_ratios(kept_ratios(), "")
    for row in {axes.get_subplotspec().rowspan.start for axes in figure.axes}:
        beside = [x for x in figure.axes if x.get_subplotspec().rowspan.start == row]
        names = [text.get_text() for text in beside[0].get_yticklabels()]
        for axes in beside:
            assert axes.get_xscale() == "log"
            base = axes.get_xlabel().replace("\n", " ").removeprefix("slower than ").rstrip(" →")
            equal, *lines = axes.lines
            assert set(equal.get_xdata()) == {1}
            for interval, mark in zip(lines[::2], lines[1::2], strict=True):
                label, n = names[int(mark.get_ydata()[0])].split(", n = ")
                numbers = [*mark.get_xdata(), *interval.get_xdata()]
                drawn[base, axes.get_title("left"), label, int(n)] = numbers
                assert (mark.get_markerfacecolor() == "white") == (len(numbers) == 1)
                assert set(interval.get_ydata()) <= set(mark.get_ydata())
                assert (mark.get_color(), mark.get_marker()) == palette.of_attention(label)
    assert drawn.keys() == expected.keys()
    for place, numbers in drawn.items():
        np.testing.assert_allclose(numbers, expected[place], err_msg=str(place))


@pytest.mark.parametrize("base", ["exact", "experiments/examples/decay.py:decay"])
def test_no_word_of_the_figure_of_ratios_is_cut_or_hidden(base):
    assert not hidden(report.draw_ratios(kept_ratios(), "1 × Intel(R) Xeon(R) Processor"))
    made = [
        timed("experiments/examples/others.py:ReformerPyTorch", n, passes, base, factor)
        for n, factor in ((512, 0.01), (65536, 90.0))
        for passes in ("decode", "forward", "forward_backward")
    ]
    figure = report.draw_ratios(made, "")
    assert not hidden(figure) and figure.get_figwidth() <= 7
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles == ["forward", "forward + backward", "decoding a token"]


def timed(name, length, passes, base, factor, **fields) -> Result:
    case = Case(name, length, passes, against=base)
    return Result(case, "ok", seconds=(factor, 1.1 * factor), base_seconds=(1.0, 1.0), **fields)


def test_rows_timed_against_another_have_a_figure_and_a_table():
    base = dataclasses.replace(rows.row("dot", 512), case=Case("dot", 512))
    size = dict(resident_peak_bytes=4 * base.memory_bytes)
    other = timed("lsh-2", 512, "forward", "dot", 2.0, **size)
    text = report.markdown(rows.told([base, other]))
    assert text.count("](ratios.svg)") == 1
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["mechanism", "n", "time", "memory", "time / dot", "memory / dot"] in lines
    (cells,) = (x for x in lines if x[:2] == ["lsh-2", "512"])
    assert cells[4].startswith("2.1 (") and cells[5] == "4"
    assert ["dot", "512"] in [x[:2] for x in lines if x[4:] == ["", ""]]
    text = report.markdown(rows.told([base]))
    assert "ratios.svg" not in text and report.draw_ratios([base], "") is None
