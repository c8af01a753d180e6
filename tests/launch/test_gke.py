"""launch/gke with a fake docker and kubectl, and its manifest by the rules of JobSet and GKE."""

import re
import tarfile
import tomllib
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.launch.site import ODD, Site
from tests.several import ROOT

BUCKET = "--output_dir=gs://bucket/r/ns"
TPU = ["--image=registry:5000/me/attnlab", "--tpu=v5e:4x4"]
GPU = ["--image=me", "--gpu=nvidia-h100-80gb:8", "--hosts=2"]


@pytest.fixture
def site(tmp_path) -> Site:
    site = Site(tmp_path, ["docker", "kubectl", "gcloud"])
    site.fake("docker", 'if [ "$1" = build ]; then cat > "$FAKES/context"; fi')
    return site


def expanded(word: str) -> str:
    """What Kubernetes makes of a word of a command, were every variable known to it."""
    return re.sub(r"\$(\$|\(\w+\))", lambda found: "$" if found[1] == "$" else "a value", word)


def manifest(site: Site) -> dict[str, Any]:
    [file] = site.here.glob("results/*/jobset.yaml")
    return yaml.safe_load(file.read_text())


def test_a_tpu_slice_call_by_call(site):
    options = [*TPU, "--queue=research", "--namespace=team", "--service_account=writer"]
    status, out, err = site.run("gke", *options, "hello", *ODD, BUCKET)
    assert status == 0, err
    [file] = site.here.glob("results/*/jobset.yaml")
    run, image = file.parent.name, f"registry:5000/me/attnlab:{site.revision()}-tpu"
    at = "--namespace=team"
    build = ["docker", "build", "--platform=linux/amd64", "--file=launch/Dockerfile"]
    hierarchical = "--format=value(hierarchical_namespace.enabled)"
    assert "note: gs://bucket has no hierarchical namespace" in err
    assert site.calls() == [
        ["gcloud", "storage", "buckets", "describe", "gs://bucket", hierarchical],
        ["kubectl", at, "get", "jobset", run, "--ignore-not-found", "--output=name"],
        ["kubectl", "apply", "--dry-run=server", f"--filename={file}"],
        [*build, "--build-arg=EXTRA=tpu", f"--tag={image}", "-"],
        ["docker", "push", image],
        ["kubectl", "apply", f"--filename={file}"],
    ]
    assert out == f"kubectl {at} logs --follow --container=attnlab job/{run}-host-0\n"
    with tarfile.open(site.fakes / "context") as context:
        names = context.getnames()
    assert {"launch/Dockerfile", "launch/host.py", "REVISION"} <= set(names)

    found = manifest(site)
    assert found["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research"}
    annotations = found["metadata"]["annotations"]
    assert annotations["attnlab/revision"] == site.revision()
    exclusive = annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"]
    assert exclusive == "cloud.google.com/gke-nodepool"
    job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["parallelism"] == job["completions"] == 4
    pod = job["template"]["spec"]
    assert pod["serviceAccountName"] == "writer"
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    [container] = pod["containers"]
    assert container["resources"] == {"limits": {"google.com/tpu": 4}}
    assert container["image"] == image
    assert container["env"] == [{"name": "JAX_PLATFORMS", "value": "tpu"}]
    folder = f"/bucket/r/ns/{run}"
    assert [expanded(word) for word in container["command"]] == [
        *("python3", "launch/host.py", folder, "launch/local", "--no_env"),
        *("hello", *ODD, f"--run_dir={folder}"),
    ]
    [bucket] = [volume["csi"] for volume in pod["volumes"] if "csi" in volume]
    assert bucket["volumeAttributes"]["bucketName"] == "bucket"


def test_a_bucket_that_renames_folders_in_one_step_needs_no_note(site):
    site.fake("gcloud", "echo True")
    assert "note:" not in site.run("gke", *TPU, "hello", BUCKET)[2]


