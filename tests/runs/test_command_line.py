"""What every experiment's command line does alike."""

import dataclasses
import importlib
import pathlib
import subprocess
import sys

import pytest

import experiments
from attnlab.runs import command_line
from attnlab.runs.errors import Invalid
from experiments.compare_lengths.settings import Settings

EXPERIMENTS = sorted(
    path.stem
    for path in pathlib.Path(__file__).parents[2].glob("experiments/*.py")
    if path.stem != "__init__"
)


@dataclasses.dataclass
class Nothing:
    """Settings of an experiment that has none."""


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_says_its_flags_and_refuses_a_folder_without_a_name(name, capsys):
    main = importlib.import_module(f"experiments.{name}").main
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert "\n  --output_dir=results\n      Where the fresh folder" in out
    assert "flagfile" not in out and str(pathlib.Path(__file__).parents[2]) not in out
    for flag in ("output_dir", "resume") if "--resume=" in out else ("output_dir",):
        assert main([name, f"--{flag}="]) == 2
        assert capsys.readouterr().err == f"{name}: --{flag}= is empty; give a folder\n"


def test_a_folder_to_make_and_one_to_go_on_in_are_two():
    given = command_line.flags_of(Nothing(), {}, resumes=True)
    with pytest.raises(Invalid, match="--output_dir and --resume exclude each other; drop one"):
        command_line.parse(given, ["x", "--resume=a", "--output_dir=b"], None)


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("survive_kills", "--longest=-1"),
        ("survive_kills", "--longest=inf"),
        ("survive_kills", "--longest=nan"),
        ("compare_peers", "--seconds=nan"),
    ],
)
def test_seconds_are_finite(name, flag, tmp_path, capsys):
    main = importlib.import_module(f"experiments.{name}").main
    assert main([name, flag, f"--output_dir={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith(f"{name}: {flag}: give")
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_experiment_is_called_that():
    with pytest.raises(Invalid, match="settings of another experiment.*a folder of this one"):
        command_line.from_plain(Settings, {"task": "copy", "seed": 1})


def test_a_line_break_in_a_flag_does_not_break_the_line(capsys):
    assert command_line.refuse("x", ValueError("--task=a\nb: not known")) == 2
    assert capsys.readouterr().err == "x: --task=a b: not known\n"


MAIN = """
import os, signal, sys
from attnlab.runs import command_line
from attnlab.runs.interrupts import uninterrupted

def main(argv):
    match argv[1]:
        case "full":
            os.write(os.open("/dev/full", os.O_WRONLY), b"x")
        case "missing":
            open("no/such")
        case "ascii":
            print("1 × 2")
        case "signal":
            signal.raise_signal(signal.SIGINT)
        case "bug":
            print(sys.excepthook is sys.__excepthook__)
            import flax_too
        case path:
            try:
                for _ in range(10**6):
                    command_line.say("a line")
            except KeyboardInterrupt:
                with uninterrupted():
                    print("what is done")  # nobody reads it
                    open(path, "w").close()
                return 130

for word in sys.argv[1:]:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as experiments/__init__.py leaves them
    sys.excepthook = lambda *_: None
    sys.argv = ["one", word]
    try:
        command_line.start(main)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
"""


def test_what_ends_a_run_is_one_line():
    command = [sys.executable, "-c", MAIN, "full", "missing", "ascii", "signal", "bug"]
    environment = {"PYTHONPATH": ".", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "1 ? 2\nTrue\n"
    assert done.stderr.splitlines() == [
        "one: No space left on device; what was written is kept",
        "SystemExit(1)",
        "one: no/such: No such file or directory; what was written is kept",
        "SystemExit(1)",
        "SystemExit()",
        "SystemExit(130)",
        "ModuleNotFoundError(\"No module named 'flax_too'\")",  # of a run, a bug: not one line
    ]


def test_a_reader_that_leaves_is_as_ctrl_c(tmp_path):
    command = [sys.executable, "-c", MAIN, str(tmp_path / "kept")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"a line\n"
        process.stdout.close()
        assert process.stderr.read() == b"SystemExit(130)\n"
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("import signal; signal.raise_signal(signal.SIGINT)", -2, ""),
        ("import flax_too.linen", 1, " has no package 'flax_too': `launch/local NAME` without"),
    ],
)
def test_what_ends_the_imports_is_no_traceback(line, status, message, tmp_path):
    (tmp_path / "experiments").mkdir()
    text = pathlib.Path(experiments.__file__).read_text()
    (tmp_path / "experiments" / "__init__.py").write_text(text)
    (tmp_path / "experiments" / "one.py").write_text(line)
    command = [sys.executable, "-m", "experiments.one"]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.returncode == status and done.stdout == ""
    assert message in done.stderr and done.stderr.count("\n") == bool(message)
