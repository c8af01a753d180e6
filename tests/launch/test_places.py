"""What the launchers of all places do alike, on a machine with fake cluster tools."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.launch.site import ODD, Site
from tests.several import ROOT

BUCKET = "--output_dir=gs://bucket/runs"
# For each place: options, where results may go, its tools, and the one that begins the work.
PLACES = {
    "slurm": ([], "--output_dir=out", ["sbatch", "squeue"], "sbatch"),
    "tpu_vm": (["--tpu=mine", "--zone=here"], BUCKET, ["gcloud"], "gcloud"),
    "gke": (
        ["--image=registry/me", "--tpu=v5e:4x4"],
        BUCKET,
        ["docker", "kubectl", "gcloud"],
        "kubectl",
    ),
    "sky": (["--accelerators=H100:8"], BUCKET, ["sky"], "sky"),
}
READY = 'case "$*" in *vm*describe*) echo \'{"state": "READY", "networkEndpoints": [{}]}\';; esac'


# What the frame does for all of them alike is seen at one.
AT_ONE = pytest.mark.parametrize("place", ["sky"])


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


@pytest.fixture
def site(place, tmp_path) -> Site:
    site = Site(tmp_path, PLACES[place][2])
    if place == "tpu_vm":
        site.fake("gcloud", READY)
    return site


def launched(site, place, *words, options=()):
    return site.run(place, *PLACES[place][0], *options, *words)


def test_help_tells_options_and_names(site, place):
    site.environment["PYTHONIOENCODING"] = "latin-1"  # a terminal that has no "…"
    status, out, err = site.run(place, "--help")
    assert (status, err) == (0, "") and " NAME FLAGS?" in out
    assert out.startswith(("Submits", "Runs")) and "hello              Says hello." in out
    source = (ROOT / "launch" / f"{place}.py").read_text()
    defined = re.findall(r'"(?:--)?([a-z_]+)"', source.split("def options")[1].split("def ")[0])
    options = {*defined, "allow_dirty", "dry_run"} - {"append", "extend", "default", "store_true"}
    assert len(options) > 4
    assert not [option for option in options if f"\n    --{option}" not in out]


@pytest.mark.parametrize(
    ("place", "missing"),
    [("tpu_vm", "--tpu, --zone"), ("gke", "--image"), ("sky", "--accelerators")],
)
def test_without_options_that_say_where_nothing_is_started(site, place, missing):
    site.refuses(f"arguments are required: {missing}\n", place, "hello", BUCKET)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no NAME was given"),
        (["helo"], "unknown experiment 'helo'; the names are:\n    hello "),
        (["hello", "--help"], "its flags are shown by launch/local hello --help"),
        (["hello", "--run_dir=x"], "--run_dir is for the launcher to give"),
        (["hello", "--output_dir=a", "-resume", "b"], "exclude each other; drop one"),
        (["hello", "--output_dir="], "--output_dir has no value; give a folder"),
        (["hello", "--output_dir=gs://bucket"], "give gs://BUCKET/FOLDER"),
        (["hello", "--output_dir=gs://Bucket/runs"], "such as gs://my-bucket/runs; the name of"),
        (["hello", "--output_dir=gs://bucket/../runs"], "give gs://BUCKET/FOLDER"),
        (["hello", "--resume=/no/such"], "--resume=/no/such: no run is there"),
    ],
)
def test_bad_command_lines_start_nothing(tmp_path, words, message):
    site = Site(tmp_path, PLACES["slurm"][2])
    site.refuses(message, "slurm", *words)


def test_what_is_missing_is_named(site, place):
    _, where, tools, _ = PLACES[place]
    for tool in tools:
        (site.bin / tool).unlink()
        status, out, err = launched(site, place, "hello", where)
        assert (status, out) == (2, "") and len(err.splitlines()) == 1
        assert err.startswith(f"launch/{place}: {tool} is not installed here; ")
        site.fake(tool)
    assert not site.calls() and not list(site.here.iterdir())


def test_a_dry_run_prints_and_does_nothing(site, place):
    _, where, tools, _ = PLACES[place]
    for tool in tools:  # a laptop without them can look, too
        (site.bin / tool).unlink()
    status, out, err = launched(site, place, "hello", where, options=["--dry_run"])
    assert status == 0 and all(f"\n{tool} " in f"\n{out}" for tool in tools[:1])
    assert "launch.jsonl" in out and site.revision() in out
    assert all(f"note: {tool} is not installed here" in err for tool in tools)
    assert not list(site.here.iterdir())


@pytest.mark.parametrize("place", ["slurm", "sky"])
def test_the_experiment_checks_its_flags_before_anything_else_is_done(site, place):
    _, where, _, begins = PLACES[place]
    site.checks()
    for options in ([], ["--dry_run"]):
        status, out, err = launched(site, place, "hello", where, "--wrong", options=options)
        assert (status, out) == (2, "")
        assert err == f"launch/{place}: hello: --wrong goes with nothing\n"
    err = launched(site, place, "hello", where, "--killed")[2]
    assert err == f"launch/{place}: hello: the check ended with status -9\n"
    assert not site.calls() and not list(site.here.iterdir())
    status, _, err = launched(site, place, "hello", where, *ODD)
    assert status == 0 and begins in [call[0] for call in site.calls()], err
    sees_files = place == "slurm"  # whose nodes share them; elsewhere paths are those of the nodes
    check = "--check=files" if sees_files else "--check=flags"
    assert site.checked()[1:] == [["--wrong", check], ["--killed", check], [*ODD, check]]


def test_the_platform_may_be_another_than_that_of_the_devices(site, place):
    """What JAX must find: ROCm, say, or the CPU for a trial."""
    _, where, *_ = PLACES[place]
    assert launched(site, place, "hello", where, options=["--platform=cpu"])[0] == 0
    sent = "\n".join(path.read_text() for path in site.here.glob("results/*/[jt]*.*"))
    sent += "\n".join(word for call in site.calls() for word in call)
    pattern = r"^(cpu|cuda)$" if place == "slurm" else r'JAX_PLATFORMS(?:",\s+"value)?\W+(\w+)'
    assert set(re.findall(pattern, sent, re.M)) == {"cpu"}


def test_a_resumed_run_has_its_flags_checked_with_those_of_its_folder_where_it_is_seen(tmp_path):
    site = Site(tmp_path, [*PLACES["slurm"][2], "sky"])
    site.checks()
    (site.here / "run").mkdir()
    (site.here / "run" / "settings.json").touch()
    assert launched(site, "slurm", "hello", "--steps=3", "--resume=run")[0] == 0
    assert launched(site, "sky", "hello", "--steps=3", "--resume=gs://bucket/runs/1")[0] == 0
    folder = f"--run_dir={site.here / 'run'}"
    wanted = [["--steps=3", folder, "--check=files"], ["--steps=3", "--check=words"]]
    assert site.checked() == wanted


@AT_ONE
def test_without_a_python_that_has_the_packages_nothing_is_sent(site, place):
    where = PLACES[place][1]
    python = site.python
    python.unlink()
    status, out, err = launched(site, place, "hello", where)
    remedy = "make .venv by launch/local hello --check=words, or give --python=PATH"
    words = f"{python}: no Python is there, which checks the flags; {remedy}\n"
    assert (status, out, err) == (2, "", f"launch/{place}: {words}")
    status, _, err = launched(site, place, "hello", where, options=["--dry_run"])
    assert (status, err) == (0, f"launch/{place}: note: {words}")
    given = site.home / "python"
    given.symlink_to(sys.executable)
    assert launched(site, place, "hello", where, options=[f"--python={given}"])[0] == 0
    (site.root / "experiments" / "hello" / "__main__.py").write_text("import absl\n")
    site.commit()
    bare = site.home / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    site.calls()
    status, _, err = launched(site, place, "hello", where, options=[f"--python={bare}/bin/python"])
    assert status == 2 and " has no package 'absl': `launch/local NAME` without --no_env" in err
    assert len(err.splitlines()) == 1 and not site.calls()


@AT_ONE
def test_changes_are_sent_only_when_told(site, place):
    _, where, _, begins = PLACES[place]
    (site.root / "launch" / "new").write_text("new")
    (site.root / "pyproject.toml").write_text("changed")
    status, _, err = launched(site, place, "hello", where)
    assert status == 2 and not site.calls()
    assert "pyproject.toml, launch/new: not as in any commit; commit, or --allow_dirty" in err
    status, _, err = launched(site, place, "hello", where, options=["--allow_dirty"])
    assert status == 0, err
    assert begins in [call[0] for call in site.calls()]
    [record] = site.here.rglob("launch.jsonl")
    about = json.loads(record.read_text())
    assert about["revision"] == f"{site.revision()}+changes"
    assert about["command"].startswith(f"launch/{place} ") and " hello " in about["command"]


@AT_ONE
def test_without_a_revision_nothing_is_sent(site, place):
    shutil.rmtree(site.root / ".git")
    status, _, err = launched(site, place, "hello", PLACES[place][1])
    assert status == 2 and "use a git checkout with a commit" in err and not site.calls()
    (site.bin / "git").unlink()
    assert "git is not installed" in launched(site, place, "hello", PLACES[place][1])[2]


def test_the_status_of_a_tool_that_fails_is_passed_on(site, place):
    _, where, _, begins = PLACES[place]
    site.fake(begins, "exit 7")
    status, _, err = launched(site, place, "hello", where)
    assert status == 7 and f"launch/{place}: {begins} " in err and "ended with status 7; " in err
    said = "shown by: sky status" if place == "sky" else "nothing was started"
    assert said in err.splitlines()[-1]


def test_ctrl_c_says_what_goes_on(site, place):
    _, where, _, begins = PLACES[place]
    last = {"slurm": "--parsable", "tpu_vm": "start", "gke": "apply --filename", "sky": "launch"}
    waits = f'case "$*" in *"{last[place]}"*) : > "$FAKES/waits"; sleep 60;; esac'
    site.fake(begins, f"{READY if place == 'tpu_vm' else ''}\n{waits}")
    process = site.start(place, *PLACES[place][0], "hello", where)
    end = time.monotonic() + 20
    while not (site.fakes / "waits").exists():
        assert time.monotonic() < end and process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    look = {
        "slurm": "squeue --name=hello-",
        "tpu_vm": "stop it: gcloud",
        "gke": "get jobset hello-",
    }
    assert f"launch/{place}: interrupted; " in err and look.get(place, "sky status") in err


@pytest.mark.parametrize(
    ("place", "several", "single", "said"),
    [
        ("gke", [], ["--tpu=v5e:2x2"], "4 hosts"),
        ("sky", ["--nodes=2"], [], "--nodes=2"),
        ("tpu_vm", [], [], "mine has 2 workers"),
    ],
)
def test_an_experiment_of_one_process_is_for_one_host(site, place, several, single, said):
    site.alone()
    if place == "tpu_vm":
        site.fake("gcloud", READY.replace("[{}]", "[{}, {}]"))
    status, _, err = launched(site, place, "hello", BUCKET, options=several)
    assert status == 2 and f"launch/{place}: {said}: hello runs in one process; give " in err
    assert all("describe" in call for call in site.calls())  # a TPU VM is asked for its workers
    if place == "tpu_vm":
        site.fake("gcloud", READY)
    assert launched(site, place, "hello", BUCKET, options=single)[0] == 0


@pytest.mark.parametrize(
    ("place", "where", "message"),
    [
        ("slurm", BUCKET, "SLURM's nodes share folders; give one, not a bucket"),
        ("gke", "--output_dir=here", "give --output_dir=gs://BUCKET/FOLDER"),
        ("sky", "--output_dir=here", "give --output_dir=gs://BUCKET/FOLDER"),
    ],
)
def test_results_go_where_all_hosts_see_them(site, place, where, message):
    site.refuses(message, place, *PLACES[place][0], "hello", where)


def test_the_archive_is_the_checkout_at_its_revision(tmp_path):
    site = Site(tmp_path, ["sky"])
    (site.root / "experiments" / "results").mkdir()
    (site.root / "experiments" / "results" / "kept.csv").touch()
    (site.root / "build").mkdir()
    (site.root / "build" / "ignored").touch()
    (site.root / "link").symlink_to("pyproject.toml")
    site.commit()
    assert launched(site, "sky", "hello", BUCKET)[0] == 0
    [code] = site.here.glob("results/hello-*/code-*")
    tracked = set(site.git("ls-files").splitlines()) - {"experiments/results/kept.csv"}
    sent = {str(p.relative_to(code)) for p in code.rglob("*") if p.is_symlink() or p.is_file()}
    assert sent == tracked | {"REVISION"}
    assert (code / "REVISION").read_text() == site.revision() == code.name.removeprefix("code-")
    assert os.access(code / "launch" / "local", os.X_OK) and (code / "link").is_symlink()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_scripts_pass_shellcheck():
    places = [ROOT / "launch" / name for name in (*PLACES, "local", "start.bash")]
    templates = [*(ROOT / "launch" / "templates").glob("*.*bash"), *ROOT.glob("launch/*/*.sbatch")]
    assert len(templates) == 3
    command = ["shellcheck", "--external-sources", *places, *templates]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
