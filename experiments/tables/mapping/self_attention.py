"""Rows of trained models without recurrence: which row of a published table is which run."""

from __future__ import annotations

from typing import Any

from experiments.tables.beside import Beside
from experiments.tables.trained import TrainedTable
from experiments.tables.trainings import (
    Classifications,
    Duplications,
    LanguageModels,
    Translations,
    Tunings,
    sized,
)
from experiments.tables.worded import WordedTable

__all__ = ["SELF_ATTENTION"]


def _transformer(**fields: Any) -> tuple[str, ...]:
    return sized("transformer", **fields)


def _big(**sizes: int) -> tuple[str, ...]:
    return _transformer(num_heads=16, **sizes, dropout_rate=0.3)


def _keys(*widths: int) -> dict[str, tuple[str, ...]]:
    return {
        f"B{i}": _transformer(num_heads=8, key_width=width) for i, width in enumerate(widths, 1)
    }


_MASKINGS = ("80/10/10", "100/0/0", "80/0/20", "80/20/0", "0/20/80", "0/0/100")
_TUNING = (
    "--test_examples=500",
    "--batch_size=16",
    "--learning_rate=0.001",
    "--validate_every=50",
    "--cut",
)


SELF_ATTENTION: dict[str, Beside] = {
    "vaswani2": TrainedTable(
        "Base and big, averaged checkpoints: Vaswani et al. 2017, Table 2",
        "vaswani2017_table2.csv",
        "BLEU_EN_DE",
        Translations(
            {
                "Transformer (base)": (
                    *_transformer(num_heads=8),
                    "--checkpoint_every=10",
                    "--average=5",
                ),
                "Transformer (big)": (
                    *_big(width=256, hidden=512),
                    "--learning_rate=0.0014",
                    "--checkpoint_every=2",
                    "--average=20",
                ),
                "Transformer (base), its best checkpoint": _transformer(num_heads=8),
            },
            at_paper={
                "Transformer (base)": (
                    *_transformer(num_heads=8),
                    "--checkpoint_every=1500",
                    "--average=5",
                ),
                "Transformer (big)": (
                    *_big(width=1024, hidden=4096),
                    "--learning_rate=0.000494",
                    "--steps=300000",
                    "--checkpoint_every=600",
                    "--average=20",
                ),
            },
            scales=["cpu", "paper"],
        ),
        base="Transformer (base)",
        note="At scale cpu the base model has a quarter of the paper's width and a third of its"
        " layers. The big one is to it what the paper's is: twice as wide, with twice as many"
        " heads, dropout 0.3 and a learning rate divided by √2, as the paper's d_model^-0.5 says;"
        " but it is trained for as many steps, not three times as many. Tested is the mean of the"
        " last 5 and of the last 20 checkpoints (§6.1), which span 5 % of the steps, in the paper"
        " 7 and 4 % of the time. The learning rate falls to 0 at the end, in the paper as"
        " step^-0.5, so that the last checkpoints here are more alike. At scale paper all of this"
        " is the paper's, with a checkpoint every ten minutes of its machine. The last row is the"
        " base model without the mean, for which the paper prints no number; the paper's other"
        " rows are other systems.",
    ),
    "vaswani3": TrainedTable(
        "Heads, keys, positions: Vaswani et al. 2017, Table 3 (A), (B), (E)",
        "vaswani2017_table3.csv",
        "BLEU_dev",
        Translations(
            {
                "base": _transformer(num_heads=8),
                "A1": _transformer(num_heads=1),
                "A2": _transformer(num_heads=4),
                "A3": _transformer(num_heads=16),
                "A4": _transformer(num_heads=32),
                **_keys(4, 8),
                "E positional embedding instead of sinusoids": _transformer(
                    num_heads=8, positions="learned"
                ),
            },
            at_paper=_keys(16, 32),
            scales=["cpu", "paper"],
        ),
        base="base",
        note="At scale cpu models have a quarter of the paper's width, and so have heads; (B)"
        " divides the width of the keys by 4 and by 2, as the paper does. *entropy* is of the mean"
        " of the heads of the last layer, which is the larger the more there are.",
    ),
    "reformer2": TrainedTable(
        "Duplication of a word: Kitaev et al. 2020, Table 2",
        "reformer2020_table2.csv",
        {
            "full": "eval_full_pct",
            **{f"LSH-{rounds}": f"eval_LSH{rounds}_pct" for rounds in (8, 4, 2, 1)},
        },
        Duplications(),
        score="accuracy",
        base="Full, full",
        note="A row is what a model was trained with and what it was evaluated with. Words have 31"
        " symbols at scale cpu, 511 in the paper; a model that hashes once is trained twice as"
        " long. The report of `duplication` has the paper's statements and what explains them.",
    ),
    "reformer4": WordedTable(
        "Hash rounds of a language model: Kitaev et al. 2020, Figure 4",
        "reformer2020_figure4.csv",
        "bits_per_dim",
        LanguageModels(
            {
                **{f"{n} round{'s' * (n > 1)}": f"lsh-{n}" for n in (1, 2, 4, 8)},
                "full attention": "shared",
            },
            length=2048,
        ),
        score="bits per byte",
        tie=0.01,
        note="Language models of text, two layers for 2 million bytes, where the paper's are of"
        " images; in both, full attention's queries are its keys, as those of LSH are.",
    ),
    "bert5": TrainedTable(
        "The second loss, of pairs of lines: Devlin et al. 2018, Table 5",
        "bert2018_table5.csv",
        "MNLI-m_acc",
        Tunings(
            ("--steps=3000", "--objective=mlm_nsp,mlm", "--masking=80/10/10"),
            ("--made=follows", "--steps=300", *_TUNING, "--starts=tuned"),
            {
                "BERT_BASE": ("tuned", "mlm_nsp", "80/10/10"),
                "No NSP": ("tuned", "mlm", "80/10/10"),
            },
            score=("accuracy", "accuracy"),
        ),
        score="accuracy",
        base="BERT_BASE",
        note="Does the second of two lines follow the first one? In the paper: does a sentence"
        " follow from another, which is harder. Models of 0.13 million parameters read bytes.",
    ),
    "bert8": TrainedTable(
        "Masking: Devlin et al. 2018, Table 8",
        "bert2018_table8.csv",
        {"tuned": "NER_finetune_F1", "frozen": "NER_feature_F1"},
        Tunings(
            ("--steps=3000", "--objective=mlm_nsp", f"--masking={','.join(_MASKINGS)}"),
            ("--made=spelling", "--steps=150", *_TUNING, "--starts=tuned,frozen"),
            {
                f"{masking.replace('/', ', ')}, {start}": (start, "mlm_nsp", masking)
                for start in ("tuned", "frozen")
                for masking in _MASKINGS
            },
            score=("F1", "f1"),
        ),
        score="F1",
        base="80, 10, 10, tuned",
        keys=3,
        note="Percents of the predicted tokens that become [MASK], stay, or become a random word."
        " The task is to mark misspelt words, where the paper marks names; *frozen* is a linear"
        " classifier on the last states, where the paper has an LSTM on several layers. Models of"
        " 0.13 million parameters read bytes.",
    ),
    "lra1": TrainedTable(
        "ListOps: Tay et al. 2020, Table 1",
        "lra2020_table1.csv",
        "ListOps",
        Classifications(
            "listops",
            {"Transformer": "exact", "Local Attention": "window-16", "Reformer": "lsh-2"},
        ),
        score="accuracy",
        base="Transformer",
        not_comparable={"Reformer": "the paper's is another function"},
        note="Of at most 256 tokens at scale cpu, of 2000 at scale gpu, as in the paper. Local"
        " attention sees 16 tokens on either side, the paper's blocks. The paper's Reformer"
        " multiplies logits by √d, has no masks and a constant hash key, and reshapes heads without"
        " a transpose; ours is LSH attention.",
    ),
}
