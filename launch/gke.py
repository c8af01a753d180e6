r"""Runs an experiment on Google Kubernetes Engine, as a JobSet, on TPUs or GPUs.

    launch/gke [options] NAME FLAGS… --output_dir=gs://BUCKET/FOLDER
    launch/gke --image=my-registry/attnlab --tpu=v5e:4x4 translate \
        --output_dir=gs://my-bucket/runs
    launch/gke --image=my-registry/attnlab --gpu=nvidia-h100-80gb:8 --hosts=2 \
        --queue=research translate --data_files=/bucket/data/train.de,/bucket/data/train.en \
        --output_dir=gs://my-bucket/runs

NAME FLAGS… are those of launch/local; paths in them are those of the container, where the bucket is
/bucket. The image is built from launch/Dockerfile and this checkout at its git revision, and is
pushed as IMAGE:REVISION. One process a host. The folder of the run, made in --output_dir, has what
the experiment writes and each host's log; launch.jsonl and the manifest are in results/ here. Other
fields of the manifest are changed in its template, launch/templates/jobset.yaml.

It needs docker, gcloud, and kubectl with the cluster's credentials; the cluster needs JobSet, the
Cloud Storage FUSE driver, and Kueue where there is a queue. Make the bucket with
--enable-hierarchical-namespace: to rename a folder is then one step, as checkpoints want it. After
a preemption or the failure of a host all hosts begin again, from the last checkpoint.
--resume=gs://BUCKET/FOLDER/RUN among the FLAGS goes on with a run that has ended.

    --image=IMAGE          where the image goes, such as my-registry/attnlab, without a tag
    --tpu=KIND:SHAPE       slice: v4, v5e, v5p, v6e or tpu7x, and its shape in chips
    --gpu=KIND:COUNT       GPUs of a host; KIND as in the label cloud.google.com/gke-accelerator
    --hosts=               hosts: of GPUs 1; of a slice as many as it has (v5e:2x4: 1 or 2)
    --queue=               Kueue's local queue
    --namespace=default    namespace
    --service_account=default  Kubernetes service account that may read and write the bucket
    --extra=cuda12         or cuda13, which needs NVIDIA's driver 580
    --max_restarts=20      restarts before the run counts as failed
"""

import argparse
import math
import sys
import tomllib
from pathlib import Path
from typing import Any

import frame
import shipping
from frame import Launch
from names import ROOT
from steps import Refused

PORT = 8476  # of the first host, where the processes find each other
# GKE's names: cloud.google.com/gke-tpu-accelerator (GKE documentation, "TPUs in GKE").
TPUS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
# The hosts of a run are those of one slice, which is a node pool (JobSet's documentation).
ONE_SLICE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}


