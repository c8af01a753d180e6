"""Runs the mutants of tests/mutants.toml: python -m tests.mutants [FILE ...] [--workers=N].

Each mutant changes a result by one line. It is written into a copy of the checkout, where the tests
run that should see it: it is killed if one fails, or if they take five times as long as before.
FILE limits the run to the mutants of files whose path begins so.
"""

import argparse
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SHORTEST_LIMIT = 120.0  # seconds
SKIPPED = -1  # in place of the status of pytest
PYTEST = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"]
KILLED, SURVIVED, ERROR = "killed", "SURVIVED", "ERROR"
KNOWN, NOT_HERE = "known hole", "not here"  # no test sees it; its tests are for another JAX

Mutant = dict[str, Any]


def read_mutants(root: Path) -> list[Mutant]:
    """The mutants, in the order of the list."""
    return tomllib.loads((root / "tests" / "mutants.toml").read_text())["mutant"]


def run(root: Path, prefixes: list[str], workers: int) -> int:
    """Prints what became of each mutant; 1 if one survived that is no known hole, or an error."""
    by_selection: dict[str, list[Mutant]] = {}
    for mutant in read_mutants(root):
        if not prefixes or mutant["file"].startswith(tuple(prefixes)):
            by_selection.setdefault(mutant["test"], []).append(mutant)
    start, found = time.monotonic(), []
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ThreadPoolExecutor(workers) as pool,
    ):
        trees = Trees(root, Path(folder), workers)
        try:
            jobs = [pool.submit(trees.judge, *one) for one in by_selection.items()]
            for job in as_completed(jobs):
                found += job.result()
        except BaseException:  # Ctrl-C: nothing is left behind
            trees.stop()
            pool.shutdown(cancel_futures=True)
            raise
    print_summary(found, time.monotonic() - start)
    return int(any(outcome in (SURVIVED, ERROR) for _, outcome in found))


def print_summary(found: list[tuple[Mutant, str]], seconds: float) -> None:
    """Prints the kills by folder, and by name what was not killed."""
    counts: dict[str, Counter] = {}
    for mutant, outcome in found:
        counts.setdefault(str(Path(mutant["file"]).parent), Counter())[outcome] += 1
    print()
    for folder, of_folder in sorted(counts.items()):
        print(f"{of_folder[KILLED]:4} of {of_folder.total():3}  {folder}")
    print(f"{sum(x[KILLED] for x in counts.values()):4} of {len(found):3}  in {seconds:.0f} s")
    for mutant, outcome in found:
        if outcome != KILLED:
            print(f"{outcome}: {describe(mutant)}; {mutant['test']}")


def describe(mutant: Mutant) -> str:
    """The mutant in a line."""
    return f"{mutant['file']}: {mutant['old']} -> {mutant['new']}"


class Trees:
    """Copies of what git has of a checkout, one a worker, and the tests that run in them."""

    def __init__(self, root: Path, folder: Path, workers: int):
        names = subprocess.check_output(["git", "ls-files", "-z"], cwd=root, text=True)
        self.idle: queue.Queue[Path] = queue.Queue()
        self.running: set[subprocess.Popen[str]] = set()
        self.stopped = False
        for worker in range(workers):
            tree = folder / str(worker)
            for name in filter(None, names.split("\0")):
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, tree / name, follow_symlinks=False)
            self.idle.put(tree)

    def judge(self, selection: str, mutants: list[Mutant]) -> list[tuple[Mutant, str]]:
        """What became of the mutants that a selection of tests should see."""
        tree, found = self.idle.get(), []
        before, unmutated = self.run_tests(tree, selection, None)
        for mutant in mutants:
            outcome, seconds = ERROR, unmutated  # not judged: the tests fail, or there are none
            if before == SKIPPED:
                outcome = NOT_HERE
            elif before == 0:
                with mutated(tree / mutant["file"], mutant):
                    limit = max(5 * unmutated, SHORTEST_LIMIT)
                    status, seconds = self.run_tests(tree, selection, limit)
                survived = KNOWN if mutant.get("survives") else SURVIVED
                outcome = {0: survived, 1: KILLED}.get(status, ERROR)
            print(f"{outcome:10} {seconds:5.1f} s  {describe(mutant)}", flush=True)
            found.append((mutant, outcome))
        self.idle.put(tree)
        return found

    def run_tests(self, tree: Path, selection: str, limit: float | None) -> tuple[int, float]:
        """The exit status of pytest and the seconds it took; past the limit the status is 1."""
        if self.stopped:
            raise KeyboardInterrupt
        environment = os.environ | {"PYTHONPATH": str(tree)}
        if limit is not None:  # bytecode of the unmutated files stays
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *PYTEST, *shlex.split(selection)],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that it ends with all that its tests started
        )
        self.running.add(process)
        try:
            told = process.communicate(timeout=limit)[0]
            status = process.returncode
        except subprocess.TimeoutExpired:
            told, status = "", 1
        finally:
            end(process)
            self.running.discard(process)
        if "ERROR collecting" in told:  # with -x that is status 1, too
            status = 2
        if status == 0 and " passed" not in told:
            status = SKIPPED
        return status, time.monotonic() - start

    def stop(self) -> None:
        """Ends what runs and lets nothing start."""
        self.stopped = True
        for process in list(self.running):
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def mutated(path: Path, mutant: Mutant) -> Iterator[None]:
    """The file with the mutant in it; afterwards as it was, also the time of its last change."""
    text, times = path.read_text(), path.stat()
    path.write_text(text.replace(mutant["old"], mutant["new"]))
    try:
        yield
    finally:
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def main() -> int:
    """Parses the command line and runs the mutants."""
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(ROOT, options.files, options.workers)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
