"""launch/sky with a fake sky, and its task."""

import shlex
import subprocess

import pytest
import yaml

from tests.launch.site import ODD, Site

BUCKET = "--output_dir=gs://bucket/r/ns"
OPTIONS = ["--accelerators=H100:8"]


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path, ["sky"])


def task(site: Site) -> dict:
    [file] = site.here.glob("results/*/task.yaml")
    return yaml.safe_load(file.read_text())


def test_the_task_of_two_nodes(site):
    given = "--sky=--cpus=8 --env='A=b c'"
    options = [*OPTIONS, "--nodes=2", "--infra=gcp/us-central1", "--spot", given]
    status, _, err = site.run("sky", *options, "hello", *ODD, BUCKET)
    assert status == 0, err
    [folder] = site.here.glob("results/*")
    file = str(folder / "task.yaml")
    words = ["--yes", f"--cluster={folder.name}", "--down", "--cpus=8", "--env=A=b c", file]
    assert site.calls() == [["sky", "launch", *words]]
    found = task(site)
    run = shlex.split(found.pop("run"))
    assert found == {
        "name": folder.name,
        "num_nodes": 2,
        "workdir": str(folder / f"code-{site.revision()}"),
        "resources": {"accelerators": "H100:8", "infra": "gcp/us-central1", "use_spot": True},
        "envs": {"JAX_PLATFORMS": "cuda"},
        "file_mounts": {"/bucket": {"source": "gs://bucket", "mode": "MOUNT"}},
        "setup": "bash launch/templates/sky.bash setup hello",
    }
    where = f"/bucket/r/ns/{folder.name}"
    script = ["bash", "launch/templates/sky.bash", "run", where]
    assert run == [*script, "hello", *ODD, f"--run_dir={where}"]


def test_a_managed_job_is_one_that_sky_restarts(site):
    assert site.run("sky", *OPTIONS, "--managed", "hello", BUCKET)[0] == 0
    [call] = site.calls()
    [folder] = site.here.glob("results/*")
    assert call == ["sky", "jobs", "launch", "--yes", f"--name={folder.name}", call[-1]]
    assert task(site)["resources"] == {"accelerators": "H100:8", "infra": None, "use_spot": False}


def test_a_resumed_run_is_in_its_folder(site):
    words = ["hello", "--resume", "gs://bucket/runs/hello-1/"]
    assert site.run("sky", *OPTIONS, *words)[0] == 0
    assert task(site)["run"].endswith(
        "run /bucket/runs/hello-1 hello --run_dir=/bucket/runs/hello-1"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*OPTIONS, "--sky=job.yaml"], "--sky=job.yaml: give an option of `sky launch`, such as"),
        (["--accelerators=tpu-v6e-16", "--nodes=4"], "--nodes=4: tpu-v6e-16 has its own hosts"),
    ],
)
def test_what_cannot_be_meant_is_refused(site, options, message):
    site.refuses(message, "sky", *options, "hello", BUCKET)


def test_a_slice_of_several_hosts_is_for_what_several_processes_share(site):
    site.alone()
    message = "--accelerators=tpu-v6e-16: hello runs in one process; give a"
    site.refuses(message, "sky", "--accelerators=tpu-v6e-16", "hello", BUCKET)
    assert site.run("sky", "--accelerators=tpu-v6e-8", "hello", BUCKET)[0] == 0


@pytest.mark.parametrize("has_python", [True, False])
def test_a_node_without_a_new_python_gets_one(site, has_python):
    """What setup and run do on a node, where launch/local only records its calls."""
    python = site.home / "attnlab_python"
    needs = "" if has_python else f'[ -d "{python}" ] || exit 1'
    site.fake("local", needs)
    (site.root / "launch" / "local").unlink()
    (site.root / "launch" / "local").symlink_to(site.bin / "local")
    site.fake("conda", 'mkdir -p "$5"')
    for words in (["setup", "hello"], ["run", str(site.home / "run"), "hello", "--x=a b"]):
        script = ["bash", "launch/templates/sky.bash", *words]
        subprocess.run(script, cwd=site.root, env=site.environment, check=True)
    made = [] if has_python else [["conda", "create", "--quiet", "--yes", "--prefix", str(python)]]
    assert [call[:6] for call in site.calls()] == [
        ["local", "--help"],
        *made,
        ["local", "hello", "--check=words"],
        ["local", "hello", "--x=a b"],
    ]
