"""Bits per byte: exact over batches and rows of padding, and the same of bytes and characters."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.data.tokenizers import Bytes, Characters
from attnlab.data.windows import consecutive_windows
from attnlab.training.bits import BitsPerByte
from attnlab.training.curve import Meter
from attnlab.training.step import StepMetrics
from tests.daily import daily

TEXT = "thé café à Nîmes "


def bits(tokenizer, bytes_of, log_p, *, length, batch_size):
    """Of a model that gives every token of the text the same log p, whatever came before."""
    objective, meter = BitsPerByte(bytes_of=bytes_of), Meter()
    sums_and_counts = jax.jit(lambda x, batch: (objective.sums(x, batch), objective.counts(batch)))
    ids = np.array(tokenizer.encode(TEXT), np.int32)
    for batch in consecutive_windows(ids, length=length, batch_size=batch_size):
        others = math.log1p(-math.exp(log_p)) - math.log(tokenizer.vocab_size - 1)
        logits = np.full((*batch["tokens"].shape, tokenizer.vocab_size), others, np.float32)
        np.put_along_axis(logits, batch["tokens"][..., None], log_p, -1)
        sums, counts = sums_and_counts(logits, batch)
        meter.add(StepMetrics(sums, counts, jnp.zeros(())))
    assert meter.counts["bytes"] == len(TEXT.encode()) > len(TEXT)
    return meter.means(objective)[objective.headline]


@pytest.mark.parametrize(("length", "batch_size"), daily([(7, 2), (17, 1), (5, 3)], (5, 3)))
def test_bits_are_those_of_the_whole_text_over_its_bytes(length, batch_size):
    sizes = {"length": length, "batch_size": batch_size}
    of_bytes = (0,) * 4 + (1,) * 256
    found = bits(Bytes(), of_bytes, math.log(0.25), **sizes)
    assert found == pytest.approx(2.0, rel=1e-6)
    characters = Characters.of(TEXT)
    found = bits(characters, characters.bytes_of, math.log(0.25), **sizes)
    assert found == pytest.approx(2.0 * len(TEXT) / len(TEXT.encode()), rel=1e-6)


def test_bytes_count_as_much_as_their_tokens():
    batch = {"tokens": jnp.array([[4, 5, 0]]), "weights": jnp.array([[0.5, 2.0, 7.0]])}
    assert float(BitsPerByte(bytes_of=(0, 0, 0, 0, 1, 3)).counts(batch)["bytes"]) == 6.5


def test_a_tokenizer_knows_the_bytes_of_its_ids():
    assert Bytes().bytes_of == (0,) * 4 + (1,) * 256
    characters = Characters.of("aé€")
    assert characters.bytes_of == (0, 0, 0, 0, 1, 2, 3)
