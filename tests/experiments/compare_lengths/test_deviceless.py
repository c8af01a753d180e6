"""The report and the figure of a run without devices, from made-up rows."""

import dataclasses

from attnlab.bench.case import Operations, Sent
from experiments.compare_lengths import deviceless
from tests.bench import rows

LIMIT = {"v5e": 15.75 * rows.GIB, "h100": 59.3 * rows.GIB}


def run(**fields):
    of_result = {name: x for name, x in fields.items() if hasattr(rows.row("lsh-4", 512), name)}
    fields = {name: x for name, x in fields.items() if name not in of_result}
    found = []
    for target, limit in LIMIT.items():
        for result in rows.run():
            case = dataclasses.replace(result.case, target=target, **fields)
            size = result.memory_bytes
            lost = dict(status="too_large", message=f"needs {size / rows.GIB:.1f} GiB of ours")
            kept = dict(status="ok", message="")
            found.append(
                dataclasses.replace(
                    result,
                    case=case,
                    seconds=(),
                    resident_peak_bytes=None,
                    available_bytes=round(limit),
                    **of_result,
                    **(lost if size > limit else kept),
                )  # fmt: skip
            )
    return found


def test_the_report_says_what_fits_and_no_times():
    results = run()
    text = deviceless.markdown(rows.told(results))
    assert "## Where\n\n    launch/local compare_lengths\n\n" in text
    squeezed = " ".join(text.split())
    assert "| v5e | dot:dense | forward | 8192: 8.00 GiB | 16384: 32.0 GiB |" in squeezed
    assert "**h100, forward + backward**" in text and "75% of 79.1 GiB" in text
    assert " ms" not in text and "median" not in text and "samples" not in text
    assert "libtpu" in text and "Not compiled" not in text


def test_what_did_not_compile_and_what_was_compiled_otherwise_are_said():
    first, second, *rest = run()
    first = dataclasses.replace(first, status="failed", message="Mosaic: no such layout")
    second = dataclasses.replace(second, message="compiled blockwise")
    text = deviceless.markdown(rows.told([first, second, *rest]))
    assert "## Not compiled" in text and "Mosaic: no such layout" in text
    assert "- compiled blockwise: additive on v5e" in text


def test_the_figure_has_a_panel_a_target_and_pass_with_its_memory():
    figure = deviceless.draw(run())
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        f"{target}, {passes}"
        for target in ("v5e", "h100")
        for passes in ("forward", "forward + backward")
    ]
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    limits = [legend.get_texts()[-1].get_text() for legend in legends]
    assert limits == ["15.8 GiB of v5e", "59.3 GiB (75% of h100)"]
    assert deviceless.draw([dataclasses.replace(run()[0], status="failed")]) is None


def over_depth():
    """Rows of two models, one of which takes the same memory whatever its depth."""
    first = next(r for r in run() if r.case.passes == "forward")
    found = []
    for layers in (2, 6, 12, 24):
        for name, size in (("exact", layers * rows.GIB), ("chunked-reversible-lsh-4", rows.GIB)):
            fields = dict(passes="train_step", program="language_model", vocab_size=258)
            case = dataclasses.replace(
                first.case, mechanism=name, implementation=None, num_layers=layers, **fields
            )
            lost = dict(status="too_large", message=f"needs {layers:.1f} GiB", refused_bytes=size)
            lost |= dict(argument_bytes=None)
            row = dataclasses.replace(
                first, case=case, argument_bytes=0, output_bytes=0, temporary_bytes=size
            )
            found.append(dataclasses.replace(row, **lost) if size > LIMIT["v5e"] else row)
    return found