def test_gpu_hosts_are_told_where_they_find_each_other(site):
    status, _, err = site.run("gke", *GPU, "--extra=cuda13", "--max_restarts=3", "hello", BUCKET)
    assert status == 0, err
    found = manifest(site)
    assert found["spec"]["failurePolicy"]["maxRestarts"] == 3 and not found["metadata"]["labels"]
    job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    [container] = job["template"]["spec"]["containers"]
    assert job["completions"] == 2 and container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert container["image"] == f"me:{site.revision()}-cuda13"
    name = found["metadata"]["name"]
    told = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    index = told.pop("ATTNLAB_PROCESS_ID")["fieldRef"]["fieldPath"]
    assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert told == {
        "ATTNLAB_COORDINATOR": f"{name}-host-0-0.{name}:8476",
        "ATTNLAB_NUM_PROCESSES": "2",
        "JAX_PLATFORMS": "cuda",  # without it JAX takes the CPU where it finds no driver
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",  # GKE documentation, "GPUs": where that is
    }


@pytest.mark.parametrize(
    ("tpu", "hosts", "chips"),
    [("v5e:1x1", 1, 1), ("v6e:2x4", 1, 8), ("v4:2x2x2", 2, 4), ("tpu7x:4x4x4", 16, 4)],
)
def test_the_hosts_of_a_slice(site, tpu, hosts, chips):
    assert site.run("gke", "--image=me", f"--tpu={tpu}", "hello", BUCKET)[0] == 0
    job = manifest(site)["spec"]["replicatedJobs"][0]["template"]["spec"]
    limits = job["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert (job["completions"], limits) == (hosts, {"google.com/tpu": chips})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--image=a"], "give either --tpu=KIND:SHAPE or --gpu=KIND:COUNT"),
        (["--image=a", "--tpu=v5e:4x4", "--gpu=l4:1"], "give either"),
        (["--image=a", "--gpu=l4"], "--gpu=l4: give KIND:COUNT"),
        (["--image=a", "--tpu=v3:4x4"], "--tpu=v3:4x4: no 'v3'; valid: v4, v5e, v5p, v6e, tpu7x"),
        (["--image=a", "--tpu=v5e:3x3"], "no shape '3x3'; valid: 1x1, 2x2, 2x4, 4x4"),
        ([*TPU, "--hosts=3"], "--hosts=3: v5e:4x4 is 16 chips on 4 hosts"),
        (["--image=a", "--tpu=v5e:2x4", "--hosts=4"], "is 8 chips on 1 or 2 hosts"),
        ([*TPU, "--extra=cuda13"], "--extra=cuda13 is for GPUs"),
    ],
)
def test_what_cannot_be_meant_is_refused(site, options, message):
    site.refuses(message, "gke", *options, "hello", BUCKET)


@pytest.mark.parametrize(
    ("run", "name"), [("Hello_1", "hello-1"), ("2026-a", "run-2026-a"), ("ü ö", "run")]
)
def test_the_name_of_a_jobset_is_one_of_dns(site, run, name):
    status, _, err = site.run("gke", *TPU, "hello", f"--resume=gs://bucket/runs/{run}")
    assert status == 0 and manifest(site)["metadata"]["name"] == name, err


def test_a_run_that_is_there_is_left_alone(site):
    site.fake("kubectl", 'case "$*" in *" get "*) echo jobset.jobset.x-k8s.io/$4;; esac')
    status, _, err = site.run("gke", *TPU, "hello", "--resume=gs://bucket/runs/Hello_1")
    assert status == 2 and "JobSet hello-1 is there and has gs://bucket/runs/Hello_1" in err
    assert [call[2] for call in site.calls()][1:] == ["get"]


def test_an_image_that_cannot_be_pushed_starts_nothing(site):
    site.fake("docker", 'case "$*" in *push*) exit 5;; esac')
    status, _, err = site.run("gke", *TPU, "hello", BUCKET)
    assert status == 5 and "ended with status 5; nothing was started" in err
    assert site.calls()[-1][1] == "push"


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_one_version_of_each_package_is_named_for_each_python_and_is_one_that_we_take(python):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + extras["all"]
    lines = (ROOT / "launch" / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    pins = [
        pin for pin in pins if not pin.marker or pin.marker.evaluate({"python_version": python})
    ]
    versions = {pin.name: str(pin.specifier).removeprefix("==") for pin in pins}
    assert len(versions) == len(pins)
    assert all(one.specifier.contains(versions[one.name]) for one in map(Requirement, wanted))
