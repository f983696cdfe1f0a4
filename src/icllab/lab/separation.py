"""Tell shared code of theory and measurement from the imports and names of their files, which are not imported."""

import ast
from collections.abc import Iterator
from pathlib import Path

from icllab.core.files import source_text
from icllab.lab import registry
from icllab.lab.claim import Claim

_RUN = ("algorithms", "constructions", "diagnostics", "models", "posteriors", "tasks", "training")
SIMULATION = (*(f"icllab.{name}" for name in _RUN), "jax", "jaxlib", "equinox", "optax")
"""What the side of the theory imports none of."""
THEORY = ("icllab.theory",)
"""What the side of the measurement imports none of."""
CASES = {f"icllab.{name}" for name in ("posteriors", "posteriors.names", "posteriors.problem")}
"""What it imports of the posteriors of known answer: the cases, and not their answers, which are theory."""
EVASIONS = {"exec", "eval", "compile", "open", "__import__", "__file__", "importlib", "builtins", "runpy"} | {
    *("inspect", "sys", "os", "subprocess", "ctypes", "__builtins__", "__doc__")
}
"""Names by which imports, files, settings, docstrings and the caller are reached unseen; neither side uses them."""
_ATTRIBUTES = {"open", "fdopen", "read_text", "read_bytes", "__doc__"}  # `compile` and `eval` of a program are none


def shared_code(claim: Claim, folder: Path | None) -> Iterator[str]:
    """Yield imports and names by which theory and measurement may share code.

    The side of ``claim.py`` imports nothing of :data:`SIMULATION`, that of ``measure.py`` nothing of :data:`THEORY`,
    and no module of the author's own is on both. From ``claim.py`` the measurement may import names that are assigned
    there, such as constants, and no function. A side is a file with the modules of its folder that it imports.
    """
    path = registry.file(claim.name, folder)
    source = registry.measure_file(path)
    alone = source == path  # a claim in one file: its measurement imports the simulation
    sides = {"claim.py": _side(path), "measure.py": _side(source, without=None if alone else path)}
    for side, forbidden in (("claim.py", () if path.name != "claim.py" else SIMULATION), ("measure.py", THEORY)):
        for file, imported in sides[side].items():
            for module in sorted(imported):
                if any(module == name or module.startswith(f"{name}.") for name in forbidden):
                    yield f"{file.name}, of the side of {side}, imports {module}"
    for file, imported in sides["measure.py"].items():
        of_posteriors = {name for name in imported if name.startswith("icllab.posteriors")}
        yield from (f"{file.name}, of the side of measure.py, imports {name}" for name in sorted(of_posteriors - CASES))
        for name in sorted(_attributes(file)) if of_posteriors else ():
            if "answers" in name:
                yield f"{file.name} uses {name} of a posterior of known answer, which is theory"
    if alone:
        return
    modules = [set().union(*side.values()) for side in sides.values()]
    for module in sorted(modules[0] & modules[1]):
        if module.partition(".")[0] in set(path.parts) - {"icllab"}:
            yield f"{module} is imported by claim.py and by measure.py"
    for file in sorted(set(sides["claim.py"]) & set(sides["measure.py"]) - {path}):
        yield f"{file.name} is imported by claim.py and by measure.py"
    functions = {node.name for node in syntax_tree(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for file in sides["measure.py"]:
        for module, names in _imports(file):
            if _local(module, file) == path and (taken := sorted(functions.intersection(names or functions))):
                yield f"{file.name} imports {', '.join(taken)} from claim.py"
            if any(_local(f"{module.rstrip('.')}.{name}", file) == path for name in names):
                yield f"{file.name} imports the whole of claim.py"
    for file in {**sides["claim.py"], **sides["measure.py"]}:
        for name in sorted(_evasions(file)):
            yield f"{file.name} uses {name}, past which no import is seen"


def _evasions(file: Path) -> set[str]:
    """Names in a file that bring in code or numbers without an import statement."""
    nodes = list(ast.walk(syntax_tree(file)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return EVASIONS & (names | {module.partition(".")[0] for module, _ in _imports(file)}) | _ATTRIBUTES & _attributes(
        file
    )


def _attributes(file: Path) -> set[str]:
    """Names of all attributes in a file."""
    return {node.attr for node in ast.walk(syntax_tree(file)) if isinstance(node, ast.Attribute)}


def _side(path: Path, without: Path | None = None) -> dict[Path, set[str]]:
    """Map a file, and each file of its folder that it imports, to the imported modules."""
    side: dict[Path, set[str]] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in side or file == without:
            continue
        side[file] = set()
        for module, names in _imports(file):
            local = _local(module, file)
            side[file] |= {module, *(f"{module}.{name}" for name in names)}
            waiting += [local] if local else []
            waiting += [inner for name in names if (inner := _local(f"{module.rstrip('.')}.{name}", file))]
    return side


def _imports(file: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every import of a file, wherever it stands: the module, relative ones with their dots, and the names.

    ``icl.models`` after ``import icllab as icl`` is one too.
    """
    nodes = list(ast.walk(syntax_tree(file)))
    aliases = {
        a.asname or a.name for node in nodes if isinstance(node, ast.Import) for a in node.names if a.name == "icllab"
    }
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), tuple(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            yield "icllab", (node.attr,)


def _local(module: str, file: Path) -> Path | None:
    """The file beside ``file`` that a module's last part names; None where it is elsewhere."""
    path = file.with_name(f"{module.rpartition('.')[2]}.py")
    beside = module.startswith(".") or file.parent.name in module.split(".")
    return path if beside and path.is_file() else None


def syntax_tree(path: Path) -> ast.Module:
    """The syntax tree of a file of Python."""
    return ast.parse(source_text(path), str(path))
