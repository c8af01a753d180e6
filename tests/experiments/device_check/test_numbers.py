"""`device_check` judges rightly: it passes what is right and names what is wrong."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.bench import oracle_lsh
from attnlab.bench.oracle_scores import Sizes
from attnlab.ops.attention import attention
from attnlab.ops.lsh.hashing import Rotations, hash_buckets
from attnlab.scores import Dot
from experiments.device_check import cases, checks, exact, lsh, timed
from experiments.device_check.cases import Check, Checked, Scenario
from experiments.device_check.problem import ROW, Problem, Truth, judge, program, representable
from tests.daily import daily

SMALL = Scenario("small", Sizes(2, 23, 23, 2, 2, 8, 8, 8), causal=True, chunk_size=5)


def statuses(problem: Problem, *names: str, dtype: str = "float32") -> dict[str, Checked]:
    rows = []
    checks.run(
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
    problem = exact.problem("scaled_dot", SMALL)
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


@pytest.mark.parametrize("mechanism", daily(cases.IMPORTANT, "window"))
def test_a_mesh_of_devices_is_judged(mechanism, monkeypatch):
    small = dataclasses.replace(cases.MESH, sizes=cases._sizes(2, 32, 2, 1, 8))
    monkeypatch.setattr(cases, "MESH", small)
    monkeypatch.setattr(checks, "MESH", small)
    rows = []
    members = [m for m in cases.mesh_checks(mechanism) if m.dtype == "float32"]
    checks.run(members, threads=1, tell=lambda i, stage: None, give=lambda i, row: rows.append(row))
    assert [row.status for row in rows] == ["pass"] * 3, rows
    assert [row.check.implementation for row in rows] == [*cases.DIVIDED]


def test_a_failure_on_the_device_is_told_from_one_before():
    """Its process is not used again; one that fails to trace or compile costs nothing."""
    problem = exact.problem("scaled_dot", SMALL)

    def fault(arrays, plain):
        def no(x):
            raise RuntimeError("an illegal instruction")

        return plain(arrays) + jax.pure_callback(no, jax.ShapeDtypeStruct((), "float32"), 0.0)

    stages, rows = {}, []
    checks.run(
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
    problem = lsh.problem(SMALL) if mechanism == "lsh" else exact.problem(mechanism, SMALL)
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


@pytest.mark.parametrize("dtype", daily(["float32", "bfloat16"], "bfloat16"))
def test_one_wrong_row_is_seen(dtype):
    """In the row itself: the mean over the output may forgive it."""
    scenario = Scenario("late", Sizes(1, 127, 127, 2, 1, 16, 16), causal=True)
    problem = exact.problem("scaled_dot", scenario)
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
    problem = lsh.problem(SMALL) if mechanism == "lsh" else exact.problem(mechanism, SMALL)
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
        cases.KERNELS[5], window=(9, 4), sizes=Sizes(1, 61, 61, 2, 1, 8, 8)
    )
    problem = exact.problem("window", scenario)
    other = exact.problem("window", dataclasses.replace(scenario, window=sides))
    ways = dict(off=lambda arrays, plain: other.plain(arrays))
    rows = statuses(broken(problem, **ways), "dense", "off", dtype="bfloat16")
    assert (rows["dense"].status, rows["off"].status) == ("pass", "fail")
    assert rows["off"].ratios["context, worst row"] > 3


def test_a_wrong_yardstick_forgives_nothing():
    """The plain version and what is judged by it share a fault."""
    problem = exact.problem("scaled_dot", SMALL)
    wrong = dataclasses.replace(
        problem, plain=lambda arrays: problem.plain(arrays) * 1.1, plain_is=None
    )
    rows = statuses(broken(wrong, same=lambda arrays, plain: plain(arrays)), "same")
    assert rows["same"].status == "fail" and rows["same"].message.startswith("plain: ")


@pytest.mark.parametrize("mechanism", daily(cases.MECHANISMS, "scaled_dot", "lsh"))
def test_float32_is_asked_for_at_highest_precision(mechanism):
    """Every matrix product, gradients included: a GPU would round to TF32 as it likes."""
    if mechanism == "lsh":
        problem, ways = lsh.problem(SMALL), ("sorted", "dense")
    else:
        problem, ways = exact.problem(mechanism, SMALL), ("blockwise", "dense")
    given = problem.given(problem.arrays, "float32")
    for apply in (problem.plain, *(functools.partial(problem.apply, way) for way in ways)):
        text = program(apply).lower(*given).as_text()
        products = [line for line in text.splitlines() if "dot_general" in line]
        assert products and all("[HIGHEST, HIGHEST]" in line for line in products)


@pytest.mark.parametrize("mechanism", daily(["scaled_dot", "lsh"]))
def test_the_timed_arrays_are_judged(mechanism):
    """In three heads by the oracle, elsewhere by the plain version."""
    of_all = cases.timed_checks(mechanism, 37, 3)
    problem = timed.problem(of_all[0])

    def lose(b, n):
        return lambda arrays, plain: plain(arrays).at[b, 32, n].set(0)

    def lose_all(arrays, plain):
        return plain(arrays).at[1, :, 3].set(0)

    found = []
    ways = dict(first=lose(0, 0), last=lose(2, 7), other=lose_all)
    members = [*of_all, *(dataclasses.replace(of_all[0], implementation=way) for way in ways)]
    checks.run(
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
    x, rotations = lsh.hash_arguments("float32")
    x = x[:, :29]
    buckets = np.array(hash_buckets(x, rotations))
    assert lsh.judge_buckets(buckets, x, rotations) <= 1
    in_bfloat16 = jax.tree.map(lambda r: r.astype(jnp.bfloat16).astype("float32"), rotations)
    assert lsh.judge_buckets(hash_buckets(x, in_bfloat16), x, rotations) > 1
    for wrong in (buckets[0, 0, 0, 0] ^ 1, buckets[0, 0, 0, 0] ^ 16, 512, -1):
        buckets[0, 0, 0, 0] = wrong
        assert lsh.judge_buckets(buckets, x, rotations) > 1


def test_equally_near_axes_are_no_fault():
    """Both buckets of a tie are right, and no third one."""
    rotations = Rotations((jnp.array([[[[1.0, 2.0], [2.0, 1.0], [0.5, 0.5]]]]),))
    x = np.ones((1, 1, 1, 2))
    found = [lsh.judge_buckets(np.full((1, 1, 1, 1), i), x, rotations) for i in range(6)]
    assert [ratio <= 1 for ratio in found] == [True, True, False, False, False, False]


def test_every_mechanism_has_scenarios_of_its_own_sizes():
    for mechanism in cases.MECHANISMS:
        for scenario in cases.scenarios(mechanism):
            seen = scenario.picture()
            assert seen.shape[2:] == (scenario.sizes.queries, scenario.sizes.keys)
            assert cases.scenario(mechanism, scenario.name) is scenario
    empty = cases.EVERYTHING
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
