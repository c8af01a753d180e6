"""The batches after a stop are those that would have come."""

import functools
import json
import random
import threading
from itertools import islice

import grain
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from attnlab.data import pools
from attnlab.data.parts import Part
from tests.data import test_batching
from tests.several import run_python

training = functools.partial(test_batching.training, max_length=18)  # some are left out
packed = functools.partial(training, pack=True)
STREAMS = {"buckets": functools.partial(training, pool_batches=7), "packed": packed}


def assert_same(batches, expected):
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys()
        for name, array in batch.items():
            np.testing.assert_array_equal(array, other[name])


@pytest.mark.parametrize("stream", STREAMS)
def test_a_new_iterator_goes_on_from_any_point(stream):
    make = STREAMS[stream]
    running = iter(make())
    states, batches = [running.get_state()], []
    for _ in range(50):
        batches.append(next(running))
        states.append(json.loads(json.dumps(running.get_state())))
    assert max(len(json.dumps(state)) for state in states) < 60
    rng = random.Random(7)
    for stop in [0, 1, *rng.sample(range(45), 8)]:
        resumed = iter(make())
        if rng.random() < 0.5:  # in the middle of something else
            next(resumed)
        resumed.set_state(states[stop])
        assert resumed.get_state() == states[stop]
        assert_same(islice(resumed, 5), batches[stop : stop + 5])


@pytest.mark.parametrize("stream", STREAMS)
def test_another_number_of_processes_goes_on_with_the_same_rows(stream):
    running = iter(STREAMS[stream](part=Part(1, 2)))
    for _ in range(17):
        next(running)
    alone = iter(STREAMS[stream]())
    alone.set_state(running.get_state())
    whole = islice(STREAMS[stream](), 17, 22)
    assert_same(islice(alone, 5), whole)


def test_the_seed_makes_the_order():
    first, second, other = (next(iter(packed(seed=seed)))["source"] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    assert (other != first).any()


def test_orbax_keeps_the_place(tmp_path):
    running = iter(training())
    list(islice(running, 11))
    with ocp.training.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save_checkpointables_async(11, {"data": running})
        expected = list(islice(running, 4))  # while it is saved
    resumed = iter(training())
    with ocp.training.Checkpointer(tmp_path) as checkpointer:
        checkpointer.load_checkpointables(None, {"data": resumed})
    assert_same(islice(resumed, 4), expected)


WORKERS = """
import sys
from itertools import islice
sys.path.insert(0, ".")

def main():
    from tests.data.test_resume import assert_same, packed
    alone = iter(packed())
    list(islice(alone, 7))
    with_workers = iter(packed(num_workers=2))
    with_workers.set_state(alone.get_state())
    assert_same(islice(with_workers, 5), list(islice(alone, 5)))
    alone.set_state(with_workers.get_state())
    assert_same(islice(with_workers, 5), list(islice(alone, 5)))
    with_workers.close()
    print("same")

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_workers_change_nothing(tmp_path):
    script = tmp_path / "workers.py"  # a file, because workers import the main program
    script.write_text(WORKERS)
    assert run_python(script) == "same\n"


def test_a_worker_reads_and_encodes_in_one_thread(monkeypatch):
    """With grain's 16 it spends its time on Python's lock: an eighth of the pairs a second."""
    threads = set()

    class Source:
        def __len__(self):
            return 2000

        def __getitem__(self, index):
            threads.add(threading.get_ident())
            return [index]

    monkeypatch.setattr(grain.IterDataset, "mp_prefetch", lambda dataset, options: dataset)
    order = grain.MapDataset.source(Source()).repeat()
    examples = pools._examples(order, 3, num_workers=1)
    assert list(islice(examples, 1000)) == [[index] for index in range(3, 1003)]
    examples.close()
    assert threads == {threading.get_ident()}
