"""What a check compares: arrays, their truth in float64, and the function of an implementation.

A bucket is the axis that a vector is nearest to. Where two axes are equally near up to rounding,
either bucket is right. The device sums H products in float32, in any order: an error of at most
(H + 1)·2⁻²⁴·Σ|x_h r_h| in each projection. A bucket is wrong if another axis is nearer than its own
by more than the errors of the two projections together.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnlab
from attnlab.ops.lsh.hashing import Rotations, make_rotations
from tests import mechanisms, oracle, oracle_lsh
from tests.device.judging import Arrays, Truth, judge, over, representable, row_sizes
from tests.device.scenarios import DEFAULT, DIVIDED, LARGE, MESH, Check, Scenario
from tests.oracle_scores import SCORES, ScoreCase

_HASHED = (2, 1024, 4, 64)  # [B, L, N, H]


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """One function, its arguments, and the truth.

    Attributes:
      arrays: arguments by name; integers get no gradient.
      dcontext: cotangent of the context.
      truth: (arrays, dcontext) -> the oracle's answer, for the part that is judged.
      apply: (implementation, arrays) -> context.
      plain: (arrays) -> context, by the plain version.
      plain_is: name of the implementation that `plain` is; None = it is none.
      other_future: (arrays, t) -> arrays that differ at positions ≥ t; None if not causal.
      heads: the examples and heads that `truth` knows, (b, n) each; None = all.
    """

    arrays: Arrays
    dcontext: np.ndarray
    truth: Callable[[Arrays, np.ndarray], Truth]
    apply: Callable[[str, Arrays], jax.Array]
    plain: Callable[[Arrays], jax.Array]
    plain_is: str | None = None
    other_future: Callable[[Arrays, int], Arrays] | None = None
    heads: Sequence[tuple[int, int]] | None = None

    def given(self, arrays: Arrays, dtype: str) -> tuple[Arrays, Arrays, jax.Array]:
        """The arguments of `program`, on the device and in a dtype."""
        real = {k: jnp.asarray(x, dtype) for k, x in arrays.items() if x.dtype.kind == "f"}
        whole = {k: jnp.asarray(x) for k, x in arrays.items() if x.dtype.kind != "f"}
        return real, whole, jnp.asarray(self.dcontext, dtype)

    def part(self, x: Any) -> np.ndarray:
        """Of [B, L, N, H] what `truth` knows: the chosen heads, [heads, L, 1, H]."""
        x = np.asarray(x)
        return x if self.heads is None else np.stack([x[b, :, n : n + 1] for b, n in self.heads])

    @functools.cached_property
    def answer(self) -> Truth:
        """The truth of `arrays`."""
        true = self.truth(self.arrays, self.dcontext)
        return true._replace(sizes=functools.cache(true.sizes))

    @property
    def cut(self) -> int:
        """The t of `other_future`: near the middle, not at the edge of a block."""
        return self.dcontext.shape[1] // 2 + 3


def program(apply: Callable[[Arrays], jax.Array], dtype: str) -> Any:
    """A jitted function (reals, integers, dcontext) -> the context and the gradients, by name."""
    precision = "highest" if dtype == "float32" else None

    def run(real: Arrays, whole: Arrays, dcontext: jax.Array) -> Arrays:
        with jax.default_matmul_precision(precision):
            context, pull_back = jax.vjp(lambda real: apply(real | whole), real)
            grads = pull_back(dcontext.astype(context.dtype))[0]
        return {"context": context} | {f"d_{name}": x for name, x in grads.items()}

    return jax.jit(run)


def problem(mechanism: str, scenario: Scenario, *, interpreted: bool = False) -> Problem:
    """The problem of a mechanism in a scenario; its Pallas kernels may be interpreted."""
    made = _lsh(scenario) if mechanism == "lsh" else _exact(mechanism, scenario)
    return dataclasses.replace(made, apply=_by_name(made.apply, interpreted))


def _by_name(
    apply: Callable[[Any, Arrays], jax.Array], interpreted: bool
) -> Callable[..., jax.Array]:
    """`apply` by the names of implementations, those over a mesh of devices included."""

    def named(name: str, arrays: Arrays) -> jax.Array:
        if name in DIVIDED:
            devices = jax.local_devices()
            mesh = jax.sharding.Mesh(np.array(devices[: MESH.sharers(len(devices))]), ("devices",))
            with attnlab.over(mesh, **{DIVIDED[name]: "devices"}):
                return apply(None, arrays)
        if interpreted and name == "pallas":
            return apply(attnlab.Pallas(8, 16, interpret=True), arrays)
        return apply(None if name == DEFAULT else name, arrays)

    return named


def _heads(scenario: Scenario) -> list[tuple[int, int]] | None:
    """Three heads of large arrays: the first, the last, and one between them."""
    if scenario.name != LARGE.name:
        return None
    b, n = scenario.sizes.batch, scenario.sizes.num_heads
    return sorted({(0, 0), (b // 2, n // 2), (b - 1, n - 1)})


def _of_heads(
    heads: Sequence[tuple[int, int]], of_head: Callable[..., Truth]
) -> Callable[[Arrays, np.ndarray], Truth]:
    """The truth of some heads, in the shape of `Problem.part`.

    Args:
      heads: examples and heads.
      of_head: (arrays [1, L, 1, ·], dcontext [1, L, 1, D], b, n) -> the answer for one head.
    """

    def truth(arrays: Arrays, dcontext: np.ndarray) -> Truth:
        real = {name: x for name, x in arrays.items() if x.dtype.kind == "f"}

        def one(x: np.ndarray, b: int, n: int) -> np.ndarray:
            return x[b : b + 1, :, n : n + 1]

        answers = [
            of_head({k: one(x, b, n) for k, x in real.items()}, one(dcontext, b, n), b, n)
            for b, n in heads
        ]

        def stack(parts: Sequence[Arrays]) -> Arrays:
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

        return Truth(
            stack([answer.values for answer in answers]),
            lambda: stack([answer.sizes() for answer in answers]),
        )

    return truth


# --------------------------------------------------------------------------------- exact attention


def _exact(name: str, scenario: Scenario) -> Problem:
    """On q, k, v and the score's parameters; the plain version is "dense"."""
    score = next(c for c in SCORES if c.name == ("scaled_dot" if name == "window" else name))
    rng = np.random.default_rng(0)
    q, k, v = score.qkv(rng, scenario.sizes)
    arrays = {"q": q, "k": k, "v": v} | _named(score.parameters(rng, scenario.sizes))
    dcontext = representable(rng.normal(size=(*q.shape[:3], v.shape[-1])))
    heads = _heads(scenario)
    mask, plain_is = scenario.mask(), "dense" if heads is None else "blockwise"
    if name == "window":
        mask = dataclasses.replace(scenario, window=None).mask()

    def apply(way: Any, arrays: Arrays) -> jax.Array:
        if name == "window":
            return mechanisms.window(way, scenario.window).apply(arrays, mask)
        return mechanisms.exact(score, way).apply(arrays, mask)

    if heads is None:
        truth = functools.partial(true, score, scenario.picture())
    else:
        seen = np.tri(q.shape[1], dtype=bool)
        truth = _of_heads(heads, lambda arrays, dcontext, *_: true(score, seen, arrays, dcontext))

    return Problem(
        arrays={name: representable(x) for name, x in arrays.items()},
        dcontext=dcontext,
        truth=truth,
        apply=apply,
        plain=lambda arrays: apply(plain_is, arrays),
        plain_is=plain_is,
        other_future=_other_keys if scenario.causal else None,
        heads=heads,
    )


