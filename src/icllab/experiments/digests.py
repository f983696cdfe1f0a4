"""A digest of what a measurement depends on: results are *stale* when it has changed.

From the function ``measure`` on, every definition of this library that is reached by name is read, not run: functions,
classes and assignments at the top of a module, one by one. Their syntax trees are digested without docstrings and
comments. So a formula that is changed marks the claims that reach it and no other, and a new claim, a new name or other
words mark none. What cannot be resolved by name (a module handed about as a value) counts with its whole module: the
digest may change too readily, never too late.

Names and messages (:mod:`icllab.core.axes`, :mod:`~icllab.core.errors`, :mod:`~icllab.core.sources`) change no number
and are left out; so is everything outside this library.
"""

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import icllab

_PACKAGE = Path(icllab.__file__).parent
_WORDS = ("icllab.core.axes", "icllab.core.errors", "icllab.core.sources")
_WHOLE = "*"

Place: TypeAlias = tuple[str, str]
"""A module (or a file's path) and a name at its top; ``"*"`` is all of it."""


class Source(NamedTuple):
    """A module as text.

    Attributes:
        definitions: Name -> the statements that define it.
        always: Statements that run on import and define no name.
        imported: Name -> what it stands for, a place in another module; ``"*"``: that module itself.
    """

    definitions: dict[str, list[ast.stmt]]
    always: list[ast.stmt]
    imported: dict[str, Place]


def measurement(path: Path) -> str:
    """SHA-256 of all that the function ``measure`` of a file depends on."""
    seen: set[Place] = set()
    queue: list[Place] = [(str(path), "measure")]
    pieces: set[str] = set()
    while queue:
        place = queue.pop()
        if place not in seen and place[0] not in _WORDS:
            seen.add(place)
            texts, reached = _read_at(place)
            pieces.update(texts)
            queue.extend(reached)
    return hashlib.sha256("\n".join(sorted(pieces)).encode()).hexdigest()


@functools.cache
def _read_at(place: Place) -> tuple[tuple[str, ...], tuple[Place, ...]]:
    """The texts of what is defined at a place, and the places that it reaches."""
    module, name = place
    source = _read(module)
    statements = [*source.always, *source.definitions.get(name, [])]
    if name == _WHOLE:
        statements += [statement for some in source.definitions.values() for statement in some]
    reached = [there for statement in statements for there in _reached(module, source, statement)]
    if name == _WHOLE:
        reached += map(_resolved, source.imported.values())
    return tuple(f"{_relative(module)}:{name}:{_text(s)}" for s in statements), tuple(reached)


def _relative(module: str) -> str:
    """How a module is called in the digest: a file of the user's by its name, wherever it lies."""
    return Path(module).name if module.endswith(".py") else module


@functools.cache
def _text(statement: ast.stmt) -> str:
    """The syntax tree of a statement, without docstrings; it has no comments."""
    for node in ast.walk(statement):  # where it stands: only names are looked for besides
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
            node.body = kept or [ast.Pass()]  # pyright: ignore[reportAttributeAccessIssue]
    return ast.dump(ast.Module([statement], []))


def _reached(module: str, source: Source, statement: ast.stmt) -> Iterator[Place]:
    """The places that a statement names, also by imports inside functions."""
    inside = dict(source.imported)
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            inside |= _imports(module, node)
    heads: set[int] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute):
            dotted = _dotted(node)
            if dotted is None or id(node) in heads:
                continue
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute):
                inner = inner.value
                heads.add(id(inner))
            first, *rest = dotted
            if first in inside:
                yield _followed(inside[first], rest)
            elif first in source.definitions:
                yield (module, first)
        elif isinstance(node, ast.Name) and id(node) not in heads:
            if node.id in inside:
                yield _resolved(inside[node.id])
            elif node.id in source.definitions:
                yield (module, node.id)


def _dotted(node: ast.expr) -> list[str] | None:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else None


def _followed(place: Place, attributes: list[str]) -> Place:
    """Attributes of an imported module, as far as they are modules and names in them."""
    module, name = _resolved(place)
    while name == _WHOLE and attributes:
        step, *attributes = attributes
        module, name = _resolved((module, step))
    return module, name


def _resolved(place: Place) -> Place:
    """Where a name is defined: a module, or a name in one, through what packages hand on."""
    module, name = place
    if name == _WHOLE or name in (source := _read(module)).definitions:
        return place
    if _file(f"{module}.{name}") is not None:
        return (f"{module}.{name}", _WHOLE)
    return _resolved(source.imported[name]) if name in source.imported else (module, _WHOLE)


def _imports(module: str, node: ast.Import | ast.ImportFrom) -> dict[str, Place]:
    """What an import statement binds, of this library (and of the claim's own folder)."""
    found: dict[str, Place] = {}
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "icllab":
                found[alias.asname or "icllab"] = (alias.name if alias.asname else "icllab", _WHOLE)
        return found
    if node.level == 1 and module.endswith(".py"):  # a user's folder, whose files import each other
        beside = Path(module).with_name(f"{node.module}.py") if node.module else None
        for alias in node.names:
            file = beside or Path(module).with_name(f"{alias.name}.py")
            if file.is_file():
                found[alias.asname or alias.name] = (str(file), alias.name if beside else _WHOLE)
    elif node.level == 0 and node.module and node.module.split(".")[0] == "icllab":
        for alias in node.names:
            found[alias.asname or alias.name] = (node.module, alias.name)
    return found


@functools.cache
def _file(module: str) -> Path | None:
    base = _PACKAGE.joinpath(*module.split(".")[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


@functools.cache
def _read(module: str) -> Source:
    path = Path(module) if module.endswith(".py") else _file(module)
    if path is None:
        return Source({}, [], {})
    definitions: dict[str, list[ast.stmt]] = {}
    always: list[ast.stmt] = []
    imported: dict[str, Place] = {}

    def take(statement: ast.stmt) -> None:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            imported.update(_imports(module, statement))
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            definitions.setdefault(statement.name, []).append(statement)
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for name in {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}:
                definitions.setdefault(name, []).append(statement)
        elif isinstance(statement, ast.If | ast.Try):
            for inner in ast.iter_child_nodes(statement):
                if isinstance(inner, ast.ExceptHandler):
                    for one in inner.body:
                        take(one)
                elif isinstance(inner, ast.stmt):
                    take(inner)
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            always.append(statement)

    for statement in ast.parse(path.read_bytes()).body:
        take(statement)
    if path.name == "__init__.py":  # the table of lazy names; what they stand for is imported for type checkers
        for name in ("__getattr__", "__dir__", "__all__"):
            definitions.pop(name, None)
    return Source(definitions, always, imported)


def forget() -> None:
    """Read the sources anew; they may have been edited since."""
    for cached in (_read, _read_at, _file, _text):
        cached.cache_clear()
