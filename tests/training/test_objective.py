import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.data.tokenizers import Bytes, Characters
from attnlab.data.windows import consecutive_windows
from attnlab.models.output import DeferredLogits
from attnlab.training.curve import Meter
from attnlab.training.objective import BitsPerByte, TokenCrossEntropy, token_sums
from attnlab.training.step import StepMetrics
from tests.daily import daily

TOKEN_SUMS = jax.jit(token_sums)
TEXT = "thé café à Nîmes "


def by_hand(logits, targets, epsilon):
    """Sum over the real tokens of the cross entropy with (1 − ε)·onehot + ε/V, in float64."""
    loss = nll = 0.0
    for row, target in zip(logits.reshape(-1, logits.shape[-1]), targets.ravel(), strict=True):
        if target == 0:
            continue
        log_p = row - np.log(np.exp(row).sum())
        wanted = np.full(len(row), epsilon / len(row))
        wanted[target] += 1 - epsilon
        loss -= wanted @ log_p
        nll -= log_p[target]
    return loss, nll


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_sums_are_those_of_the_real_tokens(epsilon):
    draw = np.random.default_rng(0)
    logits = np.float32(draw.normal(size=(3, 5, 7)) * 3)
    targets = np.array([[4, 5, 2, 0, 0], [6, 2, 0, 0, 0], [0, 0, 0, 0, 0]])

    @jax.jit
    def found(logits):
        counts = TokenCrossEntropy().counts({"target": targets})
        return token_sums(logits, targets, label_smoothing=epsilon), counts

    sums, counts = found(logits)
    loss, nll = by_hand(np.float64(logits), targets, epsilon)
    assert float(sums["loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(sums["nll"]) == pytest.approx(nll, rel=1e-5)
    assert {name: float(x) for name, x in counts.items()} == {"tokens": 5, "sentences": 2}
    assert float(sums["correct"]) == ((logits.argmax(-1) == targets) & (targets != 0)).sum()
    by_four, _ = found(DeferredLogits(logits, np.eye(7, dtype=np.float32), block=4))
    for name, x in by_four.items():
        assert float(x) == pytest.approx(float(sums[name]), rel=1e-6)


def test_weights_say_how_much_a_token_counts():
    draw = np.random.default_rng(0)
    logits = np.float32(draw.normal(size=(2, 3, 7)))
    batch = {
        "tokens": np.array([[4, 5, 2], [6, 3, 0]]),
        "weights": np.float32([[0, 1, 2], [0, 1, 1]]),  # of padding nothing counts
    }
    objective = TokenCrossEntropy(0.1)
    assert objective.inputs(batch).keys() == {"tokens"}
    counted = (0, 0, 0, 1), (1, 2, 2, 1)  # rows and places, one of them twice

    @jax.jit
    def found(logits):
        of_counted = token_sums(logits[counted], batch["tokens"][counted], label_smoothing=0.1)
        return objective.counts(batch), objective.sums(logits, batch), of_counted

    counts, sums, expected = found(logits)
    assert {name: float(x) for name, x in counts.items()} == {"tokens": 4, "sentences": 2}
    assert {name: float(x) for name, x in sums.items()} == pytest.approx(
        {name: float(x) for name, x in expected.items()}, rel=1e-6
    )


@pytest.mark.parametrize("wrong", [7, -1, -100])
def test_ids_outside_of_the_vocabulary_make_the_loss_nan(wrong):
    """−100 is what other libraries leave out of a loss; trained on, it would be one of the words.

    Weights of 0 do not hide it.
    """
    targets, weights = np.array([[5, wrong, 0]]), np.float32([[1, 0, 1]])
    logits = np.float32(np.random.default_rng(0).normal(size=(1, 3, 7)))
    for x in (logits, DeferredLogits(logits, np.eye(7, dtype=np.float32), block=2)):
        sums = TOKEN_SUMS(x, targets, weights=weights)
        assert np.isnan(sums["loss"]) and np.isnan(sums["nll"])


def test_a_marker_is_no_word_whatever_the_type_of_ids():
    """int8 has no 300, the number of words: written there, −100 was word 44."""
    logits, targets = np.zeros((1, 2, 300), np.float32), np.int8([[5, -100]])
    assert np.isnan(TOKEN_SUMS(logits, targets)["loss"])
    of_bytes = BitsPerByte(bytes_of=(0, 0, 0, 0, 1, 3))
    for wrong in (6, -1):
        counts = of_bytes.counts({"tokens": jnp.int8([[4, wrong, 0]])})
        assert np.isnan(counts["bytes"])
        with pytest.raises(ValueError, match="over bytes; got nan, of ids without a number"):
            of_bytes.means({"nll": 1.0}, counts)


def test_a_weight_of_an_example_is_not_taken_for_one_of_places():
    """[3] fits rows and places of [3, 3] alike."""
    logits, targets = np.ones((3, 3, 9), np.float32), np.full((3, 3), 4)
    weights = np.float32([1, 2, 3])
    for objective in (TokenCrossEntropy(), BitsPerByte(bytes_of=(1,) * 9)):
        with pytest.raises(ValueError, match=r"those of examples are weights\[:, None\]"):
            objective.counts({"tokens": targets, "weights": weights})
    sums = TOKEN_SUMS(logits, targets, weights=weights[:, None])
    assert float(sums["loss"]) == pytest.approx(18 * math.log(9))


def test_padding_has_no_gradient_even_where_logits_overflow():
    logits = np.zeros((1, 2, 5), np.float32)
    logits[0, 1] = np.inf
    grad = jax.jit(jax.grad(lambda x: token_sums(x, np.array([[4, 0]]))["loss"]))(logits)
    assert np.isfinite(grad[0, 0]).all()


def test_means_are_weighted_by_tokens():
    means_of = TokenCrossEntropy().means
    sums = {"loss": 6.0, "nll": math.log(2) * 3, "correct": 1.0}
    means = means_of(sums, {"tokens": 3.0, "sentences": 2.0})
    assert means == {
        "loss": 2.0,
        "nll": pytest.approx(math.log(2)),
        "perplexity": pytest.approx(2.0),
        "accuracy": pytest.approx(1 / 3),
    }
    assert means_of(sums | {"nll": 1e4}, {"tokens": 1.0})["perplexity"] == math.inf


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
