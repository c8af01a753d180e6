"""launch/slurm with a fake SLURM, whose job runs at once on this machine."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from attnlab.runs.folder import Folder
from tests.launch.site import ODD, Site

PYTHON = f"--python={sys.executable}"
SBATCH = """
case " $* " in *" --test-only "*) exit "${TEST_ONLY:-0}";; esac
[ -z "${REFUSES:-}" ] || exit 9
echo "5;cluster"
while [[ "$1" != *.sbatch ]]; do shift; done
SLURM_JOB_ID=5 bash "$@" > "$FAKES/log" 2>&1
exit 0
"""
SRUN = """while [[ "$1" == --* ]]; do shift; done; exec "$@" """


@pytest.fixture
def site(tmp_path) -> Site:
    site = Site(tmp_path, ["squeue", "scontrol"])
    site.fake("sbatch", SBATCH)
    site.fake("srun", SRUN)
    return site


def test_the_job_runs_the_code_of_the_revision_with_the_flags_as_they_are(site):
    options = ["--nodes=2", "--gpus_per_node=4", "--sbatch=-p long --comment='a b'", PYTHON]
    status, out, err = site.run("slurm", *options, "hello", *ODD, "--output_dir=o ut")
    assert status == 0, err
    [folder] = (site.here / "o ut").iterdir()
    code = folder / f"code-{site.revision()}"
    script = str(site.root / "launch" / "templates" / "slurm.sbatch")
    submission = [
        *("--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", f"--job-name={folder.name}"),
        *(f"--output={folder / 'log.txt'}", "-p", "long", "--comment=a b", script),
        *(str(code), sys.executable, "cuda", str(folder), "hello", *ODD),
    ]
    words = [str(code / "launch" / "local"), "--no_env", "hello", *ODD, f"--run_dir={folder}"]
    assert site.calls() == [
        ["sbatch", "--test-only", *submission],
        ["sbatch", "--parsable", *submission],
        ["srun", "--kill-on-bad-exit=0", *words],
    ]
    assert json.loads((folder / "results.jsonl").read_text()) == words[3:]
    assert "job 5 writes to" in err and "scancel 5" in err
    assert shlex.split(out) == ["tail", "-F", str(folder / "log.txt")]


@pytest.mark.parametrize(
    ("options", "platform"),
    [([], "mine"), (["--gpus_per_node=2"], "cuda"), (["--platform=rocm"], "rocm")],
)
def test_with_gpus_jax_must_find_them(site, options, platform):
    """Whatever a shell on the login node, which has none, says."""
    site.environment["JAX_PLATFORMS"] = "mine"
    assert site.run("slurm", PYTHON, *options, "hello", "--platform")[0] == 0
    assert (site.fakes / "log").read_text().splitlines()[-1] == f"on {platform}"


@pytest.mark.parametrize(("status", "again"), [(143, True), (0, False), (1, False), (137, False)])
def test_a_job_that_saved_is_queued_again(site, status, again):
    assert site.run("slurm", PYTHON, "hello", f"--status={status}")[0] == 0
    requeued = ["scontrol", "requeue", "5"] in site.calls()
    assert requeued == again


def test_a_folder_with_signs_of_the_shell_and_of_sbatch_is_where_the_log_is(site):
    status, out, err = site.run("slurm", PYTHON, "hello", "--output_dir=a b%j")
    assert status == 0, err
    [folder] = (site.here / "a b%j").iterdir()
    [output] = [word for word in site.calls()[1] if word.startswith("--output=")]
    assert output == f"--output={str(folder).replace('%', '%%')}/log.txt"
    assert shlex.split(out) == ["tail", "-F", f"{folder}/log.txt"]


def test_the_jobs_of_an_array_have_folders_of_their_own(site):
    site.fake("sbatch", SBATCH.replace("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID=3 SLURM_JOB_ID"))
    (site.root / "experiments" / "hello" / "__init__.py").write_text('SHARED_BY = "jobs"\n')
    site.commit()
    status, out, err = site.run("slurm", "--array=0-7%2", PYTHON, "hello")
    assert status == 0 and out.endswith("/log-*.txt\n"), err
    [folder] = (site.here / "results").iterdir()
    assert json.loads((folder / "3" / "results.jsonl").read_text())[-1].endswith("/3")
    call = site.calls()[0]
    assert "--array=0-7%2" in call and f"--output={folder}/log-%a.txt" in call


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes=0"], "argument --nodes: '0' is no count; give 1 or more"),
        (["--sbatch=--nodes=3"], "--sbatch=--nodes=3 is what other options say"),
        (["--sbatch=-t 9 -N 3"], "--sbatch=-N is what other options say"),
        (["--gpus_per_node=2", "--processes_per_node=4"], "=4 must divide --gpus_per_node=2"),
        (["--partition=long"], 'those of sbatch stand in --sbatch="--partition=long …"'),
    ],
)
def test_what_cannot_be_meant_is_refused(site, options, message):
    site.refuses(message, "slurm", PYTHON, *options, "hello")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--array=0-7"], "--array=0-7: hello does not divide its work among the jobs of an array"),
        (["--nodes=2"], "--nodes=2, 1 processes of each: hello runs in one process"),
        (["--gpus_per_node=4"], "--nodes=1, 4 processes of each: hello runs in one process"),
    ],
)
def test_an_experiment_that_divides_nothing_is_not_submitted_several_times(site, options, message):
    site.alone()
    site.refuses(message, "slurm", PYTHON, *options, "hello")
    one = ["--gpus_per_node=4", "--processes_per_node=1"]
    assert site.run("slurm", PYTHON, *one, "hello")[0] == 0 and site.calls()


def test_a_submission_that_fails_leaves_nothing(site):
    site.environment["TEST_ONLY"] = "3"
    status, _, err = site.run("slurm", PYTHON, "hello")
    assert status == 3 and "sbatch --test-only --nodes=1 … ended with status 3; nothing" in err
    site.environment |= {"TEST_ONLY": "0", "REFUSES": "yes"}
    status, _, err = site.run("slurm", PYTHON, "hello")
    assert status == 9 and "nothing was started" in err
    assert not list(site.here.glob("results/*"))


def test_a_resumed_run_keeps_its_folder_unless_a_job_has_it(site):
    assert site.run("slurm", PYTHON, "hello", "--output_dir=out")[0] == 0
    [folder] = Path(site.here / "out").iterdir()
    site.calls()
    again = ["slurm", PYTHON, "hello", f"--resume={folder}"]
    site.fake("squeue", "echo 12")
    assert f"--resume={folder}: job 12 has it; wait for its end" in site.run(*again)[2]
    assert [call[0] for call in site.calls()] == ["squeue"]
    site.fake("squeue")
    site.environment["REFUSES"] = "yes"
    assert site.run(*again)[0] == 9 and (folder / "results.jsonl").exists()
    del site.environment["REFUSES"]
    assert site.run(*again)[0] == 0
    assert len((folder / "results.jsonl").read_text().splitlines()) == 2
    assert [path.name for path in folder.glob("code-*")] == [f"code-{site.revision()}"]
    lines = (folder / "launch.jsonl").read_text().splitlines()
    commands = [json.loads(line)["command"] for line in lines]
    assert commands[0].endswith("hello --output_dir=out") and len(commands) == 3


def test_a_run_begins_in_the_folder_that_was_made_for_its_job(site):
    assert site.run("slurm", PYTHON, "hello", "--output_dir=out")[0] == 0
    [folder] = Path(site.here / "out").iterdir()
    (folder / "results.jsonl").unlink()  # of the job, which ran at once
    Folder.fresh("hello", folder.parent, {}, path=folder).begin()
    assert (folder / "launch.jsonl").exists() and (folder / "settings.json").exists()


def test_a_folder_that_cannot_be_made_is_one_line(site):
    (site.here / "file").touch()
    status, _, err = site.run("slurm", PYTHON, "hello", "--output_dir=file")
    assert status == 1 and err.splitlines()[-1].startswith("launch/slurm: [Errno 20] Not a dir")
    assert err.endswith("nothing was started\n")
    assert [call[1] for call in site.calls()] == ["--test-only"]


def test_two_launches_in_one_second_have_two_folders(site):
    for _ in range(3):
        assert site.run("slurm", PYTHON, "hello")[0] == 0
    assert len(list(site.here.glob("results/*"))) == 3
