"""Reversible residual layers as a pure function: their backward pass keeps no activations.

A layer couples two streams by two functions of one stream each (Gomez et al. 2017, §3.1; Kitaev et
al. 2020, §3):

    y1 = x1 + f(x2)        x2 = y2 − g(y1)
    y2 = x2 + g(y1)        x1 = y1 − f(x2)

so that a backward pass can compute each layer's inputs again from its outputs, the last layer's
first. Memory is that of one layer, however many there are; the time is that of one more forward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax

from attnlab.devices.meshes import vary_like
from attnlab.devices.split import current, divide_examples, enter
from attnlab.models.chunks import Undone

Streams = tuple[jax.Array, jax.Array]


class Coupling(NamedTuple):
    """The two functions of a layer, each with parameters of its own.

    Attributes:
      f: function of (parameters, x2, rest) → what is added to x1, and what the layer's other
        variables become.
      g: function of (parameters, y1, rest) → what is added to x2.
      undo_g: function of (parameters, y1, rest, cotangent) → what g adds, with its gradients.
    """

    f: Callable[[Any, jax.Array, Any], tuple[jax.Array, Any]]
    g: Callable[[Any, jax.Array, Any], jax.Array]
    undo_g: Callable[[Any, jax.Array, Any, jax.Array], Undone]


def store_layers(
    couplings: tuple[Coupling, ...], params: Any, streams: Streams, each: Any, shared: Any
) -> tuple[Streams, Any]:
    """As `reversible`, but JAX derives the gradient, and so keeps every layer's activations."""

    def repetition(streams, of_layers):
        moved = []
        for coupling, (of_f, of_g), own in zip(couplings, *of_layers, strict=True):
            x1, x2 = streams
            added, after = coupling.f(of_f, x2, (own, shared))
            y1 = x1 + added
            streams = y1, x2 + coupling.g(of_g, y1, (own, shared))
            moved.append(after)
        return streams, tuple(moved)

    return lax.scan(repetition, streams, (params, each))


def reversible(
    couplings: tuple[Coupling, ...], params: Any, streams: Streams, each: Any, shared: Any
) -> tuple[Streams, Any]:
    """The streams after all layers, and what each layer's other variables become.

    Layer i = r·P + k is the k-th of P couplings in its r-th repetition, with the r-th slice of the
    k-th parameters. Gradients go to parameters and streams alone. The inputs that the backward pass
    computes differ from the true ones by rounding errors of the streams' dtype, and so do the
    gradients: keep the streams in float32, even if f and g compute in bfloat16.

    Args:
      couplings: layers that are repeated, P of them.
      params: parameters of each coupling: P pairs, of f and of g, of trees whose arrays lead with
        the repetitions.
      streams: pair (x1, x2) of arrays of one shape and dtype.
      each: other arguments of each coupling, such as keys of its dropout: P trees likewise. The
        backward pass gives them the same again.
      shared: other arguments of all couplings.

    Memory: the streams, and the activations of one repetition.
    """
    params, streams = vary_like((params, streams), each, shared)
    return _reversible(couplings, current(), params, streams, each, shared)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _reversible(couplings, split, params, streams, each, shared):
    del split
    return store_layers(couplings, params, streams, each, shared)


def _forward(couplings, split, params, streams, each, shared):
    del split
    outputs = store_layers(couplings, params, streams, each, shared)
    after, _ = outputs
    return outputs, (params, after, each, shared)


def _backward(couplings, split, kept, cotangents):
    # Traced when the gradient is, which may be after the context of the forward pass.
    with enter(split):
        return _undo(couplings, kept, cotangents)


def _undo(couplings, kept, cotangents):
    params, after, each, shared = kept
    d_streams, _ = cotangents

    def repetition(carry, of_layers):
        d_params = []
        layers = list(zip(couplings, *of_layers, strict=True))
        for coupling, (of_f, of_g), own in reversed(layers):
            # Without the barrier a compiler may undo all layers first, and keep what they need.
            (y1, y2), (d1, d2) = divide_examples(lax.optimization_barrier(carry))
            rest = own, shared

            def f(params, x2, coupling=coupling, rest=rest):
                return coupling.f(params, x2, rest)

            undone = coupling.undo_g(of_g, y1, rest, d2)
            x2 = y2 - undone.value
            d1 = d1 + undone.d_x
            added, pull, _ = jax.vjp(f, of_f, x2, has_aux=True)
            x1 = y1 - added
            d_of_f, d_x2 = pull(d1)
            carry = (x1, x2), (d1, d2 + d_x2)
            d_params.append((d_of_f, undone.d_params))
        return carry, tuple(reversed(d_params))

    (_, d_streams), d_params = lax.scan(
        repetition, (after, d_streams), (params, each), reverse=True
    )
    return d_params, d_streams, None, None


_reversible.defvjp(_forward, _backward)