def true(score: ScoreCase, seen: np.ndarray, arrays: Arrays, dcontext: np.ndarray) -> Truth:
    """The oracle's answer, where query i may see key j if `seen` [B, 1, T, S] is True."""
    parameters = [x for name, x in sorted(arrays.items()) if name.startswith("parameter")]
    answer = oracle.attention(score.equation, *(arrays[x] for x in "qkv"), parameters, mask=seen)

    def named(context: np.ndarray, grads: oracle.Gradients) -> Arrays:
        of = {"q": grads.q, "k": grads.k, "v": grads.v} | _named(grads.parameters)
        return {"context": context} | {f"d_{name}": x for name, x in of.items()}

    def sizes() -> Arrays:
        rng = np.random.default_rng(3)
        return row_sizes([named(*answer.noise(dcontext, rng)) for _ in range(2)])

    return Truth(named(answer.context, answer.pull_back(dcontext)), sizes)


def _other_keys(arrays: Arrays, at: int) -> Arrays:
    """The arrays, with keys and values from position `at` on redrawn, a hundred times as large."""
    rng = np.random.default_rng(1)
    changed = {name: np.array(arrays[name]) for name in "kv"}
    for x in changed.values():
        x[:, at:] = representable(rng.normal(size=x[:, at:].shape) * 100)
    return arrays | changed


