"""Attentions by their names: one grammar and one table, for every program that takes an attention.

    MODEL     = ["chunked-"] ["reversible-"] PATTERN, or "reformer", which is short for one
    PATTERN   = ATTENTION {"+" ATTENTION}        which the layers of a model repeat
    ATTENTION = KIND ["-" NUMBER] [":" IMPLEMENTATION], or one of your own: "mine.py:Decay" (`own`)

>>> parse("window-4+exact:dense")
(Attention(kind='window', number=4), Attention(kind='exact', implementation='dense'))

`KINDS` says what each kind is, and `kind_of` also what one of a user's file is. To add a kind, put
a `Kind` into it; every program then takes its name.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from attnlab import masks
from attnlab.mechanisms import own
from attnlab.models.transformer.config import TransformerConfig
from attnlab.modules.biases import AlibiBias
from attnlab.modules.multi_head import MultiHeadAttention
from attnlab.modules.scores import (
    AdditiveScore,
    ConcatScore,
    CosineScore,
    GeneralScore,
    LocationScore,
)
from attnlab.ops.attention import IMPLEMENTATIONS
from attnlab.ops.routes import LSH, AllPairs, Hard, Window
from attnlab.runs.errors import Invalid
from attnlab.scores import Dot

__all__ = [
    "EXACT_IMPLEMENTATIONS",
    "FEED_FORWARD_CHUNK",
    "KINDS",
    "REFORMER",
    "Attention",
    "Kind",
    "Model",
    "Surroundings",
    "grammar",
    "in_models",
    "kind_of",
    "made",
    "parse",
    "pattern",
    "require_attention",
    "require_model",
    "split_way",
    "streams",
]

#: Ways to compute exact attention.
EXACT_IMPLEMENTATIONS = tuple(name for name in IMPLEMENTATIONS if name is not None)
#: What the name "reformer" is short for.
REFORMER = "chunked-reversible-window-128+lsh-4"
#: Positions that the feed-forward takes at a time, in a model whose name begins with "chunked-".
FEED_FORWARD_CHUNK = 1024
_ATTENTION = re.compile(r"([a-z_]+)(?:-([1-9][0-9]*))?(?::([a-z]+))?")


@dataclasses.dataclass(frozen=True)
class Attention:
    """The attention of a layer, as it is named.

    Attributes:
      kind: key of `KINDS`, or name of one of a user's file.
      number: number behind it, of tokens or of hash rounds; None = its kind has none.
      implementation: way to compute it; None = the library's choice.
    """

    kind: str
    number: int | None = None
    implementation: str | None = None

    @property
    def title(self) -> str:
        """What it is, in words."""
        kind = kind_of(self.kind)
        return kind.title + (f", {self.number} {kind.counts}" if self.number else "")

    def __str__(self) -> str:
        number = "" if self.number is None else f"-{self.number}"
        return self.kind + number + (f":{self.implementation}" if self.implementation else "")

    def __repr__(self) -> str:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        given = ", ".join(f"{name}={x!r}" for name, x in fields.items() if x is not None)
        return f"Attention({given})"


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What is around an attention and changes it.

    Attributes:
      causal: whether a token may only see itself and earlier ones.
      length: number of tokens of the longest input; 0 = unknown.
      lsh: route of LSH attention, with any number of rounds.
      score_dtype: dtype of the parameters of a score; None = float32.
    """

    causal: bool = False
    length: int = 0
    lsh: LSH = LSH()
    score_dtype: Any = None


@dataclasses.dataclass(frozen=True)
class Kind:
    """What attentions of a kind are.

    Attributes:
      title: words for what it is.
      parts: function of an attention of the kind and its `Surroundings` that returns keywords of
        `MultiHeadAttention`: route, score, position_bias, dropout_rate; none where `own` is a
        module.
      counts: unit of its number; "" = it has no number.
      implementations: names of the ways to compute it.
      draws: random numbers that training draws beside dropout's, a stream of Flax; "" = none.
      in_models: whether it can be the attention of any layer; False = its parameters are for one
        length.
      reads_keys: whether it looks at the keys.
      package: package to install of other people's attention; "" = none beside jax and flax.
      written_in: framework of other people's attention, "jax" or "torch"; "" = it is ours.
      computes: kind of ours that computes the same function; "" = none.
      note: sentence that a comparison has to say of its work; "" = nothing.
      own: mechanism of a user's file; None = it is of `KINDS`.
    """

    title: str
    parts: Callable[[Attention, Surroundings], dict[str, Any]]
    counts: str = ""
    implementations: tuple[str, ...] = EXACT_IMPLEMENTATIONS
    draws: str = ""
    in_models: bool = True
    reads_keys: bool = True
    package: str = ""
    written_in: str = ""
    computes: str = ""
    note: str = ""
    own: own.Own | None = None


