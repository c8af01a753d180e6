"""launch/slurm on a real SLURM of one node, where its daemons are installed and may be started.

Debian: apt install slurmctld slurmd slurm-client
"""

import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

from tests.launch.site import Site

SLURM = ["sbatch", "squeue", "srun", "scontrol", "scancel", "slurmctld", "slurmd"]
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
MISSING = [tool for tool in SLURM if shutil.which(tool, path=PATH) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"SLURM is not installed: no {', '.join(MISSING)}"),
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd runs as root"),
]

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""

# Saves when it is asked to end, as a training does; the second time it is done.
SAVES = """
import os, pathlib, signal, sys, time

if "--check=files" in sys.argv:
    sys.exit()
folder = pathlib.Path(next(a for a in sys.argv if a.startswith("--run_dir=")).partition("=")[2])
saved = folder / ("saved-" + os.environ["SLURM_PROCID"])

def save(*_):
    saved.touch()
    sys.exit(143)

signal.signal(signal.SIGTERM, save)
which = os.environ["SLURM_PROCID"] + " of " + os.environ["SLURM_NTASKS"]
print("goes on" if saved.exists() else "begins", which, flush=True)
end = time.monotonic() + 60
while not saved.exists() and "--waits" in sys.argv and time.monotonic() < end:
    time.sleep(0.05)
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path, [])
    for tool in SLURM:
        (site.bin / tool).symlink_to(shutil.which(tool, path=PATH))
    (site.root / "experiments" / "hello" / "__main__.py").write_text(SAVES)
    site.commit()
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    (folder / "spool").mkdir()
    host = socket.gethostname().partition(".")[0]
    ports = {"controller": free_port(), "daemon": free_port()}
    file = folder / "slurm.conf"
    file.write_text(CONFIGURATION.format(host=host, folder=folder, **ports))
    site.environment["SLURM_CONF"] = str(file)
    daemons = [
        subprocess.Popen([site.bin / name, "-D"], env=site.environment, stderr=subprocess.DEVNULL)
        for name in ("slurmctld", "slurmd")
    ]
    try:
        wait(lambda: "idle" in slurm(site, "scontrol", "show", "node", "--oneliner").lower())
        yield site
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


def slurm(site: Site, *command: str) -> str:
    done = subprocess.run(command, env=site.environment, capture_output=True, text=True)
    return done.stdout


def wait(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "SLURM did not get so far"
        time.sleep(0.1)


def test_a_job_of_two_tasks_is_queued_again_and_goes_on(site):
    python = f"--python={sys.executable}"
    refused = site.run("slurm", python, "--nodes=2", "hello")
    assert refused[0] == 1 and "sbatch --test-only --nodes=2 … ended with status 1" in refused[2]
    assert not list(site.here.iterdir())

    status, out, err = site.run("slurm", python, "--processes_per_node=2", "hello", "--waits")
    assert status == 0, err
    job = err.partition("launch/slurm: job ")[2].split()[0]
    [folder] = site.here.glob("results/hello-*")
    log = folder / "log.txt"
    assert out == f"tail -F {log}\n"
    wait(lambda: log.exists() and log.read_text().count("begins") == 2)
    held = site.run("slurm", python, "hello", f"--resume={folder}")
    assert held[0] == 2 and f"job {job} has it" in held[2]

    slurm(site, "scancel", "--signal=TERM", job)
    wait(lambda: "JobState=PENDING" in slurm(site, "scontrol", "show", "job", job))
    slurm(site, "scontrol", "update", f"JobId={job}", "StartTime=now")  # else two minutes later
    wait(lambda: "JobState=COMPLETED" in slurm(site, "scontrol", "show", "job", job))
    lines = log.read_text().splitlines()
    assert sorted(line for line in lines if line.startswith(("begins", "goes"))) == [
        "begins 0 of 2",
        "begins 1 of 2",
        "goes on 0 of 2",
        "goes on 1 of 2",
    ]
    assert f"slurm.sbatch: ended by SIGTERM; queueing job {job} again" in lines

    for saved in folder.glob("saved-*"):
        saved.unlink()
    err = site.run("slurm", python, "hello", "--waits", f"--resume={folder}")[2]
    job = err.partition("launch/slurm: job ")[2].split()[0]
    wait(lambda: log.read_text().count("begins 0 of 1") == 1)
    slurm(site, "scancel", job)  # ends it for good
    wait(lambda: "JobState=CANCELLED" in slurm(site, "scontrol", "show", "job", job))
    wait(lambda: "idle" in slurm(site, "scontrol", "show", "node", "--oneliner").lower())
    assert not slurm(site, "squeue", "--noheader").strip()
    assert log.read_text().count("queueing job") == 1
