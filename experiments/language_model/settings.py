"""Settings of `language_model`, checked before anything is made."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from attnlab.mechanisms.attentions import REFORMER, grammar, in_models, require_model
from attnlab.mechanisms.own import mentions_own
from attnlab.models.transformer.config import POSITION_BIASES
from attnlab.runs.errors import Invalid
from attnlab.runs.flags import DTYPES, flag, format_value
from attnlab.training.flags import TrainFlags, preset_flag, seeds_flag
from attnlab.training.optimizers import SCHEDULES, OptimizerSettings
from experiments.language_model.models import Sizes, build, rounds_of, shares_qk

VOCABULARIES = ("bytes", "characters")
TASKS = ("text", "copy")
COPY_LAYERS = 1  # of the models that learn to copy: the proof is that one finds what is far
# What flags need that one task alone reads.
_TEXT = "tasks=text"
_COPY = "tasks=copy"

# 19 million parameters and 1.3 billion tokens, 14 times enwik8's training part.
_GPU = {
    "lengths": (1024, 4096, 16384, 65536),
    "num_layers": 6,
    "num_heads": 8,
    "hidden": 2048,
    "batch_tokens": 65536,
    "steps": 20_000,
    "learning_rate": 1e-3,
    "warmup_steps": 1000,
    "validate_every": 2000,
    "dropout_rate": 0.1,
    "dtype": "bfloat16",
}
# Kitaev et al. 2020, §5, enwik8-64K, as the authors' configuration of January 2020 has it (Trax,
# 915b3f78): 12 layers, width 1024, 8 heads of 128, d_ff 4096, 2 rounds, chunks of 256, Adam with
# 0.03125 · min(step / 2000, 1) · max(step, 2000)^−½, 8 windows of 64K bytes a step. Three layers of
# four are local, here each query's last 128 tokens, there its chunk of 128 and the one before. The
# paper's result is 1.05 bits per byte of the test part after further tuning, 1.19 after 20,000
# steps.
_PAPER = {
    "models": ("chunked-reversible-window-128+window-128+lsh-2+window-128",),
    "lengths": (65536,),
    "seeds": (0,),
    "num_layers": 12,
    "num_heads": 8,
    "head_dim": 128,
    "hidden": 4096,
    "chunk_size": 256,
    "positions": "axial",
    "axial_shape": (128, 512),
    "axial_widths": (256, 768),
    "batch_tokens": 8 * 65536,
    "steps": 100_000,
    "learning_rate": 0.03125 * 2000**-0.5,
    "schedule": "rsqrt",
    "warmup_steps": 2000,
    "b2": 0.98,
    "epsilon": 1e-9,
    "clip_norm": 0.0,
    "validate_every": 5000,
    "dropout_rate": 0.2,
    "attention_dropout_rate": 0.2,
    "dtype": "bfloat16",
    "tasks": ("text",),
}
PRESETS = {"cpu": {}, "gpu": _GPU, "paper": _PAPER}


@dataclasses.dataclass(frozen=True)
class Settings(TrainFlags):
    """The flags of `language_model`, those of every training and its own."""

    without_workers = "windows are cut from memory"
    presets = PRESETS

    preset: str = preset_flag(PRESETS)
    input: str | None = flag(
        None, "A file of text. Without it: the project's own sources.", is_path=True, needs=_TEXT
    )
    vocabulary: str = flag(
        "bytes", f"What a token is: {', '.join(VOCABULARIES)}.", choices=VOCABULARIES, needs=_TEXT
    )
    models: tuple[str, ...] = flag(
        ("exact", "shared", "window-128", "lsh-1", "lsh-2", "lsh-4", "lsh-8"),
        f"Models, by their attention: {grammar(in_models())}; patterns that the layers repeat, "
        "such as window-128+lsh-4; reversible-MODEL, of layers that keep no activations; chunked-"
        "MODEL, with feed-forward networks for 1024 positions at a time; and reformer, "
        f"{REFORMER}.",
        needs=_TEXT,
    )
    lengths: tuple[int, ...] = flag(
        (512, 1024, 2048), "Tokens in a window; 4k is 4096.", least=2, needs=_TEXT
    )
    seeds: tuple[int, ...] = seeds_flag((0, 1, 2))
    tasks: tuple[str, ...] = flag(
        TASKS,
        "What is learnt: text, by --models at --lengths, and a copy across --copy_distance tokens, "
        "by --copy_models with the first of --seeds.",
        choices=TASKS,
    )
    steps: int = flag(1000, "Number of steps of a training.", least=1, needs=_TEXT)
    batch_size: int | None = flag(
        None,
        "Number of windows in a step, over all devices. Without it: what --batch_tokens makes.",
        least=1,
        needs=_TEXT,
    )
    batch_tokens: int = flag(
        2048,
        "Tokens in a step, the same at every length.",
        least=1,
        not_with="batch_size",
        needs=_TEXT,
    )
    learning_rate: float = flag(3e-3, "Learning rate at its peak.", above=0, needs=_TEXT)
    schedule: str = flag(
        "linear", "Course of the learning rate behind its warm-up.", choices=SCHEDULES, needs=_TEXT
    )
    warmup_steps: int = flag(
        100,
        "Steps until the learning rate's peak. Without it: half of --steps at most.",
        least=1,
        needs=_TEXT,
    )
    b2: float = flag(0.98, "Decay of Adam's second moment.", above=0, below=1, needs=_TEXT)
    epsilon: float = flag(1e-8, "Epsilon of Adam.", above=0, needs=_TEXT)
    clip_norm: float = flag(
        1.0, "Largest norm of the gradient; 0 = no limit.", least=0, needs=_TEXT
    )
    validate_every: int = flag(
        250, "Steps between validations, each with a checkpoint.", least=1, needs=_TEXT
    )
    num_layers: int = flag(2, "Layers of a model.", least=1, needs=_TEXT)
    num_heads: int = flag(
        2, "Heads of a layer; the width is num_heads * head_dim.", least=1, needs=_TEXT
    )
    head_dim: int = flag(64, "Width of one head.", least=1, needs=_TEXT)
    hidden: int = flag(512, "Hidden width of the feed-forward network.", least=1, needs=_TEXT)
    positions: str = flag(
        "rotary",
        "Kind of positions: rotary, sinusoid, learned, axial; alibi and relative are biases of the "
        "logits, which models of exact attention and windows take.",
        choices=("rotary", "sinusoid", "learned", "axial", *POSITION_BIASES),
        needs=_TEXT,
    )
    axial_shape: tuple[int, ...] = flag(
        (),
        "Rows of the tables of axial positions; their product is the length.",
        least=1,
        twice=True,
        needs=(_TEXT, "positions=axial"),
    )
    axial_widths: tuple[int, ...] = flag(
        (),
        "Widths of these tables; their sum is the model's width.",
        least=1,
        twice=True,
        needs=(_TEXT, "positions=axial"),
    )
    dropout_rate: float = flag(0.0, "Rate of dropout.", least=0, below=1, needs=_TEXT)
    attention_dropout_rate: float = flag(
        0.0, "Rate of dropout on the weights.", least=0, below=1, needs=_TEXT
    )
    chunk_size: int = flag(64, "Chunk length of lsh, in slots of sorted order.", least=1)
    dtype: str = flag("float32", "Type of the activations.", choices=DTYPES)
    eval_rounds: tuple[int, ...] = flag(
        (1, 2, 4, 8), "Rounds that each trained lsh is evaluated with.", least=1, needs=_TEXT
    )
    equal_bits: float = flag(
        0.01,
        "A model counts as equal to exact attention where its extra bits per byte are at most "
        "this, up to the upper end of their 95 % interval over three seeds at least.",
        least=0,
        needs=_TEXT,
    )
    copy_models: tuple[str, ...] = flag(
        ("window-128", "lsh-4"),
        "Models that learn to copy across --copy_distance tokens.",
        needs=_COPY,
    )
    copy_distance: int = flag(
        1024, "Tokens across which the copy task copies.", least=17, needs=_COPY
    )
    copy_steps: int = flag(600, "Number of steps on the copy task.", least=1, needs=_COPY)

    def __post_init__(self) -> None:
        super().__post_init__()
        for flags, num_layers in (("models", self.num_layers), ("copy_models", COPY_LAYERS)):
            for name in getattr(self, flags):
                require_model(f"--{flags}={format_value(getattr(self, flags))}", name, num_layers)
        hashing = [name for name in self.models if shares_qk(name)]
        if hashing and self.positions in POSITION_BIASES:
            raise Invalid(
                f"--positions={self.positions}: LSH takes no bias of the logits; give other "
                f"--positions, or --models without {', '.join(hashing)}"
            )
        if "text" in self.tasks:
            self.batch_sizes()
        for length in self.lengths:
            self.sizes().config(vocab_size=1, length=length)
            for name in filter(mentions_own, (*self.models, *self.copy_models)):
                build(name, self.sizes(), vocab_size=1, length=length)

    @classmethod
    def fitted(cls, preset: Mapping[str, Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
        """The preset's values, without its tables where other positions are named."""
        if named.get("positions", "axial") != "axial":
            preset = {name: x for name, x in preset.items() if not name.startswith("axial_")}
        return super().fitted(preset, named)

    def unmet_needs(self) -> Mapping[str, str]:
        """Of what is said of hashing: a model that hashes."""
        unmet = dict(super().unmet_needs())
        in_text = "text" in self.tasks and any(map(rounds_of, self.models))
        in_copy = "copy" in self.tasks and any(map(rounds_of, self.copy_models))
        if not in_text:
            unmet["eval_rounds"] = "lsh among --models"
        if not (in_text or in_copy):
            unmet["chunk_size"] = "lsh among the models"
        return unmet

    def batch_sizes(self) -> dict[int, int]:
        """The number of windows in a step, by length."""
        for length in self.lengths:
            if self.batch_size is None and self.batch_tokens % length:
                raise Invalid(
                    f"--batch_tokens={self.batch_tokens}: give a multiple of all --lengths, such "
                    f"as of {length}, so that all see as many tokens; or give --batch_size"
                )
        return {n: self.batch_size or self.batch_tokens // n for n in self.lengths}

    def sizes(self) -> Sizes:
        """The sizes of all models."""
        names = [field.name for field in dataclasses.fields(Sizes)]
        return Sizes(**{name: getattr(self, name) for name in names})

    def optimizer(self) -> OptimizerSettings:
        """Adam, as the flags say."""
        names = ("learning_rate", "schedule", "warmup_steps", "b2", "epsilon", "clip_norm")
        return OptimizerSettings(**{name: getattr(self, name) for name in names})

    def evaluated_rounds(self, name: str) -> list[int]:
        """The other numbers of rounds that a trained model is evaluated with."""
        own = rounds_of(name)
        return [] if own is None else [n for n in self.eval_rounds if n != own]
