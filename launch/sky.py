"""Runs an experiment as one SkyPilot task, on any cloud that SkyPilot has access to.

    launch/sky [options] NAME FLAGS… --output_dir=gs://BUCKET/FOLDER
    launch/sky --accelerators=H100:8 --nodes=2 translate --output_dir=gs://my-bucket/runs
    launch/sky --accelerators=tpu-v6e-8 --managed --spot translate --output_dir=gs://my-bucket/runs

NAME FLAGS… are those of launch/local; paths in them are those of the nodes, where the bucket is
/bucket. The nodes get this checkout at its git revision and make .venv as launch/local does. One
process a node. The folder of the run, made in --output_dir, has what the experiment writes and each
node's log; launch.jsonl, the task and the code are in results/ here.

A cluster that is not of a managed job is taken down when the experiment has ended.
--resume=gs://BUCKET/FOLDER/RUN among the FLAGS goes on with a run that has ended.

    --accelerators=NAME:COUNT  accelerators of a node, as `sky gpus list` has them
    --nodes=1              nodes
    --infra=               where, such as gcp/us-central1 or k8s; without it SkyPilot chooses
    --spot                 spot instances
    --managed              a managed job: after a preemption SkyPilot begins again elsewhere, and
                           the run goes on from the last checkpoint
    --sky=OPTIONS          other options of `sky launch`, in quotes where they are several, as
                           --sky="--env=A=B --cpus=8"; may be repeated
"""

import argparse
import re
import shlex
import sys
from pathlib import Path

import frame
import shipping
from frame import Launch
from steps import Refused


def options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this place."""
    parser.add_argument("--accelerators", required=True)
    parser.add_argument("--nodes", type=frame.at_least_one, default=1)
    parser.add_argument("--infra")
    parser.add_argument("--spot", action="store_true")
    parser.add_argument("--managed", action="store_true")
    parser.add_argument("--sky", action="extend", type=shlex.split, default=[])
    parser.usage = f'{parser.usage}; those of `sky launch` stand in --sky="--cpus=8 …"'


def launch(given: Launch) -> None:
    """Checks, writes the task and launches it."""
    asked, request, steps = given.options, given.request, given.steps
    if not request.on_bucket:
        raise Refused("the nodes are gone afterwards; give --output_dir=gs://BUCKET/FOLDER")
    if words := [word for word in asked.sky if not word.startswith("-")]:
        raise Refused(f"--sky={words[0]}: give an option of `sky launch`, such as --sky=--env=A=B")
    given_nodes, hosts, remedy = f"--nodes={asked.nodes}", asked.nodes, "give --nodes=1"
    if tpu := re.match(r"tpu-.*-(\d+)$", asked.accelerators):
        if asked.nodes > 1:
            raise Refused(f"{given_nodes}: {asked.accelerators} has its own hosts; leave it out")
        if int(tpu[1]) > 8:  # what one host has at most
            given_nodes, hosts = f"--accelerators={asked.accelerators}", 2
            remedy = "give a slice of one host, of 8 at most"
    frame.require_shared(request.name, hosts, given_nodes, remedy)
    steps.need("sky", 'pip install "skypilot[gcp]" in an environment of its own')
    name = request.label
    folder = f"/bucket/{request.path_in_bucket}"
    here = Path("results", request.run).absolute()
    script = ("bash", "launch/templates/sky.bash")
    task = {
        "name": name,
        "nodes": asked.nodes,
        "accelerators": asked.accelerators,
        "infra": asked.infra,
        "platform": asked.platform or ("tpu" if asked.accelerators.startswith("tpu-") else "cuda"),
        "spot": asked.spot,
        "bucket": f"gs://{request.bucket}",
        "setup": shlex.join([*script, "setup", request.name]),
        "run": shlex.join([*script, "run", folder, *request.words(folder)]),
    }
    code = here / f"code-{given.version}"
    steps.unpack(given.archive, code)
    file = here / "task.yaml"
    shipping.record(here, given.command, given.code, steps)
    steps.write(file, frame.fill("sky.yaml", {**task, "code": str(code)}))
    steps.running = f"what was started is shown by: sky status; sky jobs queue ({name})"
    if asked.managed:
        steps.run("sky", "jobs", "launch", "--yes", f"--name={name}", *asked.sky, str(file))
    else:
        steps.run("sky", "launch", "--yes", f"--cluster={name}", "--down", *asked.sky, str(file))


if __name__ == "__main__":
    sys.exit(frame.main("sky", __doc__, options, launch, sys.argv[1:]))
