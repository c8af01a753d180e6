"""Runs a command on one of the hosts of a run, with its output in the folder of the run too.

    host.py FOLDER COMMAND…

SIGTERM, Ctrl-C and SIGHUP go to the command. The exit status is its own, or 128 + the number of the
signal that ended it. The log is closed after every write: a mounted bucket keeps what is closed.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
EVERY = 30  # seconds between writes to the log


def main(arguments: list[str]) -> int:
    """Runs the command to its end."""
    folder, command = Path(arguments[0]), arguments[1:]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"log-{socket.gethostname()}.txt"
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # what a terminal sends comes once, from here
    )
    for number in FORWARDED:
        signal.signal(number, lambda number, _: process.send_signal(number))
    assert process.stdout is not None
    output, pending, written = process.stdout.fileno(), b"", time.monotonic()
    while True:
        if select.select([output], [], [], EVERY)[0]:
            data = os.read(output, 1 << 16)
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
            pending += data
            if not data:
                break
        if pending and time.monotonic() - written > EVERY:
            _append(log, pending)
            pending, written = b"", time.monotonic()
    status = process.wait()
    _append(log, pending)
    return 128 - status if status < 0 else status


def _append(log: Path, data: bytes) -> None:
    with open(log, "ab") as file:
        file.write(data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
