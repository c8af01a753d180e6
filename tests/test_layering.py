"""The import direction of the layers, read from the source with `ast`, and the rules on files."""

import ast
import functools
import shutil
import symtable
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import parse_file
from tests.several import ROOT, run_python

# A layer imports only lower ones. Top-level modules of attnlab that are not named here are layer 0.
LAYERS = {
    "core": 0,
    "devices": 0,
    "masks": 0,
    "scores": 0,
    "ops": 1,
    "runs": 1,
    "modules": 2,
    "nnx": 3,
    "models": 3,
    "data": 3,
    "mechanisms": 4,
    "testing": 5,
    "training": 5,
    "bench": 6,
    "studies": 7,
}

# Within ops, a mechanism is a file or a folder. It may use itself and these, which serve them all…
SHARED_OPS = {"attention", "blockwise", "dense", "dropout", "layout"}
SHARED_OPS |= {"kernels", "one_query"}
# …and this one, which only chooses between mechanisms, any.
CHOOSING_OPS = {"attnlab.ops.routes"}

MAX_LINES = 600


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(package: str) -> dict[str, Path]:
    return {module_name(path): path for path in sorted((ROOT / package).rglob("*.py"))}


LIBRARY = sources("attnlab")


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yields the full names of what a file imports; of a name from a package, the submodule."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(parse_file(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, [up, node.module]))
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield submodule if submodule in known else source


def layer(module: str) -> int:
    _, part, *rest = module.split(".")
    is_package = bool(rest) or LIBRARY[module].name == "__init__.py"
    assert part in LAYERS or not is_package, f"give attnlab.{part} a layer in LAYERS"
    return LAYERS.get(part, 0)


def violation(importer: str, imported: str) -> str | None:
    """Says what is wrong with one import of one attnlab module by another."""
    if imported == "attnlab":
        return "the table of contents is for users; import the module that defines the name"
    higher, lower = layer(importer), layer(imported)
    if lower > higher:
        return f"layer {higher} imports layer {lower}"
    same_part = importer.split(".")[1] == imported.split(".")[1]
    if lower == higher > 0 and not same_part:
        return f"a sibling within layer {higher}"
    if imported.startswith("attnlab.ops.") and lower == higher and importer not in CHOOSING_OPS:
        first, second = (name.split(".")[2] for name in (importer, imported))
        if first != second and second not in SHARED_OPS:
            return "a sibling in ops that is not in SHARED_OPS"
    return None


def test_attnlab_imports_downwards_only():
    wrong = [
        f"{importer} imports {imported}: {reason}"
        for importer, path in LIBRARY.items()
        if importer != "attnlab"
        for imported in imports(importer, path, LIBRARY)
        if imported in LIBRARY and (reason := violation(importer, imported))
    ]
    assert not wrong, "\n".join(wrong)


