"""Colors and markers of every figure: a mechanism or a model looks the same wherever it is drawn.

Any two colors of a table differ by ΔE ≥ 16 (CIE 1976), also as seen with protanopia, deuteranopia
and tritanopia (Machado et al. 2009, severity 1), and those of mechanisms and models have a contrast
of at least 3 : 1 to white. Text stands in `INK` or `MUTED`. A test computes all of this.
"""

import re
from collections.abc import Sequence

_OWN = re.compile(r"\.\w+:")  # "mine.py:Decay", "package.module:Decay"

MECHANISMS = {
    "additive": ("#0072B2", "o"),
    "exact": ("#000000", "X"),
    "lsh": ("#D55E00", "*"),
    "window": ("#009E73", "<"),
    "dot": ("#8C461C", "s"),
    "general": ("#9385F2", "^"),
    "cosine": ("#B600F2", "v"),
    "concat": ("#73506A", "D"),
    "location": ("#2639BF", "P"),
    "alibi": ("#600060", "h"),
    "shared": ("#A884A8", "p"),
    "hard": ("#0C0078", ">"),
}
# Language models, beside those of additive, exact, window and LSH attention.
REVERSIBLE = {
    "reversible-exact": ("#8C461C", "s"),
    "chunked-reversible-exact": ("#9385F2", "^"),
    "chunked-reversible-lsh": ("#B600F2", "v"),  # and others of several kinds of layers
}
# Other people's code has the color of what it computes.
PEERS = {
    name: (MECHANISMS[like][0], marker)
    for name, like, marker in (
        ("flash", "exact", "d"),
        ("torch_sdpa", "exact", "s"),
        ("flax", "exact", "^"),
        ("jax_nn", "exact", "v"),
        ("tokamax_chunked", "exact", "P"),
        ("keras_additive", "additive", "s"),
        ("keras_dot", "dot", "D"),
        ("hf_lsh", "lsh", "s"),
        ("hf_marian", "exact", "D"),
        ("reformer_pytorch", "lsh", "^"),
    )
}
MODELS = {
    "rnn_search": ("#0072B2", "o"),
    "rnn_encdec": ("#D55E00", "s"),
    "transformer": ("#000000", "X"),
    "luong": ("#009E73", "^"),
    "nmt_attn": ("#B600F2", "v"),
    "britz": ("#8C461C", "D"),
}
MODEL_TITLES = {
    "rnn_search": "RNNsearch",
    "rnn_encdec": "RNNencdec",
    "transformer": "Transformer",
    "luong": "Luong",
    "nmt_attn": "NMTAttn",
    "britz": "Britz",
}
# The n-th line of a figure whose lines have no name that returns elsewhere.
SERIES = (
    ("#000000", "o"),
    ("#D55E00", "s"),
    ("#0072B2", "^"),
    ("#009E73", "v"),
    ("#B600F2", "D"),
    ("#8C461C", "P"),
)
# LSH by its rounds, where these are what differs: the more, the darker.
ROUNDS = {1: ("#E8702A", "*"), 2: ("#BE4A00", "s"), 4: ("#8A2F00", "^"), 8: ("#4F1A00", "D")}


INK = "#222222"
MUTED = "#6a6a6a"
GRID = "#e4e4e4"
FILL = "#eeeeee"
KNOWN = "#E69F00"  # a link that is known to be right, on a heat map


def of_attention(name: str, beside: Sequence[str] = ()) -> tuple[str, str]:
    """Color and marker of an attention, or of a model by its attentions, whatever its numbers.

    Args:
      name: name of the attention or the model.
      beside: names of all in the figure. A user's own has a color that no other there has, where
        there is one.

    >>> of_attention("lsh-8:pallas") == MECHANISMS["lsh"]
    True
    >>> of_attention("my.py:B", ["exact", "my.py:A", "my.py:B", "lsh-2"]) == MECHANISMS["window"]
    True
    """
    own = [x for x in beside if _OWN.search(x)]
    if name in own:
        every = [*MECHANISMS.values()]
        taken = {of_attention(x)[0] for x in beside if x not in own}
        free = [look for look in every if look[0] not in taken] or every
        return free[own.index(name) % len(free)]
    known = MECHANISMS | REVERSIBLE | PEERS
    return known.get(_form(name), REVERSIBLE["chunked-reversible-lsh"])


def _form(name: str) -> str:
    """The name of an attention without numbers and way."""
    return re.sub(r"-\d+|:\w+", "", name)


def by_rounds(name: str, beside: Sequence[str] = ()) -> tuple[str, str]:
    """Color and marker of an attention in a figure that compares rounds of LSH; see `of_attention`.

    >>> by_rounds("lsh-2") == ROUNDS[2], by_rounds("shared") == MECHANISMS["shared"]
    (True, True)
    """
    match = re.fullmatch(r"lsh-(\d+)", name)
    return ROUNDS.get(int(match[1]) if match else 0, of_attention(name, beside))


def of_lines(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Color and marker of each line by its name: its model's or attention's, or a series'.

    The parts of a name are divided by ", ". A series has names without either, or with equal ones;
    a user's own attention has a look that no other line has.

    >>> of_lines(["listops, exact", "listops, lsh-2"])["listops, lsh-2"] == MECHANISMS["lsh"]
    True
    >>> of_lines(["luong, heads=1", "luong, heads=2"])["luong, heads=2"] == SERIES[1]
    True
    """
    looks = {name: look for name in names if (look := _known_style(name))}
    free = [look for look in MECHANISMS.values() if look not in looks.values()]
    looks |= zip((x for x in names if x not in looks and _OWN.search(x)), free, strict=False)
    if len(set(looks.values())) == len(names):
        return {name: looks[name] for name in names}
    colors, markers = zip(*SERIES, strict=True)
    count = len(colors)
    return {
        name: (colors[i % count], markers[(i + i // count) % count]) for i, name in enumerate(names)
    }


def _known_style(name: str) -> tuple[str, str] | None:
    for part in name.split(", "):
        form = _form(part)
        if look := MODELS.get(part, (MECHANISMS | REVERSIBLE).get(form)):
            return look
    return None
