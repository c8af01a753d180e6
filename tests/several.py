"""Programs in processes of their own: one that ends well, or several as a launcher starts them."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_python(*words: str | Path, cwd: Path = ROOT, **options) -> str:
    """What Python prints of these words; the process must end well."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@dataclasses.dataclass(frozen=True)
class Done:
    """How a process ended."""

    status: int
    out: str
    err: str


class Together:
    """The processes, joined over this machine; use it in `with`, which ends what still runs."""

    def __init__(
        self,
        count: int,
        *words: str,
        devices: int = 1,
        own: Sequence[str] = (),
        quick: bool = False,
        slurm: bool = False,
    ):
        """Starts `python -m WORDS…` so often; the last one with the words `own` as well.

        With `quick` they compile sooner to slower programs. With `slurm` they are joined by the
        variables that SLURM sets, not by flags.
        """
        told = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
        told["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(quick))
        port = free_port()

        def flags(index: int) -> list[str]:
            joined = [
                "--distributed=explicit",
                f"--coordinator=127.0.0.1:{port}",
                f"--num_processes={count}",
                f"--process_id={index}",
            ]
            return [*([] if slurm else joined), *(own if index == count - 1 else [])]

        def variables(index: int) -> dict[str, str]:
            return told | {
                "SLURM_JOB_ID": str(port),  # of which the port of the service follows
                "SLURM_STEP_NODELIST": "localhost",
                "SLURM_STEP_NUM_TASKS": str(count),
                "SLURM_STEP_TASKS_PER_NODE": str(count),
                "SLURM_PROCID": str(index),
                "SLURM_LOCALID": str(index),
            }

        self.processes = [
            subprocess.Popen(
                [sys.executable, "-u", "-m", *words, *flags(i)],
                cwd=ROOT,
                env=os.environ | (variables(i) if slurm else told),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for i in range(count)
        ]

    def __enter__(self) -> "Together":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def send(self, index: int, number: signal.Signals, after: str) -> None:
        """Sends a signal to a process when the first has printed a line that begins so."""
        out = self.processes[0].stdout
        assert out is not None
        line = next((line for line in out if line.startswith(after)), None)
        assert line is not None, "the first process has ended before"
        self.processes[index].send_signal(number)

    def ended(self, within: float = 300.0) -> list[Done]:
        """How they ended, all of them in so many seconds."""
        end, found = time.monotonic() + within, []
        for process in self.processes:
            out, err = process.communicate(timeout=max(0.1, end - time.monotonic()))
            found.append(Done(process.returncode, out, err))
        return found


def run(count: int, *words: str, **options) -> list[Done]:
    """How the processes ended that were left alone."""
    with Together(count, *words, **options) as together:
        return together.ended()
