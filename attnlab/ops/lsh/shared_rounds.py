"""LSH attention of a divided sequence whose heads are fewer than the devices.

The hash rounds of a head are further units of work: of P devices, P/g share the rounds of a head,
where g is the largest number of groups of heads that divides both. Each device has all positions of
its heads in exchange for its own positions of all heads (all-to-all), goes through its rounds, and
sends what they show, with its log-sum-exp, back to whose positions they are, where the rounds are
merged. A round shows what no earlier one does, so each device sorts all of them.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attnlab.devices.split import Uneven, by_device, current
from attnlab.ops.kernels.pallas import Pallas
from attnlab.ops.lsh.rounds import attend_some_rounds
from attnlab.ops.lsh.rows import CallSettings, Operands, heads_inside, sort_operands


class _Share(NamedTuple):
    """Devices that share heads and rounds; static.

    Attributes:
      axes: axes of the mesh that divide the positions.
      groups: number of groups of heads.
      sharing: number of devices that share the rounds of a group.
      rounds: number of rounds that each goes through.
    """

    axes: tuple[str, ...]
    groups: int
    sharing: int
    rounds: int

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.groups * self.sharing

    def own(self) -> tuple[jax.Array, jax.Array]:
        """The group of this device, and its place among those who share it."""
        return jnp.divmod(jax.lax.axis_index(self.axes), self.sharing)

    def to_units(self, x: jax.Array) -> jax.Array:
        """Own positions of all heads [B, t, N, …] to all positions of own heads [B, T, n, …]."""
        batch, length, heads, *rest = x.shape
        x = x.reshape(batch, length, self.groups, heads // self.groups, *rest)
        # [P, B, t, n, …]: P parts, one for each device
        x = jnp.repeat(jnp.moveaxis(x, 2, 0), self.sharing, axis=0)  # what each device needs
        # [B, P, t, n, …]: part p now is what device p had, its own t positions.
        x = jnp.moveaxis(self._exchange(x), 0, 1)
        return x.reshape(batch, self.devices * length, heads // self.groups, *rest)

    def to_positions(self, x: jax.Array) -> jax.Array:
        """Back, to what each sharer has of own positions [sharing, B, t, N, …]."""
        batch, length, heads, *rest = x.shape
        x = x.reshape(batch, self.devices, length // self.devices, heads, *rest)
        # [P, B, t, n, …]: to each device its positions, from each what it found there
        x = self._exchange(jnp.moveaxis(x, 1, 0))
        x = x.reshape(self.groups, self.sharing, *x.shape[1:])
        # [groups, sharing, B, t, n, …] to [sharing, B, t, groups, n, …]
        x = jnp.moveaxis(x, 0, 3)
        return x.reshape(*x.shape[:3], self.groups * heads, *rest)

    def _exchange(self, x: jax.Array) -> jax.Array:
        """Part i of [devices, …] to device i; what they sent here."""
        # XLA could lay copies out in other ways than what they are of, which it then refuses.
        x = jax.lax.optimization_barrier(x)
        return jax.lax.all_to_all(x, self.axes, 0, 0, tiled=True)


def attend_sharing_rounds(
    implementation: str | Pallas | None,
    settings: CallSettings,
    scale: float,
    given: Operands,
) -> jax.Array:
    """The context [B, L, N, D], positions divided by `over`; the factor is left to the caller.

    Raises:
      Uneven: the devices do not divide heads × rounds.
      NotImplementedError: an implementation that does not go round by round is named.

    Cost: a device does its share of the rounds, and sorts all rounds of its heads; its memory is
    that of all positions of its heads, and of as many copies of its own positions as share a head.
    """
    if implementation not in (None, "sorted"):
        raise NotImplementedError(
            "devices that share the hash rounds of a head go through them in sorted order; got"
            f" implementation={implementation!r} (leave it None, or divide the positions by as many"
            " devices as divide the heads)"
        )
    split = current()
    assert split is not None
    batch, rounds, _, heads = given.buckets.shape
    devices = split.size(split.length)
    heads_here = heads // split.size(split.heads)
    groups = math.gcd(heads_here, devices)
    sharing = devices // groups
    if rounds % sharing:
        raise Uneven(
            f"LSH attention: {heads_here} heads × {rounds} rounds cannot be shared evenly by"
            f" {devices} devices, over(mesh, length={'+'.join(split.length)!r}): {sharing} would"
            f" share the rounds of a head; make num_hashes a multiple of {sharing}, or share them"
            " over fewer"
        )
    share = _Share(split.length, groups, sharing, rounds // sharing)
    attend = functools.partial(_attend_part, settings, share, scale)
    return by_device(
        lambda *part: attend(Operands(*part)),
        given._replace(factor=None),
        ["brtn", "btn", "btn", "b", "b", "bn", "bn", ""],
        "btn",
        name="LSH attention",
        batch=batch,
        heads=heads,
        rings=True,
    )


def _attend_part(settings: CallSettings, share: _Share, scale: float, given: Operands) -> jax.Array:
    """The context [B, t, N, D] of this device's positions."""
    group, place = share.own()
    heads = given.qk.shape[2] // share.groups

    def of_group(x):  # [B|1, N|1, …] to the heads of this device's group
        if x.shape[1] == 1:  # for all heads, or there is one
            return x
        return jax.lax.dynamic_slice_in_dim(x, group * heads, heads, axis=1)

    # [B, R, t, N] with the rounds last, exchanged as heads' widths are, and back: [B, R, T, n]
    buckets = share.to_units(jnp.moveaxis(given.buckets, 1, 3))
    given = given._replace(
        buckets=jnp.moveaxis(buckets, 3, 1),
        qk=share.to_units(given.qk),
        v=share.to_units(given.v),
        pairs=jax.tree.map(of_group, given.pairs),
        seeds=of_group(given.seeds),
    )
    batch, length = given.qk.shape[:2]
    order, given = sort_operands(settings.geometry, given)
    seeds, first = given.seeds.reshape(-1, 2), place * share.rounds
    context, lse = attend_some_rounds(
        settings, share.rounds, given.qk, None, given.v, scale, order, seeds, first
    )
    # [B·n, T] to [B, T, n], then [sharing, B, t, N] beside the contexts [sharing, B, t, N, D]
    lse = heads_inside(lse[..., None], batch)[..., 0]
    context = share.to_positions(context[:, :length])
    lse = share.to_positions(lse[:, :length])
    # Where no round shows a key, all have the token's own value and weigh the same.
    weights = jax.nn.softmax(lse, axis=0)[..., None]
    return jnp.sum(context * weights, axis=0).astype(given.v.dtype)
