"""The smallest sequence-to-sequence task and model that a training can be tested with."""

import flax.linen as nn
import grain
import jax.numpy as jnp
import numpy as np

from attnlab.core.tokens import EOS, NUM_SPECIAL
from attnlab.models.seq2seq import Seq2Seq
from attnlab.training.curve import read_metrics

VOCAB = 11
TIMES = ("seconds", "steps_per_second", "tokens_per_second")  # which differ from run to run


class Doubles(grain.sources.RandomAccessDataSource):
    """Rows of numbers; the target is twice the source, modulo the vocabulary."""

    def __len__(self):
        return 2**20

    def __getitem__(self, index):
        draw = np.random.default_rng(int(index))
        source = draw.integers(NUM_SPECIAL, VOCAB, 5)
        target = NUM_SPECIAL + 2 * source % (VOCAB - NUM_SPECIAL)
        target = np.append(target, EOS)
        return {"source": source.astype(np.int32), "target": target.astype(np.int32)}


class Tiny(Seq2Seq):
    """Embeds the source, adds what is read, predicts: no recurrence, no attention."""

    dropout_rate: float = 0.0
    width: int = 7

    def setup(self):
        self.embed = nn.Embed(VOCAB, self.width)
        self.drop = nn.Dropout(self.dropout_rate)
        self.out = nn.Dense(VOCAB)

    def encode(self, source, *, deterministic=True):
        padded = jnp.pad(source, ((0, 0), (0, 1)))
        return self.drop(self.embed(padded), deterministic=deterministic)

    def decode(self, memory, tokens, *, deterministic=True, decode=False, return_weights=False):
        return self.out(memory + self.embed(tokens))


def batches(batch_size=8, seed=0):
    """Endless batches."""
    source = grain.MapDataset.source(Doubles()).seed(seed).shuffle().repeat()
    ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)  # not 500 batches, as else
    return source.batch(batch_size, drop_remainder=True).to_iter_dataset(ahead)


def validation(batch_size=8):
    """Two batches, the same each time."""
    source = [Doubles()[2**19 + i] for i in range(2 * batch_size)]
    return [
        {name: np.stack([row[name] for row in part]) for name in ("source", "target")}
        for part in (source[:batch_size], source[batch_size:])
    ]


def curve_of(folder):
    """The rows of a training without its times."""
    return [{k: x for k, x in row.items() if k not in TIMES} for row in read_metrics(folder)]
