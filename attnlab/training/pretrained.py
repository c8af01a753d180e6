"""A pre-trained BERT as a folder: its sizes, its parameters and its tokenizer.

pretrained.json   sizes, and what it was trained for
params.npz        arrays by their names, "bert/pooler/kernel"
tokenizer.model   SentencePiece's file, where tokens are not bytes
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from attnlab.data.cache import add_file
from attnlab.data.subwords import SentencePiece, train_sentencepiece
from attnlab.data.tokenizers import Bytes, Tokenizer
from attnlab.mechanisms import attentions
from attnlab.models.transformer import TransformerConfig
from attnlab.runs.errors import Invalid

__all__ = ["TOKENIZERS", "BertSizes", "Pretrained", "make_tokenizer", "read", "write"]

FILE, PARAMS, TOKENIZER = "pretrained.json", "params.npz", "tokenizer.model"
TOKENIZERS = ("sentencepiece", "bytes")


@dataclasses.dataclass(frozen=True)
class BertSizes:
    """The sizes of a BERT.

    Attributes:
      num_layers: number of layers.
      width: width of the model.
      hidden: hidden width of the feed-forward networks.
      num_heads: number of heads.
      max_length: number of positions.
      dropout_rate: rate of dropout, on attention weights too.
      init_stddev: standard deviation that matrices and embeddings begin with.
      attention: name of the attention, or a pattern that the layers repeat, such as
        "window-4+exact".
      dtype: name of the dtype of the activations.

    Raises:
      Invalid: an attention of another name or with more of them than layers, one of a user's own
        that does not fit, or heads that do not divide the width.
    """

    num_layers: int
    width: int
    hidden: int
    num_heads: int
    max_length: int
    dropout_rate: float = 0.1
    init_stddev: float = 0.02
    attention: str = "exact"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        flag = f"--attention={self.attention}"
        attentions.require_attention(flag, self.attention, self.num_layers)
        self.build(vocab_size=1)

    @property
    def streams(self) -> tuple[str, ...]:
        """The random numbers that training draws."""
        return attentions.streams(self.attention)

    def build(self, vocab_size: int) -> tuple[TransformerConfig, tuple[nn.Module, ...]]:
        """The configuration, and the attentions that the layers repeat."""
        init = nn.initializers.truncated_normal(self.init_stddev)
        config = TransformerConfig.bert(
            vocab_size,
            num_layers=self.num_layers,
            width=self.width,
            hidden=self.hidden,
            num_heads=self.num_heads,
            max_length=self.max_length,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.dropout_rate,
            kernel_init=init,
            embedding_init=init,
            dtype=jnp.dtype(self.dtype),
        )
        around = attentions.Surroundings(length=self.max_length)
        return config, attentions.pattern(self.attention, config, around)


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model that was pre-trained, or the sizes and the tokenizer of one that was not.

    Attributes:
      title: name of what it was trained for, such as "mlm_nsp, 80/10/10", for reports.
      seed: seed of its training.
      sizes: sizes of the model.
      tokenizer: tokenizer of its texts; [MASK] is the id behind its own.
      params: parameters of `BertPretraining`; None = none were trained.
    """

    title: str
    seed: int
    sizes: BertSizes
    tokenizer: Tokenizer
    params: Any = None

    @property
    def vocab_size(self) -> int:
        """The number of ids of the model."""
        return self.tokenizer.vocab_size + 1

    @property
    def digest(self) -> str:
        """One hash of the parameters; "" of none."""
        total = hashlib.sha256()
        for x in jax.tree.leaves(self.params):
            total.update(np.asarray(x).tobytes())
        return total.hexdigest() if self.params is not None else ""

    def encoder(self, drawn: Any) -> Any:
        """The parameters of a model whose "bert" is this one's, and the rest as they were drawn."""
        return {**drawn, "bert": jax.tree.map(jnp.asarray, self.params["bert"])}


def make_tokenizer(
    kind: str, lines: Iterable[str], *, vocab_size: int, cache_dir: str | None = None
) -> Tokenizer:
    """A tokenizer of `TOKENIZERS`, trained on lines of text if it is one to train.

    Args:
      kind: name of the kind.
      lines: lines of the training text.
      vocab_size: number of ids of SentencePiece.
      cache_dir: folder of trained tokenizers, as for `train_sentencepiece`.
    """
    if kind == "bytes":
        return Bytes()
    texts = [{"text": line} for line in lines]
    return train_sentencepiece(texts, ("text",), vocab_size=vocab_size, cache_dir=cache_dir)


def write(made: Pretrained, folder: Path) -> None:
    """Writes the folder's files, pretrained.json last, so that it is there only if all are."""
    arrays: dict[str, Any] = {
        "/".join(path): np.asarray(x)
        for path, x in traverse_util.flatten_dict(dict(made.params)).items()
    }
    (folder / FILE).unlink(missing_ok=True)  # of a run that ended before its row
    with open(folder / PARAMS, "wb") as file:
        np.savez(file, **arrays)
    if isinstance(made.tokenizer, SentencePiece):
        add_file(folder / TOKENIZER, made.tokenizer.model)
    about = {
        "title": made.title,
        "seed": made.seed,
        "sizes": dataclasses.asdict(made.sizes),
        "tokenizer": made.tokenizer.digest,
    }
    add_file(folder / FILE, (json.dumps(about, indent=2) + "\n").encode())


def read(folder: Path) -> list[Pretrained]:
    """The pre-trained models of a training's folder, or of all trainings in the folder of a run.

    Raises:
      Invalid: there is none, or its files are not those that `write` wrote.
    """
    places = sorted(path.parent for path in (*folder.glob(FILE), *folder.glob(f"*/{FILE}")))
    if not places:
        raise Invalid(
            f"{folder}: no {FILE} there; give a folder of a finished run of `pretrain`, or of one "
            "of its trainings"
        )
    return [_read(place) for place in places]


def _read(place: Path) -> Pretrained:
    try:
        about: Mapping[str, Any] = json.loads((place / FILE).read_text(encoding="utf-8"))
        tokenizer: Tokenizer = Bytes()
        if about["tokenizer"] != tokenizer.digest:
            tokenizer = SentencePiece((place / TOKENIZER).read_bytes())
        if about["tokenizer"] != tokenizer.digest:
            raise ValueError(f"{TOKENIZER} is another or damaged")
        with np.load(place / PARAMS) as arrays:
            params = traverse_util.unflatten_dict({tuple(k.split("/")): arrays[k] for k in arrays})
        sizes = BertSizes(**about["sizes"])
        made = Pretrained(about["title"], about["seed"], sizes, tokenizer, params)
        words = len(params["bert"]["vocabulary"]["embedding"])
    except Invalid as error:
        raise Invalid(f"{place}: {error}") from None
    except (OSError, EOFError, zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
        raise Invalid(f"{place}: its files cannot be read ({error}); pre-train again") from None
    if words != made.vocab_size:
        raise Invalid(
            f"{place}: a checkpoint of another vocabulary: {words} ids, and its tokenizer has "
            f"{made.vocab_size}; pre-train again"
        )
    return made
