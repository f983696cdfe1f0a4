"""What a claim must have, item by item: ``icl claim conform`` asks an author's folder, the tests of a book its claims.

The code of the claim runs: its author asks. Its smoke runs in a process of its own, which measures CPU time without the
imports of libraries and refuses connections of Python's sockets. What C code or another program does is not seen.
"""

import ast
import json
import math
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.core.errors import CellsMissing, IclError, InputError
from icllab.core.files import parse_json, source_text
from icllab.core.grid import Grid
from icllab.lab import records, registry
from icllab.lab.basis import Basis
from icllab.lab.claim import SIZES, Claim
from icllab.lab.placement import SEED

if TYPE_CHECKING:
    import xarray as xr

    from icllab.lab.checks import Verdict

CPU_SECONDS = 10.0
"""CPU seconds of a claim at ``smoke``."""
_RUN = ("algorithms", "constructions", "diagnostics", "models", "tasks", "training")
SIMULATION = (*(f"icllab.{name}" for name in _RUN), "jax", "jaxlib", "equinox", "optax")
"""What the side of the theory imports none of."""
THEORY = ("icllab.theory",)
"""What the side of the measurement imports none of."""
EVASIONS = {"exec", "eval", "compile", "open", "__import__", "__file__", "importlib", "builtins", "runpy"} | {
    *("inspect", "sys", "os", "subprocess", "ctypes", "__builtins__")
}
"""Builtins and modules by which imports, files, settings and the caller are reached unseen; neither side uses them."""
_FILES = {"open", "fdopen", "read_text", "read_bytes"}  # as methods: `compile` and `eval` of a program are none
AGAIN = 10.0
"""Seconds that a cell may take, by the record, that is measured again."""
FOLD = 100.0
"""Times that a control may change the numbers by which it refutes."""
_ROUNDING = 1e-6  # an exact statement leaves this over, and any number is a multiple of it
_LONGEST = 600.0  # seconds that the process of the smoke may take


@dataclass(frozen=True)
class Item:
    """One requirement.

    Attributes:
        name: A word for it.
        fault: What is missing and what to do; empty where it is met.
    """

    name: str
    fault: str = ""

    @property
    def met(self) -> bool:
        """Whether nothing is missing."""
        return not self.fault


def conform(folder: Path) -> tuple[str, list[Item]]:
    """The name of the claim in a folder, and every item that it must have.

    Raises:
        InputError: The folder has no ``claim.py``.
    """
    folder = folder.resolve()
    if not (folder / "claim.py").is_file():
        raise InputError(
            f"icl claim conform: expected a folder with a claim.py, got {folder}; `icl claim new` makes one"
        )
    name = f"{folder.parent.name}/{folder.name}"
    try:
        claim = registry.load(name, folder)
    except IclError as error:
        return name, [Item("loads", str(error))]
    items = [Item("loads")]
    for item, faults in STATIC.items():
        items.append(Item(item, "; ".join(faults(claim, folder))))
    items += smoke_items(name, folder)
    for item, faults in RECORDED.items():
        try:
            items.append(Item(item, "; ".join(faults(claim, folder))))
        except CellsMissing:
            size = next((size for size in SIZES[1:] if size in claim.sizes), SIZES[1])
            advice = (
                _recording(name, folder, f" --size {size}") if item == "record" else "there is no record to examine"
            )
            items.append(Item(item, advice))
        except IclError as error:
            items.append(Item(item, str(error)))
    if any(item.name == "record" and item.met for item in items):
        again = measured_again(claim, folder, random.SystemRandom().randrange(1 << 32))
        items += [] if again is None else [Item("measured again", again)]
    return name, items


def _recording(name: str, folder: Path | None, options: str) -> str:
    """The two commands that measure and record."""
    place = f"{options} --claims {shlex.quote(str(folder))}" if folder else options
    return f"icl run {name}{place}, then icl check {name}{place} --record"


# What the files say.


def sentence_faults(claim: Claim, folder: Path | None) -> Iterator[str]:
    """A sentence that ends, conditions, a title, sources. A claim of more than 30 words, or of an unknown source, does
    not load.
    """
    if not claim.sentence.endswith("."):
        yield "the sentence has no full stop"
    for field in ("conditions", "title", "sources"):
        if not getattr(claim, field):
            yield f"Claim(...) has no {field}"


def sizes_faults(claim: Claim, folder: Path | None) -> Iterator[str]:
    """``smoke``, and a size that is judged; ``medium``, where there is one, repeats no seed of ``small``."""
    for size in SIZES[:2]:
        if size not in claim.sizes:
            yield f"sizes: there is no {size}"
    if seeds := repeated_seeds(claim):
        yield f"sizes: medium repeats the seeds {sorted(seeds)} of small"


