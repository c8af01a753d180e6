"""What a step costs: timed in turns here, compiled in another process for what is not here."""

import dataclasses

import jax
import pytest

from attnlab.bench import deviceless, memory
from attnlab.bench.case import Result
from attnlab.runs.flags import structured
from experiments.language_model import compiler, corpus, cost
from experiments.language_model.rows import Cost, key_of
from experiments.language_model.settings import Settings
from tests.bench.test_deviceless import needs

SETTINGS = Settings(
    models=("exact", "lsh-1"), lengths=(16,), num_layers=1, head_dim=6, hidden=7, chunk_size=8,
    cost_tokens=40, cost_repeats=3, target=("v5e",), target_lengths=(16, 32),
)  # fmt: skip


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"to be, or not to be" * 3)
    return corpus.read(dataclasses.replace(SETTINGS, input=str(path)))


@pytest.mark.slow
def test_steps_are_timed_in_turns(text, monkeypatch):
    called, sample = [], cost.sample

    def sampled(call, *given, **options):
        called.append(call.__self__.row.model)
        return sample(call, *given, **options)

    monkeypatch.setattr(cost, "sample", sampled)
    rows = list(cost.timed(16, SETTINGS, text))
    assert called == ["exact", "lsh-1", "lsh-1", "exact", "exact", "lsh-1"]
    assert [key_of(row) for row in rows] == [("cost", m, 16, "") for m in SETTINGS.models]
    for row in rows:
        assert row.tokens == 32 and len(row.samples) == 3 and row.memory > 10_000
        assert row.per_token == sorted(row.samples)[1] / 32
    # One window where that is longer than a step's tokens, and a text that is shorter than it.
    assert cost.case_of("exact", 64, SETTINGS).batch == 1


@pytest.mark.slow
def test_a_model_that_cannot_be_timed_is_a_row_and_the_others_go_on(text, monkeypatch):
    build = cost.build

    def refusing(name, *given, **options):
        if name == "exact":
            raise ValueError("no\nsuch thing")
        return build(name, *given, **options)

    monkeypatch.setattr(cost, "build", refusing)
    failed, done = cost.timed(16, SETTINGS, text)
    assert (failed.model, failed.status, failed.message) == (
        "exact", "failed", "ValueError: no such thing",
    )  # fmt: skip
    assert done.model == "lsh-1" and done.samples
    monkeypatch.setattr(memory, "available", lambda device: 1000)
    (_, large) = cost.timed(16, SETTINGS, text)
    assert large.status == "too_large" and large.message.startswith("needs ")
    assert large.message.endswith(" of 0.98 KiB free") and not large.samples


def order(name="lsh-1", length=32):
    return {
        "settings": SETTINGS.as_json(), "name": name, "target": "v5e", "length": length,
        "vocab_size": 11,
    }  # fmt: skip


def test_the_compiler_is_given_the_same_model(monkeypatch):
    def analyze(case, lower):
        lowered = lower(case, jax.local_devices()[:1])
        shapes = [x.shape for x in jax.tree.leaves(lowered.args_info)]
        assert (1, 32) in shapes and (11, 12) in shapes  # the tokens, the embeddings
        return Result(case, "ok", argument_bytes=5, output_bytes=6, temporary_bytes=7)

    sent = []
    monkeypatch.setattr(deviceless, "analyze", analyze)
    compiler.answer(order(), lambda **message: sent.append(message))
    assert structured(Cost, sent[0]["row"]) == Cost("lsh-1", 32, "v5e", 32, memory=18)
    monkeypatch.setattr(deviceless, "analyze", lambda case, lower: 1 / 0)
    compiler.answer(order(), lambda **message: sent.append(message))
    assert sent[1]["row"]["message"] == "ZeroDivisionError: division by zero"


class Process:
    """In place of the process that compiles: answers the first order, then is dead or hangs."""

    def __init__(self, *, hangs):
        self.hangs, self.orders = hangs, []

    def ready(self):
        return self

    def send(self, **order):
        self.orders.append(order)

    def receive(self, seconds):
        case = cost.case_of("lsh-1", self.orders[-1]["length"], SETTINGS, "v5e")
        row = cost.cost_of(Result(case, "ok"))
        return {"row": dataclasses.asdict(row)} if len(self.orders) == 1 else None

    def running(self):
        return self.hangs

    def retire(self):
        return -9


@pytest.mark.parametrize(
    ("hangs", "why"), [(True, "stopped after 900 s"), (False, "killed (SIGKILL: usually the")]
)
def test_a_compiler_that_dies_or_hangs_is_a_row(hangs, why):
    there = Process(hangs=hangs)
    first, second = compiler.compiled(there, "lsh-1", "v5e", SETTINGS, vocab_size=11)
    assert [order["length"] for order in there.orders] == [16, 32]
    assert (first.status, second.status, second.length) == ("ok", "failed", 32)
    assert second.message.startswith(f"compiling: {why}")


@needs("libtpu")
def test_a_step_compiled_for_v5e():
    with compiler.process() as there:
        rows = list(compiler.compiled(there, "lsh-1", "v5e", SETTINGS, vocab_size=11))
    assert [(row.length, row.status) for row in rows] == [(16, "ok"), (32, "ok")]
    assert all(row.memory > 10_000 for row in rows)
