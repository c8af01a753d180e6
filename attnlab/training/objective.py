"""Objectives of training: sums over a batch, the numbers they are means of, and their loss."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attnlab.core.checks import as_share, require, require_choice
from attnlab.core.tokens import PAD, row_numbers, rows_of
from attnlab.devices.split import by_device, current
from attnlab.models.output import DeferredLogits

__all__ = [
    "Batch",
    "BitsPerByte",
    "Objective",
    "TokenCrossEntropy",
    "divisor",
    "num_sentences",
    "perplexity",
    "predicted_tokens",
    "require_shape_of",
    "token_sums",
]

Batch = dict[str, Any]
SUMS = ("loss", "nll", "correct")  # of tokens


class Objective(Protocol):
    """A loss that is exact over devices and parts of a batch, because only sums are added up.

    With the sums s_k and the counts c_j of the whole batch, the gradient is that of

        loss(s, c / c_over) / c_over,

    so `loss` must be linear in the sums. Dividing by c_over last keeps the gradients of 16 bits
    from underflow.

    Attributes:
      over: name of the count that the gradient is divided by last.
      headline: name of the mean that tells which checkpoint is best, the one where it is smallest.
      shown: names of the means that a terminal shows.
    """

    @property
    def over(self) -> str: ...

    @property
    def headline(self) -> str: ...

    @property
    def shown(self) -> tuple[str, ...]: ...

    def inputs(self, batch: Batch) -> Batch:
        """The arguments that the model is called with, by name."""
        ...

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Numbers that depend on the batch alone, float32 scalars; "tokens" is one of them."""
        ...

    def sums(self, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        """Sums over the batch of what the model returned, float32 scalars."""
        ...

    def loss(self, sums: Mapping[str, jax.Array], shares: Mapping[str, jax.Array]) -> jax.Array:
        """The loss times `over`'s count, linear in the sums; a share is a count over that one."""
        ...

    def means(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """What a curve shows of any number of batches."""
        ...


@dataclasses.dataclass(frozen=True)
class TokenCrossEntropy:
    """The cross entropy of `batch["target"]`, or of `batch["tokens"]` if there is none.

    The model is called with the whole batch and returns logits [B, T, V]. Means are over tokens;
    `batch["weights"]`, [B, T], which the model does not see, says how much each of them counts.

    Attributes:
      label_smoothing: share ε of `token_sums`.
      gradient_mean_over: name of a count, "tokens" or "sentences", of the whole batch, by which the
        gradient of the summed loss is divided; a packed row has a sentence a segment. Over
        sentences the gradient is longer by their mean number of tokens, about 27 in WMT14: SGD's
        steps are as much larger and a clip norm is reached as much earlier. Adam and Adadelta see
        it through ε alone.

    Raises:
      ValueError: a share outside [0, 1], another `gradient_mean_over`.
    """

    label_smoothing: float = 0.0
    gradient_mean_over: str = "tokens"

    headline = "nll"
    shown = ("loss", "perplexity", "accuracy")

    def __post_init__(self):
        as_share("label_smoothing", self.label_smoothing)
        require_choice("gradient_mean_over", self.gradient_mean_over, ("tokens", "sentences"))

    @property
    def over(self) -> str:
        """The count's name."""
        return self.gradient_mean_over

    def inputs(self, batch: Batch) -> Batch:
        """All of the batch but the weights."""
        return {name: x for name, x in batch.items() if name != "weights"}

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens, as much as they count, and sentences that are predicted."""
        tokens = jnp.where(predicted_tokens(batch) != PAD, _weights(batch), 0)
        return {"tokens": tokens.sum(), "sentences": num_sentences(batch)}

    def sums(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """The sums of `token_sums`."""
        return token_sums(
            outputs,
            predicted_tokens(batch),
            label_smoothing=self.label_smoothing,
            weights=_weights(batch),
        )

    def loss(self, sums: Mapping[str, jax.Array], shares: Mapping[str, jax.Array]) -> jax.Array:
        """The summed loss."""
        del shares
        return sums["loss"]

    def means(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Loss and −log p a token, perplexity exp(nll) and accuracy."""
        tokens = divisor(counts, "tokens")
        means = {name: x / tokens for name, x in sums.items()}
        nll = means["nll"]
        return {
            "loss": means["loss"],
            "nll": nll,
            "perplexity": perplexity(nll),
            "accuracy": means["correct"],
        }


@dataclasses.dataclass(frozen=True)
class BitsPerByte(TokenCrossEntropy):
    """Cross entropy as `TokenCrossEntropy` minimizes it, shown as bits per byte of the text.

        bits per byte = Σ_t −log₂ p(y_t | y_1 … y_{t−1}) / Σ_t bytes of y_t

    So the length of the text in the model's code, whatever its tokens are: the sums are over all
    batches before they are divided, and over a whole split it is exact.

    Attributes:
      bytes_of: numbers of bytes that the ids stand for, one for each id; 0 for the special ones.
        Ids without one make the count NaN.
    """

    bytes_of: tuple[int, ...] = ()

    headline = "bits_per_byte"
    shown = ("bits_per_byte", "perplexity", "accuracy")

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens and bytes that are predicted, as much as they count, and sentences."""
        of_token = rows_of(jnp.asarray(self.bytes_of, jnp.float32), predicted_tokens(batch))
        return super().counts(batch) | {"bytes": (of_token * _weights(batch)).sum()}

    def means(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """As `TokenCrossEntropy`, and bits per byte."""
        bits = sums["nll"] / math.log(2) / divisor(counts, "bytes")
        return super().means(sums, counts) | {"bits_per_byte": bits}


def divisor(counts: Mapping[str, float], name: str) -> float:
    """The count that a mean is over.

    Raises:
      ValueError: nothing was counted.
    """
    count = counts[name]
    wrong = f"{count:g}, of ids without a number" if math.isnan(count) else "none, all was padding"
    require(count > 0, f"means are over {name}; got {wrong}")
    return count


def perplexity(nll: float) -> float:
    """exp(nll); inf where a float cannot hold it.

    >>> perplexity(0.0), perplexity(1000.0), perplexity(float("nan"))
    (1.0, inf, nan)
    """
    return math.inf if nll >= 700 else math.exp(nll)


def token_sums(
    logits: jax.Array | DeferredLogits,
    targets: jax.Array,
    *,
    label_smoothing: float = 0.0,
    weights: ArrayLike = 1,
) -> dict[str, jax.Array]:
    """Σ_t H(q_t, p_t) with q_t = (1 − ε)·onehot(target_t) + ε/V, over the tokens that are not PAD.

    Args:
      logits: scores [*B, T, V] of all words; where they are deferred, they are computed for
        `logits.block` tokens at a time, in the backward pass once more.
      targets: token ids [*B, T]. Others than those of the V words make the sums NaN: what is not
        to be counted is PAD, not −100, whatever their dtype.
      label_smoothing: share ε of the uniform distribution (Szegedy et al. 2016, §7; Vaswani et al.
        2017, §5.4).
      weights: factors [*B, T] of the tokens in each sum; of an example [*B, 1].

    Raises:
      ValueError: targets or weights of another shape, or targets that are no integers.

    Returns:
      Float32 scalars: "loss", the smoothed cross entropy in nats; "nll", −log p(token) in nats;
      "correct", the number of tokens that no other is likelier than. O(B·T·V) time; log p of all V
      words is not kept.
    """
    label_smoothing = as_share("label_smoothing", label_smoothing)
    rows = logits.x if isinstance(logits, DeferredLogits) else logits
    require_shape_of("targets", targets, rows)
    weights = _as_weights(weights, targets)
    if isinstance(logits, DeferredLogits):
        return _in_blocks(logits, targets, weights, label_smoothing)
    logits = logits.astype(jnp.float32)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    ids = row_numbers(targets, logits.shape[-1])
    of_target = jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
    nll = log_normalizer - of_target
    loss = nll
    if label_smoothing:
        of_any = log_normalizer - logits.mean(-1)
        loss = (1 - label_smoothing) * nll + label_smoothing * of_any
    # The normalizer has made this maximum already; argmax would read the logits once more.
    correct = of_target >= logits.max(-1)
    sums = {"loss": loss, "nll": nll, "correct": correct}
    return {
        name: jnp.where(targets != PAD, x * weights, 0).sum(dtype=jnp.float32)
        for name, x in sums.items()
    }


def require_shape_of(name: str, ids: jax.Array, logits: jax.Array) -> None:
    """Refuses ids [*B] that are not one for each row of logits [*B, V]; one would serve several."""
    require(
        ids.shape == logits.shape[:-1],
        f"{name} must be an id for each row of logits, {logits.shape[:-1]}; got {ids.shape}"
        " (ids, not one-hot rows)",
    )


def _as_weights(weights: ArrayLike, targets: jax.Array) -> jax.Array:
    """A float32 weight for each of the targets [*B, T]; [B] is not said to be of rows or places."""
    weights = jnp.asarray(weights, jnp.float32)
    require(
        weights.ndim in (0, targets.ndim),
        f"weights must be of the tokens, {targets.shape}; got {weights.shape} (those of examples"
        " are weights[:, None])",
    )
    return jnp.broadcast_to(weights, targets.shape)


def _weights(batch: Batch) -> jax.Array:
    return _as_weights(batch.get("weights", 1), predicted_tokens(batch))


def _in_blocks(
    logits: DeferredLogits, targets: jax.Array, weights: jax.Array, label_smoothing: float
) -> dict[str, jax.Array]:
    split = current()
    if split is None or targets.ndim < 2 or not split.batch or split.heads or split.length:
        return _sums_of_blocks(logits, targets, weights, label_smoothing)

    def of_device(x, targets, weights, vocabulary):
        mine = dataclasses.replace(logits, x=x, **vocabulary)
        sums = _sums_of_blocks(mine, targets, weights, label_smoothing)
        return jnp.stack([sums[name] for name in SUMS])[None]

    # XLA would not divide the loop over blocks: every device would compute those of all, and send
    # logits where the vocabulary is divided.
    vocabulary = {"embedding": logits.embedding, "bias": logits.bias}
    parts = by_device(
        of_device,
        (logits.x, targets, weights, vocabulary),
        ("b", "b", "b", ""),
        "b",
        name="the loss",
        batch=len(targets),
        heads=0,
        partitioned=True,
    )
    return dict(zip(SUMS, parts.sum(0), strict=True))


def _sums_of_blocks(
    logits: DeferredLogits, targets: jax.Array, weights: jax.Array, label_smoothing: float
) -> dict[str, jax.Array]:
    count, block = targets.size, logits.block
    short = -count % block if count > block else 0
    arrays = logits.x.reshape(count, -1), targets.reshape(count), weights.reshape(count)

    @functools.partial(jax.checkpoint, prevent_cse=False)  # as it is in a scan
    def of_block(x, targets, weights):
        return token_sums(
            dataclasses.replace(logits, x=x).logits(),
            targets,
            label_smoothing=label_smoothing,
            weights=weights,
        )

    if count <= block:
        return of_block(*arrays)
    padded = (jnp.pad(x, [(0, short)] + [(0, 0)] * (x.ndim - 1)) for x in arrays)  # with PAD
    parts = tuple(x.reshape(-1, block, *x.shape[1:]) for x in padded)

    def add(total, part):
        return jax.tree.map(jnp.add, total, of_block(*part)), None

    return jax.lax.scan(add, dict.fromkeys(SUMS, jnp.zeros(())), parts)[0]


def predicted_tokens(batch: Batch) -> jax.Array:
    """The tokens [B, T] that a model of this batch predicts."""
    return batch["target"] if "target" in batch else batch["tokens"]


def num_sentences(batch: Batch) -> jax.Array:
    """How many are predicted, float32: rows with any token, or the segments of packed rows."""
    segments = batch.get("target_segments" if "target" in batch else "segments")
    if segments is None:
        return (predicted_tokens(batch) != PAD).any(-1).sum(dtype=jnp.float32)
    begins = (jnp.diff(segments, axis=-1, prepend=0) != 0) & (segments != 0)
    return begins.sum(dtype=jnp.float32)