def _score_parts(make: Callable[..., Any]) -> Callable[[Attention, Surroundings], dict[str, Any]]:
    """All pairs, with a score that has parameters."""

    def parts(attention: Attention, around: Surroundings) -> dict[str, Any]:
        given = {} if around.score_dtype is None else {"param_dtype": around.score_dtype}
        return {"route": AllPairs(attention.implementation), "score": make(**given)}

    return parts


def _exact(attention: Attention, around: Surroundings) -> dict[str, Any]:
    return {"route": AllPairs(attention.implementation)}


def _dot(attention: Attention, around: Surroundings) -> dict[str, Any]:
    return _exact(attention, around) | {"score": Dot(1.0)}


def _alibi(attention: Attention, around: Surroundings) -> dict[str, Any]:
    return _exact(attention, around) | {"position_bias": AlibiBias(parent=None)}


def _location(attention: Attention, around: Surroundings) -> dict[str, Any]:
    return _score_parts(lambda **given: LocationScore(around.length, **given))(attention, around)


def _window(attention: Attention, around: Surroundings) -> dict[str, Any]:
    left = attention.number or 0
    return {"route": Window(left, 0 if around.causal else left, attention.implementation)}


def _lsh(attention: Attention, around: Surroundings) -> dict[str, Any]:
    rounds, way = attention.number or 1, attention.implementation
    return {"route": dataclasses.replace(around.lsh, num_hashes=rounds, implementation=way)}


def _shared_parts(attention: Attention, around: Surroundings) -> dict[str, Any]:
    route = dataclasses.replace(around.lsh, num_hashes=1, num_buckets=1, chunk_size=around.length)
    return {"route": route}


def _hard(attention: Attention, around: Surroundings) -> dict[str, Any]:
    return {"route": Hard(straight_through=True), "dropout_rate": 0.0}


#: Kinds of attention by name.
#:
#: :meta hide-value:
KINDS: dict[str, Kind] = {
    "exact": Kind("scaled dot product, all pairs", _exact),
    "dot": Kind("dot product, all pairs", _dot),
    "general": Kind("q·W·k, all pairs", _score_parts(GeneralScore)),
    "cosine": Kind("cosine, all pairs", _score_parts(CosineScore)),
    "additive": Kind("w·tanh(q + k), all pairs", _score_parts(AdditiveScore)),
    "concat": Kind("w·tanh(W[q; k]), all pairs", _score_parts(ConcatScore)),
    "location": Kind(
        "(W q)_j, all pairs",
        _location,
        in_models=False,
        reads_keys=False,
        note="`location` scores positions, so keys are neither projected nor looked at.",
    ),
    "alibi": Kind("scaled dot product, a bias of the distance, all pairs", _alibi),
    "window": Kind(
        "scaled dot product, keys around the query; those before alone where causal",
        _window,
        counts="tokens on a side",
    ),
    "lsh": Kind(
        "neighbors in hash-sorted order",
        _lsh,
        counts="hash rounds",
        implementations=("pallas", "sorted"),
        draws="hash",
        note="`lsh` shares one projection between queries and keys: a quarter less to project.",
    ),
    "shared": Kind(
        "all pairs, with queries that are the keys, as LSH has them",
        _shared_parts,
        implementations=(),
        note="`shared` has one projection for queries and keys: a quarter less to project.",
    ),
    "hard": Kind(
        "the likeliest key; in training a sampled one", _hard, implementations=(), draws="sample"
    ),
}


def _peer(attention: Attention, around: Surroundings) -> dict[str, Any]:
    raise Invalid(f"{attention} is other people's code, which compare_lengths alone runs")


def _others(title: str, computes: str, written_in: str, package: str = "", **more: Any) -> Kind:
    fields = {"implementations": (), "in_models": False, **more}
    return Kind(title, _peer, computes=computes, written_in=written_in, package=package, **fields)


