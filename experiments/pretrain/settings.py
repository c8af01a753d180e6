"""Settings of `pretrain`, checked before anything is made."""

import dataclasses
import re

from attnlab.mechanisms.attentions import grammar, in_models
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import DTYPES, flag
from attnlab.training.flags import TrainFlags, preset_flag
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.pretrained import TOKENIZERS, BertSizes

OBJECTIVES = ("mlm_nsp", "mlm")

# BERT small: 29 million parameters at 32,000 ids.
_GPU = {
    "tokenizer": "sentencepiece",
    "attention": "exact",
    "num_layers": 4,
    "width": 512,
    "hidden": 2048,
    "num_heads": 8,
    "vocab_size": 32000,
    "length": 128,
    "max_length": 512,
    "batch_size": 256,
    "steps": 100_000,
    "learning_rate": 5e-4,
    "warmup_steps": 10_000,
    "validate_every": 5000,
    "dropout_rate": 0.1,
    "init_stddev": 0.02,
    "dtype": "bfloat16",
}
# Devlin et al. 2018, §A.2: base, 256 sequences of 128 tokens for 900,000 steps; the last 100,000
# are a second run with --init_from=RUN --length=512. 4 days on 16 TPU chips; BooksCorpus and
# Wikipedia, 3.3 billion words.
_PAPER = _GPU | {
    "num_layers": 12,
    "width": 768,
    "hidden": 3072,
    "num_heads": 12,
    "vocab_size": 30522 - 1,  # and [MASK]
    "steps": 900_000,
    "learning_rate": 1e-4,
}
PRESETS = {"cpu": {}, "gpu": _GPU, "paper": _PAPER}


@dataclasses.dataclass(frozen=True)
class Settings(TrainFlags):
    """The flags of `pretrain`, those of every training and its own."""

    without_workers = "pairs are drawn here"
    presets = PRESETS

    preset: str = preset_flag(PRESETS)
    input: str | None = flag(
        None, "A file of text: a sentence a line, blank lines between documents.", is_path=True
    )
    held_out: float = flag(
        0.1, "Share of the documents, the last ones, to validate on.", above=0, below=1
    )
    tokenizer: str = flag("bytes", f"What a token is: {', '.join(TOKENIZERS)}.", choices=TOKENIZERS)
    vocab_size: int = flag(
        2000, "Number of ids of sentencepiece, without [MASK].", least=5, not_with="tokenizer=bytes"
    )
    objective: tuple[str, ...] = flag(
        ("mlm_nsp",),
        "Objectives, a training each: mlm_nsp (masked tokens and following segments), mlm (masked "
        "tokens alone, of the same pairs).",
        choices=OBJECTIVES,
    )
    masking: tuple[str, ...] = flag(
        ("80/10/10",),
        "Maskings, a training each: percents of predicted tokens that [MASK] replaces, that stay, "
        "and that a random word replaces.",
    )
    init_from: str | None = flag(
        None, "Folder of a pretrain run with the same sizes to start from.", is_path=True
    )
    steps: int = flag(1000, "Number of steps.", least=1)
    batch_size: int = flag(32, "Number of pairs in a step, over all devices.", least=1)
    length: int = flag(64, "Number of tokens of a pair.", least=5)
    max_length: int | None = flag(
        None, "Number of positions of the model. Without it: --length.", least=5
    )
    max_predictions: int | None = flag(
        None, "Tokens of a pair that are predicted at most. Without it: 15 % of --length.", least=1
    )
    learning_rate: float = flag(3e-3, "Learning rate at its peak.", above=0)
    warmup_steps: int = flag(
        100, "Steps until the learning rate's peak. Without it: half of --steps at most.", least=0
    )
    validate_every: int = flag(500, "Steps between validations, each with a checkpoint.", least=1)
    num_layers: int = flag(2, "Number of layers.", least=1)
    width: int = flag(64, "Width of the model.", least=1)
    hidden: int = flag(256, "Hidden width of the feed-forward networks.", least=1)
    num_heads: int = flag(4, "Number of heads.", least=1)
    dropout_rate: float = flag(0.0, "Rate of dropout; the paper has 0.1.", least=0, below=1)
    init_stddev: float = flag(
        0.1,
        "Standard deviation that matrices begin with; the paper has 0.02, of a wider model.",
        above=0,
    )
    attention: str = flag(
        "window-4+exact",
        f"Attention: {grammar(in_models())}; or a pattern that the layers repeat: window-4+exact.",
    )
    dtype: str = flag("float32", "Type of the activations.", choices=DTYPES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input is None:
            raise Invalid("--input: give a file of text, with blank lines between documents")
        for masking in self.masking:
            whole = re.fullmatch(r"(0|[1-9]\d*)(/(0|[1-9]\d*)){2}", masking)
            if not whole or sum(map(int, masking.split("/"))) != 100:
                raise Invalid(
                    f"--masking={masking}: give percents of [MASK], same and random words that "
                    "make 100, such as 80/10/10"
                )
        if self.max_length is not None and self.max_length < self.length:
            raise Invalid(
                f"--length={self.length}: pairs are longer than the model's --max_length="
                f"{self.max_length} positions; give shorter pairs"
            )
        self.sizes()

    def sizes(self) -> BertSizes:
        """The sizes of all models."""
        names = [field.name for field in dataclasses.fields(BertSizes)]
        sizes = {name: getattr(self, name) for name in names}
        return BertSizes(**sizes | {"max_length": self.max_length or self.length})

    def optimizer(self) -> OptimizerSettings:
        """Adam as released."""
        return OptimizerSettings.bert(self.learning_rate, self.warmup_steps)
