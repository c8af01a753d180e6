"""What every experiment's command line does alike."""

import dataclasses
import importlib
import json
import pathlib
import re
import subprocess
import sys

import pytest

import experiments
from attnlab.runs import command_line
from attnlab.runs.errors import Invalid, Stopped
from attnlab.runs.flags import Flags, flag, flag_of, kind_of, seed_flag
from attnlab.runs.folder import Folder
from attnlab.runs.interrupts import Terminated

EXPERIMENTS = sorted(
    path.parent.name for path in pathlib.Path(__file__).parents[2].glob("experiments/*/__main__.py")
)


@dataclasses.dataclass(frozen=True)
class Settings(Flags):
    """Flags of every kind."""

    lengths: tuple[int, ...] = flag((16, 32), "Lengths of the input.", least=1)
    rates: tuple[float, ...] = flag((0.5, 1.0), "Rates.")
    names: tuple[str, ...] = flag((), "Names.")
    steps: int | None = flag(None, "Number of steps. Without it: the recipe's.", least=1)
    rate: float = flag(1e-3, "Rate at its peak.", above=0)
    input: str | None = flag(None, "A file.", is_path=True)
    causal: bool = flag(True, "Whether it is causal.")
    devices: int = flag(1, "Number of devices.")
    seed: int = seed_flag("Seed of everything.")

    @classmethod
    def implied(cls, named):
        return {"rate": 7.0} if "steps" in named else {}

    def check_named(self, named):
        if "names" in named and self.steps is None:
            raise Invalid("--names would count for nothing")


def run(*flags: str, then=None, **options) -> tuple[int, list]:
    """The status, and settings and folder that the experiment was given."""
    given = []

    def experiment(settings: Settings, folder: Folder) -> int:
        given.append((settings, folder))
        if then is not None:
            raise then
        return 7

    options = {"free": ("devices",)} | options
    status = command_line.run(
        ["/x/one/__main__.py", *flags], Settings, experiment, doc="One.", **options
    )
    return status, given


def test_each_flag_is_read_by_its_kind(tmp_path):
    status, ((settings, folder),) = run(
        "--lengths=1k,2K,1m,5", "--rates=2", "--names=a,b", "--steps=3", "--nocausal",
        "--input=pyproject.toml", f"--output_dir={tmp_path}",
    )  # fmt: skip
    assert status == 7 and not folder.resumes and not list(tmp_path.iterdir())
    assert settings.lengths == (1024, 2048, 2**20, 5) and settings.rates == (2.0,)
    assert settings.names == ("a", "b") and settings.steps == 3 and not settings.causal
    assert settings.rate == 7.0  # implied by --steps
    assert settings.input == str(pathlib.Path("pyproject.toml").absolute())


def test_a_run_in_a_folder_of_its_own_begins_once_and_then_goes_on(tmp_path):
    (tmp_path / "log.txt").touch()  # a launcher's
    command = [f"--run_dir={tmp_path}", "--lengths=5"]
    _, ((settings, folder),) = run(*command)
    assert not folder.exists and folder.begin() == tmp_path
    _, ((same, again),) = run(*command)
    assert same == settings and again.resumes and again.path == tmp_path


def test_a_resumed_run_keeps_its_settings_but_for_the_free_ones(tmp_path, capsys):
    _, ((settings, folder),) = run("--lengths=5", "--devices=3", f"--output_dir={tmp_path}")
    again = f"--resume={folder.begin()}"
    _, ((same, kept),) = run(again)
    assert same == settings and kept.resumes and kept.path == folder.path
    _, ((other, changed),) = run(again, "--devices=1", "--lengths=5")
    assert other == dataclasses.replace(settings, devices=1)
    assert changed.settings == kept.settings | {"devices": 1}  # what the rows to come will say
    assert run(again, "--lengths=6") == (2, [])
    assert f"--lengths=6 differs from 5 in {folder.path}; a resumed run keeps its flags" in (
        capsys.readouterr().err
    )
    values = json.loads((folder.path / "settings.json").read_text())
    older = {name: x for name, x in values.items() if name != "lengths"}
    (folder.path / "settings.json").write_text(json.dumps(older))
    _, ((by_default, _),) = run(again)
    assert by_default == dataclasses.replace(settings, lengths=(16, 32))
    assert f"{folder.path}: made before there was --lengths; taken by default" in (
        capsys.readouterr().err
    )
    (folder.path / "settings.json").write_text("{}")
    assert run(again) == (2, [])
    assert f"{again}: settings of another experiment or version; give" in capsys.readouterr().err
    assert run(again, "--names=", free=("names",)) == (2, [])
    assert "--names= is empty; give a value" in capsys.readouterr().err


