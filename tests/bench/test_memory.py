"""The reported memory against the process's own high-water mark, in a process of its own."""

import json
import os

import pytest

from attnlab.bench import memory
from tests.several import run_python

# One head over all pairs, the form whose scratch XLA:CPU hides in a fusion; and the same in slices.
PROBE = """
import json
import jax, jax.numpy as jnp
from attnlab.bench import inputs, measure, mechanisms, memory, programs
from attnlab.bench.case import Case
from attnlab.bench.mechanisms import Mechanism

memory.dispatch_synchronously()

def attend(q, k, v):
    return jax.nn.softmax(q @ k.swapaxes(-1, -2)) @ v

def quadratic(parameters, q, k, v):
    return attend(q[0], k[0], v[0])[None]

def linear(parameters, q, k, v):
    rows = q[0].reshape(-1, 128, q.shape[-1])
    return jax.lax.map(lambda r: attend(r, k[0], v[0]), rows).reshape(q.shape)

text = inputs.read()
found = {}
for function in (quadratic, linear):
    for length in (2048, 8192):
        mechanism = Mechanism(lambda key: {}, function)
        mechanisms.build = lambda case: mechanism
        case = Case("exact", length, num_heads=1, head_dim=64)
        lowered = programs.lower(case, mechanism, jax.local_devices()[:1])
        naive = lowered.compile().memory_analysis().temp_size_in_bytes
        result = measure.measure(case, text, repeats=1)
        found[f"{function.__name__} {length}"] = dict(
            analysis=result.analysis_bytes, resident=result.resident_peak_bytes,
            shown=result.memory_bytes, naive=naive,
        )
print(json.dumps(found))
"""


def probe(flags: str) -> dict[str, dict[str, int]]:
    environment = dict(os.environ, XLA_FLAGS=flags)
    found = json.loads(run_python("-c", PROBE, env=environment).splitlines()[-1])
    if found["linear 2048"]["resident"] is None:
        pytest.skip("this system does not reset high-water marks")
    return found


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, int]]:
    return probe("")


@pytest.mark.slow
@pytest.mark.parametrize("number", ["analysis", "resident", "shown"])
def test_quadratic_memory_is_seen_as_quadratic_and_linear_as_linear(measured, number):
    growth = {
        name: measured[f"{name} 8192"][number] / measured[f"{name} 2048"][number]
        for name in ("quadratic", "linear")
    }
    assert growth["quadratic"] > 10  # 16, less the linear inputs
    # The short run may be seen with one thread's scratch, the long one with two's.
    threads = 1 if number == "analysis" else 2
    assert growth["linear"] < 4.4 * threads


@pytest.mark.slow
def test_the_compilers_number_agrees_with_the_high_water_mark():
    (name, value), *_ = memory.WITHOUT_HIDDEN_SCRATCH.items()
    for case, numbers in probe(f"--{name}={value}").items():
        assert numbers["resident"] > 0.9 * numbers["analysis"], case
        # A matrix product packs its operands for each thread: megabytes, whatever the length.
        assert numbers["resident"] < 1.1 * numbers["analysis"] + 8 * 2**20, case


@pytest.mark.slow
def test_what_a_fusion_hides_is_shown(measured):
    for numbers in measured.values():
        assert numbers["shown"] == max(numbers["resident"], numbers["analysis"])
    hidden = measured["quadratic 8192"]
    assert hidden["naive"] < hidden["shown"] / 10, "XLA no longer hides it: simplify memory.py"


@pytest.mark.slow
def test_all_pairs_cannot_hide(measured):
    pairs = 4 * 8192**2  # one float32 T x S matrix
    assert measured["quadratic 8192"]["shown"] > pairs
    assert measured["linear 8192"]["shown"] < pairs / 8


def _machine(root, cgroup, files):
    for path, text in {
        "proc/meminfo": "MemTotal: 99 kB\nMemAvailable:    8388608 kB\n",
        "proc/self/cgroup": cgroup,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path, text in files.items():
        (root / "sys/fs/cgroup" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / path).write_text(text)


def test_available_without_limits_is_what_the_system_says(tmp_path):
    _machine(tmp_path, "0::/\n", {})
    assert memory.available_on_host(tmp_path) == 8 * 2**30


def test_available_honours_the_limit_of_a_parent_group_v2(tmp_path):
    limited = {
        "memory.max": f"{2 * 2**30}\n",
        "memory.current": f"{2**30}\n",
        "memory.stat": f"anon 5\ninactive_file {2**29}\n",
    }
    files = {f"job/{name}": text for name, text in limited.items()}
    files |= {"job/step/memory.max": "max\n", "job/step/memory.current": "1\n"}
    files |= {"job/step/memory.stat": ""}
    _machine(tmp_path, "0::/job/step\n", files)
    assert memory.available_on_host(tmp_path) == 2**30 + 2**29


def test_available_honours_the_limit_of_a_container_v1(tmp_path):
    files = {
        "memory/memory.limit_in_bytes": f"{2**30}\n",
        "memory/memory.usage_in_bytes": f"{2**28}\n",
        "memory/memory.stat": "total_inactive_file 0\n",
    }
    _machine(tmp_path, "5:cpu:/x\n4:memory:/seen/from/outside\n", files)
    assert memory.available_on_host(tmp_path) == 2**30 - 2**28


def test_available_is_unknown_elsewhere(tmp_path):
    assert memory.available_on_host(tmp_path) is None
