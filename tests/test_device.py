"""What judges a device (`tests/device`) judges rightly: it names what is wrong, on the CPU too."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.ops import blockwise
from attnlab.ops.attention import attention
from attnlab.ops.lsh.hashing import Rotations, hash_buckets
from attnlab.scores import Dot
from attnlab.testing import Sizes
from tests.daily import daily
from tests.device import problems, scenarios
from tests.device.isolation import Row
from tests.device.judging import ROW, Truth, judge, representable
from tests.device.problems import Problem
from tests.device.scenarios import Check, Scenario
from tests.device.worker import Checker
from tests.mechanism_cases import MECHANISMS

SMALL = Scenario("small", Sizes(2, 23, 23, 2, 2, 8, 8, 8), causal=True, chunk_size=5)


def silent(stage: str) -> None:
    pass


def statuses(problem: Problem, *names: str, dtype: str = "float32") -> dict[str, Row]:
    checker = Checker()
    checker.problem = lambda mechanism, scenario: problem
    made = [Check("any", "small", name, dtype) for name in names]
    return {
        check.implementation: Row(check, *checker.result(check, made, silent)) for check in made
    }


def result(checker: Checker, *check: str) -> Row:
    return Row(Check(*check), *checker.result(Check(*check), [], silent))


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
    problem = problems.problem("scaled_dot", SMALL)
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


@pytest.mark.parametrize("mechanism", daily(["scaled_dot", "lsh"], "scaled_dot"))
def test_bfloat16_is_judged_by_bfloat16(mechanism):
    problem = problems.problem(mechanism, SMALL)
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
    problem = problems.problem("scaled_dot", scenario)
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


@pytest.mark.parametrize("mechanism", daily(["scaled_dot", "lsh"], "scaled_dot"))
def test_terms_that_cancel_have_a_size(mechanism):
    """The first query sees one key only: its gradient is 0, and rounding may leave something."""
    problem = problems.problem(mechanism, SMALL)
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


@pytest.mark.parametrize(("left", "right"), daily([(8, 4), (10, 4), (9, 3), (9, 5)], (9, 5)))
def test_a_window_off_by_one_is_seen(left, right):
    scenario = dataclasses.replace(
        scenarios.KERNELS[5], window=(9, 4), sizes=Sizes(1, 61, 61, 2, 1, 8, 8)
    )
    problem = problems.problem("window", scenario)
    other = problems.problem("window", dataclasses.replace(scenario, window=(left, right)))
    ways = dict(off=lambda arrays, plain: other.plain(arrays))
    rows = statuses(broken(problem, **ways), "dense", "off", dtype="bfloat16")
    assert (rows["dense"].status, rows["off"].status) == ("pass", "fail")
    assert rows["off"].ratios["context, worst row"] > 3


def test_a_parameters_gradient_is_judged():
    """One that is a thousandth too large is seen; a right one passes, however few numbers it is."""

    def steeper(arrays, plain):
        scale = arrays["parameter_0"]
        more = 1e-3 * (scale - jax.lax.stop_gradient(scale))
        return plain(arrays | {"parameter_0": scale + more})

    rows = statuses(
        broken(problems.problem("cosine", SMALL), steeper=steeper), "default", "steeper"
    )
    assert [row.status for row in rows.values()] == ["pass", "fail"]
    assert rows["steeper"].message.startswith("d_parameter_0: ")


def test_a_wrong_yardstick_forgives_nothing():
    """The plain version and what is judged by it share a fault."""
    problem = problems.problem("scaled_dot", SMALL)
    wrong = dataclasses.replace(
        problem, plain=lambda arrays: problem.plain(arrays) * 1.1, plain_is=None
    )
    rows = statuses(broken(wrong, same=lambda arrays, plain: plain(arrays)), "same")
    assert rows["same"].status == "fail" and rows["same"].message.startswith("plain: ")


@pytest.mark.parametrize("mechanism", daily(scenarios.SCENARIOS, "scaled_dot"))
def test_float32_is_asked_for_at_highest_precision(mechanism):
    """Every matrix product, gradients included: a GPU would round to TF32 as it likes."""
    window = (5, 3) if mechanism == "window" else None
    scenario = dataclasses.replace(SMALL, window=window)
    problem = problems.problem(mechanism, scenario, interpreted=True)
    ways = ("sorted" if mechanism == "lsh" else "blockwise", "dense")
    ways += ("pallas",) * (mechanism in ("scaled_dot", "lsh"))
    given = problem.given(problem.arrays, "float32")
    for apply in (problem.plain, *(functools.partial(problem.apply, way) for way in ways)):
        text = problems.program(apply, "float32").lower(*given).as_text()
        products = [line for line in text.splitlines() if "dot_general" in line]
        assert products and all("[HIGHEST, HIGHEST]" in line for line in products)


def test_hashing_is_judged():
    x, rotations = problems.hash_arguments("float32")
    x = x[:, :29]
    buckets = np.array(hash_buckets(x, rotations))
    assert problems.judge_buckets(buckets, x, rotations) <= 1
    in_bfloat16 = jax.tree.map(lambda r: r.astype(jnp.bfloat16).astype("float32"), rotations)
    assert problems.judge_buckets(hash_buckets(x, in_bfloat16), x, rotations) > 1
    for wrong in (buckets[0, 0, 0, 0] ^ 1, buckets[0, 0, 0, 0] ^ 16, 512, -1):
        buckets[0, 0, 0, 0] = wrong
        assert problems.judge_buckets(buckets, x, rotations) > 1


def test_equally_near_axes_are_no_fault():
    """Both buckets of a tie are right, and no third one."""
    rotations = Rotations((jnp.array([[[[1.0, 2.0], [2.0, 1.0], [0.5, 0.5]]]]),))
    x = np.ones((1, 1, 1, 2))
    found = [problems.judge_buckets(np.full((1, 1, 1, 1), i), x, rotations) for i in range(6)]
    assert [ratio <= 1 for ratio in found] == [True, True, False, False, False, False]


def test_inputs_are_the_same_numbers_in_every_dtype():
    x = representable(np.random.default_rng(0).normal(size=100))
    for dtype in (jnp.float32, jnp.bfloat16):
        np.testing.assert_array_equal(np.asarray(jnp.asarray(x, dtype), np.float64), x)


@pytest.mark.slow  # as the rows above, in the whole program
def test_a_mechanism_that_loses_a_row_fails(monkeypatch):
    """One late row of one head, in bfloat16; nothing else is wrong."""
    attend = blockwise.attend

    def lossy(*arguments, **options):
        return attend(*arguments, **options).at[0, 1, 2, -7].set(0)

    monkeypatch.setattr(blockwise, "attend", lossy)
    checker = Checker()
    rows = [
        result(checker, "scaled_dot", "everything", way, "bfloat16") for way in ("default", "dense")
    ]
    assert [row.status for row in rows] == ["fail", "pass"]
    assert rows[0].message.startswith("context, worst row: ")


@pytest.mark.parametrize("mechanism", daily(scenarios.IMPORTANT, "window"))
def test_a_mesh_of_devices_is_judged(mechanism):
    checker = Checker(small=True)
    rows = [result(checker, mechanism, "mesh", way, "float32") for way in scenarios.DIVIDED]
    assert [row.status for row in rows] == ["pass"] * 3, rows


def test_one_device_is_no_mesh(monkeypatch):
    monkeypatch.setattr(jax, "local_device_count", lambda: 5)
    row = result(Checker(), "lsh", "mesh", "over heads", "float32")
    assert row.status == "refused" and row.message.endswith("that share 8; got 5")


@pytest.mark.parametrize("mechanism", daily(["scaled_dot", "lsh"]))
def test_large_arrays_are_judged(mechanism):
    """In three heads by the oracle, elsewhere by the plain version."""
    large = Scenario("large", Sizes(3, 37, 37, 8, 1, 8, 8), causal=True, chunk_size=8)
    problem = problems.problem(mechanism, large)

    def lose(b, n, at=32):
        return lambda arrays, plain: plain(arrays).at[b, at, n].set(0)

    ways = dict(first=lose(0, 0), last=lose(2, 7), other=lose(1, 3, slice(None)))
    checker = Checker()
    checker.problem = lambda *_: broken(problem, **ways)
    rows = {
        way: result(checker, mechanism, "large", way, "bfloat16")
        for way in ("default", problem.plain_is, "pallas", *ways)
    }
    assert {rows[way].status for way in ("default", problem.plain_is)} == {"pass"}
    assert rows["pallas"].status == "refused"
    for name in ("first", "last"):
        assert rows[name].status == "fail" and rows[name].ratios["context, worst row"] > 3
    assert rows["other"].status == "fail" and rows["other"].ratios["context, worst row"] < 1
    assert rows["other"].message.startswith("elsewhere: ")


@pytest.mark.parametrize("name", daily(scenarios.WITHOUT_KERNELS))
def test_what_has_no_kernel_is_judged_by_itself(name):
    assert result(Checker(), name, scenarios.CONTRACT, "default", "float32").status == "pass"


def test_every_mechanism_is_checked_what_may_break_first():
    every = scenarios.checks()
    assert len(every) == len({*map(str, every)})
    checked = {check.mechanism for check in every}
    assert {m.name for m in MECHANISMS if not {m.name, m.name.split("-")[0]} & checked} == set()
    first = every[: sum(check.risky for check in every)]
    for mechanism in scenarios.IMPORTANT:
        for scenario in scenarios.SCENARIOS[mechanism]:
            for way in {"default", "cudnn", "pallas"} & {*scenarios.EXACT_WAYS}:
                check = Check(mechanism, scenario.name, way, "bfloat16")
                assert check in first or check not in every
            seen = scenario.picture()
            assert seen.shape[2:] == (scenario.sizes.queries, scenario.sizes.keys)
    assert all(check.risky and check.dtype == "bfloat16" for check in first)
    assert {s.num_hashes for s in scenarios.SCENARIOS["lsh"]} == {1, 2, 4, 8}
    empty = scenarios.EVERYTHING.picture()
    assert not empty[-1].any() and empty[0].any()
