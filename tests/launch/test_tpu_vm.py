"""launch/tpu_vm with a fake gcloud, which runs its commands on this machine, in a home folder."""

import json
import os
import shlex
import signal
import time
from pathlib import Path

import pytest

from tests.launch.site import ODD, Site

OPTIONS = ["--tpu=mine", "--zone=here"]
BUCKET = "--output_dir=gs://bucket/ru ns"
TPU_VM = ["gcloud", "compute", "tpus", "tpu-vm"]
# A worker with its own launch/local, which makes no environment, and a bucket that is a folder.
GCLOUD = """
command="${@: -1}" command="${command#--command=}"
case "$2 $4" in
  storage*) echo True ;;
  *describe) echo "${TPU:-$READY}" ;;
  *scp) cp -r "${@: -4:1}" "$HOME/attnlab.tar.gz" ;;
  *ssh) cd "$HOME"; bash -c "$command" ;;
esac
"""
FETCH = """
if [ "$4 $5" = "scp --recurse" ]; then cp -r "$HOME/${6#mine:}" "$7"; exit; fi
"""
LOCAL = """#!/usr/bin/env bash
[ "$2" = --check=words ] && exit "${BREAKS:-0}"
exec "$ATTNLAB_PYTHON" "$(dirname "$0")/local.py" --no_env "$@"
"""


@pytest.fixture
def site(tmp_path) -> Site:
    site = Site(tmp_path, ["gcsfuse", "mountpoint"])
    site.fake("gcloud", FETCH + GCLOUD)
    site.fake("mountpoint", "exit 1")
    (site.root / "launch" / "local").write_text(LOCAL)
    site.commit()
    site.environment["READY"] = ready(1)
    return site


def ready(workers: int) -> str:
    return json.dumps({"state": "READY", "networkEndpoints": [{}] * workers})


def ssh(worker: str, *words: str) -> list[str]:
    command = f"--command={shlex.join(words)}"
    return [*TPU_VM, "ssh", "mine", "--zone=here", f"--worker={worker}", command]


def test_a_run_on_a_bucket_call_by_call(site):
    site.environment["READY"] = ready(4)
    status, _, err = site.run("tpu_vm", *OPTIONS, "hello", *ODD, BUCKET)
    assert status == 0, err
    calls = site.calls()
    [run] = [path.name for path in (site.home / "attnlab/buckets/bucket/ru ns").iterdir()]
    script = "attnlab/code/launch/templates/tpu_vm.bash"
    unpacked = "tar -xzOf attnlab.tar.gz launch/templates/tpu_vm.bash"
    archive = next(call for call in calls if "scp" in call)[5]
    hierarchical = "--format=value(hierarchical_namespace.enabled)"
    wanted = [
        ["gcloud", "storage", "buckets", "describe", "gs://bucket", hierarchical],
        [*TPU_VM, "describe", "mine", "--zone=here", "--format=json"],
        [*TPU_VM, "scp", archive, "mine:attnlab.tar.gz", "--zone=here", "--worker=all"],
        ssh("all", "bash", "-c", f"set -o pipefail; {unpacked} | bash -s prepare hello bucket"),
        ssh(
            "all",
            "env",
            "JAX_PLATFORMS=tpu",
            "bash",
            script,
            "start",
            f"buckets/bucket/ru ns/{run}",
            "hello",
            *ODD,
        ),
        ssh("0", "bash", script, "follow"),
    ]
    assert [call for call in calls if call[0] == "gcloud"] == wanted
    mounted = str(site.home / "attnlab/buckets/bucket")
    mounts = [call for call in calls if call[0] == "gcsfuse"]
    assert len(mounts) == 1 and mounts[0][-2:] == ["bucket", mounted]
    folder = Path(mounted, "ru ns", run)
    found = json.loads((folder / "results.jsonl").read_text())
    assert found == [*ODD, f"--run_dir={folder}"]
    [log] = folder.glob("log-*.txt")
    assert log.read_text() == "hello from 0\n"
    assert (site.home / "attnlab/code/REVISION").read_text() == site.revision()


def test_results_of_a_single_worker_come_here_with_the_status_of_the_run(site):
    (site.home / "attnlab/code/.venv").mkdir(parents=True)
    (site.home / "attnlab/code/old.py").touch()
    status, out, err = site.run("tpu_vm", *OPTIONS, "hello", "--status=143", "--output_dir=a/b")
    assert status == 143 and "the run, or gcloud, ended with status 143" in err
    assert out == "hello from 0\n"
    [run] = (site.here / "a" / "b").iterdir()
    assert json.loads((run / "results.jsonl").read_text())[0] == "--status=143"
    kept = {path.name for path in (site.home / "attnlab/code").iterdir()}
    assert ".venv" in kept and "old.py" not in kept


@pytest.mark.parametrize(
    ("tpu", "message"),
    [
        ({"state": "PREEMPTED"}, "mine is PREEMPTED; wait until it is READY, or make it again"),
        ({"state": "READY", "networkEndpoints": [{}, {}]}, "2 workers share a bucket; give"),
    ],
)
def test_a_tpu_that_does_not_serve_is_refused(site, tpu, message):
    site.environment["TPU"] = json.dumps(tpu)
    status, _, err = site.run("tpu_vm", *OPTIONS, "hello")
    assert status == 2 and message in err
    assert [call[4] for call in site.calls()] == ["describe"]


def test_a_worker_that_cannot_be_prepared_starts_nothing(site):
    (site.bin / "gcsfuse").unlink()
    status, _, err = site.run("tpu_vm", *OPTIONS, "hello", BUCKET)
    assert status == 1 and "gcsfuse is not installed" in err and "nothing was started" in err
    assert not [call for call in site.calls() if "start" in call[-1]]


def test_ctrl_c_leaves_the_run_going_and_it_can_be_stopped(site):
    waits = """import signal, sys, time
if "--check=flags" in sys.argv:
    sys.exit()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("waits", flush=True)
time.sleep(60)
"""
    (site.root / "experiments" / "hello" / "__main__.py").write_text(waits)
    site.commit()
    process = site.start("tpu_vm", *OPTIONS, "hello", BUCKET)
    assert process.stdout.readline() == "waits\n"
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    last = err.splitlines()[-1]
    assert (
        process.returncode == 130 and "interrupted; it may run on mine; follow it: gcloud" in last
    )
    assert "copy what" not in last  # it is in the bucket
    assert "a run is going on here" in site.run("tpu_vm", *OPTIONS, "hello", BUCKET)[2]

    stop = shlex.split(last.partition("stop it: ")[2])
    command = stop[-1].removeprefix("--command=")
    home = site.home / "attnlab"
    os.system(f"cd {shlex.quote(str(site.home))}; HOME=$PWD {command}")
    end = time.monotonic() + 20
    while not (home / "status").exists():
        assert time.monotonic() < end, "it was not stopped"
        time.sleep(0.05)
    assert (home / "status").read_text() == "143\n"
