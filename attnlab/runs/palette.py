"""Colors and markers of every figure: a mechanism or a model looks the same wherever it is drawn.

Any two colors of a table differ by ΔE ≥ 16 (CIE 1976), also as seen with protanopia, deuteranopia
and tritanopia (Machado et al. 2009, severity 1), and those of mechanisms and models have a contrast
of at least 3 : 1 to white. Text stands in `INK` or `MUTED`. A test computes all of this.
"""

import re

__all__ = [
    "FILL",
    "GRID",
    "INK",
    "KNOWN",
    "MECHANISMS",
    "MODELS",
    "MODEL_TITLES",
    "MUTED",
    "REVERSIBLE",
    "PEERS",
    "SERIES",
    "STAGES",
    "of_attention",
]

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
        ("keras_additive", "additive", "s"),
        ("keras_dot", "dot", "D"),
        ("hf_lsh", "lsh", "s"),
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
# Areas that touch, told apart by their order and their names as well.
STAGES = ("#0072B2", "#56B4E9", "#E69F00", "#009E73", "#CC79A7")


INK = "#222222"
MUTED = "#6a6a6a"
GRID = "#e4e4e4"
FILL = "#eeeeee"
KNOWN = "#E69F00"  # a link that is known to be right, on a heat map


def of_attention(name: str) -> tuple[str, str]:
    """Color and marker of an attention, or of a model by its attentions, whatever its numbers.

    >>> of_attention("lsh-8:pallas") == MECHANISMS["lsh"]
    True
    """
    form = re.sub(r"-\d+|:\w+", "", name)
    return (MECHANISMS | REVERSIBLE | PEERS).get(form, REVERSIBLE["chunked-reversible-lsh"])