def repeated_seeds(claim: Claim) -> set[Any]:
    """The seeds that ``small`` and ``medium`` have in common."""
    seeds = [set(claim.grid(size).traced.get("seed", ())) for size in ("small", "medium") if size in claim.sizes]
    return seeds[0] & seeds[1] if len(seeds) == 2 else set()


def measurement_faults(claim: Claim, folder: Path | None) -> Iterator[str]:
    """A ``VERSION``, and at least one control that is an argument of ``measure``."""
    tree = _tree(registry.measure_file(registry.file(claim.name, folder)))
    assigned = {ast.unparse(target) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    if "VERSION" not in assigned:
        yield "measure.py has no VERSION = 1, which counts up when the numbers are meant to move"
    if not any(control.simulated for control in claim.controls.values()):
        yield "no control is another simulation: Control(..., measure={...})"
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "measure"]
    known = {argument.arg for node in functions for argument in node.args.kwonlyargs + node.args.args}
    for name, control in claim.controls.items():
        if unknown := set(control.measure) - (known - {"point", "key"}):
            yield f"control {name}: measure has no argument {', '.join(sorted(unknown))}"


def shared_code(claim: Claim, folder: Path | None) -> Iterator[str]:
    """Theory and measurement share no code, as far as imports tell.

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
    if alone:
        return
    modules = [set().union(*side.values()) for side in sides.values()]
    for module in sorted(modules[0] & modules[1]):
        if module.partition(".")[0] in set(path.parts) - {"icllab"}:
            yield f"{module} is imported by claim.py and by measure.py"
    for file in sorted(set(sides["claim.py"]) & set(sides["measure.py"]) - {path}):
        yield f"{file.name} is imported by claim.py and by measure.py"
    functions = {node.name for node in _tree(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
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
    """Names in a file by which code or numbers come in that no import statement shows."""
    nodes = list(ast.walk(_tree(file)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    methods = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return EVASIONS & (names | {module.partition(".")[0] for module, _ in _imports(file)}) | _FILES & methods


def _side(path: Path, without: Path | None = None) -> dict[Path, set[str]]:
    """File -> modules that it imports, of a file and of those in its folder that it imports in turn."""
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
    nodes = list(ast.walk(_tree(file)))
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


def _tree(path: Path) -> ast.Module:
    return ast.parse(source_text(path), str(path))


STATIC: dict[str, Callable[[Claim, Path | None], Iterator[str]]] = {
    "sentence": sentence_faults,
    "sizes": sizes_faults,
    "measurement": measurement_faults,
    "no shared code": shared_code,
}


# What the record says.


def record_faults(claim: Claim, folder: Path | None) -> Iterator[str]:
    """Data of the claim's own VERSION, on which the check gives the recorded verdict, which is not ``fails``."""
    size, verdict = records.judged(claim.name, folder=folder)
    entry = records.read(claim.name, folder)[size]
    outcome = verdict.outcome.value
    if entry["measure"] != claim.version:
        yield f"the data of {size} are of VERSION {entry['measure']}, measure.py has {claim.version}: record them again"
    if outcome == "fails":
        yield f"the check says fails on the data of {size}: the sentence is not what was measured"
    outcomes = {finding.id: finding.outcome.value for finding in verdict.findings}
    if {finding["id"]: finding["outcome"] for finding in entry["findings"]} != outcomes:
        yield f"the check says {outcome} on the data of {size}, the record {entry['verdict']} or other findings"
    if not any(finding.about == "claim" for finding in verdict.findings):
        yield "the check has no finding"
    stated = records.statement(claim.name, folder)
    if other := [name for name, value in records.about(claim).items() if stated.get(name) != value]:
        yield f"the record states another {' and '.join(other)} than claim.py: record again"
    for group in records.groups(claim.name, folder):
        size, _, control = group.partition("@")
        if size in claim.sizes and control in (*claim.controls, ""):
            dataset = records.data(claim.name, size, control or None, folder)
            yield from (f"{group} has {text}" for text in records.size_faults(claim, size, control or None, dataset))
            if records.measured_by_another(claim, dataset, folder):
                yield f"{group} was measured by another measure.py: measure again with --fresh, and record"