def test_rows_of_several_depths_are_shown_over_depth():
    results = over_depth()
    text = deviceless.markdown(rows.told(results))
    squeezed = " ".join(text.split())
    assert "language_model: 2, 6, 12, 24 layers" in squeezed
    assert "| layers | exact | chunked-reversible-lsh-4 |" in squeezed
    assert "| 24 | needs 24.0 GiB | 1.00 GiB |" in squeezed
    fits = "| v5e | exact | training step of language_model | 12: 12.0 GiB | 24: 24.0 GiB |"
    assert fits in squeezed
    assert "| v5e | exact | 1.00 ± 0.01 | Transformer | max(b·l·d_ff, b·n_h" in squeezed
    assert "| v5e | chunked-reversible-lsh-4 | 0.00 ± 0.01 | Reformer | max(b·l·d_mo" in squeezed
    (axes,) = deviceless.draw(results).axes
    assert axes.get_xlabel() == "layers n"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["2", "6", "12", "24"]


def over_batch():
    """Rows of a step on 64 H100 that sends 8 GB in all, of them 3 GB between hosts."""
    found = []
    for batch in (64, 128):
        first = run(sent=Sent(8e9, 3e9), operations=Operations(1e9, {}))[0]
        case = dataclasses.replace(
            first.case, mechanism="lsh-4", implementation=None, batch=batch, target="h100:64",
            devices=64, shard="state", passes="train_step", program="bert", num_layers=2,
            vocab_size=99,
        )  # fmt: skip
        sizes = dict(temporary_bytes=batch * 2**28, available_bytes=round(LIMIT["h100"]))
        found.append(dataclasses.replace(first, case=case, **sizes))
    return found


def test_rows_of_several_devices_say_what_they_send():
    text = deviceless.markdown(rows.told(over_batch()))
    squeezed = " ".join(text.split())
    assert "| 64 | 7.45 GiB, 2.79 GiB between hosts |" in squeezed
    assert "60.0 ms hosts" in squeezed and "| batch | lsh-4 |" in squeezed  # 3 GB by 50 GB/s
    assert "450 GB/s, 50 GB/s between hosts" in squeezed
    assert "batch 64, 128 in all of 512 tokens" in squeezed
    fits = "| h100:64 | lsh-4 | training step of bert | 128: 32.0 GiB | ≈ 240 |"
    assert fits in squeezed
    (axes,) = deviceless.draw(over_batch()).axes
    assert axes.get_xlabel() == "sequences b"
    alone = deviceless.markdown(rows.told(run()))
    assert "## Bytes over the network" not in alone and "450 GB/s" not in alone


def test_a_training_step_is_called_by_its_model():
    fields = dict(passes="train_step", program="bert", num_layers=2, vocab_size=99, shard="batch")
    results = [r for r in run() if r.case.passes == "forward"]
    results = [dataclasses.replace(r, case=dataclasses.replace(r.case, **fields)) for r in results]
    text = deviceless.markdown(rows.told(results))
    assert "training step of bert" in text and "2 layers of model width 512" in text
    assert "Split by batch" in text
    (first, _) = deviceless.draw(results).axes
    assert first.get_title(loc="left") == "v5e, training step of bert"


def test_the_least_times_are_lower_bounds_by_published_peaks():
    """197 TFLOP/s and 819 GB/s of a v5e; an H100 computes 16 functions a clock in each of 132."""
    operations = Operations(197e9, {"exp": 16 * 132 * 1.98e9 / 100})
    results = run(operations=operations, operations_of="", argument_bytes=8190000, output_bytes=0)
    text = deviceless.markdown(rows.told(results))
    least = text.split("## Least times")[1].split("## Targets")[0]
    assert "**v5e, forward, at least**" in least and "A lower bound, not a forecast" in least
    v5e, h100 = least.split("**h100, forward, at least**")
    assert "1.00 ms products" in v5e and "10.0 ms functions" in h100
    assert "functions" not in v5e.split("**v5e, forward")[1]
    moved = run(operations=operations, argument_bytes=2 * 8190000000, output_bytes=0)
    text = deviceless.markdown(rows.told(moved))
    assert "20.0 ms memory" in text
    assert "## Least times" not in deviceless.markdown(rows.told(run()))
