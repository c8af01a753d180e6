"""`device_check` judges rightly: it passes what is right and names what is wrong."""

import dataclasses
import functools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.bench import (
    device_cases,
    device_checks,
    device_compile,
    device_exact,
    device_figures,
    device_hashing,
    device_lsh,
    device_report,
    device_targets,
    device_timed,
    device_turns,
    inputs,
    oracle_lsh,
)
from attnlab.bench.case import Case, Result
from attnlab.bench.device_cases import Check, Checked, Scenario
from attnlab.bench.device_problem import ROW, Problem, Truth, judge, program, representable
from attnlab.bench.device_programs import build, flash, tanh_case, tanh_evaluations
from attnlab.bench.device_scores import Sizes
from attnlab.bench.device_settings import Settings
from attnlab.ops.attention import attention
from attnlab.ops.hashing import Rotations, hash_buckets
from attnlab.scores import Dot

pytestmark = pytest.mark.usefixtures("quick_compile")
SMALL = Scenario("small", Sizes(2, 23, 23, 2, 2, 8, 8, 8), causal=True, chunk_size=5)


def statuses(problem: Problem, *names: str, dtype: str = "float32") -> dict[str, Checked]:
    rows = []
    device_checks.run(
        [Check("any", "small", name, dtype) for name in names],
        threads=1,
        tell=lambda i, stage: None,
        give=lambda i, row: rows.append(row),
        problem_of=lambda check: problem,
    )
    return {row.check.implementation: row for row in rows}


def broken(problem: Problem, **ways) -> Problem:
    """With implementations of the given names, which get (arrays, the plain function)."""

    def apply(name, arrays):
        return ways[name](arrays, problem.plain) if name in ways else problem.apply(name, arrays)

    return dataclasses.replace(problem, apply=apply)


def refuse(arrays, plain):
    raise NotImplementedError("not here")


def crash(arrays, plain):
    raise RuntimeError("no such kernel")


def no_gradient(arrays, plain):
    return plain(arrays | {"v": jax.lax.stop_gradient(arrays["v"])})


def slightly_off(arrays, plain):
    return plain(arrays) * 1.001


def leak(arrays, plain):
    """A little of the last value reaches everybody."""
    return plain(arrays) + 1e-7 * arrays["v"][:, -1:].repeat(2, axis=2)


def half_precision(arrays, plain):
    return plain({name: x.astype(jnp.bfloat16) for name, x in arrays.items()}).astype("float32")


def test_what_is_wrong_is_named():
    problem = device_exact.problem("scaled_dot", SMALL)
    ways = dict(refuse=refuse, crash=crash, no_gradient=no_gradient, slightly_off=slightly_off)
    ways |= dict(leak=leak, half=half_precision)
    rows = statuses(broken(problem, **ways), "default", "dense", "blockwise", *ways)
    assert {rows[name].status for name in ("default", "dense", "blockwise")} == {"pass"}
    assert (rows["refuse"].status, rows["refuse"].message) == ("refused", "not here")
    assert (rows["crash"].status, rows["crash"].message) == (
        "crashed",
        "RuntimeError: no such kernel",
    )
    for name, outputs in dict(no_gradient={"d_v"}, leak={"d_v", "past"}).items():
        assert rows[name].status == "fail" and rows[name].message.startswith("d_v"), name
        bad = [x for x, ratio in rows[name].ratios.items() if ratio > 1]
        assert {x.removesuffix(ROW) for x in bad} == outputs
    assert {rows[name].status for name in ("slightly_off", "half")} == {"fail"}


def test_a_failure_on_the_device_is_told_from_one_before():
    """Its process is not used again; one that fails to trace or compile costs nothing."""
    problem = device_exact.problem("scaled_dot", SMALL)

    def fault(arrays, plain):
        def no(x):
            raise RuntimeError("an illegal instruction")

        return plain(arrays) + jax.pure_callback(no, jax.ShapeDtypeStruct((), "float32"), 0.0)

    stages, rows = {}, []
    device_checks.run(
        [Check("any", "small", name, "float32") for name in ("fault", "crash")],
        threads=1,
        tell=stages.__setitem__,
        give=lambda i, row: rows.append(row),
        problem_of=lambda check: broken(problem, fault=fault, crash=crash),
    )
    assert [row.status for row in rows] == ["crashed", "crashed"]
    assert "callback" in rows[0].message and "no such kernel" in rows[1].message
    assert stages == {0: "running", 1: "compiling"}


