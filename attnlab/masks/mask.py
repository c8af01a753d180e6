"""The class of masks, `&` of two, and the mask that an array is."""

from __future__ import annotations

import abc
import dataclasses
import functools
import operator
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, final

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from attnlab.core.axes import HeadLayout, lead_with_ones, merge_batch, pad_to_multiple, split_heads
from attnlab.core.checks import as_array, require, require_instance, require_integers
from attnlab.masks.int32 import LARGEST, as_position, shift


class Band(NamedTuple):
    """i + q_offset − left ≤ j ≤ i + q_offset + right; a side of None is unbounded."""

    left: int | None
    right: int | None
    q_offset: ArrayLike

    @property
    def starts_at_zero(self) -> bool:
        """Whether query i stands at position i, known while tracing."""
        return isinstance(self.q_offset, int) and self.q_offset == 0

    @property
    def edges(self) -> tuple[Any, Any]:
        """The least and the largest j − i, in int32; ∓`LARGEST` where a side is unbounded."""
        lowest = -LARGEST if self.left is None else shift(self.q_offset, -self.left)
        highest = LARGEST if self.right is None else shift(self.q_offset, self.right)
        return lowest, highest

    def key_range(self, first: Any, last: Any, num_keys: int) -> tuple[Any, Any]:
        """The keys [start, stop) that queries from `first` to `last` see; positions broadcast."""
        lowest, highest = self.edges
        end = last + 1
        # clip(i + x, 0, S), without a sum that int32 does not hold
        start = first + jnp.clip(lowest, -first, num_keys - first)
        return start, end + jnp.clip(highest, -end, num_keys - end)


class Lengths(NamedTuple):
    """j < kv_lengths and i < q_lengths, integers [*B]; None = all queries."""

    kv_lengths: ArrayLike
    q_lengths: ArrayLike | None


class SegmentIds(NamedTuple):
    """q_ids[i] = kv_ids[j], integers [*B, T] and [*B, S]; None = `q_ids` (self-attention)."""

    q_ids: ArrayLike
    kv_ids: ArrayLike | None


