"""launch/slurm on a real SLURM of one node, where its daemons are installed and may be started.

Debian: apt install slurmctld slurmd slurm-client
"""

import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time

import pytest

from tests.launch.site import Site
from tests.several import ROOT, free_port

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
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2 State=UNKNOWN
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
    devices = ["/dev/null", "/dev/zero"]  # nothing is behind these GPUs
    (folder / "gres.conf").write_text("".join(f"Name=gpu File={x}\n" for x in devices))
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


def wait(condition, seconds=60) -> None:
    end = time.monotonic() + seconds
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


# As small as its Transformer gets: what is tried is that it runs.
TINY = """--models=transformer --steps=2 --batch_size=4 --vocab_size=60 --max_length=12
--beam_size=1 --dtype=float32 --set=transformer.num_layers=1 --set=transformer.width=8
--set=transformer.hidden=8
--output_dir=runs""".split()


def readme_line() -> list[str]:
    """README's own command for a cluster, for the two GPUs of the one node that there is."""
    [line] = re.findall(
        r"^    (launch/slurm .*?)(?:  +#.*)?$", (ROOT / "README.md").read_text(), re.M
    )
    assert "--nodes=2 --gpus_per_node=8 " in line
    return shlex.split(line.replace("--nodes=2 --gpus_per_node=8", "--nodes=1 --gpus_per_node=2"))


def text(language: str) -> str:
    """Lines of words, the same numbers of them in both languages."""
    chosen = random.Random(7)
    words = [language + letter * 2 for letter in "abcdefghijklm"]
    return "".join(" ".join(chosen.choices(words, k=5)) + "\n" for _ in range(400))


@pytest.mark.parametrize("platform", ["cuda", "cpu"])
def test_the_line_of_the_readme_runs_and_fails_where_its_devices_are_missing(site, platform):
    for language in ("de", "en"):
        (site.here / f"train.{language}").write_text(text(language))
    site.environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
    launcher, *words = readme_line()
    ours = ["--allow_dirty", f"--python={sys.executable}"]
    if platform == "cpu":  # as a user tries a line without the devices
        ours.append("--platform=cpu")
    done = subprocess.run(
        [ROOT / launcher, *ours, *words, *TINY],
        cwd=site.here,
        env=site.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    job = done.stderr.partition("launch/slurm: job ")[2].split()[0]
    started = time.monotonic()
    ended = re.compile("JobState=(COMPLETED|FAILED)")
    wait(lambda: ended.search(slurm(site, "scontrol", "show", "job", job)), seconds=300)
    [log] = site.here.glob("runs/translate-*/log.txt")
    state = slurm(site, "scontrol", "show", "job", job)
    if platform == "cuda":
        assert time.monotonic() - started < 60 and "ExitCode=2:0" in state
        assert "translate: JAX_PLATFORMS=cuda: " in log.read_text()
        return
    assert "ExitCode=0:0" in state, log.read_text()
    first = next(line for line in log.read_text().splitlines() if "trainings to run on" in line)
    assert re.fullmatch(r"1 of 1 trainings to run on 2 × .* \(cpu\)", first)
    [report] = site.here.glob("runs/translate-*/report.md")
    assert "transformer" in report.read_text()
