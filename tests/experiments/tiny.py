"""A model that compiles at once and few dates, in place of those that `translate` would take."""

import contextlib
import io
import json

import flax.linen as nn
import jax
import jax.numpy as jnp

from attnlab.core import tokens as tok
from attnlab.data.dates import Dates
from attnlab.models.seq2seq import Seq2Seq

# A text in documents, a sentence a line.
TEXT = "\n\n".join("\n".join(f"ab{d} cd ef{i} gh" for i in range(4)) for d in range(20)) + "\n"


class Tiny(Seq2Seq):
    """The token before and a weighted sum of the source; no positions and no state."""

    source_vocab_size: int
    target_vocab_size: int

    def setup(self):
        self.source_embed = nn.Embed(self.source_vocab_size, 7)
        self.target_embed = nn.Embed(self.target_vocab_size, 7)
        self.out = nn.Dense(self.target_vocab_size)

    def encode(self, source, *, deterministic=True):
        return self.source_embed(source), source != tok.PAD

    def decode(self, memory, tokens, *, deterministic=True, decode=False, return_weights=False):
        keys, seen = memory
        embedded = self.target_embed(tokens)
        logits = jnp.where(seen[:, None], embedded @ keys.swapaxes(1, 2), -1e9)
        weights = jax.nn.softmax(logits)
        logits = self.out(embedded + weights @ keys)
        return (logits, weights) if return_weights else logits


def build(name, sizes, *, source_vocab_size, target_vocab_size, dtype):
    return Tiny(source_vocab_size or target_vocab_size, target_vocab_size)


def few_dates(split="train", *, size=None, **given):
    """In place of `Dates`: those of the validation and of the test are 48."""
    return Dates(split, size=48, **given) if size else Dates(split, **given)


def run(experiment, *flags):
    """The status of the `main` in an experiment's __main__, and what it printed, and on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = experiment.main([experiment.__name__.split(".")[1], *map(str, flags)])
    return status, out.getvalue(), err.getvalue()


def finish(experiment, *flags):
    """What the `main` of an experiment prints where it ends well and says nothing on stderr."""
    status, out, err = run(experiment, *flags)
    assert (status, err) == (0, ""), (status, err)
    return out


def folder_of(where):
    """The folder of the only run in another."""
    (found,) = where.iterdir()
    return found


def rows_of(folder):
    """The rows of a run, as results.jsonl has them."""
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def save_nothing(figures, folder):
    """In place of `figure_files.save`, which takes longer than all else."""