@pytest.mark.parametrize("mechanism", ["scaled_dot", "lsh"])
def test_bfloat16_is_judged_by_bfloat16(mechanism):
    problem = (
        device_lsh.problem(SMALL) if mechanism == "lsh" else device_exact.problem(mechanism, SMALL)
    )
    ways = dict(twice=lambda arrays, plain: plain(arrays) * 1.1)
    rows = statuses(broken(problem, **ways), "default", "dense", "twice", dtype="bfloat16")
    assert [rows[name].status for name in ("default", "dense", "twice")] == ["pass", "pass", "fail"]


def lose_row(arrays, plain):
    return plain(arrays).at[0, 117, 1].set(0)


def lose_gradient(arrays, plain):
    v = arrays["v"]
    return plain(arrays | {"v": v.at[0, 97, 0].set(jax.lax.stop_gradient(v[0, 97, 0]))})


def with_mask(change):
    """Attention under the scenario's mask, changed."""

    def attend(arrays, plain):
        seen = change(np.tri(127, dtype=bool))
        return attention(Dot(), *(arrays[x] for x in "qkv"), mask=seen, implementation="dense")

    return attend


def one_key_more(seen):
    seen[117, 118] = True
    return seen


FAULTS = dict(
    lose_row=(lose_row, {"context"}),
    lose_gradient=(lose_gradient, {"d_v"}),
    leak_by_one=(with_mask(lambda seen: seen | np.eye(127, k=1, dtype=bool)), {"context", "d_q"}),
    leak_of_one_key=(with_mask(one_key_more), {"d_v"}),
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_wrong_row_is_seen(dtype):
    """In the row itself: the mean over the output may forgive it."""
    scenario = Scenario("late", Sizes(1, 127, 127, 2, 1, 16, 16), causal=True)
    problem = device_exact.problem("scaled_dot", scenario)
    rows = statuses(
        broken(problem, **{name: way for name, (way, _) in FAULTS.items()}),
        "default",
        *FAULTS,
        dtype=dtype,
    )
    assert rows["default"].status == "pass"
    for name, (_, outputs) in FAULTS.items():
        assert rows[name].status == "fail", name
        for output in outputs:
            assert rows[name].ratios[f"{output}, worst row"] > 3, (name, output)


@pytest.mark.parametrize("mechanism", ["scaled_dot", "lsh"])
def test_terms_that_cancel_have_a_size(mechanism):
    """The first query sees one key only: its gradient is 0, and rounding may leave something."""
    problem = (
        device_lsh.problem(SMALL) if mechanism == "lsh" else device_exact.problem(mechanism, SMALL)
    )
    true = problem.truth(problem.arrays, problem.dcontext)
    sizes, name = true.sizes(), "d_qk" if mechanism == "lsh" else "d_q"
    assert all(sizes[x].shape == value.shape[:-1] for x, value in true.values.items())
    assert mechanism == "lsh" or np.abs(true.values[name][:, 0]).max() < 1e-12
    assert sizes[name].min() > 0.01 * sizes[name].max()


def test_a_row_among_a_thousand_is_seen():
    """0.98 of the budget in the mean, where the row itself is lost."""
    true = np.random.default_rng(0).normal(size=(1, 1024, 1, 64))
    size = np.linspace(1, 0.03, 1024)[:, None]  # as under a causal mask: the later the smaller
    true, sizes = true * size[None, :, None], np.ones((1, 1024, 1)) * size
    plain = true.astype(jnp.bfloat16).astype(np.float64)
    got = plain.copy()
    got[0, -1] = 0
    truth = Truth({"context": true}, lambda: {"context": sizes})
    ratios = judge({"context": got}, {"context": plain}, truth, "bfloat16")
    assert ratios["context"] < 1 and ratios["context, worst row"] > 20
    assert max(judge({"context": plain}, {"context": plain}, truth, "bfloat16").values()) < 1


@pytest.mark.parametrize("sides", [(8, 4), (10, 4), (9, 3), (9, 5)])
def test_a_window_off_by_one_is_seen(sides):
    scenario = dataclasses.replace(
        device_cases.KERNELS[5], window=(9, 4), sizes=Sizes(1, 61, 61, 2, 1, 8, 8)
    )
    problem = device_exact.problem("window", scenario)
    other = device_exact.problem("window", dataclasses.replace(scenario, window=sides))
    ways = dict(off=lambda arrays, plain: other.plain(arrays))
    rows = statuses(broken(problem, **ways), "dense", "off", dtype="bfloat16")
    assert (rows["dense"].status, rows["off"].status) == ("pass", "fail")
    assert rows["off"].ratios["context, worst row"] > 3


def test_a_wrong_yardstick_forgives_nothing():
    """The plain version and what is judged by it share a fault."""
    problem = device_exact.problem("scaled_dot", SMALL)
    wrong = dataclasses.replace(
        problem, plain=lambda arrays: problem.plain(arrays) * 1.1, plain_is=None
    )
    rows = statuses(broken(wrong, same=lambda arrays, plain: plain(arrays)), "same")
    assert rows["same"].status == "fail" and rows["same"].message.startswith("plain: ")


@pytest.mark.parametrize("mechanism", device_cases.MECHANISMS)
def test_float32_is_asked_for_at_highest_precision(mechanism):
    """Every matrix product, gradients included: a GPU would round to TF32 as it likes."""
    if mechanism == "lsh":
        problem, ways = device_lsh.problem(SMALL), ("sorted", "dense")
    else:
        problem, ways = device_exact.problem(mechanism, SMALL), ("blockwise", "dense")
    given = problem.given(problem.arrays, "float32")
    for apply in (problem.plain, *(functools.partial(problem.apply, way) for way in ways)):
        text = program(apply).lower(*given).as_text()
        products = [line for line in text.splitlines() if "dot_general" in line]
        assert products and all("[HIGHEST, HIGHEST]" in line for line in products)


@pytest.mark.parametrize("mechanism", ["scaled_dot", "lsh"])
def test_the_timed_arrays_are_judged(mechanism):
    """In three heads by the oracle, elsewhere by the plain version."""
    checks = device_cases.timed_checks(mechanism, 37, 3)
    problem = device_timed.problem(checks[0])

    def lose(b, n):
        return lambda arrays, plain: plain(arrays).at[b, 32, n].set(0)

    def lose_all(arrays, plain):
        return plain(arrays).at[1, :, 3].set(0)

    found = []
    ways = dict(first=lose(0, 0), last=lose(2, 7), other=lose_all)
    members = [*checks, *(dataclasses.replace(checks[0], implementation=way) for way in ways)]
    device_checks.run(
        members,
        threads=1,
        tell=lambda i, stage: None,
        give=lambda i, row: found.append(row),
        problem_of=lambda check: broken(problem, **ways),
    )
    rows = {row.check.implementation: row for row in found}
    assert {rows[way].status for way in ("default", problem.plain_is)} == {"pass"}
    assert rows["pallas"].status == "refused"
    for name in ("first", "last"):
        assert rows[name].status == "fail" and rows[name].ratios["context, worst row"] > 3
    assert rows["other"].status == "fail" and rows["other"].ratios["context, worst row"] < 1
    assert rows["other"].message.startswith("elsewhere: ")


def test_hashing_is_judged():
    x, rotations = device_hashing.arguments("float32")
    x = x[:, :29]
    buckets = np.array(hash_buckets(x, rotations))
    assert device_hashing.judge(buckets, x, rotations) <= 1
    in_bfloat16 = jax.tree.map(lambda r: r.astype(jnp.bfloat16).astype("float32"), rotations)
    assert device_hashing.judge(hash_buckets(x, in_bfloat16), x, rotations) > 1
    for wrong in (buckets[0, 0, 0, 0] ^ 1, buckets[0, 0, 0, 0] ^ 16, 512, -1):
        buckets[0, 0, 0, 0] = wrong
        assert device_hashing.judge(buckets, x, rotations) > 1


def test_equally_near_axes_are_no_fault():
    """Both buckets of a tie are right, and no third one."""
    rotations = Rotations((jnp.array([[[[1.0, 2.0], [2.0, 1.0], [0.5, 0.5]]]]),))
    x = np.ones((1, 1, 1, 2))
    found = [device_hashing.judge(np.full((1, 1, 1, 1), i), x, rotations) for i in range(6)]
    assert [ratio <= 1 for ratio in found] == [True, True, False, False, False, False]


def test_every_mechanism_has_scenarios_of_its_own_sizes():
    for mechanism in device_cases.MECHANISMS:
        for scenario in device_cases.scenarios(mechanism):
            seen = scenario.picture()
            assert seen.shape[2:] == (scenario.sizes.queries, scenario.sizes.keys)
            assert device_cases.scenario(mechanism, scenario.name) is scenario
    empty = device_cases.EVERYTHING
    assert not empty.picture()[-1].any() and empty.picture()[0].any()


def test_the_oracles_lsh_gradients():
    rng = np.random.default_rng(0)
    qk, v, dcontext = rng.normal(size=(3, 7, 4))
    counts = rng.integers(0, 3, (7, 7)) * (1 - np.eye(7, dtype=int))
    counts[2] = 0  # sees itself only
    valid = np.arange(7) != 5
    for options in ({}, {"union": False, "logit_scale": None, "key_norm": "l2"}):
        found = oracle_lsh.gradients(dcontext, qk, v, counts, valid=valid, **options)

        def loss(qk, v, options=options):
            return (oracle_lsh.attend(qk, v, counts, valid=valid, **options) * dcontext).sum()

        for i, grad in enumerate(found):
            expected = np.zeros_like(qk)
            for at in np.ndindex(qk.shape):
                step = np.zeros_like(qk)
                step[at] = 1e-5
                one, other = ([x.copy() for x in (qk, v)] for _ in range(2))
                one[i] += step
                other[i] -= step
                expected[at] = (loss(*one) - loss(*other)) / 2e-5
            np.testing.assert_allclose(grad, expected, atol=1e-8)


def test_inputs_are_the_same_numbers_in_every_dtype():
    x = representable(np.random.default_rng(0).normal(size=100))
    for dtype in (jnp.float32, jnp.bfloat16):
        np.testing.assert_array_equal(np.asarray(jnp.asarray(x, dtype), np.float64), x)


def test_flash_is_attention():
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 16, 2, 8))
    ours = build(Case("multi_head", 16, num_heads=2, head_dim=8, ops_only=True), "cpu")
    np.testing.assert_allclose(
        flash("cpu", causal=True)(q, k, v), ours.apply({}, q, k, v), rtol=1e-5, atol=1e-6
    )


