"""The translation experiment: train each model on the same pairs, then compare them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from attnlab.data.batching import evaluation_batches, train_batches
from attnlab.data.encoding import count_too_long
from attnlab.models.seq2seq import Seq2Seq
from attnlab.records.errors import Invalid
from attnlab.records.folders import fresh_folder
from attnlab.training.checkpoint import difference
from attnlab.training.loop import LoopSettings, Trained, train
from attnlab.training.parallel import Parallel, parallel_over
from attnlab.training.tensorboard import TensorBoard
from attnlab.translation.corpus import Corpus, open_corpus
from attnlab.translation.report import evaluated, write_report
from attnlab.translation.settings import Settings
from attnlab.translation.systems import TITLES, build

__all__ = ["SETTINGS", "open_folder", "run", "saved_settings"]

SETTINGS = "settings.json"
INTERRUPTED = 130


def run(
    settings: Settings,
    folder: Path,
    *,
    published: Path,
    command: str,
    say: Callable[[str], None] = print,
) -> int:
    """Trains, evaluates and reports.

    Args:
      settings: what to do.
      folder: of this run, from `open_folder`; what was done in it before is not done again.
      published: the folder of the papers' tables.
      command: what the user typed.
      say: takes a line for the user.

    Returns:
      The exit status: 0, also after SIGTERM, or 130 after Ctrl-C.

    Raises:
      Invalid: settings and data do not fit.
      Diverged: a loss is not finite.
    """
    preset = settings.chosen_preset()
    devices = jax.devices()[: settings.devices or None]
    if settings.devices > len(devices):
        raise Invalid(f"--devices={settings.devices}: there are {len(devices)}")
    parallel = parallel_over(settings.parallel, devices)
    for name in preset.models:
        rows = settings.recipe(name).batch_size
        if rows % (len(devices) * settings.accumulate):
            raise Invalid(
                f"--batch_size={rows}: give a multiple of devices × accumulate = "
                f"{len(devices)} × {settings.accumulate}"
            )
    corpus = open_corpus(settings)
    _say_corpus(corpus, preset.max_length, say)
    results = []
    for name in preset.models:
        say(f"\n{TITLES[name]}")
        model, trained = _train(name, settings, corpus, parallel, folder / name, say)
        if trained.stopped_by is not None:
            say(f"{trained.stopped_by.name} after step {trained.steps}: saved; to go on:")
            say(f"    translate --resume={folder}")
            return INTERRUPTED if trained.stopped_by.name == "SIGINT" else 0
        results.append(evaluated(name, model, trained, corpus, preset, folder / name))
        say(results[-1].line())
    report = write_report(results, corpus, preset, folder, published=published, command=command)
    say(f"\nreport: {report}")
    return 0


def _train(
    name: str,
    settings: Settings,
    corpus: Corpus,
    parallel: Parallel,
    folder: Path,
    say: Callable[[str], None],
) -> tuple[Seq2Seq, Trained]:
    preset, recipe = settings.chosen_preset(), settings.recipe(name)
    sizes = (corpus.source_tokenizer.vocab_size, corpus.target_tokenizer.vocab_size)
    model = build(
        name,
        recipe.sizes,
        source_vocab_size=sizes[0],
        target_vocab_size=sizes[1],
        dtype=preset.dtype,
    )
    tokenizers = (corpus.source_tokenizer, corpus.target_tokenizer)
    processes = {"process_index": jax.process_index(), "process_count": jax.process_count()}
    batches = train_batches(
        corpus.splits["train"],
        *tokenizers,
        batch_size=recipe.batch_size,
        max_length=preset.max_length,
        seed=settings.seed,
        **processes,
    )
    validation = [
        {key: x[jax.process_index() :: jax.process_count()] for key, x in batch.items()}
        for _, batch in evaluation_batches(
            corpus.splits["validation"], *tokenizers, batch_size=recipe.batch_size
        )
    ]
    configuration = {
        "model": name,
        "recipe": _plain(recipe),
        "corpus": corpus.identity(),
        "seed": settings.seed,
        "max_length": preset.max_length,
        "validate_every": preset.validate_every,
        "log_every": settings.log_every,
        "accumulate": settings.accumulate,
        "dtype": preset.dtype,
    }
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        board = stack.enter_context(TensorBoard(folder)) if settings.tensorboard else None
        trained = train(
            model,
            batches,
            lambda: validation,
            settings=LoopSettings(
                steps=recipe.steps,
                log_every=settings.log_every,
                validate_every=preset.validate_every,
                checkpoint_every=settings.checkpoint_every or preset.validate_every,
                label_smoothing=recipe.label_smoothing,
                accumulate=settings.accumulate,
                seed=settings.seed,
            ),
            optimizer=recipe.optimizer,
            parallel=parallel,
            folder=folder,
            configuration=configuration,
            on_row=None if board is None else board.add,
            say=say,
        )
    return model, trained


def open_folder(settings: Settings, output_dir: Path, resume: str) -> Path:
    """The folder of the run: a fresh one, or one that is resumed.

    Raises:
      Invalid: it cannot be made, is none of this job's, or was made with other settings.
    """
    if not resume:
        folder = fresh_folder(output_dir, "translate")
        (folder / SETTINGS).write_text(json.dumps(_plain(settings), indent=2) + "\n")
        return folder
    found = saved_settings(resume)
    if found != settings:
        raise Invalid(
            f"--resume={resume} was made with other settings: "
            f"{difference(_plain(found), _plain(settings))}; leave these flags out"
        )
    return Path(resume)


def saved_settings(folder: str) -> Settings:
    """The settings that a folder was made with.

    Raises:
      Invalid: it is no folder of this job.
    """
    try:
        found = json.loads((Path(folder) / SETTINGS).read_text(encoding="utf-8"))
        values: dict[str, Any] = {
            name: tuple(x) if isinstance(x, list) else x for name, x in found.items()
        }
        return Settings(**values)
    except (OSError, ValueError, TypeError):
        raise Invalid(
            f"--resume={folder}: no {SETTINGS} of this job there; give a folder that it made"
        ) from None


def _plain(settings: Any) -> dict[str, Any]:
    """A dataclass as JSON has it; functions by their names."""
    return json.loads(
        json.dumps(dataclasses.asdict(settings), default=lambda x: getattr(x, "__name__", repr(x)))
    )


def _say_corpus(corpus: Corpus, max_length: int, say: Callable[[str], None]) -> None:
    train_split = corpus.splits["train"]
    left_out, looked_at = count_too_long(
        train_split, corpus.source_tokenizer, corpus.target_tokenizer, max_length, sample=2000
    )
    counts = ", ".join(f"{name} {len(split):,}" for name, split in corpus.splits.items())
    say(f"{corpus.name}: {counts} pairs")
    if left_out:
        say(
            f"{left_out} of the first {looked_at} pairs have more than {max_length} tokens and are "
            "left out of training"
        )
