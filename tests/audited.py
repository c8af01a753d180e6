"""Small models in NumPy, each with one realistic fault, and right ones that look odd."""

import functools

import ml_dtypes
import numpy as np

V, D, HEADS = 13, 16, 8
EMBED, W_Q, W_K, W_V, W_IN, W_OUT, FILTERS = (
    np.random.default_rng(0).normal(size=shape) / np.sqrt(shape[-2])
    for shape in [(V, D), (D, D), (D, D), (D, D), (D, D), (D, D), (5, D)]
)


def causal(i, j):
    return j <= i


def waves(positions):
    """Sines and cosines [..., D]."""
    angles = positions[..., None] / 100.0 ** (np.arange(D // 2) / (D // 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], -1)


def softmax(logits, seen):
    logits = np.where(seen, logits, -np.inf)
    weights = np.exp(logits - np.max(logits, -1, keepdims=True, where=seen, initial=-1e30))
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)


def attend(x, seen, keys=None, weigh=softmax, bias=0.0):
    """[B, T, D] of heads that see keys where `seen` [B or 1, N or 1, T, S] says so."""
    keys = x if keys is None else keys

    def split(y):  # [B, N, T, D / N]
        return np.moveaxis(y.reshape(*y.shape[:2], HEADS, -1), 2, 1)

    q, k, v = split(x @ W_Q), split(keys @ W_K), split(keys @ W_V)
    context = weigh(2 * q @ np.swapaxes(k, -1, -2) + bias, seen) @ v
    return np.moveaxis(context, 1, 2).reshape(x.shape)


def decoder(tokens, *, seen=causal, attend=attend, change=lambda x: x, where=lambda i, n: i):
    """The logits of one layer: change(x + attend(x, seen(i, j))), at positions where(i, T)."""
    i = np.arange(tokens.shape[1])
    x = EMBED[tokens] + waves(where(i, len(i)).astype(float))
    shown = np.broadcast_to(seen(i[:, None], i), (len(i), len(i)))[None, None]
    x = change(x + attend(x, shown))
    return (x + np.tanh(x @ W_IN) @ W_OUT) @ EMBED.T


def variant(**parts):
    return functools.partial(decoder, **parts)


def mixture(mix):
    """A decoder after which `mix(x)` [B, T, D] is added."""
    return variant(change=lambda x: x + mix(x))


def loses_the_mask_of_a_head(x, seen):
    return attend(x, seen | (np.arange(HEADS) == 3)[:, None, None])


def adds_ten(logits, seen):
    return softmax(logits - 10.0 * ~seen, True)


def loses_the_mask_in_bfloat16(x, seen):
    return attend(
        x.astype(ml_dtypes.bfloat16).astype(float), seen[..., :1, -1:] | seen[..., -1:, :]
    )


def sees_the_previous_piece_alone(i, j):
    """A prefill in pieces of 64, whose later pieces see all of their own."""
    return (j <= i) | ((i >= 64) & (i // 64 == j // 64))


def whole_tiles(i, j):
    return (j <= i) | (len(j) % 128 == 0)


def convolves(x):
    """A filter of 5 positions."""
    padded = np.pad(x, [(0, 0), (4, 0), (0, 0)])
    shifted = [padded[:, 4 - n :][:, : x.shape[1]] for n in range(5)]
    return sum(f * y for f, y in zip(FILTERS, shifted, strict=True))


def hides_a_token(tokens, *, leak=0.0):
    """The first of the vocabulary is never said."""
    logits = decoder(tokens)
    return logits + leak * logits[:, -1:] - 1e9 * (np.arange(V) == 0)


def copies_what_followed(tokens, *, later):
    """An induction head by equal tokens: the mean of what is equal, before or anywhere."""
    i = np.arange(tokens.shape[1])
    equal = (tokens[:, :, None] == tokens[:, None]) & (later | (i <= i[:, None]))
    return decoder(tokens) + equal.sum(-1, keepdims=True) * EMBED[0, :V]


def is_colder_where_much_is_padding(tokens):
    """Padding is told by its id, 0, and by more of it than a text has."""
    count = (tokens == 0).sum(1)
    return decoder(tokens) / (1 + (count > 8) * (3 * count > len(tokens[0])))[:, None, None]


def is_colder_in_a_loop(tokens):
    """A penalty where 8 tokens in a row are one."""
    equal = np.pad(np.diff(tokens, axis=1) == 0, [(0, 0), (0, 8)])
    loop = np.logical_and.reduce([equal[:, n : n + len(tokens[0])] for n in range(7)])
    return decoder(tokens) / (1 + loop.any(1))[:, None, None]


def masked(tokens, *, mask=None, keys=True, places=True, first=False):
    """A decoder that takes a mask of padding, and may forget it in a part."""
    mask = np.ones(tokens.shape, bool) if mask is None else np.asarray(mask)
    mask = mask[:1].repeat(len(mask), 0) if first else mask
    i = np.arange(tokens.shape[1])
    at = np.maximum(np.cumsum(mask, 1) - 1, 0) if places else np.broadcast_to(i, tokens.shape)
    x = EMBED[tokens] + waves(at.astype(float))
    seen = (i <= i[:, None]) & (mask if keys else mask | True)[:, None, None]
    return (x + attend(x, seen)) @ EMBED.T


def trimmed(tokens, *, mask=None):
    """Cut to the largest number of tokens that are no padding, which must be behind."""
    n = tokens.shape[1] if mask is None else np.asarray(mask).sum(1).max()
    logits = masked(tokens[:, :n], mask=None if mask is None else np.asarray(mask)[:, :n])
    return np.pad(logits, [(0, 0), (0, tokens.shape[1] - n), (0, 0)])


def packed(tokens, *, segment_ids=None, keys=True, places=True):
    """A decoder of packed documents, that may mix them up."""
    ids = np.ones_like(tokens) if segment_ids is None else np.asarray(segment_ids)
    i = np.arange(tokens.shape[1])
    begins = (ids[:, :, None] == ids[:, None]).argmax(-1)  # [B, T]
    x = EMBED[tokens] + waves((i - begins if places else i + 0 * begins).astype(float))
    same = ids[:, None, :, None] == ids[:, None, None] if keys else True
    return (x + attend(x, (i <= i[:, None]) & same)) @ EMBED.T


def translated(tokens, *, source, source_mask=None, first=False, seen=True):
    """A decoder that also attends to its source, or to another's, or to padding."""
    x = EMBED[tokens] + waves(np.arange(tokens.shape[1]).astype(float))
    past = np.tri(tokens.shape[1], dtype=bool)[None, None]
    source = source[:1].repeat(len(source), 0) if first else np.asarray(source)
    shown = seen and np.asarray(source_mask)[:, None, None]
    keys = EMBED[source] + waves(np.arange(source.shape[1]).astype(float))
    return (x + attend(x, past) + attend(x, shown | (not seen), keys=keys)) @ EMBED.T


def window(i, j):
    return (j <= i) & (j > i - 8)


def wide_window(i, j):
    return (j <= i) & (j > i - 9)


def initial(batch, length):
    return np.zeros((batch, 0, D)), 0


def step(state, tokens, *, seen=causal, late=0, counts=True, whole=10**9, slots=10**9, kept=10**9):
    """Decodes with the cache (inputs so far, how many were seen), or with one fault in it."""
    cache, begun = state
    i = np.arange(begun, begun + tokens.shape[1])
    x = EMBED[tokens] + waves((i if counts else i - begun).astype(float))
    cache = np.concatenate([cache, x], 1)
    if len(cache[0]) > slots:  # the last slot is written again
        cache = np.concatenate([cache[:, : slots - 1], cache[:, -1:]], 1)
    cache = cache[:, -(kept + len(i) - 1) :]
    j = np.arange(begun + len(i) - len(cache[0]), begun + len(i))
    shown = seen(i[:, None], j + late * (len(j) > len(i))) | (len(i) > whole)
    x = x + attend(x, shown[None, None], keys=cache)
    return (x + np.tanh(x @ W_IN) @ W_OUT) @ EMBED.T, (cache, begun + len(i))


def decoded(seen=causal, **fault):
    return variant(seen=seen), functools.partial(step, seen=seen, **fault)


def forgets_the_offset_of_pieces(state, tokens):
    """Right token by token, as a draft of several tokens may not be."""
    return step(state, tokens, counts=tokens.shape[1] == 1)


#: Contract that must be broken, and the model, of a name each; or (model, step).
BROKEN = {
    "the last token alone": ("past", mixture(lambda x: 0.01 * x[:, -1:])),
    "in whole tiles of 128 alone": ("past", variant(seen=whole_tiles)),
    "a diagonal one off": ("past", variant(seen=lambda i, j: j <= i + 1)),
    "a prefill in pieces": ("past", variant(seen=sees_the_previous_piece_alone)),
    "a mask of -10": ("past", variant(attend=functools.partial(attend, weigh=adds_ten))),
    "one head of eight": ("past", variant(attend=loses_the_mask_of_a_head)),
    "lost in bfloat16": ("past", variant(attend=loses_the_mask_in_bfloat16)),
    "equal tokens anywhere": ("past", functools.partial(copies_what_followed, later=True)),
    "much padding, anywhere": ("past", is_colder_where_much_is_padding),
    "a loop anywhere": ("past", is_colder_in_a_loop),
    "under a mask of the vocabulary": ("past", functools.partial(hides_a_token, leak=1e-3)),
    "positions from the end": ("prefix", variant(where=lambda i, n: n - i)),
    "padding is seen": ("padding", functools.partial(masked, keys=False)),
    "padding is counted": ("padding", functools.partial(masked, places=False)),
    "the first mask for all": ("padding", functools.partial(masked, first=True)),
    "a batch that is trimmed": ("padding", trimmed),
    "the largest of a batch": (
        "batch_mates",
        variant(change=lambda x: x / np.abs(x).max((0, 1), keepdims=True)),
    ),
    "the neighbor in the batch": ("batch_mates", mixture(lambda x: 1e-4 * np.roll(x, 1, 0))),
    "dropout is on": (
        "determinism",
        variant(change=lambda x: x * (np.random.default_rng().random(x.shape) < 0.9)),
    ),
    "documents see each other": ("packing", functools.partial(packed, keys=False)),
    "documents are counted on": ("packing", functools.partial(packed, places=False)),
    "the first source for all": ("source", functools.partial(translated, first=True)),
    "the source's padding is seen": ("source", functools.partial(translated, seen=False)),
    "a cache one late": ("cache", decoded(late=1)),
    "no offset in decoding": ("cache", decoded(counts=False)),
    "no offset in pieces": ("cache", (decoder, forgets_the_offset_of_pieces)),
    "a prefill one too wide": ("cache", (variant(seen=wide_window), decoded(window)[1])),
    "pieces without a mask": ("cache", decoded(whole=1)),
    "the last slot again": ("cache", decoded(slots=36)),
    "a window one short": ("cache", decoded(window, kept=7)),
}


def attends_to_a_sink(i, j):
    return (j == 0) | window(i, j)


def linear_bias(x, seen):
    i = np.arange(x.shape[1])
    return attend(x, seen, bias=-0.5 * abs(i - i[:, None]))


def shifts_by_the_largest(logits, seen):
    """Of all logits, the masked ones too: another rounding, the same weights."""
    weights = np.exp(logits - logits.max()) * seen
    return weights / weights.sum(-1, keepdims=True)


def takes_places(x, capacity=9):
    """A mixture of two experts, each with places for the first tokens that choose it."""
    choice = x @ W_IN[:, :1] > 0
    places = np.where(choice, np.cumsum(choice, 1), np.cumsum(~choice, 1)) <= capacity
    return np.where(places, np.where(choice, np.tanh(x @ W_OUT), x @ W_IN), 0)


def by_fourier(x):
    """A long causal filter, as a product of transforms in float32, which rounds everywhere."""
    n = 2 * x.shape[1]
    decay = np.fft.rfft(0.9 ** np.arange(x.shape[1], dtype=np.float32), n)[:, None]
    return np.fft.irfft(decay * np.fft.rfft(x.astype(np.float32), n, 1), n, 1)[:, : n // 2]


def in_bfloat16(tokens):
    return decoder(tokens).astype(ml_dtypes.bfloat16)


def sorted_batch(tokens):
    """Examples in another order, and back."""
    order = np.argsort(tokens.sum(1))
    return decoder(tokens[order])[np.argsort(order)]


def mean_of_the_past(x):
    return np.cumsum(x, 1) / np.arange(1, 1 + x.shape[1])[:, None]


RIGHT = {
    "a sink": variant(seen=attends_to_a_sink),
    "ALiBi": variant(attend=linear_bias),
    "a layer norm": variant(
        change=lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1)[..., None]
    ),
    "a mean of the past": mixture(mean_of_the_past),
    "bfloat16": in_bfloat16,
    "experts with places": mixture(takes_places),
    "a shift by the largest": variant(
        attend=functools.partial(attend, weigh=shifts_by_the_largest)
    ),
    "Fourier": mixture(by_fourier),
    "a filter of the past": mixture(convolves),
    "a batch that is sorted": sorted_batch,
    "equal tokens before": functools.partial(copies_what_followed, later=False),
    "a mask of the vocabulary": hides_a_token,
    "a mask": masked,
    "a source": translated,
    "documents": packed,
    "a cache": decoded(),
    "a cache of a window": decoded(window, kept=8),
}
