"""Which processes a run has, by what a cluster tells each of them; a laptop's has one.

| seen                 | by                                                                        |
| -------------------- | ------------------------------------------------------------------------- |
| any launcher         | ATTNLAB_COORDINATOR, ATTNLAB_NUM_PROCESSES, ATTNLAB_PROCESS_ID            |
| GKE, a TPU slice     | TPU_WORKER_ID, TPU_WORKER_HOSTNAMES, MEGASCALE_*                          |
| SLURM                | SLURM_* of an `srun` with more than one task                              |
| SkyPilot             | SKYPILOT_NODE_RANK, SKYPILOT_NODE_IPS                                     |
| Cloud TPU VM         | the metadata server, asked where a TPU is attached                        |

Without ATTNLAB_PROCESS_ID the index is that of a Kubernetes job, JOB_COMPLETION_INDEX.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from attnlab.runs.errors import Invalid

__all__ = ["Cluster", "find_chosen", "find_cluster", "metadata"]

DISTRIBUTED = ("auto", "off", "explicit")
PORT = 8476  # of the first process's service, where nothing else says one
SECONDS = 5.0  # to wait for the metadata server, which is on the machine itself


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a run, as one of them sees them.

    Attributes:
      name: words for what was seen.
      coordinator: address HOST:PORT at which the first process serves the others.
      count: number of processes, more than one.
      index: index of this process; 0 is the first.
      gpus: indices of the GPUs that are this process's; None = all that it sees.

    Raises:
      Invalid: the index is not one of that many, or the address is none.
    """

    name: str
    coordinator: str
    count: int
    index: int
    gpus: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise Invalid(
                f"{self.name}: process {self.index} of {self.count}; give an index from 0 to "
                f"{self.count - 1}"
            )
        if not re.fullmatch(r".+:[0-9]+", self.coordinator):
            raise Invalid(f"{self.name}: {self.coordinator!r} is no address; give HOST:PORT")


