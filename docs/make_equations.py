"""Write docs/equations.md: papers, formulas, functions and tests. Each build writes it again.

``ast`` reads the docstrings of ``src/icllab`` and ``book/src/iclbook``: every public function, method and class with a
``Source:`` or ``Derived:`` line. A key outside ``references.bib`` is an error, and so is a section that does not exist.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import icllab
from icllab.core.errors import InputError
from icllab.core.sources import Reference, reference

ROOT = Path(icllab.__file__).resolve().parents[2]  # of the checkout that is installed
PACKAGES = {"icllab": "src", "iclbook": "book/src"}
ROOMS = (
    "core",
    "tasks",
    "algorithms",
    "models",
    "theory",
    "constructions",
    "training",
    "diagnostics",
    "figures",
    "lab",
    "claims",
)

# A citation key: a name and two digits of a year, in brackets.
_KEY = re.compile(r"\[([A-Za-z]+\d\d\w?)\]")
_ORIGIN = re.compile(r"^(Source|Derived):(.*?)(?=\n\s*\n|\n(?:Source|Derived):|\Z)", re.MULTILINE | re.DOTALL)
_MATH = re.compile(r"^\.\. math::[ ]?(.*\n?(?:(?:[ ]+.*)?\n?)*)", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """A function, method or class whose docstring names its source or derivation."""

    module: str
    name: str
    kind: str
    file: str
    formula: str
    sources: tuple[Reference, ...]
    derivations: tuple[tuple[str, str], ...]

    @property
    def path(self) -> str:
        """The qualified name."""
        return f"{self.module}.{self.name}"


def entries(package: Path, docs: Path) -> list[Entry]:
    """Return all entries of a source tree by subpackage, file and line."""
    found = []
    for path in sorted(package.rglob("*.py"), key=_place(package)):
        module = ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
        shown = path.relative_to(package.parent).as_posix()
        for name, kind, docstring in _documented(ast.parse(path.read_text("utf-8")).body):
            entry = _entry(module, name, kind, shown, docstring, docs)
            if entry is not None:
                found.append(entry)
    return found


def _place(package: Path):
    def key(path: Path) -> tuple[int, str]:
        room = path.relative_to(package).parts[0].removesuffix(".py")
        return (ROOMS.index(room) if room in ROOMS else len(ROOMS)), path.as_posix()

    return key


def _documented(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            kind = "class" if isinstance(node, ast.ClassDef) else "meth" if prefix else "func"
            yield prefix + node.name, kind, ast.get_docstring(node) or ""
            if isinstance(node, ast.ClassDef):
                yield from _documented(node.body, f"{node.name}.")


def _entry(module: str, name: str, kind: str, file: str, docstring: str, docs: Path) -> Entry | None:
    where = f"{file}, {name}"
    origins = [(kind, " ".join(text.split()).rstrip(".")) for kind, text in _ORIGIN.findall(docstring)]
    for key in _KEY.findall(docstring):
        _known(key, where)
    sources, derivations = [], []
    for origin, text in origins:
        if origin == "Source":
            keys = _KEY.findall(text)
            if not keys:
                raise InputError(f"{where}: expected 'Source: [Key].', got 'Source: {text}.'")
            sources += [_known(key, where) for key in keys]
        else:
            derivations += [_standing(one.strip(), where, docs) for one in text.split(";")]
    if not origins:
        return None
    math = _MATH.search(docstring)
    formula = inspect.cleandoc(math[1]).strip() if math else ""
    return Entry(module, name, kind, file, formula, tuple(sources), tuple(derivations))


def _known(key: str, where: str) -> Reference:
    try:
        return reference(key)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _standing(text: str, where: str, docs: Path) -> tuple[str, str]:
    """Parse ``docs/<page>.md, <section title>``; raise unless the section exists."""
    page, _, title = (part.strip() for part in text.partition(","))
    path = docs / page.removeprefix("docs/")
    if not (page.startswith("docs/") and page.endswith(".md") and title):
        raise InputError(f"{where}: expected 'Derived: docs/<page>.md, <section title>.', got 'Derived: {text}.'")
    if not path.is_file():
        raise InputError(f"{where}: expected a page of the documentation, got {page!r}, which is not there")
    titles = headings(path)
    if title not in titles:
        known = ", ".join(repr(t) for t in titles)
        raise InputError(f"{where}: {page} lacks the section {title!r}; its sections: {known}")
    return path.name, title


def headings(page: Path) -> list[str]:
    """Return the section titles of a Markdown page, without lines inside code fences."""
    text = re.sub(r"^(`{3,}|~{3,}).*?^\1", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [m[1].strip() for m in re.finditer(r"^#+ (.*)$", text, re.MULTILINE)]


# Which test names which function.


class _Names:
    """Resolve the names in a test file by its imports."""

    def __init__(self, tree: ast.Module, lazy: dict[str, str]) -> None:
        self.lazy = lazy
        self.modules: set[str] = set()
        self.meaning: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.split(".")[0]
                    if top in PACKAGES:
                        self.modules.add(alias.name)
                        self.meaning[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
                for alias in node.names:
                    self.meaning[alias.asname or alias.name] = self.real(f"{node.module}.{alias.name}")
        self.modules |= set(self.meaning.values())

    def real(self, path: str) -> str:
        """Return the name in the defining module of a lazy export."""
        head, _, tail = path.partition(".")
        known = head
        for part in filter(None, tail.split(".")):
            known = self.lazy.get(f"{known}.{part}", f"{known}.{part}")
        return known

    def of(self, node: ast.expr) -> str | None:
        """Return the qualified name of ``name`` or ``name.attribute...``."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not (isinstance(node, ast.Name) and node.id in self.meaning):
            return None
        return self.real(".".join((self.meaning[node.id], *reversed(attributes))))


