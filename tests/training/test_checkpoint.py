import errno
import math
import os
import pathlib
import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attnlab.runs.errors import Invalid
from attnlab.training.checkpoint import Checkpoints


def whole(num_devices):
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("batch",))
    return NamedSharding(mesh, PartitionSpec())


def a_state(scale=1.0, size=5):
    return jax.device_put({"a": scale * jnp.arange(float(size)), "n": jnp.int32(3)}, whole(2))


def shardings(num_devices):
    return {"a": whole(num_devices), "n": whole(num_devices)}


def save(checkpoints, step, nll=None, scale=None):
    checkpoints.save(
        step, a_state(scale or step), data={"at": step}, meter={"m": 0.1}, validation=nll
    )


@pytest.mark.parametrize(
    ("losses", "asked", "kept", "best"),
    [
        ((3.0, 1.0, 2.0, None, None), (), [2, 4, 5], 2),
        ((0.4, math.nan, 0.5, 0.6), (), [1, 3, 4], 1),  # the best is a number
        ((0.9, 0.9, 0.5, 0.5), (), [3, 4], 4),  # and of equals the last
        ((None,) * 7, (2, 4), [2, 4, 6, 7], 7),
    ],
)
def test_the_last_two_the_best_and_those_asked_for_are_kept(tmp_path, losses, asked, kept, best):
    with Checkpoints(tmp_path / "c", {}, steps=asked) as checkpoints:
        assert checkpoints.latest_step is None
        for step, loss in enumerate(losses, start=1):
            save(checkpoints, step, loss)
    with Checkpoints(tmp_path / "c", {}, steps=asked) as checkpoints:
        assert (checkpoints.steps, checkpoints.best_step) == (kept, best)
    assert {path.name for path in (tmp_path / "c").iterdir()} == set(map(str, kept))


def test_a_checkpoint_goes_to_other_devices(tmp_path):
    with Checkpoints(tmp_path / "c", {}) as checkpoints:
        save(checkpoints, 7)
        found = checkpoints.restore(jax.eval_shape(a_state), shardings(1), 7)
    assert found.step == 7 and found.data == {"at": 7} and found.meter == {"m": 0.1}
    assert found.state["a"].sharding.device_set == {jax.devices()[0]}
    np.testing.assert_array_equal(found.state["a"], 7 * np.arange(5.0))


def test_what_is_saved_is_not_what_comes_after(tmp_path):
    """The next step reuses the memory of the state while it is still being written."""
    step = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    state = a_state(size=3_000_000)
    with Checkpoints(tmp_path / "c", {}) as checkpoints:
        checkpoints.save(1, state, data=None, meter={})
        for _ in range(5):
            state = step(state)
        jax.block_until_ready(state)
        found = checkpoints.restore(
            jax.eval_shape(lambda: a_state(size=3_000_000)), shardings(2), 1
        )
    np.testing.assert_array_equal(found.state["a"], np.arange(3e6, dtype=np.float32))


