"""A clear refusal where a backward pass cannot itself be differentiated in reverse mode.

Loops whose bounds depend on the data, such as those over the blocks that a mask shows, have no
reverse mode. JAX says so in terms of the loop; this says it in terms of attention. Forward mode
goes through, so `jax.jvp(jax.grad(f), …)` and `jax.hessian(f)` work; not with the additive and
concat scores, whose sum of tanh has a backward pass of its own.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

__all__ = ["refuse_reverse_mode"]


def refuse_reverse_mode(tree: Any) -> Any:
    """The same arrays; a reverse-mode derivative through them raises NotImplementedError."""
    return jax.tree.map(_refuse.bind, tree)


def _raise(*_):
    raise NotImplementedError(
        "blockwise attention under a mask has no reverse-mode derivative of its gradient; got grad"
        ' of grad (set implementation="dense", or, with any score but additive and concat, take'
        " jax.jvp of jax.grad)"
    )


_refuse = Primitive("refuse_reverse_mode")
_refuse.def_impl(lambda x: x)
_refuse.def_abstract_eval(lambda x: x)
ad.deflinear2(_refuse, _raise)
batching.defvectorized(_refuse)
mlir.register_lowering(_refuse, lambda ctx, x: [x])