def test_programs_are_timed_in_turns():
    """What is refused or fails is a row; every other one has as many samples."""
    common = dict(num_heads=2, head_dim=8, dtype="bfloat16", ops_only=True)
    cases = [
        Case("lsh", 64, chunk_size=16, **common),
        Case("flash", 64, **common),
        Case("additive", 64, implementation="cudnn", **common),
        Case("multi_head", 64, implementation="no such", **common),
        tanh_case(2**15, "float32"),
    ]
    found, stages = {}, []
    for group in (cases[:-1], cases[-1:]):
        device_turns.run(
            group,
            inputs.read(),
            repeats=3,
            case_seconds=20.0,
            threads=2,
            tell=lambda i, stage: stages.append((i, stage)),
            give=lambda i, row: found.__setitem__(row.case, row),
        )
    lsh, flash, refused, wrong, tanh = (found[case] for case in cases)
    assert [len(r.seconds) for r in (lsh, flash, tanh)] == [3, 3, 3]
    assert {r.status for r in (lsh, flash, tanh)} == {"ok"} and lsh.memory_bytes > 64 * 16 * 2 * 3
    assert refused.message.startswith(device_turns.REFUSED) and "cudnn" in refused.message
    assert wrong.status == "failed" and "no such" in wrong.message
    running = [i for i, stage in stages if stage == "running"]
    assert running[:8] == [0, 1, 0, 1, 1, 0, 0, 1]  # warm-ups, then every other turn backwards