@functools.cache
def exported(path: Path) -> set[str]:
    """The names of a file's `__all__`, or else those that it defines without an underscore."""
    for node in parse_file(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    symbols = symtable.symtable(path.read_text(encoding="utf-8"), path.name, "exec").get_symbols()
    here = {x.get_name() for x in symbols if x.is_assigned() and not x.is_imported()}
    return {name for name in here if not name.startswith("_")}


def test_what_another_file_imports_is_exported():
    known = LIBRARY | sources("experiments")
    wrong = [
        f"{importer} imports {alias.name}, which {node.module} does not export"
        for importer, path in known.items()
        for node in ast.walk(parse_file(path))
        if isinstance(node, ast.ImportFrom) and node.module in known
        for alias in node.names
        if f"{node.module}.{alias.name}" not in known
        and alias.name not in exported(known[node.module])
    ]
    assert not wrong, "\n".join(wrong)


PRESETS = {"compare_peers": "compare_lengths"}  # what an experiment is a preset of


def test_an_experiment_imports_no_other():
    known = sources("experiments")
    wrong = [
        f"{importer} imports {imported}"
        for importer, path in known.items()
        for imported in imports(importer, path, known | LIBRARY)
        if imported.startswith("experiments.")
        and imported.split(".")[1] not in _own((importer.split(".") + [""])[1])
    ]
    assert not wrong, "\n".join(wrong)


def _own(experiment: str) -> set[str | None]:
    return {experiment, PRESETS.get(experiment)}


def test_nothing_imports_experiments():
    wrong = [
        f"{importer} imports {imported}"
        for importer, path in LIBRARY.items()
        for imported in imports(importer, path, LIBRARY)
        if imported.split(".")[0] in {"experiments", "tests"}
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("importer", "imported", "reason"),
    [
        ("attnlab.ops.blockwise", "attnlab.masks", None),
        ("attnlab.masks", "attnlab.core.checks", None),
        ("attnlab.masks", "attnlab.ops.dense", "layer 0 imports layer 1"),
        ("attnlab.ops.local", "attnlab.ops.hard", "a sibling in ops"),
        ("attnlab.ops.local", "attnlab.ops.blockwise", None),
        ("attnlab.ops.attention", "attnlab.ops.local", "a sibling in ops"),
        ("attnlab.ops.routes", "attnlab.ops.local", None),
        ("attnlab.ops.lsh.attention", "attnlab.ops.lsh.order", None),
        ("attnlab.models.luong", "attnlab.data.files", "a sibling within layer 3"),
        ("attnlab.training.loop", "attnlab.training.state", None),
        ("attnlab.ops.dense", "attnlab", "table of contents"),
    ],
)
def test_the_rule_itself(importer, imported, reason, monkeypatch):
    files = {name: Path(f"{name}.py") for name in (importer, imported)}
    monkeypatch.setattr(sys.modules[__name__], "LIBRARY", files)
    found = violation(importer, imported)
    assert found == reason or (found and reason and reason in found)


def test_imports_reads_every_form(tmp_path):
    path = tmp_path / "local.py"
    path.write_text(
        "import a.b as c\nfrom attnlab import masks\nfrom attnlab.masks import Causal\n"
        "from . import dense\nfrom ..core import f\nfrom .. import scores\n"
        "def f():\n    import later\n"
    )
    known = {f"attnlab.{name}": path for name in ("masks", "checks", "scores", "ops", "ops.dense")}
    assert list(imports("attnlab.ops.local", path, known)) == [
        "a.b",
        "attnlab.masks",
        "attnlab.masks",
        "attnlab.ops.dense",
        "attnlab.core",
        "attnlab.scores",
        "later",
    ]


def test_import_attnlab_needs_only_jax_and_flax():
    # absl is not blocked: flax.linen itself imports it. None in sys.modules makes an import fail.
    code = """
import sys
for name in ("flax.nnx", "grain", "matplotlib", "optax", "orbax", "tensorflow_datasets"):
    sys.modules[name] = None
import attnlab
assert "attnlab.models" not in sys.modules
assert attnlab.models.transformer.__name__ == "attnlab.models.transformer"
assert not hasattr(attnlab, "modelz")
import jax
assert not jax._src.xla_bridge.backends_are_initialized(), "importing attnlab does work"
"""
    run_python("-c", code)


def test_what_pip_installs_for_the_library():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = project["project"]["dependencies"]
    assert [one.partition(">=")[0] for one in needed] == ["jax", "flax", "numpy"]
    assert project["tool"]["setuptools"]["packages"]["find"]["include"] == ["attnlab*"]


@pytest.mark.slow
def test_the_wheel_and_the_source_archive_hold_the_library_and_nothing_else(tmp_path):
    """The tests would need experiments and launch. The wheel is built from the source archive."""
    pytest.importorskip("setuptools", "77")
    junk = shutil.ignore_patterns("__pycache__")
    for folder in ("attnlab", "tests", "experiments"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=junk)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)

    def built(kind: str, folder: Path) -> Path:
        code = f"from setuptools import build_meta; print(build_meta.build_{kind}('.'))"
        return folder / run_python("-c", code, cwd=folder).splitlines()[-1]

    source = built("sdist", tmp_path)
    with tarfile.open(source) as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if name.count("/") > 1}
        archive.extractall(tmp_path, filter="data")
    assert folders == {"attnlab", "attnlab.egg-info"}
    with zipfile.ZipFile(built("wheel", tmp_path / source.name.removesuffix(".tar.gz"))) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    library = (tmp_path / "attnlab").rglob("*")
    assert held == {str(file.relative_to(tmp_path)) for file in library if file.is_file()}


def python_files() -> list[Path]:
    folders = ("attnlab", "experiments", "launch", "tests")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_files_are_short():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    long = [f"{path.relative_to(ROOT)}: {n}" for path, n in lengths.items() if n > MAX_LINES]
    assert not long, f"over {MAX_LINES} lines: {long}"


def test_files_are_named_for_what_they_hold():
    names = {"common.py", "helpers.py", "misc.py", "util.py", "utils.py"}
    assert not [path for path in python_files() if path.name in names]
