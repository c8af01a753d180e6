"""One command for a machine with an accelerator: is attnlab right there, and how fast?

    python -m experiments.device_check
    python -m experiments.device_check --resume=results/device_check-20261120-120000
    python -m experiments.device_check --parts=correctness --mechanisms=scaled_dot,lsh
    python -m experiments.device_check --allow_cpu --lengths=256,512 --tokens=1024 --minutes=2

Checks every mechanism and implementation on the device, context and gradients, against attention in
float64 NumPy, and times attnlab and the platform's own flash attention over length, in turns, and
says which targets are met. All within --minutes and the most important first: the checks of what
may break there (defaults and kernels in bfloat16), the timing, all other checks. Each program is in
a worker process whose death is a row; one that fails on the device, or hangs, is replaced. A fresh
folder gets correctness.jsonl, results.jsonl, report.md and figures of time and memory as SVG and
PNG; what is worth keeping goes to experiments/results/DEVICE/device_check. Ctrl-C keeps what is
done and writes the report; --resume does what is missing. It needs jax, flax, numpy, absl and
matplotlib only, no network, and no installation of this project.
"""

import dataclasses
from pathlib import Path

from absl import flags

from attnlab.bench import device_run
from attnlab.bench.compare import check_resumed
from attnlab.bench.device_folder import DeviceFolder
from attnlab.bench.device_settings import HELPS, Settings
from attnlab.records import command_line

MAY_CHANGE = ("minutes", "allow_cpu")  # in a resumed run


def main(argv: list[str]) -> int:
    """Parses and runs; a bad flag, or no accelerator, ends in one line and status 2."""
    given = command_line.flags_of(Settings(), HELPS, resumes=True)
    try:
        if not command_line.parse(given, argv, __doc__):
            return 0
        settings = command_line.settings_of(given, Settings())
        resume = Path(given.resume) if given.resume else None
        if resume is not None:
            settings = _stored(given, settings, resume)
        return device_run.run(settings, output_dir=Path(given.output_dir), resume=resume)
    except (flags.Error, ValueError) as error:
        return command_line.refuse("device_check", error)
    except KeyboardInterrupt:  # before there was anything to keep
        return device_run.INTERRUPTED


def _stored(given: flags.FlagValues, settings: Settings, folder: Path) -> Settings:
    """The settings of a folder, with those of the flags that may change."""
    stored = DeviceFolder.open(folder).settings()
    named = [f.name for f in dataclasses.fields(Settings) if given[f.name].present]
    ours = settings.as_json()
    fixed = {name: ours[name] for name in named if name not in MAY_CHANGE}
    check_resumed(fixed, stored, folder)
    new = {name: ours[name] for name in named if name in MAY_CHANGE}
    return Settings.from_json(stored | new)


if __name__ == "__main__":
    command_line.start(main)