def test_a_check_ends_before_the_run_and_says_what_is_wrong(tmp_path, capsys):
    there, missing, alone = "--input=pyproject.toml", "--input=no/such", "--names=a"
    for kind, right in {
        "words": [there, missing, alone],
        "flags": [there, missing],
        "files": [there],
    }.items():
        check = [f"--check={kind}", f"--output_dir={tmp_path}"]
        for word in (there, missing, alone, "--stepz=3"):
            status = 0 if word in right else 2
            assert run(word, *check) == (status, []), (kind, word)
            err = capsys.readouterr().err
            assert bool(err) == (status == 2)
            if word == missing and status:
                assert err.endswith("--input=no/such: there is no such file\n")
    assert run("--check=all")[0] == 2 and not list(tmp_path.iterdir())
    _, ((_, folder),) = run("--lengths=5", f"--output_dir={tmp_path}")
    again = f"--run_dir={folder.begin()}"
    assert run(again, "--check=flags") == (0, [])
    assert run(again, "--check=flags", "--lengths=6") == (2, [])


def test_help_says_every_flag_and_its_default(capsys):
    assert run("--help") == (0, [])
    out = capsys.readouterr().out
    assert out.startswith("One.\nFlags:\n  --lengths=16,32\n      Lengths of the input.\n")
    assert "\n  --steps=\n      Number of steps." in out and "\n  --[no]causal (on)\n" in out
    assert "\n  --output_dir=results\n      Where the fresh folder" in out
    assert "\n  --resume=\n" in out and "flagfile" not in out


def test_what_keeps_nothing_has_no_folder(capsys):
    run("--help", keeps=False)
    assert not re.search("--(resume|run_dir|output_dir)", capsys.readouterr().out)
    assert run("--output_dir=x", keeps=False) == (2, [])
    assert run("--lengths=5", keeps=False)[0] == 7


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (Invalid("--a=b\nc: no"), 2, "one: --a=b c: no\n"),
        (Stopped("it diverged"), 1, "one: it diverged\n"),
        (KeyboardInterrupt(), 130, "one: interrupted before there was anything to keep\n"),
    ],
)
def test_what_an_experiment_raises_is_one_line(error, status, message, capsys):
    assert run(then=error)[0] == status
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("error", "status", "signal"), [(KeyboardInterrupt, 130, "INT"), (Terminated, 143, "TERM")]
)
def test_ctrl_c_outside_of_the_loop_says_where_the_rows_are(
    error, status, signal, tmp_path, capsys
):
    def experiment(settings: Settings, folder: Folder) -> int:
        folder.begin()
        raise error

    words = ["one", f"--output_dir={tmp_path / 'a b'}"]
    assert command_line.run(words, Settings, experiment, doc="") == status
    (path,) = (tmp_path / "a b").iterdir()
    assert capsys.readouterr().err == (
        f"one: SIG{signal}: what is done is kept in {path}; to complete it: '--resume={path}'\n"
    )


def test_a_mistake_of_ours_is_a_traceback():
    with pytest.raises(ValueError, match="a bug"):
        run(then=ValueError("a bug"))


