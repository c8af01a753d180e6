"""The command line of `device_check`."""

import dataclasses
from pathlib import Path

from absl import flags

from attnlab.runs import command_line
from experiments import device_check
from experiments.compare_lengths.run import check_resumed
from experiments.device_check import run as device_run
from experiments.device_check.folder import DeviceFolder
from experiments.device_check.settings import HELPS, Settings

MAY_CHANGE = ("minutes", "allow_cpu")  # in a resumed run


def main(argv: list[str]) -> int:
    """Parses and runs; a bad flag, or no accelerator, ends in one line and status 2."""
    given = command_line.flags_of(Settings(), HELPS, resumes=True)
    try:
        if not command_line.parse(given, argv, device_check.__doc__):
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
