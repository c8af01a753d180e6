"""The described accelerators and the names they are asked for by."""

import subprocess
import sys

import pytest

from attnlab.bench import targets
from attnlab.devices.platforms import Platform
from tests.bench.rows import GIB
from tests.daily import daily
from tests.several import ROOT


@pytest.mark.parametrize("device", targets.known_devices().values(), ids=lambda device: device.name)
def test_descriptions_are_sane(device):
    assert device.kind in ("tpu", "cuda") and device.device_kind and len(device.source) > 20
    assert 15 * GIB < device.memory_bytes < 200 * GIB
    chips = [targets.Target(device, shape).chips for shape in device.slices]
    assert chips == sorted(set(chips)) and chips[-1] <= 512
    assert (device.gpu is None) == (device.kind == "tpu") == (device.memory_gib > 0)
    if device.gpu is not None:
        assert device.gpu["compute_capability"][0] >= 8 and device.gpu["core_count"] > 100
        text = targets.gpu_description(device)
        assert text.count("{") == text.count("}") and device.device_kind in text


@pytest.mark.parametrize(
    ("text", "name", "chips", "devices"),
    [
        ("v5e", "v5e", 1, 1),
        ("v5e:1x1", "v5e", 1, 1),
        ("v5e-1", "v5e", 1, 1),
        ("v5e:4x4", "v5e:4x4", 16, 16),
        ("v5e-8", "v5e:2x4", 8, 8),
        ("v5p-8", "v5p:2x2x1", 4, 4),  # the number counts TensorCores
        ("tpu7x-8", "tpu7x:2x2x1", 4, 8),
        ("a100-80", "a100-80", 1, 1),
        ("a100-80-8", "a100-80:8", 8, 8),
        ("h100-64", "h100:64", 64, 64),
    ],
)
def test_names(text, name, chips, devices):
    target = targets.parse(text)
    assert (target.name, target.chips, target.devices) == (name, chips, devices)
    assert targets.parse(target.name) == target


@pytest.mark.parametrize(
    ("text", "in_host"), [("h100", 1), ("h100-4", 4), ("h100-64", 8), ("v5e-256", 256), ("v5e", 1)]
)
def test_devices_that_need_no_network_between_hosts(text, in_host):
    assert targets.parse(text).devices_per_host == in_host


def test_what_the_choice_of_an_implementation_depends_on():
    assert targets.parse("h200").platform == Platform("cuda", "NVIDIA H200", (9, 0))
    assert targets.parse("v6e:2x2").platform == Platform("tpu", "TPU v6 lite")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v9", "--target=v9: no such device; the targets are v4, v5e, v5p, v6e, tpu7x, a100-80"),
        ("v5e:3x3", "v5e has no such slice; its shapes are 1x1, 2x2, 2x4, .*also called v5e-1"),
        ("v5p-4", "v5p has no such slice; .*also called v5p-8, v5p-16"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(text, message):
    with pytest.raises(ValueError, match=message):
        targets.parse(text)


@pytest.mark.parametrize(
    ("target", "command"),
    daily(
        [("v5e", "launch/local NAME --target=v5e …"), ("h100", 'pip install "jax[cuda12-local]"')],
        ("v5e", "launch/local NAME --target=v5e …"),
    ),
)
def test_a_missing_compiler_is_named(target, command, tmp_path):
    blocked = (
        "import importlib.util as u, sys; find = u.find_spec\n"
        "names = ('libtpu', 'jax_plugins.xla_cuda12', 'jax_plugins.xla_cuda13')\n"
        "u.find_spec = lambda name, *a: None if name in names else find(name, *a)\n"
        "from experiments.compare_lengths import __main__ as compare_lengths\n"
        f"sys.exit(compare_lengths.main(['', '--target={target}', '--output_dir={tmp_path}']))"
    )
    done = subprocess.run([sys.executable, "-c", blocked], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 2 and command in done.stderr and "not installed" in done.stderr
    assert not list(tmp_path.iterdir())
