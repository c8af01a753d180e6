"""Programs in a process of their own."""

import os
import time
from pathlib import Path

import pytest

from attnlab.bench.workers import Worker, Workers, death
from attnlab.runs.errors import Invalid
from tests.daily import daily
from tests.several import run_python

MODULE = "tests.bench.echo_worker"


def ask(worker: Worker, do: str) -> dict | None:
    worker.send(do=do)
    return worker.receive(60)


@pytest.fixture(scope="module")
def crew():
    with Workers(MODULE, variables={"MARK": "x"}) as found:
        yield found


def test_a_worker_says_where_it_is_and_answers(crew):
    assert crew.environment == {"cores": 2}
    assert ask(crew.ready(), "hello") == {"said": "hello", "pid": crew.pid, "marked": "x"}


@pytest.mark.parametrize(
    ("do", "why"),
    daily(
        [("die", "killed (SIGKILL: usually"), ("exit", "its process ended with status 3")],
        ("exit", "its process ended with status 3"),
    ),
)
def test_a_death_is_told_and_the_next_one_is_another(crew, do, why):
    first = crew.ready()
    assert ask(first, do) is None and not first.running()
    assert death(crew.retire()).startswith(why) and crew.pid is None
    second = crew.ready()
    assert second.pid != first.pid and ask(second, "again")["said"] == "again"
    if do == "exit":
        assert crew.errors().endswith("the last words\n")


def test_a_silent_death_is_not_explained_by_what_an_older_worker_wrote(crew):
    for do in ("exit", "die"):
        ask(crew.ready(), do)
        crew.retire()
    assert crew.errors().endswith("the last words\n") and crew.last_words() == ""


@pytest.mark.slow
def test_what_takes_too_long_is_left_to_the_caller(crew):
    worker = crew.ready()
    worker.send(do="wait")
    began = time.monotonic()
    assert worker.receive(0.2) is None and time.monotonic() - began < 10 and worker.running()
    crew.retire()
    assert not worker.running()


def test_one_that_refuses_says_why_in_one_line():
    with pytest.raises(Invalid, match="^no such backend$"), Workers(MODULE, ["refuse"]):
        pass


def test_one_that_cannot_start_says_its_last_words():
    with pytest.raises(Invalid, match="No module named .*no_such_worker"):
        with Workers("tests.bench.no_such_worker"):
            pass


def test_a_worker_does_not_outlive_its_parent():
    code = (
        f"from attnlab.bench.workers import Workers\nimport os\n"
        f"crew = Workers({MODULE!r}).__enter__()\nprint(crew.pid, flush=True)\nos._exit(0)"
    )
    pid, end = int(run_python("-c", code)), time.monotonic() + 30
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]:
            return
        time.sleep(0.1)
    raise AssertionError(f"{pid} is still there")