def find_chosen(
    distributed: str,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> Cluster | None:
    """The processes that the flags ask for; None for a single one.

    Args:
      distributed: one of `DISTRIBUTED`.
      coordinator: address of the first process, if explicit.
      num_processes: number of processes, if explicit.
      process_id: index of this process, if explicit.

    Raises:
      Invalid: flags are missing, or do not go together, or what a launcher set does not.
    """
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    got = " ".join(f"--{name}={x}" for name, x in given.items() if x is not None)
    if distributed != "explicit" and not got:
        return find_cluster(os.environ) if distributed == "auto" else None
    if (
        distributed != "explicit"
        or coordinator is None
        or num_processes is None
        or process_id is None
    ):
        raise Invalid(
            "--distributed=explicit, --coordinator, --num_processes and --process_id go together; "
            f"got {got or 'the first'} alone; give all four or none"
        )
    cluster = Cluster("--distributed=explicit", coordinator, num_processes, process_id)
    return cluster if num_processes > 1 else None


def metadata(key: str) -> str | None:
    """What Google's metadata server says of this TPU VM; None where there is none."""
    if not _has_tpu():
        return None
    host = os.environ.get("GCE_METADATA_IP", "metadata.google.internal")
    request = urllib.request.Request(
        f"http://{host}/computeMetadata/v1/instance/attributes/{key}",
        headers={"Metadata-Flavor": "Google"},
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, TimeoutError):
        return None


def _has_tpu() -> bool:
    """Whether JAX would use a TPU here, as far as that is known before it is asked."""
    if "tpu" not in os.environ.get("JAX_PLATFORMS", "tpu"):
        return False
    devices = (*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("[0-9]*"))
    return bool(devices) and importlib.util.find_spec("libtpu") is not None


def find_cluster(
    variables: Mapping[str, str], ask: Callable[[str], str | None] = metadata
) -> Cluster | None:
    """The cluster that this process is one of several of; None where there is no other.

    Args:
      variables: environment variables.
      ask: (key) -> what the metadata server of a TPU VM says, or None.

    Raises:
      Invalid: what a launcher set is not all there, or cannot be.
    """
    for find in (_told, _gke_tpu, _slurm, _skypilot):
        try:
            cluster = find(variables)
        except Invalid:
            raise
        except (KeyError, ValueError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            name = (find.__doc__ or "").rstrip(".")
            raise Invalid(f"{name}: {what}; set it right, or give --distributed=off") from None
        if cluster is not None:
            return cluster if cluster.count > 1 else None
    cluster = _tpu_vm(ask)
    return cluster if cluster is not None and cluster.count > 1 else None


def _told(variables: Mapping[str, str]) -> Cluster | None:
    """ATTNLAB_COORDINATOR and its like."""
    names = ("ATTNLAB_COORDINATOR", "ATTNLAB_NUM_PROCESSES", "ATTNLAB_PROCESS_ID")
    if not any(variables.get(name) for name in names):
        return None
    index = variables.get(names[2]) or variables.get("JOB_COMPLETION_INDEX")
    if index is None:
        raise KeyError(names[2])
    return Cluster(names[0], variables[names[0]], int(variables[names[1]]), int(index))


def _gke_tpu(variables: Mapping[str, str]) -> Cluster | None:
    """TPU_WORKER_HOSTNAMES and its like."""
    if not variables.get("TPU_WORKER_HOSTNAMES"):
        return None
    return _of_slices(
        "GKE", variables["TPU_WORKER_HOSTNAMES"].split(","), variables["TPU_WORKER_ID"], variables
    )


def _of_slices(name: str, workers: list[str], index: str, variables: Mapping[str, str]) -> Cluster:
    """The hosts of one TPU slice or of several alike, slice by slice."""
    slices = int(variables.get("MEGASCALE_NUM_SLICES") or 1)
    which = int(variables.get("MEGASCALE_SLICE_ID") or 0)
    first = variables.get("MEGASCALE_COORDINATOR_ADDRESS") or workers[0]
    return Cluster(
        name,
        f"{first.partition(':')[0]}:{PORT}",
        slices * len(workers),
        which * len(workers) + int(index),
    )


def _slurm(variables: Mapping[str, str]) -> Cluster | None:
    """SLURM_PROCID and its like."""
    if not {"SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID"} <= variables.keys():
        return None  # a batch script without srun is one process
    count = int(variables.get("SLURM_STEP_NUM_TASKS") or variables["SLURM_NTASKS"])
    # Of "rack[1-2]n[03,7],big1" the first is rack1n03.
    hosts = re.sub(r"\[(\w+)[^\]]*\]", r"\1", variables["SLURM_STEP_NODELIST"])
    job = int(variables["SLURM_JOB_ID"])
    return Cluster(
        "SLURM",
        f"{hosts.partition(',')[0]}:{2**16 - 2**12 + job % 2**12}",
        count,
        int(variables["SLURM_PROCID"]),
        _gpus(variables),
    )


def _gpus(variables: Mapping[str, str]) -> tuple[int, ...] | None:
    """This task's share of a node's GPUs, if SLURM has not divided them already."""
    local = int(variables["SLURM_LOCALID"])
    tasks = _tasks_on_node(variables)
    visible = variables.get("CUDA_VISIBLE_DEVICES") or variables.get("SLURM_STEP_GPUS", "")
    gpus = len(visible.split(",")) if visible else int(variables.get("SLURM_GPUS_ON_NODE") or 0)
    of_task = variables.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]  # "2" or "h100:2"
    if tasks == 1 or gpus < tasks or of_task == str(gpus):
        return None
    share, left = divmod(gpus, tasks)
    if left:
        raise ValueError(f"{gpus} GPUs cannot be divided among the {tasks} tasks of a node")
    return tuple(range(local * share, (local + 1) * share))


def _tasks_on_node(variables: Mapping[str, str]) -> int:
    """The number that SLURM's "4(x2),1" has for this node."""
    node = int(variables.get("SLURM_NODEID") or 0)
    for tasks, nodes in re.findall(
        r"(\d+)(?:\(x(\d+)\))?", variables.get("SLURM_STEP_TASKS_PER_NODE", "1")
    ):
        node -= int(nodes or 1)
        if node < 0:
            return int(tasks)
    return 1


def _skypilot(variables: Mapping[str, str]) -> Cluster | None:
    """SKYPILOT_NODE_RANK and its like."""
    if "SKYPILOT_NODE_RANK" not in variables:
        return None
    hosts = variables["SKYPILOT_NODE_IPS"].split()
    rank = int(variables["SKYPILOT_NODE_RANK"])
    return Cluster("SkyPilot", f"{hosts[0]}:{PORT}", len(hosts), rank)


def _tpu_vm(ask: Callable[[str], str | None]) -> Cluster | None:
    """The hosts of a slice of TPU VMs; each is a name, or NAME:ID:ADDRESS."""
    index, endpoints = ask("agent-worker-number"), ask("worker-network-endpoints")
    if index is None or not endpoints:
        return None
    workers = [endpoint.split(":")[-1] for endpoint in endpoints.split(",")]
    of_slices = dict(re.findall(r"(MEGASCALE_\w+): *'?([^'\n]*)'?", ask("tpu-env") or ""))
    return _of_slices("Cloud TPU", workers, index, of_slices)
