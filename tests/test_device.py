"""What judges a device (`tests/device`) judges rightly: it names what is wrong, on the CPU too."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.ops.attention import attention
from attnlab.ops.lsh.hashing import Rotations, hash_buckets
from attnlab.scores import Dot
from attnlab.testing import Sizes
from attnlab.testing.judging import ROW
from tests import oracle
from tests.daily import daily
from tests.device import problems, scenarios
from tests.device.isolation import Row
from tests.device.problems import Problem
from tests.device.scenarios import Check, Scenario
from tests.device.worker import Checker
from tests.mechanism_cases import MECHANISMS
from tests.oracle_scores import SCORES

SMALL = Scenario("small", Sizes(2, 23, 23, 2, 2, 8, 8, 8), scenarios.causal, chunk_size=5)
LATE = Scenario("late", Sizes(1, 127, 127, 2, 1, 16, 16), scenarios.causal)


def rows_of(problem: Problem, dtype: str, **ways) -> dict[str, Row]:
    """Rows of the default, the plain version, and of functions of (arrays, the plain function)."""

    def apply(name, arrays):
        return ways[name](arrays, problem.plain) if name in ways else problem.apply(name, arrays)

    checker = Checker()
    checker.problem = lambda mechanism, scenario: dataclasses.replace(problem, apply=apply)
    made = [Check("any", "small", name, dtype) for name in ("default", "dense", *ways)]
    return {check.implementation: result(checker, check, made) for check in made}


def result(checker: Checker, check: Check, ahead=()) -> Row:
    return Row(check, *checker.result(check, list(ahead), lambda stage: None))


def refuse(arrays, plain):
    raise NotImplementedError("not here")


def crash(arrays, plain):
    raise RuntimeError("no such kernel")


def test_what_is_refused_or_crashes_says_so():
    rows = rows_of(problems.of_scenario("scaled_dot", SMALL), "float32", refuse=refuse, crash=crash)
    assert [row.status for row in rows.values()] == ["pass", "pass", "refused", "crashed"]
    assert rows["refuse"].message == "not here"
    assert rows["crash"].message == "RuntimeError: no such kernel"


def no_gradient(arrays, plain):
    return plain(arrays | {"v": jax.lax.stop_gradient(arrays["v"])})


def slightly_off(arrays, plain):
    return plain(arrays) * (1.001 if arrays["q"].dtype == jnp.float32 else 1.1)


def half_precision(arrays, plain):
    return plain({name: x.astype(jnp.bfloat16) for name, x in arrays.items()}).astype("float32")


def leak(arrays, plain):
    """A little of the last value reaches everybody."""
    return plain(arrays) + 1e-6 * arrays["v"][:, -1:]


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


def show_next_key(seen):
    return seen | np.eye(127, k=1, dtype=bool)


def show_one_key_more(seen):
    seen[117, 118] = True
    return seen


FAULTS = {
    "no_gradient": (no_gradient, {"d_v"}),
    "slightly_off": (slightly_off, {"context", "d_v"}),
    "lose_row": (lose_row, {"context, worst row"}),
    "lose_gradient": (lose_gradient, {"d_v, worst row"}),
    "leak_by_one": (
        with_mask(show_next_key),
        {"context", "past"},
    ),
    "leak_of_one_key": (with_mask(show_one_key_more), {"d_v, worst row"}),
}
ONLY_FLOAT32 = {"half_precision": (half_precision, {"context"}), "leak": (leak, {"past"})}


@pytest.mark.parametrize("dtype", daily(["float32", "bfloat16"], "bfloat16"))
def test_what_is_wrong_is_named(dtype):
    """One row of many in itself: the mean over the output may forgive it."""
    faults = FAULTS | (ONLY_FLOAT32 if dtype == "float32" else {})
    ways = {name: way for name, (way, _) in faults.items()}
    rows = rows_of(problems.of_scenario("scaled_dot", LATE), dtype, **ways)
    assert rows["default"].status == rows["dense"].status == "pass"
    for name, (_, outputs) in faults.items():
        assert rows[name].status == "fail", name
        for output in outputs:
            assert rows[name].ratios[output] > 2, (name, output, rows[name].ratios)


@pytest.mark.parametrize(("left", "right"), daily([(8, 4), (10, 4), (9, 3), (9, 5)], (9, 5)))
def test_a_window_off_by_one_is_seen(left, right):
    scenario = dataclasses.replace(
        scenarios.BOTH_SIDES, window=(9, 4), sizes=Sizes(1, 61, 61, 2, 1, 8, 8)
    )
    other = problems.of_scenario("window", dataclasses.replace(scenario, window=(left, right)))
    ways = {"off": lambda arrays, plain: other.plain(arrays)}
    rows = rows_of(problems.of_scenario("window", scenario), "bfloat16", **ways)
    assert [row.status for row in rows.values()] == ["pass", "pass", "fail"]
    assert rows["off"].ratios["context" + ROW] > 3


def test_a_parameters_gradient_is_judged():
    """One that is a thousandth too large is seen; a right one passes, however few numbers it is."""

    def steeper(arrays, plain):
        scale = arrays["parameter_0"]
        more = 1e-3 * (scale - jax.lax.stop_gradient(scale))
        return plain(arrays | {"parameter_0": scale + more})

    rows = rows_of(problems.of_scenario("cosine", SMALL), "float32", steeper=steeper)
    assert [row.status for row in rows.values()] == ["pass", "pass", "fail"]
    assert rows["steeper"].message.startswith("d_parameter_0: ")


@pytest.mark.parametrize("score", daily(SCORES, SCORES[1]), ids=lambda score: score.name)
def test_the_truth_is_numpys(score):
    """That of the oracle, which shares no code with the library, under all masks at once."""
    problem = problems.of_scenario(score.name, scenarios.EVERYTHING)
    arrays, sizes = problem.arrays, scenarios.EVERYTHING.sizes
    parameters = [x for name, x in sorted(arrays.items()) if name.startswith("parameter")]
    seen = np.asarray(scenarios.everything(sizes).as_array(sizes.queries, sizes.keys))
    k = arrays.get("k", arrays["v"])
    answer = oracle.attention(score.equation, arrays["q"], k, arrays["v"], parameters, mask=seen)
    grads = answer.pull_back(arrays["dcontext"])
    for name, wanted in {"context": answer.context, "d_q": grads.q, "d_v": grads.v}.items():
        np.testing.assert_allclose(problem.true[name], wanted, atol=1e-12)
    assert not answer.weights[-1].any() and answer.weights[0].any(), "padding hides an example"


@pytest.mark.parametrize("mechanism", daily(scenarios.SCENARIOS, "scaled_dot"))
def test_float32_is_asked_for_at_highest_precision(mechanism):
    """Every matrix product, gradients included: a GPU would round to TF32 as it likes."""
    scenario = dataclasses.replace(SMALL, window=(5, 3) if mechanism == "window" else None)
    problem = problems.of_scenario(mechanism, scenario, interpreted=True)
    ways = ["sorted" if mechanism == "lsh" else "blockwise", "dense"]
    if mechanism in ("scaled_dot", "lsh"):
        ways.append("pallas")
    given = problem.given(problem.arrays, "float32")
    for way in ways:
        apply = functools.partial(problem.apply, way)
        text = problems.program(apply, "float32").lower(*given).as_text()
        products = [line for line in text.splitlines() if "dot_general" in line]
        assert products and all("[HIGHEST, HIGHEST]" in line for line in products)


def test_hashing_is_judged():
    x, rotations = problems.hash_arguments("float32")
    x = x[:, :29]
    buckets = np.array(hash_buckets(x, rotations))
    assert problems.judge_buckets(buckets, x, rotations) <= 1
    half = x.astype(jnp.bfloat16)  # then the rotations are rounded too
    assert problems.judge_buckets(hash_buckets(half, rotations), half, rotations) <= 1
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


@pytest.mark.parametrize("mechanism", daily(scenarios.IMPORTANT, "window"))
def test_a_mesh_of_devices_is_judged(mechanism):
    checker = Checker(small=True)
    made = [Check(mechanism, "mesh", way, "float32") for way in scenarios.DIVIDED]
    assert [result(checker, check).status for check in made] == ["pass"] * 3


def test_one_device_is_no_mesh(monkeypatch):
    monkeypatch.setattr(jax, "local_device_count", lambda: 5)
    row = result(Checker(), Check("lsh", "mesh", "over heads", "float32"))
    assert row.status == "refused" and row.message.endswith("that share 8; got 5")


@pytest.mark.parametrize("mechanism", daily(["scaled_dot", "lsh"], "scaled_dot"))
def test_every_head_of_large_arrays_is_judged(mechanism):
    """Of which three differ, and the others are their copies."""
    large = dataclasses.replace(scenarios.LARGE, sizes=Sizes(3, 37, 37, 8, 1, 8, 8), chunk_size=8)
    problem = problems.of_scenario(mechanism, large)

    def lose(b, n):
        return lambda arrays, plain: plain(arrays).at[b, 32, n].set(0)

    def swap(arrays, plain):
        return plain(arrays)[:, :, [1, 0, *range(2, 8)]]

    ways = {"first": lose(0, 0), "last": lose(2, 7), "between": lose(1, 3), "swapped": swap}
    rows = rows_of(problem, "bfloat16", **ways)
    assert [row.status for row in rows.values()] == ["pass"] * 2 + ["fail"] * 4
    assert all(rows[name].ratios["context" + ROW] > 3 for name in ways)


@pytest.mark.parametrize("name", daily(scenarios.WITHOUT_KERNELS))
def test_what_has_no_kernel_is_judged_by_itself(name):
    for dtype in scenarios.DTYPES:
        check = Check(name, scenarios.CONTRACT, "default", dtype)
        assert result(Checker(), check).status == "pass", dtype


def test_every_mechanism_is_checked_what_may_break_first():
    every = scenarios.checks()
    assert len(every) == len({*map(str, every)})
    checked = {check.mechanism for check in every}
    assert not [m.name for m in MECHANISMS if not {m.name, m.name.split("-")[0]} & checked]
    risky = [check.risky for check in every]
    assert risky == sorted(risky, reverse=True)
    assert {check.mechanism for check in every[: sum(risky)]} == {*scenarios.IMPORTANT}
    assert {s.num_hashes for s in scenarios.SCENARIOS["lsh"]} == {1, 2, 4, 8}
