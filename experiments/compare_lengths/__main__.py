"""The command line of `compare_lengths`."""

from attnlab.runs import command_line, hosts
from experiments import compare_lengths
from experiments.compare_lengths.run import compare
from experiments.compare_lengths.settings import Settings


def main(argv: list[str]) -> int:
    """Parses the flags and compares."""
    return command_line.run(
        argv,
        Settings,
        lambda settings, folder: hosts.on_every_host(compare, settings, folder),
        doc=compare_lengths.__doc__,
        several=compare_lengths.SHARED_BY == "processes",
    )


if __name__ == "__main__":
    command_line.start(main)