def lazy_exports(package: Path) -> dict[str, str]:
    """Map ``icllab.package.Name`` to ``icllab.package.module.Name``, from the imports for type checkers."""
    exports = {}
    for path in package.rglob("__init__.py"):
        name = ".".join((package.name, *path.parent.relative_to(package).parts))
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{name}."):
                exports.update({f"{name}.{alias.name}": f"{node.module}.{alias.name}" for alias in node.names})
    return exports


def references_in_tests(tests: Path, *packages: Path) -> dict[str, dict[str, set[str]]]:
    """Map ``tests/file.py::test_name`` to its references: qualified names, attributes, strings, imports of the file.

    The references of a test include the references of the fixtures, helpers and constants of its file.
    """
    lazy = {name: path for package in packages for name, path in lazy_exports(package).items()}
    found: dict[str, dict[str, set[str]]] = {}
    for path in sorted(tests.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        names = _Names(tree, lazy)
        direct, local, strings = {}, {}, {}
        for node in tree.body:
            for defined in _defined(node):
                # A name bound twice (an if, an overload) means both.
                direct.setdefault(defined, set()).update(_qualified(node, names))
                local.setdefault(defined, set()).update(_local(node))
                constants = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
                strings.setdefault(defined, set()).update(c for c in constants if isinstance(c, str))
        for name in (n for n in direct if n.startswith("test")):
            reached, queue = {name}, [name]
            while queue:
                new = (local[queue.pop()] & direct.keys()) - reached
                reached |= new
                queue += new
            found[f"{path.relative_to(tests.parent).as_posix()}::{name}"] = {
                "names": set().union(*(direct[r] for r in reached)),
                "attributes": {a for r in reached for a in local[r]},
                "strings": {s for r in reached for s in strings[r]},
                "imports": names.modules,
            }
    return found


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    return []


def _qualified(node: ast.AST, names: _Names) -> set[str]:
    parts = (names.of(n) for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute))
    return {part for part in parts if part}


def _local(node: ast.AST) -> set[str]:
    """Return names, attributes, and arguments (which may be fixtures)."""
    walked = list(ast.walk(node))
    return (
        {n.id for n in walked if isinstance(n, ast.Name)}
        | {n.attr for n in walked if isinstance(n, ast.Attribute)}
        | {n.arg for n in walked if isinstance(n, ast.arg)}
    )


