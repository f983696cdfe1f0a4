"""Modules of the laboratory import each other in one direction, also within a layer."""

import ast
from pathlib import Path

import icllab

SOURCE = Path(icllab.__file__).parent

OPEN = {
    frozenset({"lab.checks", "lab.claim", "lab.outcomes"}),
    frozenset({"lab.job", "lab.results"}),
    frozenset({"lab.basis", "lab.conformance", "lab.rerun", "lab.run"}),
    frozenset(f"diagnostics.sampling.{name}" for name in ("draws", "samplers", "sampling_warnings", "smc")),
}
"""Circles that are left. The set may only shrink."""


def imports(source: Path) -> dict[str, set[str]]:
    """Module -> modules that it imports, at its top, in a function or for type checkers alone.

    Names are relative to the package. Of a package that is a module's, the submodules count that are imported from it:
    its other names are lazy.
    """
    files = {
        path.relative_to(source).with_suffix("").as_posix().replace("/", "."): path for path in source.rglob("*.py")
    }
    prefix = f"{source.name}."
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        targets = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                targets |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        if not name.endswith("__init__"):
            graph[name] = {target.removeprefix(prefix) for target in targets if target.startswith(prefix)} - {name}
    return {name: targets & set(graph) for name, targets in graph.items()}


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Largest sets of modules each of which imports every other, directly or not."""
    reached = {name: set(targets) for name, targets in graph.items()}
    for middle in graph:
        for targets in reached.values():
            if middle in targets:
                targets |= reached[middle]
    return {frozenset(b for b in reached[a] if a in reached[b]) for a in graph if a in reached[a]}


def test_no_modules_import_each_other_but_those_that_are_known_to():
    new = {circle for circle in circles(imports(SOURCE)) if not any(circle <= left for left in OPEN)}
    assert not new


def test_a_circle_through_a_function_or_a_type_is_noticed(tmp_path):
    source = tmp_path / "package"
    source.mkdir()
    (source / "one.py").write_text("import math\nfrom package.two import name\n")
    (source / "two.py").write_text("def name():\n    from package import three\n")
    (source / "three.py").write_text("if TYPE_CHECKING:\n    import package.one\n")
    (source / "four.py").write_text("from package import one\n")
    assert circles(imports(source)) == {frozenset({"one", "two", "three"})}
