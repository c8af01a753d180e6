"""The report of a run over numbers of devices, from made-up rows."""

import dataclasses

import pytest

from experiments.compare_lengths import scaling
from experiments.compare_lengths.settings import Settings
from tests.bench import rows


@pytest.fixture
def results():
    """The same work halves its time on 2 devices; as much a device takes a quarter longer."""
    found = []
    for devices, batch, seconds in ((1, 4, 1.0), (2, 4, 0.5), (2, 8, 1.25), (4, 4, 0.5)):
        one = rows.row("dot", 1024)
        case = dataclasses.replace(one.case, devices=devices, batch=batch)
        found.append(dataclasses.replace(one, case=case, seconds=(seconds,) * 3))
    return found


def test_strong_and_weak_scaling_share_the_fewest_devices(results):
    kinds = scaling.by_kind(results)
    sizes = {kind: [(r.case.devices, r.case.batch) for r in found] for kind, found in kinds.items()}
    assert sizes == {"strong scaling": [(1, 4), (2, 4), (4, 4)], "weak scaling": [(1, 4), (2, 8)]}


def test_the_report_says_what_share_of_the_devices_work_counts(results):
    text = scaling.markdown(rows.told(results, planned=9))
    strong = text.partition("#### strong scaling, forward: efficiency")[2].partition("###")[0]
    weak = text.partition("#### weak scaling, forward: efficiency")[2].partition("##")[0]
    assert cells(strong)[0] == ["devices", "dot"]
    assert [row[1] for row in cells(strong)[2:]] == ["100%", "100%", "50%"]
    assert [row[1] for row in cells(weak)[2:]] == ["100%", "80%"]
    assert "4 of 9 cases so far." in text and "jit on 1, 2, 4 devices." in text


def test_times_beside_other_work_count_for_no_share(results):
    results[0] = dataclasses.replace(results[0], load=9.0, busy=True)
    text = scaling.markdown(rows.told(results, planned=9))
    strong = text.partition("#### strong scaling, forward: efficiency")[2].partition("###")[0]
    assert [row[1] for row in cells(strong)[2:]] == ["", "100%", "50%"]


def test_the_answer_is_of_the_same_work(results):
    assert "\n\n**forward, devices = 2: 500 ms (dot)**" in scaling.markdown(rows.told(results[:3]))


def cells(table):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n") if line]


def test_the_figure_has_a_guide_for_the_same_work_alone(results):
    figure = scaling.draw(results, "time", "Abacus 9000")
    strong, weak = figure.axes
    assert [axes.get_xlabel() for axes in figure.axes] == ["devices d"] * 2
    assert ["∝ 1/d" in [text.get_text() for text in axes.texts] for axes in (strong, weak)] == [
        True,
        False,
    ]


def test_a_pass_that_gave_no_time_has_an_empty_panel(results):
    lost = [
        dataclasses.replace(
            r,
            case=dataclasses.replace(r.case, passes="forward_backward"),
            status="too_large",
            seconds=(),
        )
        for r in results[:2]
    ]
    figure = scaling.draw([*results[:2], *lost], "time", "")
    titles = {" ".join(axes.get_title("left").split()) for axes in figure.axes}
    assert "strong scaling, forward + backward" in titles


def test_cases_over_devices_have_the_same_work_and_as_much_a_device():
    settings = Settings(devices=(2, 1), batch=(2,), lengths=(64,), mechanisms=("dot",))
    cases = settings.cases(local_devices=2)
    assert [(c.devices, c.batch, c.passes) for c in cases] == [
        (devices, batch, passes)
        for devices, batch in ((1, 2), (2, 2), (2, 4))
        for passes in ("forward", "forward_backward")
    ]
    with pytest.raises(ValueError, match="--lengths=64,128 --devices=1,2: a run goes"):
        Settings(devices=(1, 2), batch=(2,), lengths=(64, 128))
    assert Settings.implied({"devices": (1, 2)}) == {"lengths": (4096,)}
    with pytest.raises(ValueError, match="--num_heads=4 does not divide over 8 devices"):
        Settings(devices=(8,), shard="sequence", lengths=(64,), mechanisms=("lsh-3",))
    Settings(devices=(8,), shard="sequence", lengths=(64,), mechanisms=("lsh-2",))
