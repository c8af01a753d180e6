"""Where a result came from: device, versions, git revision; and the table of it in every report."""

import importlib.metadata
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from attnlab.core.opaque import reductions_are_right
from attnlab.runs.errors import Invalid
from attnlab.runs.markdown import join_first, markdown_table
from attnlab.runs.rows import Where
from attnlab.runs.units import human

__all__ = [
    "cores",
    "describe",
    "devices",
    "devices_of",
    "instructions",
    "name",
    "processor",
    "revision",
    "table",
    "version",
    "versions",
]

_ROOT = Path(__file__).resolve().parents[2]
# What a result depends on; results that are kept among the sources are not.
_SOURCES = ("attnlab", "experiments", ":(exclude)experiments/results")
PACKAGES = ("attnlab", "jax", "jaxlib", "flax", "numpy")
_OF_NO_GROUP = ("available_bytes", "revision")
# Widest first. A virtual machine's name hides them: one "AMD EPYC" has AVX-512, another has not.
_VECTORS = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
COMPILERS = ("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")  # named where they are installed


def describe(packages: Sequence[str] = ()) -> dict[str, Any]:
    """What to know of this process to read its numbers. Initializes JAX's devices.

    Args:
      packages: names of other packages whose versions matter.

    Raises:
      Invalid: JAX finds no device, or its compiler computes wrongly here.
    """
    device = devices()[0]
    if not reductions_are_right():
        raise Invalid(
            f"jaxlib {version('jaxlib')} computes the sum of a matrix product wrongly here"
            " (install a version that launch/constraints.txt names, or set XLA_FLAGS="
            "--xla_cpu_experimental_ynn_fusion_type=)"
        )
    return {
        "platform": device.platform,
        "device": processor() if device.platform == "cpu" else device.device_kind,
        "slice": _slice(os.environ) if device.platform == "tpu" else "",
        "devices": jax.device_count(),
        "cores": cores(),
        "cpus": os.cpu_count(),  # whose load average a row has: of a container, the host's
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions(packages),
        "untested": untested_packages(versions(packages)),
        "revision": revision(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def _slice(variables: Mapping[str, str]) -> str:
    """The slice of TPUs that this host is a part of, as its launcher names it; "" = none.

    >>> _slice({"TPU_ACCELERATOR_TYPE": "v5litepod-16", "TPU_TOPOLOGY": "4x4"})
    'v5litepod-16 4x4'
    """
    names = ("TPU_ACCELERATOR_TYPE", "TPU_TOPOLOGY")
    return " ".join(variables[name] for name in names if variables.get(name))


def name(environment: Mapping[str, Any]) -> str:
    """The name of a row's device, with that of its slice, for the title of a figure.

    >>> name({"device": "TPU v5 lite", "slice": "v5litepod-16 4x4"})
    'TPU v5 lite of v5litepod-16 4x4'
    """
    return " of ".join(filter(None, (environment["device"], environment.get("slice"))))


def devices_of(environment: Mapping[str, Any]) -> str:
    """The devices of a run; of an earlier version, which said less, what is known.

    >>> devices_of({"device": "NVIDIA H100", "devices": 16, "platform": "gpu"})
    '16 × NVIDIA H100 (gpu)'
    """
    count, platform_ = environment.get("devices"), environment.get("platform")
    named = str(environment.get("device", ""))
    if count:
        named = f"{count} × {named}"
    return f"{named} ({platform_})" if platform_ else named


def devices(*, local: bool = True) -> list[jax.Device]:
    """JAX's devices, or those of this process alone.

    Raises:
      Invalid: there are none of the kind that is asked for.
    """
    try:
        return jax.local_devices() if local else jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX 0.10 asserts where no plugin is
        asked = f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}"
        why = str(error).partition("\n")[0] or "no such device"
        raise Invalid(f"{asked}: {why}; unset it, or name what is here, such as cpu") from None


def table(wheres: Sequence[Where]) -> str:
    """A Markdown table of where rows come from; a group of lines for each environment.

    Revisions, and free memory, which is never the same twice, make no groups of their own.
    """
    lines: list[list[str]] = []
    groups: dict[str, list[dict[str, Any]]] = {}
    for where in wheres:
        rest = {k: x for k, x in where.environment.items() if k not in _OF_NO_GROUP}
        groups.setdefault(str(rest), []).append(where.environment)
    for environments in groups.values():
        lines += _of_group(environments)
    times = sorted(filter(None, (time for where in wheres for time in (where.begun, where.time))))
    if times:
        lines.append(["measured (UTC)", " to ".join(dict.fromkeys((times[0], times[-1])))])
    begun = sorted({where.begun for where in wheres if where.begun})
    if len(begun) > 1:
        counts = [f"{sum(where.begun == at for where in wheres)} begun at {at}" for at in begun]
        lines.append(["rows of several runs (UTC)", join_first(counts)])
    return markdown_table(["", "where"], lines) if lines else ""


def _free_memory(environments: Sequence[Mapping[str, Any]]) -> str:
    """Of several, from the least to the most; "" where none says it."""
    free = [x["available_bytes"] for x in environments if x.get("available_bytes")]
    if not free:
        return ""
    ends = dict.fromkeys(human(size) for size in (min(free), max(free)))
    return f", {' to '.join(ends)} free memory"


def _of_group(environments: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """What there is of it: rows that are kept may be of an earlier version, which said less."""
    environment = environments[0]
    text = environment.get("input", {})
    size = f"{text['bytes']:,} bytes, " if "bytes" in text else ""
    every = {
        "device": devices_of(environment),
        "slice": environment.get("slice", ""),
        "cores": f"{environment.get('cores', '')}" + _free_memory(environments),
        "system": ", Python ".join(
            str(environment[x]) for x in ("system", "python") if x in environment
        ),
        "versions": ", ".join(f"{k} {v}" for k, v in environment.get("versions", {}).items())
        + _describe_untested(environment.get("untested")),
        "git revision": ", ".join(
            dict.fromkeys(x.get("revision") or "unknown" for x in environments)
        ),
        "input": f"{text['name']}: {size}sha256 {text['sha256'][:12]}…" if text else "",
        "own attention": ", ".join(
            f"`{name}` sha256 {digest[:12]}…" for name, digest in environment.get("own", {}).items()
        ),
        "XLA_FLAGS": f"`{environment['xla_flags']}`" if environment.get("xla_flags") else "",
    }
    return [[name, words] for name, words in every.items() if words] if environment else []


def _describe_untested(untested: Sequence[str] | None) -> str:
    if untested is None:
        return ""
    return f"; other than tested: {', '.join(untested)}" if untested else "; as tested"


def versions(packages: Sequence[str] = ()) -> dict[str, str]:
    """Of the packages that decide what is computed and how, and of others."""
    versions = {name: version(name) for name in (*PACKAGES, *COMPILERS, *packages)}
    return {k: v for k, v in versions.items() if k not in COMPILERS or v != "not installed"}


def untested_packages(installed: Mapping[str, str]) -> list[str] | None:
    """Names of the packages in another version than the tests ran with; None outside a checkout.

    Args:
      installed: versions by the name of the package.
    """
    try:
        lines = (_ROOT / "launch" / "constraints.txt").read_text().splitlines()
    except FileNotFoundError:
        return None
    from packaging.requirements import Requirement  # matplotlib brings it

    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    tested = {pin.name: pin.specifier for pin in pins if not pin.marker or pin.marker.evaluate()}
    return [
        name
        for name, version in installed.items()
        if str(tested.get(name, f"=={version}")) != f"=={version}"
    ]


def version(package: str) -> str:
    """The installed version, or "not installed"; of attnlab, that of these sources."""
    if package == "attnlab" and (_ROOT / "pyproject.toml").is_file():  # in a checkout
        return tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def revision() -> str:
    """The git revision of these sources, with "+changes" when they differ from it; else ""."""
    if (_ROOT / "REVISION").is_file():  # sent here by a launcher, without git's records
        return (_ROOT / "REVISION").read_text().strip()

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", _ROOT, *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", __file__):  # installed inside someone else's repository
            return ""
        changes = git("status", "--short", "--untracked-files=all", "--", *_SOURCES)
        head = git("rev-parse", "--short=12", "HEAD")
        return f"{head}+changes" if changes else head
    except OSError:  # no git
        return ""


def processor() -> str:
    """The name of this machine's CPU, and its widest vector instructions where it is of x86."""
    match = re.search(r"^model name\s*: (.*)", _cpuinfo(), re.MULTILINE)
    name = match[1] if match else platform.processor() or "CPU"
    for instruction, called in _VECTORS.items():
        if instruction in instructions():
            return f"{name}, {called}"
    return name


def instructions() -> list[str]:
    """The extensions that this machine's CPU has, by Linux's names, sorted; elsewhere none."""
    match = re.search(r"^(?:flags|Features)\s*: (.*)", _cpuinfo(), re.MULTILINE)
    return sorted(match[1].split()) if match else []


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