def control_faults(claim: Claim, folder: Path | None) -> Iterator[str]:
    """Under every control the check says ``fails``, and the recorded control is the one that the claim names."""
    size, verdict = records.judged(claim.name, folder=folder)
    entries = records.read(claim.name, folder)[size]["controls"]
    for name, control in claim.controls.items():
        command = _recording(claim.name, folder, f" --size {size} --control {name}")
        entry = entries.get(name)
        if entry is None:
            yield f"control {name} is not recorded: {command}"
        elif (control.simulated or control.axes) and entry.get("definition") != records.definition(control):
            yield f"control {name} was recorded with other arguments: {command}"
        elif (outcome := records.judged(claim.name, None, name, folder)[1].outcome.value) != "fails":
            yield f"control {name}: the check must say fails, it says {outcome}"
        elif control.simulated:
            from icllab.lab.results import judge, predicted

            data = records.data(claim.name, size, name, folder)
            for fault in _straw(verdict, judge(claim, predicted(claim, data)), axes=bool(control.axes)):
                yield f"control {name}: {fault}"


def _straw(verdict: "Verdict", under: "Verdict", *, axes: bool) -> Iterator[str]:
    """Faults of a control: an honest one keeps the findings and, without ``axes``, their predictions."""
    before = {finding.id: finding for finding in verdict.findings if finding.about == "claim"}
    pairs = [(before[finding.id], finding) for finding in under.findings if finding.id in before]
    sizes = [(max(abs(b.measured), abs(b.predicted)), abs(f.measured)) for b, f in pairs if f.outcome == "fails"]
    if sizes and all(now > FOLD * size > FOLD * _ROUNDING for size, now in sizes):
        yield f"it changes the numbers by which it refutes more than {FOLD:g} times: any claim fails in such a world"
    moved = {f.name for b, f in pairs if not math.isclose(b.predicted, f.predicted, rel_tol=1e-6, abs_tol=1e-12)}
    if moved and not axes:
        yield f"what is predicted of {', '.join(sorted(moved))} moves with the measured data: a theory knows none"


def unfalsified(claim: Claim, folder: Path | None) -> set[str]:
    """The findings that no recorded control falsifies."""
    _, verdict = records.judged(claim.name, folder=folder)
    entries = records.read(claim.name, folder)
    names = {finding.name for finding in verdict.findings if finding.about == "claim"}
    for name in claim.controls:
        if any(name in entry.get("controls", {}) for entry in entries.values()):
            _, under = records.judged(claim.name, None, name, folder)
            names -= {finding.name for finding in under.findings if finding.outcome.value == "fails"}
    return names


def falsification_faults(claim: Claim, folder: Path | None) -> Iterator[str]:
    """Every finding fails under a control: one that cannot fail says nothing."""
    if names := unfalsified(claim, folder):
        yield f"no control falsifies {', '.join(sorted(names))}: add a world in which it is false"
    sides: dict[str, list[tuple[float, float]]] = {}
    for finding in records.judged(claim.name, folder=folder)[1].findings:
        two_sided = finding.about == "claim" and not re.search(" [<>] ", finding.what)
        if two_sided and abs(finding.measured - finding.predicted) <= finding.tolerance:
            sides.setdefault(finding.name, []).append((finding.tolerance, abs(finding.predicted)))
    for name, pairs in sides.items():
        if 0 < max(size for _, size in pairs) < min(tolerance for tolerance, _ in pairs):
            yield f"the tolerance of {name} exceeds the prediction itself: nothing holds as well"


def figure_faults(claim: Claim, folder: Path | None) -> Iterator[str]:
    """The figure is a pure function of the recorded results."""
    dataset = records.predicted_data(claim.name, None, None, folder)
    yield from impurities(claim, dataset)


def impurities(claim: Claim, dataset: "xr.Dataset") -> Iterator[str]:
    """In what the figure of a Dataset is not a function of it."""
    from icllab.figures import png_bytes
    from icllab.lab.results import picture

    before = dataset.copy(deep=True)
    try:
        first, second = (png_bytes(picture(claim, dataset)) for _ in range(2))
    except Exception as error:  # whatever a claim's figure raises
        yield f"the figure raises {type(error).__name__}: {error}"
        return
    if first != second:
        yield "the figure differs when it is drawn again"
    if not dataset.identical(before):
        yield "the figure changes the results"


RECORDED: dict[str, Callable[[Claim, Path | None], Iterator[str]]] = {
    "record": record_faults,
    "controls fail": control_faults,
    "findings can fail": falsification_faults,
    "figure": figure_faults,
}


# What a cell of the record measures again.


