"""What a check compares: an implementation on the device, and the plain version in float64.

The plain version is the "dense" implementation of the same mechanism on the CPU, or the mechanism
itself where it has no other; the tests for the CPU hold both to NumPy. The inputs are numbers that
bfloat16 can hold, so that one truth serves every dtype. float32 programs run at precision HIGHEST:
the rounding of matrix products that is some devices' default (TF32, bfloat16) is not allowed for.

A bucket is the axis that a vector is nearest to. Where two axes are equally near up to rounding,
either bucket is right. The device sums H products in float32, in any order: an error of at most
(H + 1)·2⁻²⁴·Σ|x_h r_h| in each projection. A bucket is wrong if another axis is nearer than its own
by more than the errors of the two projections together.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnlab
from attnlab import masks
from attnlab.ops.lsh.cross import lsh_cross_attention
from attnlab.ops.lsh.hashing import Rotations, make_rotations
from attnlab.testing import Sizes
from attnlab.testing.judging import judge, move, ratio, rounding
from tests import mechanism_cases
from tests.device.scenarios import (
    CONTRACT,
    DEFAULT,
    DIVIDED,
    LARGE,
    Scenario,
    count_sharers,
    scenario_of,
)
from tests.mechanism_cases import Mechanism
from tests.oracle_scores import SCORES

Arrays = dict[str, Any]
_DISTINCT = 3  # heads of large arrays: the others are copies of them, whose truth is known too
_NEARBY = 4  # truths of moved inputs
_HASHED = (2, 1024, 4, 64)  # [B, L, N, H]


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """One function, its arguments, and the truth.

    Attributes:
      arrays: arguments by name, and "dcontext", the cotangent of the context; integers get no
        gradient.
      apply: (implementation, arrays) -> context.
      plain: (arrays) -> context, by the plain version.
      length: number of keys.
      causal: whether the mask hides the future.
      copies: (B, N) of large arrays, whose heads are copies of those in `arrays`; None = no copies.
    """

    arrays: Arrays
    apply: Callable[[str, Arrays], jax.Array]
    plain: Callable[[Arrays], jax.Array]
    length: int
    causal: bool = False
    copies: tuple[int, int] | None = None

    @functools.cached_property
    def true(self) -> Arrays:
        """The outputs in float64."""
        return self.run_plainly(self.arrays)

    def judge(self, got: Arrays, dtype: str) -> dict[str, float]:
        """Errors over what is allowed, by name."""
        return judge(got, self.true, nearby(self, dtype), dtype=dtype, length=self.length)

    def given(self, arrays: Arrays, dtype: str) -> tuple[Arrays, Arrays]:
        """The arguments of `program`, on the device and in a dtype: real numbers and integers."""
        axes = {name: 3 if name == "buckets" else 2 for name in arrays}
        return _as_arguments({name: self._copy(x, axes[name]) for name, x in arrays.items()}, dtype)

    @property
    def cut(self) -> int:
        """A position near the middle, not at the edge of a block."""
        return self.length // 2 + 3

    def with_another_future(self) -> Arrays:
        """The arrays, redrawn from `cut` on, with values a hundred times as large."""
        rng = np.random.default_rng(1)
        changed = {name: np.array(x) for name, x in self.arrays.items()}
        for name in changed.keys() & {"q", "k", "v", "qk"}:
            late = changed[name][:, self.cut :]  # [B, L - cut, N, H]
            late[...] = representable(rng.normal(size=late.shape) * (100 if name == "v" else 1))
        if "buckets" in changed:
            late = changed["buckets"][:, :, self.cut :]  # [B, R, L - cut, N]
            late[...] = rng.permutation(late.ravel()).reshape(late.shape)
        return changed

    def judge_past(self, before: Any, after: Any, dtype: str) -> float:
        """How far another future moved the past, over eight roundings of its largest number."""
        past = [np.asarray(x, np.float64)[:, : self.cut] for x in (before, after)]
        return ratio(np.abs(past[1] - past[0]), 8 * rounding(dtype) * np.abs(past[0]).max())

    @functools.cached_property
    def _plain_program(self) -> Any:
        return program(self.plain, "float64")

    def run_plainly(self, arrays: Arrays) -> Arrays:
        """The outputs in float64, on the CPU."""
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            outputs = self._plain_program(*_as_arguments(arrays, "float64"))
            return {name: self._copy(np.asarray(x), 2) for name, x in outputs.items()}

    def _copy(self, x: Any, heads: int) -> Any:
        """[3, …, 1, …] with an axis of heads to [B, …, N, …]; as it is without copies."""
        if self.copies is None:
            return x
        which = np.arange(np.prod(self.copies)).reshape(self.copies) % _DISTINCT  # [B, N]
        return np.moveaxis(np.squeeze(x, heads)[which], 1, heads)


@functools.lru_cache(4)
def nearby(problem: Problem, dtype: str) -> list[Arrays]:
    """The outputs in float64 of inputs that are off as this dtype rounds."""
    share = rounding(dtype)
    return [problem.run_plainly(move(problem.arrays, share, seed)) for seed in range(_NEARBY)]


def program(apply: Callable[[Arrays], jax.Array], dtype: str) -> Any:
    """A jitted function (reals, integers) -> the context and the gradients, by name."""
    precision = None if dtype == "bfloat16" else "highest"

    def run(real: Arrays, whole: Arrays) -> Arrays:
        arrays = {name: x for name, x in real.items() if name != "dcontext"}
        with jax.default_matmul_precision(precision):
            context, pull_back = jax.vjp(lambda arrays: apply(arrays | whole), arrays)
            grads = pull_back(real["dcontext"].astype(context.dtype))[0]
        return {"context": context} | {f"d_{name}": x for name, x in grads.items()}

    return jax.jit(run)


def _as_arguments(arrays: Arrays, dtype: str) -> tuple[Arrays, Arrays]:
    real = {name: jnp.asarray(x, dtype) for name, x in arrays.items() if x.dtype.kind == "f"}
    return real, {name: jnp.asarray(x) for name, x in arrays.items() if name not in real}


def representable(x: Any) -> np.ndarray:
    """The nearest numbers that bfloat16 can hold, in float64; integers as they are."""
    x = np.asarray(x)
    return x if x.dtype.kind != "f" else x.astype(jnp.bfloat16).astype(np.float64)


def problem(mechanism: str, name: str, *, small: bool = False) -> Problem:
    """The problem of a mechanism in a scenario; a small one has interpreted Pallas kernels."""
    if name == CONTRACT:
        return _without_kernels(mechanism)
    scenario = scenario_of(mechanism, name)
    return of_scenario(mechanism, scenario.small() if small else scenario, interpreted=small)


def of_scenario(mechanism: str, scenario: Scenario, *, interpreted: bool = False) -> Problem:
    """The problem of a mechanism with these sizes and this mask."""
    mask, sides = scenario.mask(scenario.sizes), scenario.window
    if sides is not None and mechanism != "window":
        mask = masks.Window(*sides) if mask is None else masks.Window(*sides) & mask

    def made(implementation: Any) -> Mechanism:
        if mechanism == "lsh":
            return mechanism_cases.lsh_self(implementation, scenario.chunk_size)
        if mechanism == "window":
            return mechanism_cases.window(implementation, sides)
        score = next(case for case in SCORES if case.name == mechanism)
        return mechanism_cases.exact(score, implementation)

    def apply(name: str, arrays: Arrays) -> jax.Array:
        if name in DIVIDED:
            devices = jax.local_devices()
            sharers = np.array(devices[: count_sharers(len(devices))])
            with attnlab.over(jax.sharding.Mesh(sharers, ("each",)), **{DIVIDED[name]: "each"}):
                return made(None).apply(arrays, mask)
        if interpreted and name == "pallas":
            return made(attnlab.Pallas(8, 16, interpret=True)).apply(arrays, mask)
        return made(None if name == DEFAULT else name).apply(arrays, mask)

    copies, sizes = None, scenario.sizes
    if scenario.name == LARGE.name:
        copies = sizes.batch, sizes.num_heads
        sizes = sizes._replace(batch=_DISTINCT, num_kv_heads=1, group_size=1)
    arrays = _draw(made("dense"), sizes)
    if mechanism == "lsh":  # each bucket holds a few tokens, and chunks end within buckets
        shape = sizes.batch, scenario.num_hashes, sizes.keys, sizes.num_heads
        buckets = np.random.default_rng(2).integers(0, max(2, sizes.keys // 12), shape)
        arrays["buckets"] = buckets.astype(np.int32)
    return Problem(
        arrays=arrays,
        apply=apply,
        plain=lambda arrays: made("dense").apply(arrays, mask),
        length=sizes.keys,
        causal=mask is not None and bool(mask.hides_future),
        copies=copies,
    )


def _without_kernels(name: str) -> Problem:
    """A mechanism of the contract list beside itself; what hashes is given its buckets."""
    mechanism = mechanism_cases.BY_NAME[name]
    sizes = mechanism.sizes()
    arrays = _draw(mechanism, sizes)
    visible = np.ones((sizes.batch, sizes.keys), bool)
    visible[0, 1:] = visible[1, -2:] = visible[2] = False
    mask = mechanism.mask(visible, mechanism.causal)

    def apply(arrays: Arrays) -> jax.Array:
        if "q_buckets" not in arrays:
            return mechanism.apply(arrays, mask)
        given = [arrays[x] for x in ("q", "k", "v", "q_buckets", "k_buckets")]
        implementation = name.rpartition("-")[2]
        return lsh_cross_attention(*given, chunk_size=5, mask=mask, implementation=implementation)

    if name.startswith("lsh_cross"):
        for side in "qk":
            buckets = mechanism_cases.buckets(jnp.asarray(arrays[side], jnp.float32))
            arrays[f"{side}_buckets"] = np.asarray(buckets)
    return Problem(arrays, lambda name, arrays: apply(arrays), apply, length=sizes.keys)


def _draw(mechanism: Mechanism, sizes: Sizes) -> Arrays:
    drawn = mechanism.make(np.random.default_rng(0), sizes)
    drawn["dcontext"] = np.random.default_rng(1).normal(size=mechanism.output(sizes))
    return {name: representable(x) for name, x in drawn.items()}


def hash_arguments(dtype: str) -> tuple[jax.Array, Rotations]:
    """Normally distributed tokens, and rotations of two factors, 16 · 32, for them."""
    *_, heads, width = _HASHED
    x = representable(np.random.default_rng(0).normal(size=_HASHED))
    rotations = make_rotations(
        jax.random.key(0), num_heads=heads, head_dim=width, num_hashes=8, num_buckets=512
    )
    return jnp.asarray(x, dtype), rotations


def judge_buckets(buckets: Any, x: Any, rotations: Rotations) -> float:
    """How much nearer another axis is than the bucket's own, over rounding; at most 1 passes.

    Args:
      buckets: buckets to be judged, [B, R, L, N].
      x: tokens, [B, L, N, H].
      rotations: rotations of the N heads.
    """
    left, tokens = np.asarray(buckets), np.asarray(x)
    worst = 0.0
    x = tokens.astype(np.float64)
    for factor in rotations.factors:  # which the hash rounds to the dtype of the tokens
        r = np.asarray(factor).astype(tokens.dtype).astype(np.float64)  # [N, R, B_f/2, H]
        half = r.shape[2]
        left, digit = np.divmod(left, 2 * half)
        y = np.einsum("nrah,blnh->brlna", r, x)
        error = (x.shape[-1] + 1) * 2.0**-24 * np.einsum("nrah,blnh->brlna", abs(r), abs(x))
        nearest = np.abs(y).argmax(-1)[..., None]
        axis = (digit % half)[..., None]
        own = np.take_along_axis(y, axis, -1) * np.where(digit < half, 1, -1)[..., None]
        short = np.take_along_axis(np.abs(y), nearest, -1) - own
        allowed = np.take_along_axis(error, nearest, -1) + np.take_along_axis(error, axis, -1)
        worst = max(worst, ratio(short, allowed))
    return worst if not left.any() else ratio(1.0, 0.0)  # a number that is no bucket