# Other people's, for `compare_lengths`; `bench.peers` makes them.
KINDS |= {
    "torch_sdpa": _others("torch's scaled_dot_product_attention", "exact", "torch", "torch"),
    "flax": _others("flax.linen.dot_product_attention", "exact", "jax"),
    "jax_nn": _others("jax.nn.dot_product_attention", "exact", "jax"),
    "tokamax_chunked": _others(
        "tokamax.dot_product_attention(implementation='xla_chunked')", "exact", "jax", "tokamax"
    ),
    "keras_additive": _others("keras.layers.AdditiveAttention", "additive", "jax", "keras"),
    "keras_dot": _others("keras.layers.Attention", "dot", "jax", "keras"),
    "hf_lsh": _others(
        "Hugging Face's LSHSelfAttention; as a program its ReformerModelWithLMHead",
        "",
        "torch",
        "transformers",
        counts="hash rounds",
    ),
    "hf_marian": _others(
        "Hugging Face's MarianMTModel, of the program translate alone",
        "exact",
        "torch",
        "transformers",
    ),
    "reformer_pytorch": _others(
        "reformer-pytorch's LSHAttention", "", "torch", "reformer-pytorch", counts="hash rounds"
    ),
}


def kind_of(name: str) -> Kind:
    """What attentions of a kind are: a key of `KINDS`, or a name of a user's file, which is loaded.

    Raises:
      Invalid: the file has no attention of that name.
    """
    return _kind_of_own(name) if own.is_own(name) else KINDS[name]


@functools.cache
def _kind_of_own(name: str) -> Kind:
    mine = own.load(name)
    return Kind(mine.title, lambda *_: mine.parts, implementations=(), draws=mine.draws, own=mine)


def in_models() -> tuple[str, ...]:
    """The kinds that any layer of a model can have."""
    return tuple(name for name, kind in KINDS.items() if kind.in_models)


def grammar(kinds: Collection[str] = KINDS) -> str:
    """What may be written, with these kinds, for --help and for errors."""
    forms = [f"{name}-R" if KINDS[name].counts else name for name in kinds]
    counts = dict.fromkeys(KINDS[name].counts for name in kinds if KINDS[name].counts)
    numbers = f" (R {' or '.join(counts)})" if counts else ""
    ways = "NAME:IMPLEMENTATION says how it is computed"
    return f"{', '.join(forms)}{numbers}; {ways}; {own.FORM}"


def parse(name: str, kinds: Collection[str] = KINDS) -> tuple[Attention, ...]:
    """The attentions of a pattern.

    Args:
      name: names with "+" between them.
      kinds: keys of `KINDS` that are valid here, beside users' own.

    Raises:
      Invalid: a name is not of the grammar; the message lists it.
    """
    return tuple(_parse(word, kinds) for word in own.split_outside_brackets(name, "+"))


def split_way(name: str) -> tuple[str, str | None]:
    """A name, and the implementation that is behind it; a pattern and one of your own are whole.

    >>> split_way("exact:dense"), split_way("exact"), split_way("mine.py:Decay")
    (('exact', 'dense'), ('exact', None), ('mine.py:Decay', None))
    """
    if "+" in name or own.is_own(name):
        return name, None
    kind, _, way = name.partition(":")
    return kind, way or None


def _parse(word: str, kinds: Collection[str]) -> Attention:
    if own.is_own(word):
        kind_of(word)
        return Attention(word)
    match = _ATTENTION.fullmatch(word)
    kind, number, way = match.groups() if match else ("", None, None)
    if kind not in kinds or (number is None) == bool(KINDS[kind].counts):
        raise Invalid(f"no attention {word!r}; valid: {grammar(kinds)}")
    if way is not None and way not in KINDS[kind].implementations:
        valid = ", ".join(KINDS[kind].implementations) or "none"
        raise Invalid(f"{word}: {kind} has no implementation {way!r}; valid: {valid}")
    return Attention(kind, int(number) if number else None, way)


