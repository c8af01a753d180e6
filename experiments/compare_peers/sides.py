"""A side as a program that is ready to be called; all sides get the same text as input.

Each peer gets arrays in the layout it documents, contiguous, and its own fastest way of being
called: jitted for JAX, without gradients for torch's forward pass. Forward + backward is one call
that gives the gradients of the inputs (and of `w` in the additive score) for a random cotangent.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.bench import inputs, mechanisms, memory, programs
from attnlab.bench.case import TRAIN_STEP, Case
from attnlab.bench.mechanisms import Mechanism
from attnlab.runs import provenance
from attnlab.runs.units import human
from experiments.compare_peers import lsh, pairs, training
from experiments.compare_peers.pairs import Side


@dataclasses.dataclass(frozen=True)
class Program:
    """A program to time.

    Attributes:
      call: () -> the program's result, once it is computed.
      values: (what `call` returned) -> the output [1, L, N, H], or the gradients of the inputs.
    """

    call: Callable[[], Any]
    values: Callable[[Any], list[np.ndarray]]


def build(side: Side, *, given_buckets: bool = False) -> Program:
    """The side's program.

    Args:
      side: program and case.
      given_buckets: whether LSH programs get the same buckets instead of hashing; for comparing
        values.

    Raises:
      MemoryError: the program would not fit.
    """
    case = side.case
    if case.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    buckets = lsh.buckets_for(side) if given_buckets and case.hashes else None
    match side.program:
        case pairs.OURS if case.passes == TRAIN_STEP:
            return Program(training.ours(case), _nothing_to_compare)
        case pairs.HUGGING_FACE_LM:
            return Program(training.hugging_face(case), _nothing_to_compare)
        case pairs.OURS:
            return _jax(case, mechanisms.build(case))
        case pairs.TRAX | pairs.LUCIDRAINS:
            return _jax(case, lsh.preset(side.program, case, lsh.buckets_for(side)))
        case pairs.FLAX:
            return _jax(case, Mechanism(_no_parameters, _flax, split_heads=True))
        case pairs.JAX_NN:
            return _jax(case, Mechanism(_no_parameters, _jax_nn, split_heads=True))
        case pairs.KERAS:
            return _jax(case, _keras(case))
        case pairs.SDPA:
            return _torch(case, _sdpa, inputs.STREAMS, "bnlh")
        case pairs.HUGGING_FACE:
            return _torch(case, lsh.hugging_face(case, buckets), ("query", "value"), "bl(nh)")
        case pairs.REFORMER_PYTORCH:
            function = lsh.reformer_pytorch(case, buckets)
            return _torch(case, function, ("query", "value"), "(bn)lh")
    raise ValueError(f"no program {side.program!r}")


def _nothing_to_compare(returned: Any) -> list[np.ndarray]:
    del returned  # two models that begin with numbers of their own
    return []


def _jax(case: Case, mechanism: Mechanism) -> Program:
    devices = jax.local_devices()[:1]
    lowered = programs.lower(case, mechanism, devices)
    compiled = lowered.compile()
    need, free = memory.analyze(lowered, compiled, "cpu").total, memory.available(devices[0])
    if free is not None and need > free:
        raise MemoryError(f"needs {human(need)} of {human(free)}")
    streams = _streams(case)
    arguments = programs.arguments(case, mechanism, devices, streams, lowered)

    def values(returned: Any) -> list[np.ndarray]:
        arrays = [returned] if case.passes == "forward" else returned[2]
        shape = (1, case.length, case.num_heads, case.head_dim)
        wide = jnp.promote_types(case.dtype, jnp.float32)  # NumPy's files have no bfloat16
        return [np.asarray(x, wide).reshape(shape) for x in arrays]

    return Program(lambda: jax.block_until_ready(compiled(*arguments)), values)


def _torch(
    case: Case, function: Callable[..., Any], names: tuple[str, ...], layout: str
) -> Program:
    """`layout`: the order of the axes of [b, l, n, h] that the peer wants, merged ones in ()."""
    import torch

    torch.set_num_threads(provenance.cores())  # as many as XLA has
    shape = (1, case.length, case.num_heads, case.head_dim)
    order = ["blnh".index(axis) for axis in layout if axis.isalpha()]
    merged = {
        "bnlh": (1, case.num_heads, case.length, case.head_dim),
        "bl(nh)": (1, case.length, case.width),
        "(bn)lh": (case.num_heads, case.length, case.head_dim),
    }[layout]

    def inward(x: np.ndarray) -> Any:
        x = np.ascontiguousarray(x.reshape(shape).transpose(order).reshape(merged))
        return torch.from_numpy(x).to(getattr(torch, case.dtype))

    def outward(x: Any) -> np.ndarray:
        axes = tuple(shape[axis] for axis in order)
        x = x.detach() if case.dtype == "float64" else x.detach().float()
        return x.numpy().reshape(axes).transpose(np.argsort(order))

    streams = _streams(case)
    backward = case.passes == "forward_backward"
    tensors = [inward(streams[name]).requires_grad_(backward) for name in names]
    del streams
    cotangent = inward(np.random.default_rng(1).standard_normal(shape, np.float32))  # as `programs`

    def call() -> Any:
        with torch.set_grad_enabled(backward):
            out = function(*tensors)
            return torch.autograd.grad(out, tensors, cotangent) if backward else [out]

    return Program(call, lambda returned: [outward(x) for x in returned])


def _streams(case: Case) -> dict[str, np.ndarray]:
    return inputs.streams(inputs.read(), batch=1, length=case.length, width=case.width)


def _no_parameters(key: jax.Array) -> dict[str, jax.Array]:
    del key
    return {}


def _flax(parameters: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """What `flax.linen.MultiHeadDotProductAttention` does between its projections."""
    import flax.linen as nn

    del parameters
    mask = nn.make_causal_mask(jnp.ones(q.shape[:2]), dtype=bool)
    return nn.dot_product_attention(q, k, v, mask=mask, deterministic=True)


def _jax_nn(parameters: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    del parameters
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def _keras(case: Case) -> Mechanism:
    os.environ["KERAS_BACKEND"] = "jax"  # read when keras is first imported
    import keras

    if keras.backend.backend() != "jax":
        raise RuntimeError("keras was imported with another backend; set KERAS_BACKEND=jax")
    layer = keras.layers.AdditiveAttention()
    layer.build([(1, case.length, case.head_dim)] * 3)

    def apply(parameters: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        rows = [x[:, :, 0] for x in (q, v, k)]  # one head, and values before keys
        context, _ = layer.stateless_call([parameters["w"][0]], [], rows)
        return context[:, :, None]

    return Mechanism(mechanisms.build(case).init, apply, split_heads=True)


def _sdpa(q: Any, k: Any, v: Any) -> Any:
    from torch.nn import functional

    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
