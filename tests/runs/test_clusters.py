"""Which processes a run has, by what a cluster tells each of them."""

import functools
import http.server
import threading

import pytest

from attnlab.runs import clusters
from attnlab.runs.clusters import Cluster, find_cluster
from attnlab.runs.errors import Invalid

SLURM = {
    "SLURM_JOB_ID": "4099",
    "SLURM_STEP_NODELIST": "node[007-008,011],big1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),2",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
}
GKE = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a-0.svc,a-1.svc"}
SLICES = {
    "MEGASCALE_NUM_SLICES": "3",
    "MEGASCALE_SLICE_ID": "2",
    "MEGASCALE_COORDINATOR_ADDRESS": "z-0.svc:8080",
}
SKY = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n"}
OURS = {
    "ATTNLAB_COORDINATOR": "first:99",
    "ATTNLAB_NUM_PROCESSES": "5",
    "ATTNLAB_PROCESS_ID": "4",
}
FIRST = {name: x for name, x in OURS.items() if name != "ATTNLAB_PROCESS_ID"}
VM = {
    "agent-worker-number": "1",
    "worker-network-endpoints": "w-0:7:10.0.0.2,w-1:8:10.0.0.3",
    "tpu-env": "ACCELERATOR_TYPE: 'v4-16'\nMEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n",
}


def slurm(**changed):
    return SLURM | {f"SLURM_{name}": x for name, x in changed.items()}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "4099", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),  # no srun
        (SLURM, Cluster("SLURM", "node007:61443", 8, 3)),
        (
            SLURM | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
            Cluster("SLURM", "node007:61443", 8, 3, (2, 3)),
        ),
        (slurm(GPUS_ON_NODE="2"), Cluster("SLURM", "node007:61443", 8, 3, (1,))),
        # SLURM has given each task its own, or a task has the whole node.
        (SLURM | {"CUDA_VISIBLE_DEVICES": "1"}, Cluster("SLURM", "node007:61443", 8, 3)),
        (
            slurm(GPUS_ON_NODE="6", GPUS_PER_TASK="h100:3") | {"CUDA_VISIBLE_DEVICES": "0,1,2"},
            Cluster("SLURM", "node007:61443", 8, 3),
        ),
        (
            slurm(GPUS_ON_NODE="8", STEP_TASKS_PER_NODE="4,1,3", LOCALID="0"),
            Cluster("SLURM", "node007:61443", 8, 3),
        ),
        (slurm(STEP_NODELIST="gpu-1-ib,x"), Cluster("SLURM", "gpu-1-ib:61443", 8, 3)),
        (slurm(STEP_NODELIST="gpu[3-4]-ib"), Cluster("SLURM", "gpu3-ib:61443", 8, 3)),
        (slurm(STEP_NODELIST="r[1-2]n[03,7],x"), Cluster("SLURM", "r1n03:61443", 8, 3)),
        (slurm(STEP_NUM_TASKS="1", PROCID="0"), None),
        (GKE, Cluster("GKE", "a-0.svc:8476", 2, 1)),
        (GKE | {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}, None),
        (GKE | SLICES, Cluster("GKE", "z-0.svc:8476", 6, 5)),
        (SKY, Cluster("SkyPilot", "10.0.0.4:8476", 2, 1)),
        ({"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.4"}, None),
        (OURS, Cluster("ATTNLAB_COORDINATOR", "first:99", 5, 4)),
        (OURS | SLURM | SKY, Cluster("ATTNLAB_COORDINATOR", "first:99", 5, 4)),
        (FIRST | {"JOB_COMPLETION_INDEX": "2"}, Cluster("ATTNLAB_COORDINATOR", "first:99", 5, 2)),
    ],
)  # fmt: skip
def test_what_is_seen_of_a_cluster(variables, expected):
    assert find_cluster(variables, lambda key: None) == expected


def test_a_slice_of_virtual_machines_is_known_by_its_metadata():
    assert find_cluster({}, VM.get) == Cluster("Cloud TPU", "10.0.0.2:8476", 4, 3)
    names = VM | {"worker-network-endpoints": "a,b,c", "tpu-env": ""}
    assert find_cluster({}, names.get) == Cluster("Cloud TPU", "a:8476", 3, 1)
    alone = VM | {"agent-worker-number": "0", "worker-network-endpoints": "a", "tpu-env": ""}
    assert find_cluster({}, alone.get) is None


class Metadata(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = VM.get(self.path.removeprefix("/computeMetadata/v1/instance/attributes/"))
        right = known is not None and self.headers["Metadata-Flavor"] == "Google"
        self.send_response(200 if right else 404)
        self.end_headers()
        self.wfile.write((known or "").encode())

    def log_message(self, *_):
        pass


def test_the_metadata_server_is_asked_where_a_tpu_is(monkeypatch):
    with http.server.HTTPServer(("127.0.0.1", 0), Metadata) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_port}")
        monkeypatch.setattr(clusters, "_has_tpu", lambda: True)
        found = {key: clusters.metadata(key) for key in (*VM, "other")}
        monkeypatch.setattr(clusters, "_has_tpu", lambda: False)
        assert clusters.metadata("agent-worker-number") is None
        server.shutdown()
        thread.join()
    assert found == VM | {"other": None}
    monkeypatch.setattr(clusters, "_has_tpu", lambda: True)
    assert clusters.metadata("agent-worker-number") is None  # there is no server any more


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (FIRST, "ATTNLAB_COORDINATOR and its like: 'ATTNLAB_PROCESS_ID' is missing; set it"),
        ({"ATTNLAB_PROCESS_ID": "0"}, "'ATTNLAB_COORDINATOR' is missing; set it right"),
        (OURS | {"ATTNLAB_PROCESS_ID": "5"}, "process 5 of 5; give an index from 0 to 4"),
        (OURS | {"ATTNLAB_NUM_PROCESSES": "many"}, "invalid literal .*'many'; set it right"),
        (OURS | {"ATTNLAB_COORDINATOR": "first"}, "'first' is no address; give HOST:PORT"),
        (slurm(GPUS_ON_NODE="3"), "3 GPUs cannot be divided among the 2 tasks of a node"),
        (SKY | {"SKYPILOT_NODE_RANK": "2"}, "SkyPilot: process 2 of 2"),
        (GKE | {"TPU_WORKER_ID": "x"}, "TPU_WORKER_HOSTNAMES and its like: invalid literal"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(variables, message):
    with pytest.raises(Invalid, match=message):
        find_cluster(variables, lambda key: None)


def test_flags_say_all_or_nothing():
    explicit = functools.partial(
        clusters.find_chosen, "explicit", coordinator="here:1", process_id=1
    )
    assert explicit(num_processes=2) == Cluster("--distributed=explicit", "here:1", 2, 1)
    assert explicit(num_processes=1, process_id=0) is None
    with pytest.raises(Invalid, match="process 1 of 1; give an index from 0 to 0"):
        explicit(num_processes=1)
    with pytest.raises(Invalid, match="go together; got --process_id=1 alone; give all four"):
        explicit(coordinator=None, num_processes=None)
