"""launch/gke with a fake docker and kubectl, and its manifest by the rules of JobSet and GKE."""

import re
import tarfile
import tomllib
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.launch.site import ODD, ROOT, Site

BUCKET = "--output_dir=gs://bucket/r/ns"
TPU = ["--image=registry:5000/me/attnlab", "--tpu=v5e:4x4"]
GPU = ["--image=me", "--gpu=nvidia-h100-80gb:8", "--hosts=2"]

# The fields that a manifest of ours may have, and their types: JobSet's v1alpha2 (its CRD,
# config/components/crd of kubernetes-sigs/jobset), batch/v1 and core/v1 (Kubernetes' API
# reference). {…: T} is a map of strings to T, [T] a list, and a name with "!" is required.
POD = {
    "restartPolicy!": str,
    "terminationGracePeriodSeconds": int,
    "serviceAccountName": str,
    "nodeSelector": {...: str},
    "tolerations": [{"key": str, "operator": str}],
    "containers!": [
        {
            "name!": str,
            "image": str,
            "command": [str],
            "env": [{"name!": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath!": str}}}],
            "resources": {"limits": {...: int}, "requests": {...: str}},
            "volumeMounts": [{"name!": str, "mountPath!": str}],
        }
    ],
    "volumes": [
        {
            "name!": str,
            "csi": {"driver!": str, "volumeAttributes": {...: str}},
            "emptyDir": {"medium": str, "sizeLimit": str},
        }
    ],
}
JOB = {
    "completionMode": str,
    "parallelism": int,
    "completions": int,
    "backoffLimit": int,
    "podFailurePolicy": {
        "rules!": [
            {
                "action!": str,
                "onExitCodes": {"containerName": str, "operator!": str, "values!": [int]},
            }
        ]
    },
    "template!": {"metadata": {"annotations": {...: str}}, "spec": POD},
}
JOBSET = {
    "apiVersion!": str,
    "kind!": str,
    "metadata!": {
        "name": str,
        "namespace": str,
        "labels": {...: str},
        "annotations": {...: str},
    },
    "spec": {
        "failurePolicy": {
            "maxRestarts": int,
            "rules": [{"name!": str, "action!": str, "onJobFailureReasons": [str]}],
        },
        "replicatedJobs": [{"name!": str, "replicas": int, "template!": {"spec": JOB}}],
    },
}


def faults(value: Any, schema: Any, where: str = "") -> list[str]:
    """What of a value is not as a schema has it."""
    if isinstance(schema, type):
        return [] if type(value) is schema else [f"{where}: {value!r} is no {schema.__name__}"]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{where}: no list"]
        return [f for i, x in enumerate(value) for f in faults(x, schema[0], f"{where}[{i}]")]
    if not isinstance(value, dict):
        return [f"{where}: no map"]
    if ... in schema:
        return [f for k, x in value.items() for f in faults(x, schema[...], f"{where}.{k}")]
    fields = {name.rstrip("!"): kind for name, kind in schema.items()}
    required = {name[:-1] for name in schema if name.endswith("!")}
    found = [f"{where}.{name} is missing" for name in required - value.keys()]
    found += [f"{where}.{name} is no field" for name in value.keys() - fields.keys()]
    known = value.keys() & fields.keys()
    return found + [f for k in known for f in faults(value[k], fields[k], f"{where}.{k}")]


def test_a_fault_is_found():
    wrong = {"name": 1, "csi": {"volumeAttributes": {"a": True}}, "emptyDirs": {}, "emptyDir": []}
    assert sorted(faults(wrong, POD["volumes"][0], "volume")) == [
        "volume.csi.driver is missing",
        "volume.csi.volumeAttributes.a: True is no str",
        "volume.emptyDir: no map",
        "volume.emptyDirs is no field",
        "volume.name: 1 is no str",
    ]


@pytest.fixture
def site(tmp_path) -> Site:
    site = Site(tmp_path, ["docker", "kubectl", "gcloud"])
    site.fake("docker", 'if [ "$1" = build ]; then cat > "$FAKES/context"; fi')
    return site


def expanded(word: str) -> str:
    """What Kubernetes makes of a word of a command, were every variable known to it."""
    return re.sub(r"\$(\$|\(\w+\))", lambda found: "$" if found[1] == "$" else "a value", word)


def manifest(site: Site) -> dict[str, Any]:
    [file] = site.here.glob("results/*/jobset.json")
    found = yaml.safe_load(file.read_text())
    assert faults(found, JOBSET) == []
    return found


def test_a_tpu_slice_call_by_call(site):
    options = [*TPU, "--queue=research", "--namespace=team", "--service_account=writer"]
    status, out, err = site.run("gke", *options, "hello", *ODD, BUCKET)
    assert status == 0, err
    [file] = site.here.glob("results/*/jobset.json")
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


def test_fields_of_the_manifest_are_set_and_it_is_printed(site):
    settings = [
        'nodeSelector={"cloud.google.com/gke-spot": "true"}',
        'tolerations=[{"key": "team", "operator": "Exists"}]',
        "containers.0.resources.requests.memory=200Gi",
        "volumes.1.emptyDir.sizeLimit=64Gi",
        'metadata.labels={"team": "a=b"}',
        "spec.failurePolicy.maxRestarts=1",
    ]
    options = [*GPU, "--queue=research", *(f"--set={one}" for one in settings)]
    status, _, err = site.run("gke", *options, "hello", BUCKET)
    assert status == 0, err
    found = manifest(site)
    assert found["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research", "team": "a=b"}
    assert found["spec"]["failurePolicy"]["maxRestarts"] == 1
    job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    gpu = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert pod["nodeSelector"] == {**gpu, "cloud.google.com/gke-spot": "true"}
    assert pod["tolerations"] == [{"key": "team", "operator": "Exists"}]
    resources = {"limits": {"nvidia.com/gpu": 8}, "requests": {"memory": "200Gi"}}
    assert pod["containers"][0]["resources"] == resources
    assert pod["volumes"][1]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    [file] = site.here.glob("results/*/jobset.json")
    assert file.read_text() in err


@pytest.mark.parametrize(
    "setting",
    [
        *("volumes.2.name=a", "volumes.a=1", "serviceAccountName.a=1", "nodeSelector", "=a", "a="),
        *(f"spec={value} --set=a=b" for value in ("1", '{"replicatedJobs":[]}')),
    ],
)
def test_a_field_that_has_no_place_is_refused(site, setting):
    settings = f"--set={setting}".split()
    status, _, err = site.run("gke", *GPU, *settings, "hello", BUCKET)
    assert status == 2 and not list(site.here.iterdir())
    assert err.endswith(
        "such as volumes.1.emptyDir.sizeLimit=64Gi; a dry run shows what there is\n"
    )
    assert f"\nlaunch/gke: {settings[-1]}: no place in the manifest; give PATH=VALUE" in f"\n{err}"


@pytest.mark.parametrize(
    "setting", ["metadata.name=a", "metadata.namespace=a", 'metadata={"name": "a"}', "metadata=1"]
)
def test_the_name_of_the_jobset_is_not_set(site, setting):
    """By it the hosts find each other, and the launcher looks for a run that is there."""
    status, _, err = site.run("gke", *GPU, f"--set={setting}", "hello", BUCKET)
    assert status == 2 and not list(site.here.iterdir())
    words = "the name is that of the run; leave it, and give --namespace=\n"
    assert err.endswith(f"launch/gke: --set={setting}: {words}")


@pytest.mark.parametrize(
    ("tpu", "hosts", "chips"),
    [("v5e:1x1", 1, 1), ("v6e:2x4", 1, 8), ("v6e:4x8", 8, 4), ("v4:2x2x2", 2, 4)]
    + [("tpu7x:4x4x4", 16, 4), ("v5p:2x2x1", 1, 4)],
)
def test_the_hosts_of_a_slice(site, tpu, hosts, chips):
    assert site.run("gke", "--image=me", f"--tpu={tpu}", "hello", BUCKET)[0] == 0
    job = manifest(site)["spec"]["replicatedJobs"][0]["template"]["spec"]
    limits = job["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert (job["completions"], limits) == (hosts, {"google.com/tpu": chips})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tpu=v5e:4x4"], "give --image=REPOSITORY, without a tag"),
        (["--image=a/b:latest", "--tpu=v5e:4x4"], "give --image=REPOSITORY, without a tag"),
        (["--image=a"], "give either --tpu=KIND:SHAPE or --gpu=KIND:COUNT"),
        (["--image=a", "--tpu=v5e:4x4", "--gpu=l4:1"], "give either"),
        (["--image=a", "--gpu=l4"], "--gpu=l4: give KIND:COUNT"),
        (["--image=a", "--gpu=:1"], "--gpu=:1: give KIND:COUNT"),
        (["--image=a", "--tpu=v3:4x4"], "--tpu=v3:4x4: no 'v3'; valid: v4, v5e, v5p, v6e, tpu7x"),
        (["--image=a", "--tpu=v5e:3x3"], "no shape '3x3'; valid: 1x1, 2x2, 2x4, 4x4"),
        ([*TPU, "--hosts=3"], "--hosts=3: v5e:4x4 is 16 chips on 4 hosts"),
        (["--image=a", "--tpu=v5e:2x4", "--hosts=4"], "is 8 chips on 1 or 2 hosts"),
        ([*TPU, "--extra=cuda13"], "--extra=cuda13 is for GPUs"),
    ],
)
def test_what_cannot_be_meant_is_refused(site, options, message):
    status, out, err = site.run("gke", *options, "hello", BUCKET)
    assert (status, out) == (2, "") and message in err
    assert not site.calls() and not list(site.here.iterdir())


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


@pytest.mark.parametrize(
    ("tool", "fails", "calls"),
    [
        ("gcloud", "describe", 1),
        ("kubectl", "--dry-run=server", 3),
        ("docker", "build", 4),
        ("docker", "push", 5),
    ],
)
def test_what_fails_before_the_end_starts_nothing(site, tool, fails, calls):
    site.fake(tool, f'case "$*" in *{fails}*) exit 5;; esac')
    status, _, err = site.run("gke", *TPU, "hello", BUCKET)
    assert status == 5 and "ended with status 5; nothing was started" in err
    assert len(site.calls()) == calls


def test_the_image_has_what_the_dockerfile_names():
    text = (ROOT / "launch" / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (.*) \./$", text, re.M)
    assert copied and all((ROOT / name).is_file() for name in copied[0].split())
    assert re.search(r"^FROM python:\d+\.\d+\.\d+-", text, re.M) and "constraints.txt" in copied[0]


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
