"""The translation experiment: train each model on the same pairs, then compare them."""

from __future__ import annotations

import contextlib
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import jax

from attnlab.data.batching import evaluation_batches, train_batches
from attnlab.data.encoding import count_too_long
from attnlab.models.seq2seq import Seq2Seq
from attnlab.platforms import make_cpu_devices
from attnlab.runs.errors import Invalid
from attnlab.training.loop import LoopSettings, Task, Trained, train
from attnlab.training.objective import TokenCrossEntropy
from attnlab.training.parallel import Parallel, parallel_over
from attnlab.training.tensorboard import TensorBoard, require_tensorboard
from experiments.translate.corpus import Corpus, open_corpus
from experiments.translate.interrupts import until_stopped
from experiments.translate.recipes import Preset
from experiments.translate.report import evaluated, write_report
from experiments.translate.run_folder import command, make_folder, plain, require_same
from experiments.translate.settings import Settings
from experiments.translate.systems import TITLES, build

__all__ = ["run"]

# What a run may go on with another value of: no number that is trained depends on it.
FREE = (
    "devices",
    "parallel",
    "num_workers",
    "data_dir",
    "cache_dir",
    "draw_file",
    "tensorboard",
)


def run(
    settings: Settings,
    output_dir: Path,
    *,
    resume: str = "",
    published: Path,
    say: Callable[[str], None] = print,
) -> int:
    """Trains, evaluates and reports.

    Args:
      settings: what to do.
      output_dir: where a fresh folder is made, as soon as settings and data are seen to fit.
      resume: a folder of this job instead; what was done in it is not done again.
      published: the folder of the papers' tables.
      say: takes a line for the user.

    Returns:
      The exit status: 0, also after SIGTERM, or 130 after Ctrl-C.

    Raises:
      Invalid: settings and data do not fit, the folder was made with other settings, or
        TensorBoard is wanted and not installed.
      Diverged: a loss is not finite.
    """
    preset = settings.chosen_preset()
    if resume:
        require_same(resume, settings, free=FREE)
    if settings.tensorboard:
        require_tensorboard()
    parallel = _devices(settings, preset)
    corpus = open_corpus(settings)
    _say_corpus(corpus, preset, say)
    folder = Path(resume) if resume else make_folder("translate", settings, output_dir)
    say(f"results: {folder}")

    def work() -> signal.Signals | None:
        results = []
        for name in preset.models:
            say(f"\n{TITLES[name]}")
            model, trained = _train(name, settings, corpus, parallel, folder / name, say)
            if trained.stopped_by is not None:
                return trained.stopped_by
            results.append(evaluated(name, model, trained, corpus, preset, folder / name))
            say(results[-1].line())
            report = write_report(
                results,
                corpus,
                preset,
                folder,
                published=published,
                command=command("translate", settings),
            )
            say(f"report: {report}")
        return None

    go_on = shlex.join(["launch/local", "translate", f"--resume={folder}"])
    return until_stopped(work, go_on=go_on, say=say)


def _devices(settings: Settings, preset: Preset) -> Parallel:
    make_cpu_devices(settings.devices)
    devices = jax.devices()[: settings.devices or None]
    if settings.devices > len(devices):
        raise Invalid(f"--devices={settings.devices}: there are {len(devices)}")
    for name in preset.models:
        rows = settings.recipe(name).batch_size
        if rows % (len(devices) * settings.accumulate):
            raise Invalid(
                f"--batch_size={rows}: give a multiple of devices × accumulate = "
                f"{len(devices)} × {settings.accumulate}"
            )
    return parallel_over(settings.parallel, devices)


def _train(
    name: str,
    settings: Settings,
    corpus: Corpus,
    parallel: Parallel,
    folder: Path,
    say: Callable[[str], None],
) -> tuple[Seq2Seq, Trained]:
    preset, recipe = settings.chosen_preset(), settings.recipe(name)
    joint = recipe.joint_vocabulary
    tokenizers = corpus.tokenizers(joint)
    model = build(
        name,
        recipe.sizes,
        source_vocab_size=None if joint else tokenizers.source.vocab_size,
        target_vocab_size=tokenizers.target.vocab_size,
        dtype=preset.dtype,
    )
    processes = {"process_index": jax.process_index(), "process_count": jax.process_count()}
    batches = train_batches(
        corpus.splits["train"],
        *tokenizers,
        batch_size=recipe.batch_size,
        max_length=preset.max_length,
        seed=settings.seed,
        pad_to=preset.pad_to,
        pack=settings.pack,
        num_workers=settings.num_workers,
        **processes,
    )
    validation = [
        {key: x[jax.process_index() :: jax.process_count()] for key, x in batch.items()}
        for _, batch in evaluation_batches(
            corpus.splits["validation"],
            *tokenizers,
            batch_size=recipe.batch_size,
            pad_to=preset.pad_to,
        )
    ]
    identity = {
        "model": name,
        "recipe": plain(recipe),
        "corpus": corpus.identity(joint),
        "seed": settings.seed,
        "max_length": preset.max_length,
        "validate_every": preset.validate_every,
        "log_every": settings.log_every,
        "accumulate": settings.accumulate,
        "pack": settings.pack,
        "dtype": preset.dtype,
    }
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        board = stack.enter_context(TensorBoard(folder)) if settings.tensorboard else None
        task = Task(
            model,
            TokenCrossEntropy(recipe.label_smoothing, recipe.gradient_mean_over),
            batches,
            lambda: validation,
            identity,
        )
        trained = train(
            task,
            settings=LoopSettings(
                steps=recipe.steps,
                log_every=settings.log_every,
                validate_every=preset.validate_every,
                checkpoint_every=settings.checkpoint_every or preset.validate_every,
                accumulate=settings.accumulate,
                seed=settings.seed,
            ),
            optimizer=recipe.optimizer,
            parallel=parallel,
            folder=folder,
            on_row=None if board is None else board.add,
            say=say,
        )
    return model, trained


def _say_corpus(corpus: Corpus, preset: Preset, say: Callable[[str], None]) -> None:
    counts = ", ".join(f"{name} {len(split):,}" for name, split in corpus.splits.items())
    say(f"{corpus.name}: {counts} pairs")
    max_length = preset.max_length
    for joint in sorted({preset.recipes[name].joint_vocabulary for name in preset.models}):
        left_out, looked_at = count_too_long(
            corpus.splits["train"], *corpus.tokenizers(joint), max_length, sample=2000
        )
        if left_out == looked_at:
            raise Invalid(
                f"--max_length={max_length}: the first {looked_at} pairs all have more tokens; "
                "give a larger one"
            )
        if left_out:
            say(
                f"{left_out} of the first {looked_at} pairs have more than {max_length} tokens of "
                f"{'one joint vocabulary' if joint else 'a vocabulary each'} and are left out of "
                "training"
            )