def _named(parameters: Any) -> Arrays:
    return {f"parameter_{i}": x for i, x in enumerate(parameters)}


# ----------------------------------------------------------------------------------- LSH attention


def _lsh(scenario: Scenario) -> Problem:
    """On qk, v and buckets, with as many heads as the scenario has for keys."""
    sizes, rng = scenario.sizes, np.random.default_rng(0)
    rows, length = (sizes.batch, sizes.keys), sizes.keys
    num_buckets = max(2, length // 12)  # each holds a few tokens, and chunks end within buckets
    hashed = sizes.batch, scenario.num_hashes, length, sizes.num_heads
    buckets = rng.integers(0, num_buckets, hashed, dtype=np.int32)
    arrays = {
        "qk": representable(rng.normal(size=(*rows, sizes.num_heads, sizes.width))),
        "v": representable(rng.normal(size=(*rows, sizes.num_kv_heads, sizes.value_width))),
        "buckets": buckets,
    }
    valid = np.arange(length) < scenario.kv_lengths[:, None] if scenario.padded else None
    where = {"chunk_size": scenario.chunk_size, "causal": scenario.causal}
    heads = _heads(scenario)

    def apply(way: Any, arrays: Arrays) -> jax.Array:
        return mechanisms.lsh_self(way, scenario.chunk_size).apply(arrays, scenario.mask())

    if heads is None:
        segments = scenario.segments if scenario.segmented else None
        counts = oracle_lsh.all_counts(buckets, valid=valid, segments=segments, **where)
        truth = functools.partial(true_of_lsh, counts, valid)
        plain = functools.partial(_plain_lsh, counts > 0, valid)
    else:
        known = {
            (b, n): oracle_lsh.visible_counts(buckets[b, :, :, n], **where)[None, None]
            for b, n in heads
        }
        truth = _of_heads(heads, lambda x, dcontext, *at: true_of_lsh(known[at], None, x, dcontext))
        plain = functools.partial(apply, "sorted")

    def other_tokens(arrays: Arrays, at: int) -> Arrays:
        """The arrays, redrawn from position `at` on, with values a hundred times as large."""
        rng = np.random.default_rng(1)
        changed = {name: np.array(x) for name, x in arrays.items()}
        for name, scale in (("qk", 1), ("v", 100)):
            x = changed[name]
            x[:, at:] = representable(rng.normal(size=x[:, at:].shape) * scale)
        late = changed["buckets"][:, :, at:]
        late[...] = rng.integers(0, num_buckets, late.shape)
        return changed

    return Problem(
        arrays=arrays,
        dcontext=representable(rng.normal(size=(*rows, sizes.num_heads, sizes.value_width))),
        truth=truth,
        apply=apply,
        plain=plain,
        plain_is=None if heads is None else "sorted",
        other_future=other_tokens if scenario.causal else None,
        heads=heads,
    )


def true_of_lsh(
    counts: np.ndarray, valid: np.ndarray | None, arrays: Arrays, dcontext: np.ndarray
) -> Truth:
    """The oracle's answer, where query i may see key j if `counts` [B, N, L, L] is above 0."""
    qk, heads = arrays["qk"], counts.shape[1]
    group = heads // arrays["v"].shape[2]
    v = np.repeat(arrays["v"], group, axis=2)

    def every_head(function: Callable[..., Sequence[np.ndarray]]) -> Arrays:
        """Applies (dcontext, qk, v, counts, valid) -> (context, d_qk, d_v) to each head."""
        wholes = [np.zeros(x.shape) for x in (dcontext, qk, v)]
        for b, n in np.ndindex(counts.shape[:2]):
            rows = [x[b, :, n] for x in (dcontext, qk, v)]
            of_head = function(*rows, counts[b, n], None if valid is None else valid[b])
            for whole, one in zip(wholes, of_head, strict=True):
                whole[b, :, n] = one
        dv = wholes[2].reshape(*v.shape[:2], -1, group, v.shape[3]).sum(3)
        return {"context": wholes[0], "d_qk": wholes[1], "d_v": dv}

    def exactly(dcontext: Any, qk: Any, v: Any, counts: Any, valid: Any) -> Any:
        context = oracle_lsh.attend(qk, v, counts, valid=valid)
        return context, *oracle_lsh.gradients(dcontext, qk, v, counts, valid=valid)

    def sizes() -> Arrays:
        rng = np.random.default_rng(3)

        def noise(dcontext: Any, qk: Any, v: Any, counts: Any, valid: Any) -> Any:
            return oracle_lsh.noise(dcontext, qk, v, counts, rng, valid=valid)

        return row_sizes([every_head(noise) for _ in range(2)])

    return Truth(every_head(exactly), sizes)


def _plain_lsh(seen: np.ndarray, valid: np.ndarray | None, arrays: Arrays) -> jax.Array:
    """softmax_j(⟨qk_i, k_j⟩) v_j over the pairs `seen` [B, N, L, L], k = qk / |qk| by "rms"."""
    qk, v = arrays["qk"], arrays["v"]
    length, width = qk.shape[1], qk.shape[3]
    square = jnp.sum(jnp.square(qk.astype(jnp.float32)), -1, keepdims=True)
    keys = (qk / jnp.sqrt(square + 1e-6 * width)).astype(qk.dtype)
    sums = {"preferred_element_type": jnp.float32}
    logits = jnp.einsum("bqnh,bknh->bnqk", qk, keys, **sums)
    alone = ~seen.any(-1, keepdims=True)
    shown = seen | (alone & np.eye(length, dtype=bool))
    weights = jax.nn.softmax(jnp.where(shown, logits, -1e30)).astype(v.dtype)
    v = jnp.repeat(v, qk.shape[2] // v.shape[2], axis=2)
    context = jnp.einsum("bnqk,bknd->bqnd", weights, v, **sums).astype(v.dtype)
    return context if valid is None else jnp.where(valid[:, :, None, None], context, 0)


# ---------------------------------------------------------------------------------------- the hash


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
    left, x = np.asarray(buckets), np.asarray(x, np.float64)
    worst = 0.0
    for factor in rotations.factors:
        r = np.asarray(factor, np.float64)  # [N, R, B_f/2, H]
        half = r.shape[2]
        left, digit = np.divmod(left, 2 * half)
        y = np.einsum("nrah,blnh->brlna", r, x)
        rounding = (x.shape[-1] + 1) * 2.0**-24 * np.einsum("nrah,blnh->brlna", abs(r), abs(x))
        nearest = np.abs(y).argmax(-1)[..., None]
        axis = (digit % half)[..., None]
        own = np.take_along_axis(y, axis, -1) * np.where(digit < half, 1, -1)[..., None]
        short = np.take_along_axis(np.abs(y), nearest, -1) - own
        allowed = sum(np.take_along_axis(rounding, i, -1) for i in (nearest, axis))
        worst = max(worst, over(short, allowed))
    return worst if not left.any() else over(1.0, 0.0)  # a number that is no bucket


# ------------------------------------------------------------------------------- without kernels


def against_itself(check: Check) -> dict[str, float]:
    """A mechanism of the contract list on the device, beside itself in float64 on the CPU."""
    mechanism = mechanisms.BY_NAME[check.mechanism]
    sizes = mechanism.sizes()
    arrays = mechanism.make(np.random.default_rng(0), sizes)
    arrays = {name: representable(x) for name, x in arrays.items()}
    dcontext = representable(np.random.default_rng(1).normal(size=mechanism.output(sizes)))
    visible = np.ones((sizes.batch, sizes.keys), bool)
    visible[0, 1:] = visible[1, -2:] = visible[2] = False

    def computed(device: jax.Device, dtype: str) -> Arrays:
        with jax.enable_x64(dtype == "float64"), jax.default_device(device):
            mask = mechanism.mask and mechanism.mask(visible, mechanism.causal)
            given = {name: jnp.asarray(x, dtype) for name, x in arrays.items()}
            run = program(lambda arrays: mechanism.apply(arrays, mask), dtype)
            return jax.tree.map(np.asarray, run(given, {}, jnp.asarray(dcontext, dtype)))

    [cpu, *_] = jax.devices("cpu")
    true = Truth(computed(cpu, "float64"))
    return judge(
        computed(jax.devices()[0], check.dtype), computed(cpu, check.dtype), true, check.dtype
    )
