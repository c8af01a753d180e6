"""Settings of `long_range`, checked before anything is made."""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp

from attnlab.mechanisms.attentions import (
    Surroundings,
    grammar,
    in_models,
    pattern,
    require_attention,
)
from attnlab.models.transformer import TransformerConfig
from attnlab.ops.routes import LSH
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import DTYPES, flag, format_value
from attnlab.training.flags import TrainFlags, preset_flag
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.schedules import fitted_warmup

TASKS = ("listops", "text", "retrieval")
STARTS = ("scratch", "pretrained")
# Tay et al. 2020, App. A, of ListOps: 2000 tokens, 6 layers 512 wide, 5000 steps of 32, with the
# learning rate of the released code.
_GPU = {
    "min_length": 500,
    "length": 2000,
    "num_layers": 6,
    "width": 512,
    "hidden": 2048,
    "num_heads": 8,
    "steps": 5000,
    "pretrain_steps": 5000,
    "learning_rate": 1.6e-3,
    "warmup_steps": 1000,
    "weight_decay": 0.1,
    "dropout_rate": 0.1,
    "chunk_size": 64,
    "validate_every": 500,
    "test_examples": 2000,
    "dtype": "bfloat16",
}
PRESETS = {"cpu": {}, "gpu": _GPU}


@dataclasses.dataclass(frozen=True)
class Settings(TrainFlags):
    """The flags of `long_range`, those of every training and its own."""

    without_workers = "examples are drawn here"
    presets = PRESETS

    preset: str = preset_flag(PRESETS)
    tasks: tuple[str, ...] = flag(
        ("listops",), f"Tasks: {', '.join(TASKS)}; text needs data.", choices=TASKS
    )
    mechanisms: tuple[str, ...] = flag(
        ("exact", "window-16", "lsh-2"),
        f"Attentions, a training each: {grammar(in_models())}; or a pattern that the layers "
        "repeat: window-16+exact.",
    )
    starts: tuple[str, ...] = flag(
        ("scratch",),
        "What a model begins as, a training each: scratch, or pretrained, which first predicts "
        "masked tokens of the same inputs, without their labels (Amos et al. 2024).",
        choices=STARTS,
    )
    train_file: str | None = flag(
        None,
        "Texts to train on: a label, a tab and a text in each line; .gz too.",
        is_path=True,
        needs="tasks=text",
        not_with="tfds_name",
    )
    validation_file: str | None = flag(
        None,
        "Texts to validate on. Without it: every tenth of --train_file.",
        is_path=True,
        needs="tasks=text",
        not_with="tfds_name",
    )
    test_file: str | None = flag(
        None, "Texts to test on.", is_path=True, needs="tasks=text", not_with="tfds_name"
    )
    tfds_name: str | None = flag(
        None,
        "Name of a prepared TFDS data set of texts and labels, in place of files.",
        needs="tasks=text",
    )
    data_dir: str = flag(
        "~/tensorflow_datasets", "Folder of the TFDS data sets.", needs="tfds_name"
    )
    pooling: str = flag(
        "first",
        "State that is classified: first, of a [CLS] token, or mean.",
        choices=("first", "mean"),
    )
    min_length: int = flag(
        32, "Number of tokens of the shortest ListOps example.", least=4, needs="tasks=listops"
    )
    length: int = flag(256, "Number of tokens of an input; longer texts are cut off.", least=8)
    num_layers: int = flag(2, "Number of layers.", least=1)
    width: int = flag(64, "Width of the model.", least=1)
    hidden: int = flag(128, "Hidden width of the feed-forward networks.", least=1)
    num_heads: int = flag(4, "Number of heads.", least=1)
    chunk_size: int = flag(16, "Number of slots of LSH that are attended together.", least=1)
    dropout_rate: float = flag(0.0, "Rate of dropout.", least=0, below=1)
    steps: int = flag(1000, "Number of steps.", least=1)
    pretrain_steps: int = flag(
        1000, "Number of steps before those, where pretrained.", least=1, needs="starts=pretrained"
    )
    mask_share: float = flag(
        0.15,
        "Share of an input's tokens that are masked before.",
        above=0,
        below=1,
        needs="starts=pretrained",
    )
    batch_size: int = flag(32, "Number of examples in a step, over all devices.", least=1)
    learning_rate: float = flag(1e-3, "Learning rate at its peak.", above=0)
    warmup_steps: int = flag(
        100, "Steps until the learning rate's peak. Without it: half of --steps at most.", least=1
    )
    weight_decay: float = flag(0.0, "Share of the parameters that a step takes off.", least=0)
    validate_every: int = flag(500, "Steps between validations, each with a checkpoint.", least=1)
    test_examples: int = flag(
        512,
        "Number of examples of the tests and validations that are drawn.",
        least=1,
        needs="tasks=listops or tasks=retrieval",
    )
    dtype: str = flag("float32", "Type of the activations.", choices=DTYPES)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.mechanisms:
            given = f"--mechanisms={format_value(self.mechanisms)}"
            require_attention(given, name, self.num_layers)
        if "listops" in self.tasks and self.min_length > self.length - 1:
            raise Invalid(
                f"--min_length={self.min_length}: examples have at most {self.length - 1} tokens "
                "beside [CLS]; give a smaller one"
            )
        has_files = self.train_file is not None and self.test_file is not None
        if "text" in self.tasks and not (has_files or self.tfds_name):
            raise Invalid(
                "--tasks=text needs data: give --train_file and --test_file, or --tfds_name alone"
            )
        if "pretrained" in self.starts:
            self.loop(seed=0, steps=self.pretrain_steps)
        for name in self.mechanisms:
            self.layers(name, vocab_size=1)

    def unmet_needs(self) -> Mapping[str, str]:
        """Of what is said of hashing: an attention that hashes."""
        unmet = dict(super().unmet_needs())
        if not any("lsh" in name for name in self.mechanisms):
            unmet["chunk_size"] = "lsh among --mechanisms"
        return unmet

    def layers(self, name: str, vocab_size: int) -> tuple[TransformerConfig, tuple[nn.Module, ...]]:
        """The configuration, and the attentions that the layers repeat."""
        config = TransformerConfig(
            vocab_size,
            num_layers=self.num_layers,
            width=self.width,
            hidden=self.hidden,
            num_heads=self.num_heads,
            pre_norm=True,
            activation=nn.gelu,
            dropout_rate=self.dropout_rate,
            dtype=jnp.dtype(self.dtype),
        )
        around = Surroundings(length=self.length, lsh=LSH(chunk_size=self.chunk_size))
        return config, pattern(name, config, around)

    def optimizer(self, steps: int) -> OptimizerSettings:
        """Adam whose learning rate falls with the root of the steps, as the paper's."""
        return OptimizerSettings(
            learning_rate=self.learning_rate,
            schedule="rsqrt",
            warmup_steps=fitted_warmup(self.warmup_steps, steps),
            weight_decay=self.weight_decay,
            b2=0.98,
            clip_norm=1.0,
        )
