"""Runs an experiment on all workers of a Cloud TPU VM, v6e or older; launch/gke has newer TPUs.

    launch/tpu_vm [options] NAME FLAGS…
    launch/tpu_vm --tpu=mine --zone=us-central2-b translate --output_dir=gs://my-bucket/runs

NAME FLAGS… are those of launch/local; paths in them are those of the workers, from the home folder.
The TPU VM must be there, and is kept:

    gcloud compute tpus tpu-vm create mine --zone=us-central2-b --accelerator-type=v4-16 …

This checkout at its git revision goes to ~/attnlab/code of each worker, which makes .venv as
launch/local does, once. One process a worker. The run outlives this command, which shows the output
of the first worker: Ctrl-C ends that alone, and says how to stop the run. The folder of the run has
what the experiment writes and each worker's log. It is made in --output_dir: gs://BUCKET/FOLDER,
which workers need to share and mount by gcsfuse; of a single worker it may be a folder here, to
which it is copied at the end.

It needs gcloud. Make the bucket with --enable-hierarchical-namespace: to rename a folder is then
one step, as checkpoints want it. After a preemption make the TPU VM again, and go on with
--resume=gs://BUCKET/FOLDER/RUN among the FLAGS.

    --tpu=NAME             name of the TPU VM
    --zone=ZONE            its zone
    --project=PROJECT      its project, where it is not gcloud's own
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

import frame
import shipping
from frame import Launch
from steps import Failed, Refused, Steps

TPU_VM = ("gcloud", "compute", "tpus", "tpu-vm")
SCRIPT = "attnlab/code/launch/templates/tpu_vm.bash"


def options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this place."""
    parser.add_argument("--tpu", required=True)
    parser.add_argument("--zone", required=True)
    parser.add_argument("--project")


def launch(given: Launch) -> None:
    """Checks, sends the code, starts the run and shows its output."""
    asked, request, steps = given.options, given.request, given.steps
    if request.resumed and not request.on_bucket:
        raise Refused(
            f"--resume={request.folder}: the TPU VM goes on with gs://BUCKET/FOLDER/RUN only"
        )
    steps.need("gcloud", "cloud.google.com/sdk/docs/install")
    at = [f"--zone={asked.zone}"]
    if asked.project:
        at.append(f"--project={asked.project}")

    def ssh(*words: str, worker: str = "all") -> list[str]:
        command = f"--command={shlex.join(words)}"
        return [*TPU_VM, "ssh", asked.tpu, *at, f"--worker={worker}", command]

    def scp(*words: str, worker: str) -> list[str]:
        return [*TPU_VM, "scp", *words, *at, f"--worker={worker}"]

    if request.on_bucket:
        frame.require_bucket(request, steps)
    workers = _workers(steps, asked.tpu, at)
    if workers > 1 and not request.on_bucket:
        raise Refused(f"{workers} workers share a bucket; give --output_dir=gs://BUCKET/FOLDER")
    of_tpu = f"{asked.tpu} has {workers} workers"
    frame.require_shared(request.name, workers, of_tpu, "give a TPU VM of one worker")
    here = Path("results", request.run).absolute()
    shipping.record(here, given.command, given.code, steps)
    steps.run(*scp(str(given.archive), f"{asked.tpu}:attnlab.tar.gz", worker="all"))
    bucket = request.bucket if request.on_bucket else ""
    prepare = shlex.join(["bash", "-s", "prepare", request.name, bucket])
    script = "tar -xzOf attnlab.tar.gz launch/templates/tpu_vm.bash"
    steps.run(*ssh("bash", "-c", f"set -o pipefail; {script} | {prepare}"))

    follow, stop = ssh("bash", SCRIPT, "follow", worker="0"), ssh("bash", SCRIPT, "stop")
    folder = f"buckets/{bucket}/{request.path_in_bucket}" if bucket else f"runs/{request.run}"
    fetch = scp("--recurse", f"{asked.tpu}:attnlab/{folder}", request.parent, worker="0")
    steps.running = (
        f"it may run on {asked.tpu}; follow it: {shlex.join(follow)}; stop it: {shlex.join(stop)}"
    )
    if not bucket:
        steps.running += f"; copy what it has written: {shlex.join(fetch)}"
    platform = f"JAX_PLATFORMS={asked.platform or 'tpu'}"
    steps.run(*ssh("env", platform, "bash", SCRIPT, "start", folder, request.name, *request.flags))
    status = steps.status(*follow)
    if not bucket:
        steps.run("mkdir", "-p", request.parent)
        steps.run(*fetch)
    if status:
        raise Failed(f"the run, or gcloud, ended with status {status}", status)


def _workers(steps: Steps, tpu: str, at: list[str]) -> int:
    """The number of workers, of a TPU VM that is ready."""
    answer = steps.ask(*TPU_VM, "describe", tpu, *at, "--format=json")
    if steps.dry_run:
        return 1
    about = json.loads(answer)
    if about.get("state") != "READY":
        raise Refused(f"{tpu} is {about.get('state')}; wait until it is READY, or make it again")
    return len(about["networkEndpoints"])


if __name__ == "__main__":
    sys.exit(frame.main("tpu_vm", __doc__, options, launch, sys.argv[1:]))