class Mask(flax.struct.PyTreeNode, abc.ABC):
    """Who may see whom: a pytree that defines `visible`, whose arrays lead with the batch axes.

    Engines ask a mask for more, and do without what it does not answer. `key_range`, `reach`,
    `first_position` and `hides_future` save work or place the queries. `band`, `lengths`,
    `segment_ids` and `keys` say the whole mask in another form: a mask answers one of them at most,
    and only if it shows exactly these pairs; the others are None.
    """

    # Ranks of the array fields in one example, where these are not 0: [*B, S] has rank 1.
    ranks: ClassVar[Mapping[str, int]] = {}
    # What `hides_future` is where `reach` goes past the query; of a user's own it is not known.
    _hides_otherwise: ClassVar[bool | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__bases__:  # else what `band` says would not be what `visible` shows
            if "__final__" in vars(base):
                raise TypeError(
                    f"masks.{base.__name__} has no subclasses; got {cls.__name__} (make it of"
                    " masks.Mask, and combine the two with &)"
                )
        for field in dataclasses.fields(cls):  # else an engine would take it for an answer
            if hasattr(Mask, field.name):
                raise TypeError(
                    f"{cls.__name__}.{field.name} cannot be a field: engines ask a mask for"
                    f" {field.name} (rename it)"
                )

    @abc.abstractmethod
    def visible(self, i: jax.Array, j: jax.Array) -> jax.Array:
        """True where query i may see key j, in ONE example: its arrays have no batch axes here.

        Args:
          i: positions of queries, any integers of the rank of j, which broadcast with these.
          j: positions of keys.

        Returns:
          Booleans that broadcast to the shape of i and j together.
        """

    def block(self, q_positions: jax.Array, k_positions: jax.Array) -> jax.Array:
        """The mask for some queries and keys.

        Args:
          q_positions: query positions [bq], ascending and contiguous.
          k_positions: key positions [bk], ascending and contiguous.

        Returns:
          Booleans that broadcast to [*B, N, bq, bk].
        """
        visible = self._of_each_example(q_positions[:, None], k_positions[None, :])
        return visible[..., None, :, :]

    def in_layout(self, layout: HeadLayout) -> Mask:
        """The same mask with arrays of [B, K, ...] (or 1 in place of B, K), as an engine slices."""
        return self.replace(
            **{
                name: merge_batch(x, layout, f"{type(self).__name__}.{name}", self._rank(name))
                for name, x in self._arrays().items()
            }
        )

    def check(self) -> None:
        """Raises ValueError for arrays of another kind than this mask is made of.

        Not at construction: what JAX puts in place of the arrays of a pytree may be anything.
        """
        name = type(self).__name__
        for field, x in self._arrays().items():
            shape, rank = as_array(f"{name}.{field}", x).shape, self._rank(field)
            require(
                len(shape) >= rank,
                f"{name}.{field} must have rank {rank} or more, as {name}.ranks says; got {shape}",
            )
        i = jax.ShapeDtypeStruct((2, 1, 3), jnp.int32)
        j = jax.ShapeDtypeStruct((2, 5, 1), jnp.int32)
        rule = (
            f"{name}.visible(i, j) must return booleans that broadcast with i and j, here to"
            " (2, 5, 3), from the fields of one example"
        )
        try:
            shown = jax.eval_shape(self._of_each_example, i, j)
        except (IndexError, TypeError, ValueError) as error:
            raise ValueError(f"{rule}; got {str(error).splitlines()[0]}") from error
        require(shown is not None, f"{rule}; got None (does it say return?)")
        shape = shown.shape[len(self._lead()) :]
        require(
            shown.dtype == jnp.bool_
            and len(shape) == 3
            and all(size in (1, full) for size, full in zip(shape, (2, 5, 3), strict=True)),
            f"{rule}; got {shown.dtype} {shape} (a field of [*B, S] is {{'field': 1}} in"
            f" {name}.ranks)",
        )

    def _arrays(self) -> dict[str, Any]:
        """The fields that hold arrays, by name."""
        arrays = {}
        for field in dataclasses.fields(self):
            x = getattr(self, field.name)
            if field.metadata.get("pytree_node", True) and x is not None:
                arrays[field.name] = x
        return arrays

    def _rank(self, name: str) -> int:
        return self.ranks.get(name, 0)

    def _lead(self) -> tuple[int, ...]:
        """The leading axes of the arrays: *B, or in layout B, K."""
        shapes = ((name, jnp.shape(x)) for name, x in self._arrays().items())
        return jnp.broadcast_shapes(*(s[: len(s) - self._rank(name)] for name, s in shapes))

    def _of_each_example(self, i: jax.Array, j: jax.Array) -> jax.Array:
        """`visible` of all examples, [*B, ...]; in layout [B, K, ...]."""
        lead, arrays = self._lead(), self._arrays()
        for name, x in arrays.items():
            x = lead_with_ones(jnp.asarray(x), len(lead) + self._rank(name))
            arrays[name] = jnp.broadcast_to(x, (*lead, *x.shape[len(lead) :]))

        def of_one(arrays):
            return self.replace(**arrays).visible(i, j)

        for _ in lead:
            of_one = jax.vmap(of_one)
        return of_one(arrays)

    def key_range(self, q_positions: jax.Array, num_keys: int) -> tuple[Any, Any]:
        """Bounds [first, stop) outside which none of these queries sees a key, in any example."""
        del q_positions
        return 0, num_keys

    def parts(self) -> tuple[Mask, ...]:
        """The masks that `&` joined: a pair is visible where all of them show it."""
        return (self,)

    @property
    def band(self) -> Band | None:
        """This mask as i + q_offset − left ≤ j ≤ i + q_offset + right; None = it is no band."""
        return None

    @property
    def lengths(self) -> Lengths | None:
        """This mask as j < kv_lengths, i < q_lengths; None = it is no such mask."""
        return None

    @property
    def segment_ids(self) -> SegmentIds | None:
        """This mask as q_ids[i] = kv_ids[j]; None = it is no such mask."""
        return None

    @property
    def keys(self) -> jax.Array | None:
        """This mask as booleans [*B, S], the keys that every query sees; None = it is not."""
        return None

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """How many keys before and after its position a query sees at most; None = unbounded."""
        return None, None

    @property
    def hides_future(self) -> bool | None:
        """Whether no query sees a key that follows it; None = not known while tracing.

        A mask of your own that hides the future says so here or in `reach`.
        """
        return True if self.reach[1] == 0 else self._hides_otherwise

    @property
    def first_position(self) -> ArrayLike | None:
        """Position of the first query among the keys, an int or integers [*B]; None = not said."""
        return None

    def for_queries(self, offset: ArrayLike, count: int) -> Mask:
        """A mask of the whole sequence, cut to `count` queries that begin at position `offset`."""
        del count
        return _FromQuery(self, _of_all_examples(offset))

    def pad(self, block_q: int, block_k: int) -> Mask:
        """The same mask, so that `block` can be asked about positions in whole blocks only."""
        del block_q, block_k
        return self

    def as_array(self, num_queries: int, num_keys: int) -> jax.Array:
        """The whole mask, [*B, 1 or N, T, S]; O(T·S) memory, for reference and for looking at."""
        self.check()
        whole = self.block(jnp.arange(num_queries), jnp.arange(num_keys))
        whole = lead_with_ones(whole, max(3, whole.ndim))
        return jnp.broadcast_to(whole, (*whole.shape[:-2], num_queries, num_keys))

    @property
    def ndim(self) -> int:
        """None: Flax's own modules, which ask for it while they decode, combine arrays alone."""
        raise AttributeError(
            f"masks.{type(self).__name__} is no array, as Flax's own modules want it while they"
            " decode; give mask.as_array(T, S) with 4 axes, or take attnlab.MultiHeadAttention"
        )

    def __and__(self, other: Mask | ArrayLike) -> Mask:
        if isinstance(other, jax.Array | np.ndarray):
            other = Explicit(other)
        if not isinstance(other, Mask):
            raise TypeError(f"& with a mask takes a mask or a boolean array; got {other!r}")
        return Both(self, other)

    __rand__ = __and__

    def __bool__(self) -> bool:  # else `and`, `or` and `not` drop a mask without a word
        raise TypeError("a mask is neither true nor false; write a & b, or mask is not None")

    __array_ufunc__ = None  # NumPy leaves `array & mask` to the mask


class OfPositions(Mask):
    """A mask whose fields are positions, or numbers of these."""

    _hides_otherwise = False

    def check(self):
        fields = dataclasses.fields(self)
        require_integers(self, *(f.name for f in fields if f.metadata.get("pytree_node", True)))

    def _arrays(self):
        return {name: as_position(x) for name, x in super()._arrays().items()}


@final
class Both(Mask):
    """A pair is visible if both masks show it; made by `&`."""

    first: Mask
    second: Mask

    def visible(self, i, j):
        return self.first.visible(i, j) & self.second.visible(i, j)

    def parts(self):
        return self.first.parts() + self.second.parts()

    def block(self, q_positions, k_positions):
        return _both(mask.block(q_positions, k_positions) for mask in (self.first, self.second))

    def as_array(self, num_queries, num_keys):
        return _both(mask.as_array(num_queries, num_keys) for mask in (self.first, self.second))

    def in_layout(self, layout):
        return Both(self.first.in_layout(layout), self.second.in_layout(layout))

    def check(self):
        self.first.check()
        self.second.check()
        _ = self.first_position  # refuses two that are not the same

    def for_queries(self, offset, count):
        return Both(self.first.for_queries(offset, count), self.second.for_queries(offset, count))

    def pad(self, block_q, block_k):
        return Both(self.first.pad(block_q, block_k), self.second.pad(block_q, block_k))

    def key_range(self, q_positions, num_keys):
        first_start, first_stop = self.first.key_range(q_positions, num_keys)
        second_start, second_stop = self.second.key_range(q_positions, num_keys)
        return jnp.maximum(first_start, second_start), jnp.minimum(first_stop, second_stop)

    @property
    def reach(self):
        first_left, first_right = self.first.reach
        second_left, second_right = self.second.reach
        return _nearer(first_left, second_left), _nearer(first_right, second_right)

    @property
    def hides_future(self):
        first, second = self.first.hides_future, self.second.hides_future
        if first or second:
            return True
        return None if first is None or second is None else False

    @property
    def first_position(self):
        first, second = self.first.first_position, self.second.first_position
        if first is None or second is None:
            return second if first is None else first
        if not isinstance(first, jax.core.Tracer) and not isinstance(second, jax.core.Tracer):
            require(
                bool(np.all(np.asarray(first) == np.asarray(second))),
                f"queries stand at one position in both masks of `&`; got {first} and {second}"
                " (give both the same q_offset)",
            )
        return first


@final
class _FromQuery(Mask):
    """`mask` for queries of which the first is its query `offset`, one for all examples."""

    mask: Mask
    offset: jax.Array

    def visible(self, i, j):
        return self.mask.visible(i + self._first, j)

    def block(self, q_positions, k_positions):
        return self.mask.block(q_positions + self._first, k_positions)

    def in_layout(self, layout):
        return _FromQuery(self.mask.in_layout(layout), self.offset.reshape(1, 1))

    def check(self):
        self.mask.check()

    def key_range(self, q_positions, num_keys):
        return self.mask.key_range(q_positions + self._first, num_keys)

    @property
    def reach(self):
        return self.mask.reach

    @property
    def hides_future(self):
        return self.mask.hides_future

    @property
    def first_position(self):
        return shift(first_position(self.mask), self._first)

    @property
    def _first(self) -> jax.Array:
        return self.offset.reshape(())


@final
class Explicit(Mask):
    """Any boolean array that broadcasts to [*B, N, T, S]; O(T·S) memory is then the caller's."""

    array: ArrayLike

    def visible(self, i, j):
        array = self._pairs()
        array = array.reshape(array.shape[-2:])  # of one example and head
        # Zeros of as many axes, so that the result has these too.
        if array.shape[0] == 1:
            i = jnp.zeros((1,) * jnp.ndim(i), jnp.int32)
        if array.shape[1] == 1:
            j = jnp.zeros((1,) * jnp.ndim(j), jnp.int32)
        return array.at[i, j].get(mode="clip")

    def block(self, q_positions, k_positions):
        array = self._pairs()
        for axis, positions in ((-2, q_positions), (-1, k_positions)):
            if array.shape[axis] != 1:
                # A slice, not a gather: positions are contiguous.
                array = jax.lax.dynamic_slice_in_dim(
                    array, positions[0], positions.shape[0], axis % array.ndim
                )
        return array

    def in_layout(self, layout):
        remedy = (
            "real tokens [*B, S] go through masks.from_padding; of [*B, T, S] take"
            " mask[..., None, :, :], with an axis for the heads"
        )
        shape = jnp.shape(self.array)
        num_heads = layout.num_kv_heads * layout.group_size
        as_many_examples_as_heads = layout.batch_shape == (num_heads,)
        leads_with_either = len(shape) == 3 and shape[0] == num_heads > 1
        require(
            not (as_many_examples_as_heads and leads_with_either),
            f"a mask of three axes is [N, T, S]; got {shape} for as many examples as heads, where"
            " it could be [B, T, S] (write mask[None], or mask[:, None] of examples)",
        )
        return Explicit(split_heads(self.array, layout, "mask", remedy))

    def check(self):
        dtype = jnp.asarray(self.array).dtype
        require(
            dtype == jnp.bool_,
            f"mask must be boolean, True = may attend; got dtype {dtype} (additive terms go to "
            "bias=; of 0 and 1 take mask != 0, and for nn.make_causal_mask masks.Causal())",
        )

    def for_queries(self, offset, count):
        array = jnp.asarray(self.array)
        if array.ndim < 2 or array.shape[-2] == 1:
            return self
        return Explicit(cut_rows(array, offset, count, array.ndim - 2, none=False))

    @property
    def hides_future(self):
        shape = jnp.shape(self.array)
        return None if len(shape) >= 2 and shape[-2] > 1 else False

    @property
    def keys(self):
        array = jnp.asarray(self.array)
        return array[..., 0, 0, :] if array.ndim >= 3 and array.shape[-3:-1] == (1, 1) else None

    def pad(self, block_q, block_k):
        array = self._pairs()
        for axis, block in ((-2, block_q), (-1, block_k)):
            if array.shape[axis] != 1:
                array = pad_to_multiple(array, axis, block)
        return Explicit(array)

    def key_range(self, q_positions, num_keys):
        array = self._pairs()
        if array.shape[-1] == 1:
            return 0, num_keys
        if array.shape[-2] != 1:
            array = jax.lax.dynamic_slice_in_dim(
                array, q_positions[0], q_positions.shape[0], array.ndim - 2
            )
        start, stop = hull(array.reshape(-1, array.shape[-1]).any(0))
        return start, jnp.minimum(stop, num_keys)

    def _pairs(self) -> jax.Array:
        """The array with axes for queries and keys, [..., T|1, S|1], where it was given without."""
        array = jnp.asarray(self.array)
        return lead_with_ones(array, max(2, array.ndim))


def from_padding(real: ArrayLike) -> Explicit:
    """Keys that are padding are seen by nobody, wherever in the row they stand.

    Args:
      real: booleans [*B, S], True = a real token. Where these come first, `Padding` of their number
        says the same, and more implementations serve it.
    """
    real = jnp.asarray(real)
    require(
        real.dtype == jnp.bool_ and real.ndim > 0,
        "from_padding takes booleans [*B, S], True = a real token; got"
        f" {real.dtype} {real.shape} (tokens != pad_id; lengths go to masks.Padding)",
    )
    return Explicit(real[..., None, None, :])


def as_mask(mask: Mask | ArrayLike | None) -> Mask | None:
    """Masks and None stay; a boolean array becomes `Explicit`.

    Raises:
      ValueError: for anything else, such as an additive mask of floats, or a mask made of it.
    """
    if mask is None:
        return None
    if not isinstance(mask, Mask):
        given: Any = mask
        wanted = "of attnlab.masks, such as masks.Causal() (several join by &), or a boolean array"
        several = isinstance(given, list | tuple) and any(isinstance(x, Mask) for x in given)
        require_instance("mask", given, not (several or isinstance(given, str)), wanted)
        mask = Explicit(jnp.asarray(mask))
    mask.check()
    return mask


def combine(*given: Mask | ArrayLike | None) -> Mask | None:
    """`&` of all that are not None; boolean arrays become `Explicit`."""
    present = [mask for mask in map(as_mask, given) if mask is not None]
    return functools.reduce(operator.and_, present) if present else None


def first_position(mask: Mask | ArrayLike | None) -> ArrayLike:
    """Position of the first query among the keys, an int or integers [*B]: as the mask says, or 0.

    What depends on positions asks here: windows, rotary positions, biases of the distance. Of two
    masks that both say it while one is an argument of `jit`, the first is believed.
    """
    mask = as_mask(mask)
    position = None if mask is None else mask.first_position
    return 0 if position is None else position


def cut_rows(x: jax.Array, offset: ArrayLike, count: int, axis: int, *, none: Any) -> jax.Array:
    """The rows of `count` queries from `offset` on, of a mask's array with a row for each query.

    Args:
      x: array of the mask.
      offset: position of the first query, one for all examples.
      count: number of queries.
      axis: axis of x that has the rows.
      none: value that hides all keys, in the rows of queries that x has no row for.

    Raises:
      ValueError: the array has fewer rows than queries, or there are several offsets.
    """
    rows, offset = x.shape[axis], _of_all_examples(offset)
    require(
        rows >= count,
        f"a mask that is cut has a row for each query of the whole sequence; got {rows} rows for"
        f" {count} queries (give the mask of all queries)",
    )
    at = offset + jnp.arange(count)
    return jnp.take(x, jnp.where(at < 0, rows, at), axis=axis, mode="fill", fill_value=none)


def _nearer(one: int | None, other: int | None) -> int | None:
    """The smaller of two reaches; None has no end."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _of_all_examples(offset: ArrayLike) -> jax.Array:
    offset = jnp.asarray(offset, jnp.int32)
    require(
        offset.ndim == 0,
        "a mask is cut at one position for all examples; got positions of shape"
        f" {offset.shape} (give one position, or the rows of the queries themselves)",
    )
    return offset


def hull(any_visible: jax.Array) -> tuple[jax.Array, jax.Array]:
    """First and one-past-last True of [S]; (0, 0) where there is none."""
    num_keys = any_visible.shape[0]
    start = jnp.argmax(any_visible)
    stop = num_keys - jnp.argmax(any_visible[::-1])
    return start, jnp.where(any_visible.any(), stop, start)


def _both(blocks: Iterable[jax.Array]) -> jax.Array:
    first, second = blocks
    ndim = max(first.ndim, second.ndim)
    return lead_with_ones(first, ndim) & lead_with_ones(second, ndim)