@dataclasses.dataclass(frozen=True)
class Model:
    """A Transformer's name: what its layers are, and their attentions.

    Attributes:
      pattern: names of the attentions that the layers repeat.
      reversible: whether it is a Reformer, whose layers compute their inputs again from their
        outputs.
      chunked: whether its feed-forward networks work on some positions at a time.
    """

    pattern: str
    reversible: bool = False
    chunked: bool = False

    @classmethod
    def parse(cls, name: str) -> Model:
        """The meaning of any name; `require_model` says which are known.

        >>> Model.parse("reformer")
        Model(pattern='window-128+lsh-4', reversible=True, chunked=True)
        """
        name = REFORMER if name == "reformer" else name
        chunked = name.startswith("chunked-")
        name = name.removeprefix("chunked-")
        reversible = name.startswith("reversible-")
        return cls(name.removeprefix("reversible-"), reversible, chunked)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attentions that the layers repeat."""
        return parse(self.pattern)

    @property
    def form(self) -> str:
        """The name without numbers and implementations.

        >>> Model.parse("reversible-window-128+lsh-4:pallas").form
        'reversible-window+lsh'
        """
        kinds = "+".join(attention.kind for attention in self.attentions)
        return str(dataclasses.replace(self, pattern=kinds))

    def __str__(self) -> str:
        chunked = "chunked-" if self.chunked else ""
        reversible = "reversible-" if self.reversible else ""
        return chunked + reversible + self.pattern


def require_attention(
    flag: str, name: str, num_layers: int = 1, kinds: Collection[str] | None = None
) -> None:
    """Refuses what is no attention's name, or a pattern longer than the layers.

    Args:
      flag: flag and its value, with which the message begins.
      name: name of an attention or a pattern.
      num_layers: number of layers of the model.
      kinds: keys of `KINDS` that are valid here; None = `in_models`.

    Raises:
      Invalid: one line that begins with the flag, and lists the grammar.
    """
    try:
        layers = parse(name, in_models() if kinds is None else kinds)
    except Invalid as error:
        message = f"{flag}: {error}"
        if num_layers > 1 and not own.mentions_own(name):
            message += "; layers repeat several, with + between them"
        raise Invalid(message) from None
    if len(layers) > num_layers:
        raise Invalid(
            f"{flag}: {name!r} names {len(layers)} layers, a model has {num_layers} there; give "
            "fewer"
        )


def require_model(flag: str, name: str, num_layers: int) -> None:
    """Refuses what is no model's name, or not of one with so many layers.

    Raises:
      Invalid: one line that begins with the flag, and lists the grammar.
    """
    model = Model.parse(name)
    try:
        require_attention(flag, model.pattern, num_layers)
    except Invalid as error:
        more = f"; before it chunked-, reversible- or both; reformer is {REFORMER}"
        raise Invalid(f"{error}{more * (not own.mentions_own(name))}") from None
    if len({a.number for a in model.attentions if a.kind == "lsh"}) > 1:
        raise Invalid(f"{flag}: the layers of {name!r} hash in as many rounds; give one number")


def streams(name: str) -> tuple[str, ...]:
    """The random numbers that training draws, such as other rotations of LSH in each step."""
    drawn = [kind_of(attention.kind).draws for attention in parse(name)]
    return ("dropout", *dict.fromkeys(filter(None, drawn)))


def made(attention: Attention, module: MultiHeadAttention, around: Surroundings) -> nn.Module:
    """The module of an attention.

    Args:
      attention: attention that it has.
      module: module to take all else from: heads, widths, dtypes.
      around: surroundings of the attention.
    """
    kind = kind_of(attention.kind)
    if kind.own is not None:
        return kind.own.in_place_of(module)
    return module.clone(**kind.parts(attention, around), parent=None)


def pattern(
    name: str,
    config: TransformerConfig,
    around: Surroundings = Surroundings(),
    *,
    implementation: str | None = None,
) -> tuple[nn.Module, ...]:
    """The self-attentions that the layers of a model repeat.

    Args:
      name: name of an attention or a pattern.
      config: configuration of the model.
      around: surroundings of the attentions.
      implementation: way to compute those that have it and do not name one.

    Raises:
      Invalid: one of a user's own cannot be the attention of these layers.
    """
    layers, length = [], around.length or config.max_length
    around = dataclasses.replace(around, length=length)
    for attention in parse(name):
        kind = kind_of(attention.kind)
        if attention.implementation is None and implementation in kind.implementations:
            attention = dataclasses.replace(attention, implementation=implementation)
        if kind.own is not None:
            padding = lambda: masks.Padding(jnp.full(2, length))  # noqa: E731
            mask = masks.Causal if around.causal else padding
            kind.own.require_fits(config.attention(), length, mask)
        layers.append(made(attention, config.attention(), around))
    return tuple(layers)