def test_the_command_of_a_report_asks_for_the_same_again():
    settings = Settings(lengths=(5, 6), causal=False, rate=0.25, names=("a b", "c"), steps=3)
    flags = "--lengths=5,6 '--names=a b,c' --steps=3 --rate=0.25 --nocausal"
    words = command_line.command("one", Settings, settings.as_json())
    assert words == f"launch/local one {flags}"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_says_its_flags(name, capsys):
    main = importlib.import_module(f"experiments.{name}.__main__").main
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"\n    launch/local {name}" in out and "python -m" not in out
    settings = importlib.import_module(f"experiments.{name}.__main__").Settings
    for field in ("output_dir", "resume", *(x.name for x in dataclasses.fields(settings))):
        assert re.search(rf"\n  --(\[no\])?{field}\b", out), field
    assert str(pathlib.Path(__file__).parents[2]) not in out
    for help in re.findall(r"\n  --[^\n]*\n      (.*)", out):
        assert help[0].isupper(), help
    for last in re.findall(r"      ([^\n]*)\n  --", out):
        assert last.endswith("."), last
    assert main([name, "--no_such_flag"]) == 2
    assert capsys.readouterr().err.startswith(f"{name}: Unknown command line flag 'no_such_flag'")


def test_every_number_says_what_it_must_be_above_and_no_default_is_a_sentinel():
    """So that none is zero or negative by mistake; what a flag says is checked for all at once."""
    for name in EXPERIMENTS:
        settings = importlib.import_module(f"experiments.{name}.__main__").Settings
        kinds = kind_of(settings)
        for field in dataclasses.fields(settings):
            about = flag_of(field)
            assert field.default not in (-1, ""), f"{name} --{field.name}: None, not a sentinel"
            bound = about.least if about.above is None else about.above
            assert bound is not None or kinds[field.name] not in (int, float), (
                f"{name} --{field.name}"
            )


MAIN = """
import os, signal, sys
from attnlab.runs import command_line

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
            for _ in range(10**5):
                command_line.say("a line")
            open(path, "w").close()
            return 0

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


@pytest.mark.parametrize(
    ("output", "status", "message"),
    [(">/dev/full", 1, "one: No space left on device; what was written is kept\n"), (">&-", 0, "")],
)
def test_an_output_that_takes_nothing_is_one_line_at_most(output, status, message):
    code = (
        "import sys; from attnlab.runs import command_line; sys.argv = ['one']; "
        "command_line.start(lambda argv: command_line.say('a line') or 0)"
    )
    command = ["bash", "-c", f'"$0" -c "$1" {output}', sys.executable, code]
    done = subprocess.run(command, env={"PYTHONPATH": "."}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, message)


def test_a_reader_that_leaves_ends_nothing(tmp_path):
    command = [sys.executable, "-c", MAIN, str(tmp_path / "kept")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"a line\n"
        process.stdout.close()
        assert process.stderr.read() == b"SystemExit(0)\n"
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("import signal; signal.raise_signal(signal.SIGINT)", -2, ""),
        ("import jax, matplotlib; print(end=matplotlib.get_backend()[3:])", 0, ""),
        ("import flax_too.linen", 1, " has no package 'flax_too': `launch/local NAME` without"),
    ],
)
def test_what_ends_the_imports_is_no_traceback(line, status, message, tmp_path):
    (tmp_path / "experiments").mkdir()
    text = pathlib.Path(experiments.__file__).read_text()
    (tmp_path / "experiments" / "__init__.py").write_text(text)
    (tmp_path / "experiments" / "one").mkdir()
    (tmp_path / "experiments" / "one" / "__main__.py").write_text(line)
    # What the compiler of jax 0.10 for GPUs that are not here says while JAX is imported.
    plugin = 'import os; os.write(2, b"I0 cudart_stub.cc:31] Could not find cuda drivers\\n")'
    (tmp_path / "jax_cuda12_plugin.py").write_text(plugin)
    command = [sys.executable, "-m", "experiments.one"]
    notebook = {"MPLBACKEND": "module://not_there", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=tmp_path, env=notebook, capture_output=True, text=True)
    assert done.returncode == status and done.stdout == ""
    assert message in done.stderr and done.stderr.count("\n") == bool(message)