def test_what_the_disk_says_is_an_os_error_and_the_checkpoint_before_is_kept(tmp_path, caplog):
    """One error, without a traceback more from each of orbax's threads."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(OSError, match="File too large.*/c'$"):
        with Checkpoints(tmp_path / "c", {}) as checkpoints:
            checkpoints.save(1, a_state(), data=None, meter={}, wait=True)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, unlimited[1]))
            try:
                checkpoints.save(2, a_state(size=3_000_000), data=None, meter={}, wait=True)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert not [record for record in caplog.records if record.exc_info]
    with Checkpoints(tmp_path / "c", {}) as checkpoints:
        assert checkpoints.latest_step == 1
        checkpoints.restore(jax.eval_shape(a_state), shardings(2), 1)


def test_another_training_is_refused_with_the_difference(tmp_path):
    with Checkpoints(tmp_path / "c", {"width": 8, "data": {"seed": 1, "files": ["a"]}}) as first:
        save(first, 1)
    with pytest.raises(Invalid) as error:
        Checkpoints(tmp_path / "c", {"width": 9, "data": {"seed": 1, "files": ["b"]}})
    message = str(error.value)
    assert 'data.files is ["a"] there and ["b"] here, width is 8 there and 9 here' in message
    assert "another folder" in message and "\n" not in message


def test_a_flag_that_there_was_not_when_it_was_saved_is_no_difference(tmp_path):
    with Checkpoints(tmp_path / "c", {"flags": {"a": 1}}) as first:
        save(first, 1)
    with Checkpoints(tmp_path / "c", {"flags": {"a": 1, "new": None}}) as second:
        assert second.latest_step == 1
    for other in ({"flags": {"a": 2, "new": None}}, {"flags": {"a": 1}, "own": "x"}):
        with pytest.raises(Invalid, match="is 1 there and 2 here|own is null there"):
            Checkpoints(tmp_path / "c", other)


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="checkpoints cannot be kept there"):
        Checkpoints(tmp_path / "file" / "c", {})


DAMAGED = ("_CHECKPOINT_METADATA", "state/_METADATA", "state/manifest.ocdbt")


def three_checkpoints(folder, damaged=(), file=DAMAGED[0]):
    with Checkpoints(folder, {"width": 8}) as checkpoints:
        for step in (1, 2, 3):
            save(checkpoints, step, nll=float(4 - step))
    for step in damaged:
        os.truncate(folder / str(step) / file, 20)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of asyncio
@pytest.mark.parametrize("file", DAMAGED)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_read(tmp_path, file):
    three_checkpoints(tmp_path / "c", [3], file)
    said = []
    with Checkpoints(tmp_path / "c", {"width": 8}) as checkpoints:
        found = checkpoints.restore_latest(jax.eval_shape(a_state), shardings(2), said.append)
        assert found.step == 2 and checkpoints.steps == [2] == [checkpoints.best_step]
        np.testing.assert_array_equal(found.state["a"], 2 * np.arange(5.0))
        save(checkpoints, 3)
    assert len(said) == 1 and "c/3: this checkpoint cannot be read (" in said[0]
    assert said[0].endswith("/3, and that of step 2 is taken") and "\n" not in said[0]
    assert [path.name for path in tmp_path.glob("c-damaged-*/*")] == ["3"]
    with Checkpoints(tmp_path / "c", {"width": 8}) as checkpoints:
        assert checkpoints.restore_latest(jax.eval_shape(a_state), shardings(2), print).step == 3


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "it took long"),
        TimeoutError("it took long"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: it took long"),
    ],
)
def test_what_may_pass_puts_no_checkpoint_aside(tmp_path, monkeypatch, error):
    def fails(*_):
        raise error

    three_checkpoints(tmp_path / "c")
    with Checkpoints(tmp_path / "c", {"width": 8}) as checkpoints:
        monkeypatch.setattr(checkpoints._orbax, "load_checkpointables", fails)
        with pytest.raises(type(error), match="it took long"):
            checkpoints.restore_latest(jax.eval_shape(a_state), shardings(2), print)
        assert checkpoints.steps == [2, 3] and not list(tmp_path.glob("*damaged*"))


def test_a_file_that_the_disk_does_not_give_now_puts_nothing_aside(tmp_path, monkeypatch):
    """Of which orbax says that there is no such entry."""

    def opened(path, *arguments, real=pathlib.Path.open):
        if path.name == DAMAGED[2].partition("/")[2]:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *arguments)

    three_checkpoints(tmp_path / "c", [3], DAMAGED[2])
    with Checkpoints(tmp_path / "c", {"width": 8}) as checkpoints:
        monkeypatch.setattr(pathlib.Path, "open", opened)
        with pytest.raises(PermissionError):
            checkpoints.restore_latest(jax.eval_shape(a_state), shardings(2), print)
        assert checkpoints.steps == [2, 3] and not list(tmp_path.glob("*damaged*"))


def test_where_no_checkpoint_can_be_read_nothing_is_deleted(tmp_path):
    three_checkpoints(tmp_path / "c", [2, 3])
    with Checkpoints(tmp_path / "c", {"width": 8}) as checkpoints:
        message = (
            r"c/3: .* cannot be read \(KeyError\), nor any before it; delete .*/c to begin anew"
        )
        with pytest.raises(Invalid, match=message):
            checkpoints.restore_latest(jax.eval_shape(a_state), shardings(2), print)
        assert checkpoints.steps == [2, 3]


def test_a_damaged_checkpoint_does_not_hide_that_it_is_of_another_training(tmp_path):
    three_checkpoints(tmp_path / "c", [3])
    with pytest.raises(Invalid, match="width is 8 there and 9 here"):
        Checkpoints(tmp_path / "c", {"width": 9})


def test_damaged_measures_are_said(tmp_path):
    three_checkpoints(tmp_path / "c")
    os.truncate(tmp_path / "c" / "3" / "metrics" / "metrics", 5)
    with pytest.raises(Invalid, match=r"c/\*/metrics/metrics: one cannot be read; delete"):
        Checkpoints(tmp_path / "c", {"width": 8})