def options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this place."""
    parser.add_argument("--image", required=True)
    for name in ("tpu", "gpu", "queue"):
        parser.add_argument(f"--{name}")
    for name in ("namespace", "service_account"):
        parser.add_argument(f"--{name}", default="default")
    parser.add_argument("--extra", choices=("cuda12", "cuda13"))
    parser.add_argument("--hosts", type=frame.at_least_one)
    parser.add_argument("--max_restarts", type=frame.at_least_one, default=20)


def launch(given: Launch) -> None:
    """Checks, builds and pushes the image, and applies the manifest."""
    asked, request, steps = given.options, given.request, given.steps
    if not request.on_bucket:
        raise Refused("the hosts share a bucket; give --output_dir=gs://BUCKET/FOLDER")
    hosts, selector, limits = _devices(asked)
    frame.require_shared(request.name, hosts, f"{hosts} hosts", "give devices of one host")
    steps.need("docker", "it builds the image: docs.docker.com/engine/install")
    steps.need("kubectl", "gcloud components install kubectl")
    frame.require_bucket(request, steps)
    name = request.label
    at = f"--namespace={asked.namespace}"
    if steps.ask(
        "kubectl", at, "get", "jobset", name, "--ignore-not-found", "--output=name"
    ).strip():
        raise Refused(
            f"JobSet {name} is there and has {request.folder}; wait for its end, or: "
            f"kubectl {at} delete jobset {name}"
        )

    extra = "tpu" if asked.tpu else asked.extra or "cuda12"
    image = f"{asked.image}:{given.version}-{extra}"
    here = Path("results", request.run).absolute()
    file = here / "jobset.yaml"
    shipping.record(here, given.command, given.code, steps)
    steps.write(file, _manifest(given, image, hosts, selector, limits))
    steps.run("kubectl", "apply", "--dry-run=server", f"--filename={file}")
    build = ("docker", "build", "--platform=linux/amd64", "--file=launch/Dockerfile")
    steps.run(*build, f"--build-arg=EXTRA={extra}", f"--tag={image}", "-", stdin=given.archive)
    steps.run("docker", "push", image)
    steps.running = f"whether it was applied is not known: kubectl {at} get jobset {name}"
    steps.run("kubectl", "apply", f"--filename={file}")
    if not steps.dry_run:
        steps.say(
            f"JobSet {name} writes to {request.folder}; end it: kubectl {at} delete jobset {name}"
        )
        print(f"kubectl {at} logs --follow --container=attnlab job/{name}-host-0")


def _devices(asked: argparse.Namespace) -> tuple[int, dict[str, str], dict[str, int]]:
    """The number of hosts, the labels of their nodes and what each takes of them."""
    if bool(asked.tpu) == bool(asked.gpu):
        raise Refused("give either --tpu=KIND:SHAPE or --gpu=KIND:COUNT")
    if asked.gpu:
        kind, _, count = asked.gpu.partition(":")
        if not (kind and count.isdecimal() and int(count)):
            raise Refused(f"--gpu={asked.gpu}: give KIND:COUNT, such as nvidia-h100-80gb:8")
        label = {"cloud.google.com/gke-accelerator": kind}
        return asked.hosts or 1, label, {"nvidia.com/gpu": int(count)}
    if asked.extra:
        raise Refused(f"--extra={asked.extra} is for GPUs; leave it out")
    kind, _, shape = asked.tpu.partition(":")
    if kind not in TPUS:
        raise Refused(f"--tpu={asked.tpu}: no {kind!r}; valid: {', '.join(TPUS)}")
    with open(ROOT / "attnlab" / "bench" / "targets.toml", "rb") as file:
        shapes = tomllib.load(file)[kind]["slices"]
    if shape not in shapes:
        raise Refused(f"--tpu={asked.tpu}: no shape {shape!r}; valid: {', '.join(shapes)}")
    chips = math.prod(map(int, shape.split("x")))
    # A host has 4 chips of a larger slice; one of v5e and v6e may have 8 (GKE, machine types).
    possible = [1] if chips < 8 else [1, 2] if shape == "2x4" else [chips // 4]
    hosts = asked.hosts or possible[0]
    if hosts not in possible:
        counts = " or ".join(map(str, possible))
        raise Refused(f"--hosts={hosts}: {asked.tpu} is {chips} chips on {counts} hosts")
    labels = {
        "cloud.google.com/gke-tpu-accelerator": TPUS[kind],
        "cloud.google.com/gke-tpu-topology": shape,
    }
    return hosts, labels, {"google.com/tpu": chips // hosts}


def _environment(name: str, hosts: int, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """What JAX must find; for GPUs, where the driver is and where processes find each other."""
    platform = asked.platform or ("tpu" if asked.tpu else "cuda")
    found: list[dict[str, Any]] = [{"name": "JAX_PLATFORMS", "value": platform}]
    if asked.gpu:
        index = {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
        found += [
            {"name": "LD_LIBRARY_PATH", "value": "/usr/local/nvidia/lib64"},  # as GKE mounts it
            {"name": "ATTNLAB_COORDINATOR", "value": f"{name}-host-0-0.{name}:{PORT}"},
            {"name": "ATTNLAB_NUM_PROCESSES", "value": str(hosts)},
            {"name": "ATTNLAB_PROCESS_ID", "valueFrom": {"fieldRef": index}},
        ]
    return found


def _manifest(
    given: Launch, image: str, hosts: int, selector: dict[str, str], limits: dict[str, int]
) -> str:
    """The JobSet: the template, with what depends on the launch."""
    asked, request = given.options, given.request
    folder = f"/bucket/{request.path_in_bucket}"
    host = ["python3", "launch/host.py", folder]
    words = [*host, "launch/local", "--no_env", *request.words(folder)]
    about = {"attnlab/revision": given.code, "attnlab/command": given.command}
    values = {
        "name": request.label,
        "namespace": asked.namespace,
        "labels": {"kueue.x-k8s.io/queue-name": asked.queue} if asked.queue else {},
        "annotations": about | (ONE_SLICE if asked.tpu else {}),
        "max_restarts": asked.max_restarts,
        "hosts": hosts,
        "service_account": asked.service_account,
        "selector": selector,
        "image": image,
        "command": [word.replace("$", "$$") for word in words],
        "env": _environment(request.label, hosts, asked),
        "limits": limits,
        "bucket": request.bucket,
    }
    return frame.fill("jobset.yaml", values)


if __name__ == "__main__":
    sys.exit(frame.main("gke", __doc__, options, launch, sys.argv[1:]))
