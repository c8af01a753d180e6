"""A fixed vector against attention, by the length of the source (Bahdanau 2014, Figure 2).

RNNencdec and RNNsearch with the same sizes learn to copy, or to turn round, random words of 1 to
`max_length` symbols. Random symbols can only be right if the source was kept: there is no language
to guess them from. What a vector of n numbers can hold does not grow with the source; attention
reads the source itself.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.data.batching import evaluation_batches, train_batches
from attnlab.data.tasks import Copy, Reversal, SymbolTask
from attnlab.data.tokenizers import Numbers
from attnlab.models.seq2seq import Seq2Seq
from attnlab.runs.command_line import check_seed
from attnlab.runs.errors import Invalid
from attnlab.training.decode import greedy
from attnlab.training.loop import LoopSettings, Task, Trained, train
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.optimizers import OptimizerSettings
from attnlab.training.parallel import parallel_over
from experiments.length_effect.report import Row, write_report
from experiments.translate.interrupts import until_stopped
from experiments.translate.recipes import PRESETS
from experiments.translate.report import environment
from experiments.translate.run_folder import command, make_folder, plain, require_same
from experiments.translate.systems import TITLES, build

__all__ = ["MODELS", "RESULTS", "TASKS", "Settings", "run", "symbols_right"]

MODELS = ("rnn_encdec", "rnn_search")
TASKS: Mapping[str, type[SymbolTask]] = {"copy": Copy, "reversal": Reversal}
RESULTS = "results.jsonl"
TRAINING, VALIDATION, TEST = range(3)  # added to the seed of a task


@dataclasses.dataclass(frozen=True)
class Settings:
    """The flags of `length_effect`.

    Attributes:
      task: a name of `TASKS`.
      num_symbols: that words are made of.
      max_length: symbols of the longest word in training; all lengths are as frequent.
      lengths: symbols of the words that are tested.
      examples: words of each length.
      embed_features: width of the embeddings.
      hidden_features: n, the width of a state, and so of the fixed vector.
      steps: of training.
      batch_size: words in a step.
      learning_rate: at its peak.
      validate_every: steps, each with a checkpoint.
      seed: of parameters and words.
    """

    task: str = "copy"
    num_symbols: int = 20
    max_length: int = 30
    lengths: tuple[int, ...] = (5, 10, 15, 20, 25, 30, 35, 40, 50, 60)
    examples: int = 200
    embed_features: int = 64
    hidden_features: int = 128
    steps: int = 3000
    batch_size: int = 64
    learning_rate: float = 3e-3
    validate_every: int = 500
    seed: int = 0

    def __post_init__(self):
        """Checks each value.

        Raises:
          Invalid: one is not valid; the message begins with the flag.
        """
        if self.task not in TASKS:
            raise Invalid(f"--task={self.task}: not known; the names are {', '.join(TASKS)}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < (least := int(field.name != "seed")):
                raise Invalid(f"--{field.name}={value}: give at least {least}")
        check_seed(self.seed)
        if not 0 < self.learning_rate < math.inf:
            given = f"--learning_rate={self.learning_rate:g}"
            raise Invalid(f"{given}: give more than 0, and a finite number")
        rising = sorted(set(self.lengths))
        if not rising or list(self.lengths) != rising or rising[0] < 1:
            given = ",".join(map(str, self.lengths))
            raise Invalid(f"--lengths={given}: give lengths of at least 1 that rise")

    def words(self, shortest: int, longest: int, part: int, size: int | None = None) -> SymbolTask:
        """Words of the task; those of each part are drawn anew."""
        sized = {} if size is None else {"size": size}
        seed = 3 * self.seed + part
        return TASKS[self.task](self.num_symbols, shortest, longest, seed=seed, **sized)


def run(
    settings: Settings,
    output_dir: Path,
    *,
    resume: str = "",
    say: Callable[[str], None] = print,
) -> int:
    """Trains both models, tests them length by length, and reports.

    Args:
      settings: what to do.
      output_dir: where a fresh folder is made.
      resume: a folder of this job instead; what was trained in it is not trained again.
      say: takes a line for the user.

    Returns:
      The exit status: 0, also after SIGTERM, or 130 after Ctrl-C.

    Raises:
      Invalid: the folder cannot be made, or was made with other settings.
      Diverged: a loss is not finite.
    """
    if resume:
        require_same(resume, settings)
    folder = Path(resume) if resume else make_folder("length_effect", settings, output_dir)
    say(f"results: {folder}")

    where = {"flags": plain(settings), "environment": environment()}

    def work() -> signal.Signals | None:
        rows: list[Row] = []
        for name in MODELS:
            say(f"\n{TITLES[name]}")
            model, trained = _train(name, settings, folder / name, say)
            if trained.stopped_by is not None:
                return trained.stopped_by
            for row in measure(name, model, trained, settings):
                rows.append(row)
                say(row.line())
            kept = [json.dumps(dataclasses.asdict(row) | where) + "\n" for row in rows]
            (folder / RESULTS).write_text("".join(kept), encoding="utf-8")
        report = write_report(rows, folder, command=command("length_effect", settings), **where)
        say(f"\nreport: {report}")
        return None

    go_on = shlex.join(["launch/local", "length_effect", f"--resume={folder}"])
    return until_stopped(work, go_on=go_on, say=say)


def _train(
    name: str, settings: Settings, folder: Path, say: Callable[[str], None]
) -> tuple[Seq2Seq, Trained]:
    tokenizer = Numbers(settings.num_symbols + 1)
    longest = settings.max_length
    width, embed = settings.hidden_features, settings.embed_features
    widths = {"hidden_features": width, "align_features": width}
    widths |= {"embed_features": embed, "maxout_features": embed}
    of_dates = PRESETS["dates"].recipes[name].sizes
    model = build(
        name,
        {key: widths.get(key, x) for key, x in of_dates.items()},
        source_vocab_size=tokenizer.vocab_size,
        target_vocab_size=tokenizer.vocab_size,
        dtype="float32",
    )
    batches = train_batches(
        settings.words(1, longest, TRAINING),
        tokenizer,
        tokenizer,
        batch_size=settings.batch_size,
        max_length=longest + 1,  # and EOS
        seed=settings.seed,
    )
    held_out = settings.words(1, longest, VALIDATION, size=4 * settings.batch_size)
    validation = [
        batch
        for _, batch in evaluation_batches(
            held_out, tokenizer, tokenizer, batch_size=settings.batch_size
        )
    ]
    folder.mkdir(exist_ok=True)
    identity = {"model": name, **plain(settings)}
    trained = train(
        Task(model, TokenCrossEntropy(), batches, lambda: validation, identity),
        settings=LoopSettings(
            steps=settings.steps,
            log_every=100,
            validate_every=settings.validate_every,
            checkpoint_every=settings.validate_every,
            seed=settings.seed,
        ),
        optimizer=OptimizerSettings(
            learning_rate=settings.learning_rate,
            schedule="linear",
            warmup_steps=min(100, settings.steps // 2),
            b2=0.98,
            clip_norm=1.0,
        ),
        parallel=parallel_over("jit", jax.devices()[:1]),
        folder=folder,
        say=say,
    )
    return model, trained


def measure(name: str, model: Seq2Seq, trained: Trained, settings: Settings) -> list[Row]:
    """A row a length: what a trained model makes of words that it has not seen."""
    tokenizer = Numbers(settings.num_symbols + 1)
    longest = settings.lengths[-1]
    rows = []
    for length in settings.lengths:
        words = settings.words(length, length, TEST, size=settings.examples)
        ((_, batch),) = evaluation_batches(
            words,
            tokenizer,
            tokenizer,
            batch_size=settings.examples,
            pad_to=longest + 1,  # one shape, one compilation
        )
        source = jnp.asarray(batch["source"])
        found = greedy(model, trained.variables, source, max_length=2 * longest + 1)
        wanted = [tokenizer.decode(row).split() for row in batch["target"].tolist()]
        written = [tokenizer.decode(row).split() for row in np.asarray(found.tokens).tolist()]
        pairs = list(zip(written, wanted, strict=True))
        rows.append(
            Row(
                model=TITLES[name],
                length=length,
                examples=len(pairs),
                exact_match=float(np.mean([a == b for a, b in pairs])),
                symbols_right=float(np.mean([symbols_right(a, b) for a, b in pairs])),
                parameters=sum(x.size for x in jax.tree.leaves(trained.params)),
                step=trained.step,
                seconds=trained.seconds,
            )
        )
    return rows


def symbols_right(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """1 − edit distance / length of what is wanted, at least 0.

    The edit distance is the fewest insertions, deletions and replacements (Levenshtein 1966), so
    that one symbol left out costs one symbol, not all that follow.

    Cost: O(T·S).

    >>> symbols_right("4 1 9 9".split(), "4 9 9 2".split())
    0.5
    """
    distances = list(range(len(wanted) + 1))
    for i, a in enumerate(found, 1):
        diagonal, distances[0] = distances[0], i
        for j, b in enumerate(wanted, 1):
            best = min(diagonal + (a != b), distances[j] + 1, distances[j - 1] + 1)
            diagonal, distances[j] = distances[j], best
    return max(0.0, 1 - distances[-1] / len(wanted))
