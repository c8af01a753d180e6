"""Hard attention: each query takes the value of one key, sampled or the likeliest."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from attnlab.biases import Bias
from attnlab.core.axes import widen
from attnlab.core.checks import as_share, require_key
from attnlab.devices.meshes import on_explicit_axes, spec_of
from attnlab.devices.split import by_device, divide_positions, heads_are_too_few, share_heads
from attnlab.masks import Mask, as_mask
from attnlab.ops import dropout
from attnlab.ops.attention import attention, of_masks
from attnlab.ops.blockwise.choice import choose
from attnlab.ops.layout import merge_output, prepare
from attnlab.scores import Dot, Score, as_operands


class Choice(NamedTuple):
    """What hard attention returns.

    Attributes:
      context: value of the chosen key [*B, T, N, D].
      place: position of the chosen key [*B, T, N] int32; −1 where no key is visible.
      log_prob: log α of the chosen key [*B, T, N], at least float32, whose gradient REINFORCE
        needs; 0 where nothing was chosen.
      entropy: entropy of α [*B, T, N] in nats, at least float32; 0 where no key is visible.
    """

    context: jax.Array
    place: jax.Array
    log_prob: jax.Array
    entropy: jax.Array


def _split_as_queries(arguments):
    rows = spec_of(arguments["q"])[:-1]
    specs: Any = PartitionSpec(*rows, None), *(PartitionSpec(*rows),) * 3
    return Choice(*specs)


@of_masks
@on_explicit_axes(_split_as_queries, of="q")
def hard_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    score: Score | None = None,
    mask: Mask | ArrayLike | None = None,
    bias: Bias | ArrayLike | None = None,
    sample_key: jax.Array | None = None,
    expected_rate: float = 0.0,
    straight_through: bool = False,
    precision: jax.lax.PrecisionLike = None,
) -> Choice:
    """One key for each query: context_i = v_s, s ~ α_i = softmax_j(score(q_i, k_j) + bias_ij).

    The choice has no derivative. With a reward R that does not depend on it otherwise, the gradient
    of the expected reward with respect to what α is made of is that of

        E[stop_gradient(R − b) · log_prob]            for any constant b: REINFORCE,

    so `log_prob` and `entropy` have gradients, and the context has one in v alone, unless
    `straight_through`.

    Args:
      q: queries [*B, T, N, H].
      k: keys [*B, S, K, H].
      v: values [*B, S, K, D].
      score: a value of `attnlab.scores`; None = scaled dot product.
      mask: a mask (`attnlab.masks`) or a boolean array that broadcasts to [*B, N, T, S];
        True = may attend. A query that sees nothing gets the context zero, and gradient zero.
      bias: term added to the logits: a bias (`attnlab.biases`) or an array that broadcasts to
        [*B, N, T, S].
      sample_key: a PRNG key to sample with; None = the likeliest key, the first of equal ones.
      expected_rate: probability that an example takes the expected context, Σ_j α_j v_j, for all
        of its queries, when sampled: its `log_prob` is 0. In the paper 0.5.
      straight_through: whether queries, keys and what else makes the weights get the gradient of
        the expected context; values get that of the choice.
      precision: precision of the matrix products, as in `jax.lax.dot_general`.

    Returns:
      A `Choice`: context [*B, T, N, D] in v's dtype; place, log_prob and entropy [*B, T, N].

    Raises:
      ValueError: for arguments that do not fit together.
      NotImplementedError: positions divided by `attnlab.over` among devices that cannot have heads
        in exchange.

    Cost: O(T·S) time, with a hash for each pair when sampled; memory O(T + S), also backward.

    Source: Xu et al. 2015, §4.1, also for the expected context. The location is sampled by the
    Gumbel-max trick. Straight-through: Bengio, Léonard & Courville 2013, §4.

    Example:
      >>> import jax
      >>> from attnlab import hard_attention
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 5, 2, 4))
      >>> choice = hard_attention(q, k, v, sample_key=jax.random.key(1))
      >>> bool((choice.context[0, 3, 1] == v[0, choice.place[0, 3, 1], 1]).all())
      True
    """
    score = Dot() if score is None else score
    q, k, v = as_operands(score, q, k, v)
    expected_rate = as_share("expected_rate", expected_rate)
    mask = as_mask(mask)
    q, k, v = share_heads(q, k, v)
    if heads_are_too_few(k.shape[-2]):
        raise NotImplementedError(
            f"hard attention does not go round a ring: the devices of length= must divide the"
            f" {k.shape[-2]} key/value heads (divide fewer positions)"
        )
    x = prepare(score, q, k, v, mask, bias, precision)
    seeds, of_expected = None, None
    if sample_key is not None:
        require_key("sample_key", sample_key)
        of_places, of_expected = jax.random.split(sample_key)
        seeds = dropout.seeds(of_places, *x.q.shape[:3])

    def one_device(x, seeds):
        if 0 in x.q.shape:
            shape = x.q.shape[:-1]
            nothing = jnp.zeros(shape, jnp.promote_types(x.q.dtype, jnp.float32))
            place, log_prob, entropy = jnp.full(shape, -1, jnp.int32), nothing, nothing
        else:
            place, log_prob, entropy = choose(x, seeds, precision=precision)
        chosen = jnp.take_along_axis(widen(x.v), jnp.maximum(place, 0)[..., None], axis=-2)
        chosen = chosen.astype(x.v.dtype)
        context = jnp.where(place[..., None] >= 0, chosen, 0)
        context = jnp.where(jnp.isnan(log_prob)[..., None], jnp.nan, context)  # as the soft one
        return context, *(y[..., None] for y in (place, log_prob, entropy))

    context, place, log_prob, entropy = by_device(
        one_device,
        [x, seeds],
        ["bn", "bn"],
        ("bn",) * 4,
        name="hard attention",
        batch=x.q.shape[0],
        heads=x.q.shape[1],
        partitioned=True,
    )
    batch_shape = q.shape[:-3]
    context = merge_output(context, batch_shape)
    place = merge_output(place, batch_shape)[..., 0]
    log_prob = merge_output(log_prob, batch_shape)[..., 0]
    entropy = merge_output(entropy, batch_shape)[..., 0]
    soft = functools.partial(attention, score, q, k, mask=mask, bias=bias, precision=precision)
    if straight_through:
        # The value is 0 and the gradient that of the weights; the values get that of the choice.
        through = soft(jax.lax.stop_gradient(v))
        context += through - jax.lax.stop_gradient(through)
    if of_expected is not None and expected_rate > 0.0:
        expects = jax.random.bernoulli(of_expected, expected_rate, q.shape[:-3])[..., None, None]
        context = jnp.where(expects[..., None], soft(v), context)
        log_prob = jnp.where(expects, 0, log_prob)
    return Choice(divide_positions(context), place, log_prob, entropy)