@dataclass(frozen=True)
class _TwoSeeds(Basis):
    """A record at two random seeds: numbers of a seed are those that it measures beside a hundred others."""

    key: int = 0

    def misplaced(self, worlds: Mapping[str | None, "xr.Dataset"]) -> Iterator[str]:
        yield from ()  # the item of the record compares all seeds

    def grids(self, control: str | None) -> list[Grid]:
        grid = super().grids(control)[0]
        seeds = random.Random(self.key).sample(grid.traced[SEED], min(2, len(grid.traced[SEED])))
        return [replace(grid, traced={**grid.traced, SEED: tuple(seeds)})]

    def measured(self, control: str | None = None) -> "tuple[xr.Dataset, list[str]]":
        dataset, notes = super().measured(control)
        names = [name for name, values in dataset.data_vars.items() if SEED in values.dims]
        return dataset[names].sel({SEED: sorted(self.grids(control)[0].traced[SEED])}), notes


def measured_again(claim: Claim, folder: Path, key: int) -> str | None:
    """Differences of a random cell of the smallest judged size; None if it takes too long by the record."""
    from icllab.lab.rerun import rerun

    size = next(size for size in SIZES[1:] if size in records.groups(claim.name, folder))
    grid, seconds = claim.at(size).grid(size), records.read(claim.name, folder)[size]["seconds"]
    if seconds > AGAIN * len(grid):
        return None
    seeds = claim.reduce is None and any(SEED in v.dims for v in records.data(claim.name, size, None, folder).values())
    place = (claim.name, size, None, str(folder))
    try:
        differs = rerun(_TwoSeeds(*place, key) if seeds else Basis(*place), 1e-6, key).differs
    except IclError as error:
        return str(error)
    return "; ".join(differs)


# What the smoke does.


def smoke_items(name: str, folder: Path) -> list[Item]:
    """CPU time, connections and golden numbers of a run at ``smoke``, in a process of its own."""
    command = [sys.executable, "-m", "icllab.lab.conformance", name, str(folder)]
    settings = {"JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_LONGEST, env={**os.environ, **settings}
        )
    except subprocess.TimeoutExpired:
        return [Item("smoke", f"expected {CPU_SECONDS:g} CPU seconds, it took over {_LONGEST:g} s")]
    try:
        answer = parse_json(process.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        line = (process.stderr.strip().splitlines() or ["nothing"])[-1]
        return [Item("smoke", f"its process ended with {process.returncode} and said {line[:200]}")]
    seconds, addresses = answer["seconds"], answer["addresses"]
    fault = answer["fault"] and f"it raised {answer['fault']}"
    slow = f"expected at most {CPU_SECONDS:g} CPU seconds, got {seconds:.1f}: make smoke smaller"
    moved = (
        "; ".join(answer["changes"])
        if answer["changes"] is not None
        else _recording(name, folder, f" --size {SIZES[0]}")
    )
    return [
        Item("smoke", fault or slow * (seconds > CPU_SECONDS)),
        Item("no network", f"it tried to reach {', '.join(addresses)}" if addresses else ""),
        Item("golden numbers", "there is no run to compare" if fault else moved),
    ]


def _smoke(name: str, folder: str) -> dict[str, Any]:
    """Run a claim at ``smoke`` with its theory, check and figure; no connection is made."""
    import jax  # noqa: F401  what importing it costs is not the claim's

    from icllab.figures import png_bytes
    from icllab.lab.job import Request
    from icllab.lab.results import picture
    from icllab.lab.run import collect, compute, read
    from icllab.training import compile_quickly

    compile_quickly()
    addresses = _refuse_connections()
    fault, changes, before = "", None, _cpu_seconds()
    with tempfile.TemporaryDirectory() as out:
        request = Request(name, SIZES[0], out=out, claims=folder)
        try:
            compute(request, progress=lambda *_: None)
            claim, (dataset, _) = request.claim(), collect(request)
            seconds = _cpu_seconds() - before
            assert claim.check is not None  # the registry has set it
            list(claim.check(dataset))
            png_bytes(picture(claim, dataset))
            if SIZES[0] in records.groups(name, folder):
                measured = records.reduced(claim, read(request, theory=False)[0])
                changes = records.differences(records.data(name, SIZES[0], None, folder), measured)
        except Exception as error:  # whatever a claim raises
            seconds, fault = _cpu_seconds() - before, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return {"seconds": seconds, "addresses": sorted(set(addresses)), "fault": fault, "changes": changes}


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _refuse_connections() -> list[str]:
    """Refuse every connection of a socket but to a file, loopback too; the list gets the addresses."""
    addresses: list[str] = []

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
            address = arguments[0] if event.startswith("socket.get") else arguments[1]
            if isinstance(address, str | bytes) and not event.startswith("socket.get"):
                return  # of a Unix socket
            addresses.append(str(address))
            raise PermissionError(f"icl claim conform: expected no connection, got one to {address}")

    sys.addaudithook(refuse)
    return addresses


if __name__ == "__main__":
    print(json.dumps(_smoke(*sys.argv[1:3])), flush=True)