def tests_of(entry: Entry, tests: dict[str, dict[str, set[str]]]) -> list[str]:
    """Return the tests that refer to an entry.

    The class of a value is not known from the text, so a call of a method counts by the attribute's name, in files
    that import from the method's module or from its package within a subpackage. A function chosen by name, as in
    ``solver="primal_pcg"``, counts by this string, in files that import from its subpackage.
    """
    *_, last = entry.name.split(".")
    room, package = ".".join(entry.module.split(".")[:2]), entry.module.rpartition(".")[0]
    found = []
    for test, seen in tests.items():
        near = _imports(seen, entry.module) or (entry.module.count(".") > 2 and package in seen["imports"])
        by_method = entry.kind == "meth" and last in seen["attributes"] and near
        by_choice = entry.kind == "func" and last in seen["strings"] and _imports(seen, room)
        if entry.path in seen["names"] or by_method or by_choice:
            found.append(test)
    return found


def _imports(seen: dict[str, set[str]], module: str) -> bool:
    return any(name == module or name.startswith(module + ".") for name in seen["imports"])


# The page.


def page(root: Path = ROOT, docs: Path | None = None) -> str:
    """Return the text of docs/equations.md, for the sources and tests below ``root``."""
    docs, packages = docs or root / "docs", [root / folder / name for name, folder in PACKAGES.items()]
    found = [entry for package in packages for entry in entries(package, docs)]
    tests = references_in_tests(root / "tests", *packages) | references_in_tests(root / "book/tests", *packages)
    parts = [
        "# Equations",
        "Every formula of the laboratory and its book, with its source, the function that computes it, and the tests\n"
        "that name this function. `docs/make_equations.py` makes this page from the docstrings; edit those.",
    ]
    for room in ROOMS:
        rows = [entry for entry in found if entry.module.split(".")[1] == room]
        if rows:
            table = "\n".join(_row(entry, tests_of(entry, tests)) for entry in rows)
            head = ":header-rows: 1\n:widths: 26 74\n:class: equations\n\n* - From\n  - Formula, function, tests"
            parts += [f"## `{'.'.join(rows[0].module.split('.')[:2])}`", f"`````{{list-table}}\n{head}\n{table}\n`````"]
    used = {source.key: source for entry in found for source in entry.sources}
    if used:
        listed = "\n".join(f"- **{key}**: {used[key].text}" for key in sorted(used))
        parts += ["## References", listed]
    return "\n\n".join(parts) + "\n"


def _row(entry: Entry, tests: list[str]) -> str:
    origin = [f"{source.short} [{source.key}]" for source in entry.sources]
    origin += [f"derived: [{title}]({name}#{slug(title)})" for name, title in entry.derivations]
    formula = f"````{{math}}\n{entry.formula}\n````\n\n" if entry.formula else ""
    function = f"{{py:{entry.kind}}}`{entry.path.partition('.')[2]} <{entry.path}>`"
    files: dict[str, list[str]] = {}
    for test in tests:
        file, _, name = test.partition("::")
        files.setdefault(file, []).append(f"`{name}`")
    tested = "\n".join(f"- `{file}`: {', '.join(names)}" for file, names in files.items()) or "- no test"
    cells = ["\n\n".join(origin), f"{formula}{function}\n\n{tested}"]
    return "\n".join(("* - " if i == 0 else "  - ") + cell.replace("\n", "\n    ") for i, cell in enumerate(cells))


def slug(title: str) -> str:
    """Return the anchor that MyST gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def write(docs: Path) -> None:
    """Write the page into ``docs``."""
    (docs / "equations.md").write_text(page(ROOT, docs), "utf-8")


def main() -> int:
    """Write the page, or print an error of one line."""
    try:
        write(ROOT / "docs")
    except InputError as error:
        print(f"docs/make_equations.py: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