def test_what_does_not_compile_in_time_is_left_for_a_resumed_run(monkeypatch):
    at_leisure, released = device_compile._compile, threading.Event()

    def hold_lsh(lowered):
        if "sort" in lowered.as_text():
            released.wait(60)
        return at_leisure(lowered)

    monkeypatch.setattr(device_compile, "_compile", hold_lsh)
    common = dict(num_heads=2, head_dim=8, dtype="bfloat16", ops_only=True)
    rows, began = [], time.monotonic()
    device_turns.run(
        [Case("lsh", 512, chunk_size=16, **common), Case("flash", 512, **common)],
        inputs.read(),
        repeats=1,
        case_seconds=20.0,
        threads=2,
        seconds=9.0,
        tell=lambda i, stage: None,
        give=lambda i, row: rows.append(row),
    )
    assert [row.case.mechanism for row in rows] == ["flash"] and time.monotonic() - began < 30
    released.set()


def row(mechanism, n, milliseconds, *, memory=1e9, turns="a", implementation=None, **other):
    case = Case(
        mechanism,
        n,
        "forward_backward",
        batch=max(1, 65536 // n),
        dtype="bfloat16",
        ops_only=True,
        implementation=implementation,
        **other,
    )
    times = milliseconds if isinstance(milliseconds, tuple) else (milliseconds,) * 3
    return Result(
        case,
        "ok",
        seconds=tuple(t / 1e3 for t in times),
        argument_bytes=int(memory),
        output_bytes=0,
        temporary_bytes=0,
        flags={"turns": turns},
    )


def results(**change) -> list[Result]:
    """An H200 on which every target is met."""
    numbers = dict(lsh=10.0, pallas=8.0, default=1.0, lsh_memory=1.2e9, longest=40.0) | change
    found = []
    for n in (1024, 4096, 8192, 65536):
        flash_time = n / 8192 * 15
        found += [
            row("flash", n, flash_time),
            row("lsh", n, numbers["lsh"], memory=numbers["lsh_memory"]),
            row("lsh", n, numbers["pallas"], memory=numbers["lsh_memory"], implementation="pallas"),
            row("multi_head", n, flash_time * numbers["default"]),
        ]
    found += [row("lsh", 2**20, numbers["longest"], implementation=way) for way in (None, "pallas")]
    rate = tanh_case(2**30, "bfloat16")
    found.append(Result(rate, "ok", seconds=(tanh_evaluations(rate) / 1e12,)))
    for n in (1024, 8192):
        bound = tanh_evaluations(row("additive", n, 1).case) / 1e12
        found.append(row("additive", n, 1.9e3 * bound, memory=1e9))
    return found


def verdicts(found, device="NVIDIA H200", tokens=65536) -> list[str]:
    return [v.word({"device": device}, tokens) for v in device_targets.verdicts(found)]


def test_targets():
    assert verdicts(results()) == ["met"] * 11
    assert verdicts(results(), device="NVIDIA A100") == ["not measured here"] * 11
    assert verdicts(results(), tokens=1024) == ["not measured here"] * 11
    assert verdicts([]) == ["not measured here"] * 11
    slow = verdicts(results(lsh=16.0, lsh_memory=1.6e9, default=1.05))
    assert slow == ["NOT met"] * 3 + ["met"] * 7 + ["NOT met"]
    slow = verdicts(results(pallas=16.0, lsh_memory=1.6e9))
    assert slow == ["met"] * 2 + ["NOT met", "met"] + ["NOT met"] * 3 + ["met"] * 4
    failed = [
        dataclasses.replace(r, status="too_large") if r.case.length == 2**20 else r
        for r in results()
    ]
    assert verdicts(failed)[3] == verdicts(failed)[7] == "NOT met"
    quadratic = [
        dataclasses.replace(r, argument_bytes=8 * 10**9, seconds=(9.0,))
        if (r.case.mechanism, r.case.length) == ("additive", 8192)
        else r
        for r in results()
    ]
    assert verdicts(quadratic)[8:10] == ["NOT met", "NOT met"]
    found = {v.what: v.found for v in device_targets.verdicts(results())}
    assert found["LSH-4, default at n = 65536"] == "12× at n = 65536"
    assert found["LSH-4, pallas at n = 65536"] == "15× at n = 65536"
    assert found["LSH-4, pallas (C = 64) against flash"] == "faster from n = 8192"


def test_a_ratio_is_taken_turn_by_turn():
    """What slows one turn slows both of it, and is no part of the ratio."""
    a, b = row("flash", 1024, (10.0, 40.0, 30.0)), row("lsh", 1024, (5.0, 20.0, 10.0))
    assert device_targets.ratio(a, b) == pytest.approx(2.0)
    other = row("lsh", 1024, (1.0, 20.0, 30.0), turns="another time")
    assert device_targets.ratio(a, other) == pytest.approx(30 / 20)


def test_a_bound_counts_what_the_equation_evaluates():
    case = row("additive", 8192, 1).case
    forward = dataclasses.replace(case, passes="forward")
    pairs = 8192 * 8193 // 2
    assert tanh_evaluations(forward) == 8 * 8 * 64 * pairs
    assert tanh_evaluations(case) == 2 * tanh_evaluations(forward)
    assert tanh_evaluations(dataclasses.replace(forward, causal=False)) == 64 * 64 * 8192**2
    assert tanh_evaluations(tanh_case(2**22, "float32")) == 2**22


def test_the_report_shows_what_failed_and_what_refused(tmp_path):
    checked = [
        Checked(Check("dot", "full", "dense", "float32"), "pass", "context: 0.1", {"context": 0.1}),
        Checked(Check("dot", "full", "cudnn", "float32"), "refused", "half precision only"),
        Checked(Check("dot", "full", "pallas", "float32"), "fail", "d_q: 7", {"d_q": 7.0}),
    ]
    timed = results() + [row("lsh", 65536, 5.0, num_hashes=1)]
    text = device_report.markdown(
        checked, timed, planned=99, environment={"device": "NVIDIA H200"}, settings=Settings()
    )
    for part in ("of 99 rows: cut short", "half precision only", "What failed", "d_q: 7", " met |"):
        assert part in text, part
    assert "1e+12 evaluations/s in bfloat16" in text
    assert "24×" in text  # one round against flash at the longest length
    device_figures.save(timed, tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
