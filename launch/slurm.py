r"""Submits an experiment to SLURM.

    launch/slurm [options] NAME FLAGS…
    launch/slurm --nodes=2 --gpus_per_node=8 --sbatch="--partition=long --time=4:00:00" translate \
        --preset=gpu --data_files=train.de,train.en
    launch/slurm --array=0-7 --sbatch=--cpus-per-task=4 tables --scale=cpu --only=luong4,britz5 \
        --multi30k=/data/multi30k

NAME FLAGS… are those of launch/local. The folder of the run, made in --output_dir (results), has
the code at the git revision of this checkout, launch.jsonl with command and revision, log.txt, and
what the experiment writes. All nodes must see it, and the .venv of this checkout. Make that once,
with the extra for the nodes' devices where this machine has none:

    launch/local --extra=cuda13 compare_lengths --check=words

The job is queued again when it is preempted, when a node fails and two minutes before its time
limit; it then goes on in the same folder from the last checkpoint. To make it do so: scancel
--signal=TERM JOB; to end it: scancel JOB. --resume=FOLDER among the FLAGS goes on with a run that
has ended.

    --nodes=1              nodes
    --gpus_per_node=       GPUs of each node
    --processes_per_node=  processes of each node, which divide its GPUs; by default one for each
                           GPU, without GPUs one
    --array=               job array without gaps, such as 0-7 or 0-99%8; each job has a folder of
                           its own, with its number, in that of the run
    --sbatch=OPTIONS       other options of sbatch, in quotes where they are several, as
                           --sbatch="--partition=long --time=4:00:00"; may be repeated
"""

import argparse
import re
import shlex
import shutil
import sys
from pathlib import Path

import frame
import shipping
from frame import Launch
from names import ROOT, shared_by
from steps import Failed, Refused

JOB = ROOT / "launch" / "templates" / "slurm.sbatch"
# Options of sbatch that follow from the launcher's own.
OURS = re.compile(
    r"--(nodes|ntasks.*|gpus.*|gres|array|output|error|job-name|requeue|no-requeue|wrap)(=|$)"
    r"|-[NnGaoeJ]"
)


def options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this place."""
    parser.add_argument("--nodes", type=frame.at_least_one, default=1)
    parser.add_argument("--gpus_per_node", type=frame.at_least_one)
    parser.add_argument("--processes_per_node", type=frame.at_least_one)
    parser.add_argument("--array")
    parser.add_argument("--sbatch", action="extend", type=shlex.split, default=[])
    parser.usage = f'{parser.usage}; those of sbatch stand in --sbatch="--partition=long …"'


def launch(given: Launch) -> None:
    """Checks, writes the folder of the run and submits the job."""
    request, steps = given.request, given.steps
    if request.on_bucket:
        raise Refused(f"{request.parent}: SLURM's nodes share folders; give one, not a bucket")
    for tool in ("sbatch", "squeue"):
        steps.need(tool, "SLURM's client tools are on a cluster's login node")
    topology = _topology(request.name, given.options)
    if request.resumed:
        queued = steps.ask("squeue", "--noheader", "--format=%A", f"--name={request.run}").split()
        if queued:
            raise Refused(f"--resume={request.folder}: job {queued[0]} has it; wait for its end")

    folder = Path(request.folder)
    platform = given.options.platform or ("cuda" if given.options.gpus_per_node else "")
    code = folder / f"code-{given.version}"
    log = "log-%a.txt" if given.options.array else "log.txt"
    output = str(folder).replace("%", "%%")  # sbatch has patterns of its own
    submission = [
        *(*topology, f"--job-name={request.run}", f"--output={output}/{log}"),
        *(*given.options.sbatch, str(JOB), str(code), str(given.python), platform, str(folder)),
        *(request.name, *request.flags),
    ]
    steps.run("sbatch", "--test-only", *submission)
    made = [path for path in (folder, code) if not path.exists()]
    shipping.record(folder, given.command, given.code, steps)
    steps.unpack(given.archive, code)
    steps.running = f"whether it was submitted is not known: squeue --name={request.run}"
    try:
        job = steps.ask("sbatch", "--parsable", *submission).strip().partition(";")[0]
    except Failed:
        steps.running = ""
        if made:
            shutil.rmtree(made[0])
        raise
    if not given.options.dry_run:
        steps.say(f"job {job} writes to {folder}; end it: scancel {job}; follow it:")
        print(f"tail -F {shlex.quote(str(folder))}/{log.replace('%a', '*')}")


def _topology(name: str, options: argparse.Namespace) -> list[str]:
    """What says to sbatch where the processes are, each with its own part of the work.

    Raises:
      Refused: these options do not go together, or jobs or processes would each do all of it.
    """
    gpus = options.gpus_per_node
    processes = options.processes_per_node or gpus or 1
    if gpus and gpus % processes:
        raise Refused(f"--processes_per_node={processes} must divide --gpus_per_node={gpus}")
    ours = [option for option in options.sbatch if OURS.match(option)]
    if ours:
        raise Refused(f"--sbatch={ours[0]} is what other options say; see --help")
    if options.array and shared_by(name) != "jobs":
        raise Refused(
            f"--array={options.array}: {name} does not divide its work among the jobs of an array, "
            "and each would do all of it; launch it once for each part, such as each of its seeds"
        )
    given = f"--nodes={options.nodes}, {processes} processes of each"
    remedy = "give --nodes=1 and --processes_per_node=1"
    frame.require_shared(name, options.nodes * processes, given, remedy)
    return [
        f"--nodes={options.nodes}",
        f"--ntasks-per-node={processes}",
        *([f"--gpus-per-node={gpus}"] if gpus else []),
        *([f"--array={options.array}"] if options.array else []),
    ]


if __name__ == "__main__":
    sys.exit(frame.main("slurm", __doc__, options, launch, sys.argv[1:], check="files"))
