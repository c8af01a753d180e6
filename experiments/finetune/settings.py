"""Settings of `finetune`, checked before anything is made."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from attnlab.runs.errors import Invalid
from attnlab.runs.flags import flag, format_value
from attnlab.training.flags import TrainFlags, seeds_flag
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.pretrained import TOKENIZERS, BertSizes
from experiments.finetune.made import MADE, TASK_OF

TASKS = ("classify", "tag", "span")
STARTS = ("tuned", "frozen", "scratch")
_SIZES = ("num_layers", "width", "hidden", "num_heads", "max_length")


@dataclasses.dataclass(frozen=True)
class Settings(TrainFlags):
    """The flags of `finetune`, those of every training and its own."""

    without_workers = "examples are encoded at once"

    task: str = flag("classify", f"Kind of task: {', '.join(TASKS)}.", choices=TASKS)
    train_file: str | None = flag(
        None, "Labelled examples to train on.", is_path=True, not_with="made"
    )
    dev_file: str | None = flag(
        None,
        "Labelled examples to choose a checkpoint on, of the same shape.",
        is_path=True,
        not_with="made",
    )
    test_file: str | None = flag(
        None, "Labelled examples to test on. Without it: --dev_file.", is_path=True, not_with="made"
    )
    columns: tuple[str, ...] = flag(
        (),
        "Names, or numbers without a header, of the columns with the text or both texts, and of "
        "the label, the last. Without it: the usual ones of GLUE.",
        needs="task=classify",
        not_with="made",
    )
    made: str | None = flag(
        None,
        f"Task that is made of --input, in place of files: {', '.join(MADE)}.",
        choices=MADE,
        needs="input",
    )
    input: str | None = flag(
        None, "Text for --made, as `pretrain` has it.", is_path=True, needs="made"
    )
    train_examples: int = flag(1000, "Examples of --made to train on.", least=1, needs="made")
    test_examples: int = flag(1000, "Examples of --made to test on.", least=1, needs="made")
    held_out: float = flag(
        0.1,
        "Share of the documents that --made tests on, the last ones.",
        above=0,
        below=1,
        needs="made",
    )
    init_from: tuple[str, ...] = flag(
        (), "Folders of runs of `pretrain`, whose models are trained on the task.", is_path=True
    )
    starts: tuple[str, ...] = flag(
        (),
        "What is trained: tuned (all of a pre-trained model), frozen (a classifier on its states), "
        "scratch (a model that was not pre-trained). Without it: tuned,scratch, or scratch.",
        choices=STARTS,
    )
    seeds: tuple[int, ...] = seeds_flag(
        (0,),
        "Seeds; each trains a model that was pre-trained with the same seed, if there are several.",
    )
    steps: int | None = flag(None, "Number of steps. Without it: those of --epochs.", least=1)
    epochs: int = flag(
        3, "Epochs, where --steps is not given; the paper has 2 to 4.", least=1, not_with="steps"
    )
    validate_every: int | None = flag(
        None,
        "Number of steps between validations, each with a checkpoint. Without it: a fifth of all, "
        "with --plateau a tenth.",
        least=1,
    )
    batch_size: int = flag(32, "Number of examples in a step; the paper has 16 or 32.", least=1)
    learning_rate: float = flag(
        5e-5, "Learning rate at its peak; the paper has 5e-5, 3e-5 or 2e-5.", above=0
    )
    frozen_learning_rate: float = flag(
        1e-2, "Learning rate of a frozen model's classifier.", above=0, needs="starts=frozen"
    )
    cut: bool = flag(False, "Whether examples that are too long lose their end.")
    tokenizer: str = flag(
        "sentencepiece",
        "Of a run without --init_from: what a token is.",
        choices=TOKENIZERS,
        not_with="init_from",
    )
    vocab_size: int = flag(
        2000,
        "Likewise: number of ids of sentencepiece.",
        least=5,
        not_with=("init_from", "tokenizer=bytes"),
    )
    num_layers: int = flag(2, "Likewise: number of layers.", least=1, not_with="init_from")
    width: int = flag(128, "Likewise: width of the model.", least=1, not_with="init_from")
    hidden: int = flag(
        512, "Likewise: hidden width of the feed-forward networks.", least=1, not_with="init_from"
    )
    num_heads: int = flag(4, "Likewise: number of heads.", least=1, not_with="init_from")
    max_length: int = flag(128, "Likewise: number of positions.", least=5, not_with="init_from")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.made is None and (self.train_file is None or self.dev_file is None):
            raise Invalid("give --train_file and --dev_file, or --made=TASK and --input")
        if self.columns and len(self.columns) not in (2, 3):
            raise Invalid(
                f"--columns={format_value(self.columns)}: give TEXT,LABEL or FIRST,SECOND,LABEL"
            )
        self.sizes()

    def unmet_needs(self) -> Mapping[str, str]:
        """Of tasks, starts and their learning rates."""
        unmet = dict(super().unmet_needs())
        if self.made is not None and self.task != self.kind:
            unmet["task"] = f"another --made, as {self.made} is {self.kind}"
        if self.starts and not self.init_from and set(self.starts) != {"scratch"}:
            unmet["starts"] = "--init_from, a run of `pretrain`"
        if set(self.started()) == {"frozen"}:
            unmet["learning_rate"] = "other --starts, as that of frozen is --frozen_learning_rate"
        return unmet

    @property
    def kind(self) -> str:
        """The kind of task, also of one that is made."""
        return self.task if self.made is None else TASK_OF[self.made]

    def started(self) -> tuple[str, ...]:
        """What is trained."""
        return self.starts or (("tuned", "scratch") if self.init_from else ("scratch",))

    def path_of(self, split: str) -> Path:
        """The file of a split, "train", "dev" or "test"."""
        path = getattr(self, f"{split}_file") or self.dev_file
        assert path is not None
        return Path(path)

    def sizes(self) -> BertSizes:
        """The sizes of a model that no run of `pretrain` gives."""
        return BertSizes(**{name: getattr(self, name) for name in _SIZES})

    def optimizer(self, *, frozen: bool, steps: int) -> OptimizerSettings:
        """Adam as released, with a tenth of the steps as warm-up; a frozen model does not decay."""
        rate = self.frozen_learning_rate if frozen else self.learning_rate
        made = OptimizerSettings.bert(rate, steps // 10)
        # What gets no gradient would be decayed all the same.
        return dataclasses.replace(made, weight_decay=0.0) if frozen else made
