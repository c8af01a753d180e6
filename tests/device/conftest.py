"""The options of these tests, the process with the device, and the file of what came out."""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attnlab.runs.errors import Invalid
from tests.device.isolation import AHEAD, MODULE, RUN_SECONDS, Device, Row
from tests.device.scenarios import Check

NAME = time.strftime("results/device-%Y%m%d-%H%M%S.jsonl")
WAY = "with --allow_cpu the tests are tried on the CPU, small and interpreted"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("device")
    group.addoption("--allow_cpu", action="store_true", help="small checks, also on a CPU")
    group.addoption("--device_report", default=NAME, metavar="FILE", help="the rows, as JSON lines")


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> Iterator[Device]:
    """The process with the device; without an accelerator there are no tests."""
    small = pytestconfig.getoption("allow_cpu")
    # Of this process the platform is the CPU: the accelerator is the worker's alone.
    given = os.environ["GIVEN_JAX_PLATFORMS"]  # beside it the CPU, for what is judged by itself
    variables = {"JAX_PLATFORMS": given if given in ("", "cpu") else f"{given},cpu"}
    if small:
        variables = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
        variables["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
    patience = RUN_SECONDS * (10 if small else 1)  # interpreted kernels are slow
    flags = ["small"] * small
    try:
        with Device(MODULE, flags, variables=variables, run_seconds=patience) as device:
            if device.environment["platform"] == "cpu" and not small:
                pytest.exit(f"no accelerator here, JAX finds only the CPU; {WAY}", returncode=2)
            yield device
    except Invalid as error:
        pytest.exit(f"no accelerator here: {error}; {WAY}", returncode=2)


@pytest.fixture(scope="session")
def checked(request: pytest.FixtureRequest, device: Device) -> Iterator[Callable[[Check], Row]]:
    """Does a check of this session and keeps its row; the next ones compile meanwhile."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    planned = [params["check"] for params in calls if "check" in params]
    file = Path(request.config.getoption("device_report"))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as out:

        def keep(values: dict) -> None:
            out.write(json.dumps(values) + "\n")
            out.flush()

        def check(check: Check) -> Row:
            at = planned.index(check) + 1
            row = device.check(check, planned[at : at + AHEAD])
            keep(dataclasses.asdict(row))
            return row

        keep(device.environment)
        yield check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says where the rows are."""
    file = Path(terminalreporter.config.getoption("device_report"))
    if file.exists():
        terminalreporter.write_line(f"rows: {file}")
