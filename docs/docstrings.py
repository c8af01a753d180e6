"""A Sphinx extension that shows the library's docstrings as they are meant.

Docstrings are plain text with Markdown's marks, for readers of the source; Sphinx reads
reStructuredText. `read` turns one into the other. Objects are shown under the names that users
import, `attnlab.masks.Causal` for what is defined in `attnlab.masks.by_position`.
"""

import dataclasses
import importlib
import inspect
import pkgutil
import re
import types

import jax
from docutils import nodes
from sphinx import addnodes

import attnlab

# Their __all__ is what users import from them; of the others users import files.
CONTENTS = (
    "attnlab",
    *(
        f"attnlab.{name}"
        for name in ("masks", "scores", "biases", "positions", "routes", "platforms")
    ),
    "attnlab.mechanisms.attentions",
    "attnlab.mechanisms.own",
    "attnlab.nnx",
    "attnlab.testing",
    "attnlab.ops.lsh",
    "attnlab.models",
    *(f"attnlab.models.{name}" for name in ("transformer", "bert", "reformer")),
    "attnlab.training.decode",
)
BY_FILE = tuple(f"attnlab.{name}" for name in ("data", "training", "bench", "studies", "runs"))
FLAX = re.compile(r",? ?(parent=<[^>]*>|name=None)(?=[,)])")  # fields that every module has
DERIVED = re.compile(r"<[\w.]+\.custom_jvp object>")
SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Example):$")
ROW = re.compile(r"\|(.*)\|$")


def setup(app):
    """What Sphinx calls."""
    names = Names()
    app.connect("autodoc-process-docstring", names.read, priority=400)  # before napoleon's 500
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", is_not_ours)
    app.connect("doctree-read", names.link)
    app.connect("missing-reference", names.resolve)
    return {"parallel_read_safe": True}


def is_not_ours(app, what, name, thing, skip, options):
    """Whether a member is Flax's, or a field, of which the class's docstring tells."""
    default = what == "class" and getattr(thing, "__name__", name) != name
    field = (getattr(thing, "__doc__", None) or "").startswith("Alias for field number")
    return name in ("setup", "replace") or default or field or None


def signature(app, what, name, thing, options, arguments, returned):
    """The arguments without the fields that Flax gives to each module, defaults by their names."""
    without = FLAX.sub("", arguments or "")
    named = re.sub(r"<(?:class '|function )([\w.]+)[^>]*(?:>\.\w+)?>", r"\1", without)
    for default in DERIVED.findall(named):  # functions of JAX that have a derivative of their own
        values = [one.default for one in inspect.signature(thing).parameters.values()]
        [name] = {one.__name__ for one in values if isinstance(one, jax.custom_jvp)}
        named = named.replace(default, name)
    return (named.replace("=Ellipsis", "=..."), returned) if arguments else None


class Names:
    """Public names of objects, by these and by the names of where they are defined."""

    def __init__(self):
        self.shown = {name: name for name in (*CONTENTS, *BY_FILE)}
        for name in CONTENTS:
            self._add(name, _module(name).__all__)
        for package in BY_FILE:
            for file in pkgutil.walk_packages(_module(package).__path__, f"{package}."):
                self.shown[file.name] = file.name
                module = _module(file.name)
                self._add(file.name, getattr(module, "__all__", vars(module)))

    def _add(self, module, members):
        for member in members:
            thing = getattr(_module(module), member)
            if not isinstance(thing, type | types.FunctionType):  # others have no docstring
                continue
            defined = f"{thing.__module__}.{thing.__qualname__}"
            if module in CONTENTS or thing.__module__ == module:
                self.shown[f"{module}.{member}"] = self.shown.setdefault(
                    defined, f"{module}.{member}"
                )

    def link(self, app, doctree):
        """Leads code that begins with a public name, as `masks.Causal()`, to where it is shown."""
        for code in list(doctree.findall(nodes.literal)):
            name = re.match(r"(?:attnlab\.)?([\w.]*)", code.astext())
            shown = self.shown.get(f"attnlab.{name[1]}")
            if shown and "." in name[0] and isinstance(code.parent, nodes.paragraph):
                to = {"refdoc": app.env.docname, "refdomain": "py", "reftype": "obj"}
                code.replace_self(addnodes.pending_xref("", code.deepcopy(), reftarget=shown, **to))

    def resolve(self, app, env, node, contnode):
        """Leads a reference to where an object is defined to where it is shown."""
        target = node.get("reftarget")
        shown = self.shown.get(target, target)
        if node.get("refdomain") != "py" or shown == target:
            return None
        return env.domains["py"].resolve_xref(
            env, node["refdoc"], app.builder, "obj", shown, node, contnode
        )

    def read(self, app, what, name, thing, options, lines):
        """Rewrites the lines of a docstring to reStructuredText, in place."""
        if what == "class" and (dataclasses.is_dataclass(thing) or issubclass(thing, tuple)):
            lines[:] = ["Args:" if line == "Attributes:" else line for line in lines]
        if what in ("attribute", "property") and lines:
            lines[0] = f": {lines[0]}"  # else what stands before a colon is read as the type
        text = "\n".join(tables(blocks(lines)))
        # Examples, which end with an empty line, and literal blocks stay as they are.
        parts = re.split(r"(^ *>>> (?:.+\n?)+|^::\n\n(?:    .*\n|\n)+)", text, flags=re.M)
        parts[::2] = [self._marked(name, part) for part in parts[::2]]
        lines[:] = "".join(parts).split("\n")

    def _marked(self, owner, text):
        parts = re.split(r"`([^`]+)`", text)
        parts[::2] = [re.sub(r"[*|\\]|_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
        parts[2::2] = [re.sub(r"^(?=\w)", r"\\ ", part) for part in parts[2::2]]  # `name`s
        parts[1::2] = [self._code(owner, part) for part in parts[1::2]]
        return "".join(parts)

    def _code(self, owner, code):
        within = owner
        while within:
            if shown := self.shown.get(f"{within}.{code.removesuffix('()')}"):
                return f":py:obj:`{code} <{shown}>`"
            within = within.rpartition(".")[0]
        shown = self.shown.get(code.removesuffix("()"))
        return f":py:obj:`{code} <{shown}>`" if shown else f"``{code}``"


def blocks(lines):
    """Makes indented text before the first section literal, and takes the indent from examples.

    A colon in what is returned is no end of a type.
    """
    read, block, heading = [], None, ""
    for before, line in zip(["", *lines], lines, strict=False):
        indented = line.startswith("    ")
        if line and not line.startswith(" "):
            heading, block = line, None
        elif indented and not before and not block and not SECTION.match(heading):
            block = "example" if line.lstrip().startswith(">>>") else "literal"
            read += ["::", ""] if block == "literal" else []
        if before == "Returns:":
            line = f"  : {line.lstrip()}"
        read.append(line[4:] if block == "example" else line)
    return read


def tables(lines):
    """Makes lists of Markdown's tables."""
    for before, line in zip(["", *lines], lines, strict=False):
        row = ROW.match(line)
        if row and not ROW.match(before):
            yield from (".. list-table::", "   :header-rows: 1", "")
        if not row:
            yield line
        elif not re.fullmatch(r"[ :|-]+", line):
            first, *others = row[1].split(" | ")
            yield from (f"   - - {first.strip()}", *(f"     - {cell.strip()}" for cell in others))


def _module(name):
    """A module by the name that users import it by, which may be an attribute of attnlab."""
    public = name.removeprefix("attnlab.")
    return vars(attnlab).get(public) or importlib.import_module(name)
