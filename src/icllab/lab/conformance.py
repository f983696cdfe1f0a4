"""The requirements of a claim, item by item, for ``icl claim conform`` and for the tests of a book.

The code of the claim runs: its author asks.
"""

import ast
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from icllab.core.errors import IclError, InputError
from icllab.lab import records, registry
from icllab.lab.claim import SIZES, Claim
from icllab.lab.evidence import Evidence, evidence_of, unfalsified
from icllab.lab.placement import SEED
from icllab.lab.rerun import rerun
from icllab.lab.separation import shared_code, syntax_tree
from icllab.lab.smoke import smoke_items

if TYPE_CHECKING:
    import xarray as xr

    from icllab.lab.checks import Verdict

AGAIN = 10.0
"""Seconds that a cell may take, by the record, that is measured again."""
FOLD = 100.0
"""Times that a control may change the numbers by which it refutes."""
_ROUNDING = 1e-6  # an exact statement leaves this over, and any number is a multiple of it
Faults: TypeAlias = Callable[[Claim, Path | None], Iterator[str]]
"""Yields what is missing of one item."""


def conform(folder: Path) -> tuple[str, dict[str, str]]:
    """The name of the claim in a folder, and a map from each required item to its fault, empty if it is met.

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
        return name, {"loads": str(error)}
    items = {"loads": ""} | answers(STATIC, claim, folder) | smoke_items(name, folder)
    items |= answers(RECORDED, claim, folder)
    if not items["record"]:
        again = measured_again(claim, folder, random.SystemRandom().randrange(1 << 32))
        items |= {} if again is None else {"measured again": again}
    return name, items


def answers(items: Mapping[str, Faults], claim: Claim, folder: Path | None) -> dict[str, str]:
    """Map each item to its fault, or an empty text; an unreadable record is a fault of each item about it."""
    texts = {}
    for item, faults in items.items():
        try:
            texts[item] = "; ".join(faults(claim, folder))
        except IclError as error:
            texts[item] = str(error)
    return texts


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
    """Yield ``smoke`` or ``small`` if it is missing, and seeds that ``medium`` repeats."""
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
    """Yield a missing ``VERSION``, missing simulated controls, and their unknown arguments."""
    tree = syntax_tree(registry.measure_file(registry.file(claim.name, folder)))
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
    if claim.subject is not None and "network" not in known:
        yield "the claim has a subject, and measure no argument network, which takes a user's"


STATIC: dict[str, Faults] = {
    "sentence": sentence_faults,
    "sizes": sizes_faults,
    "measurement": measurement_faults,
    "no shared code": shared_code,
}


# What the record says.


def record_faults(claim: Claim, folder: Path | None) -> Iterator[str]:
    """Yield each way in which the record is stale, contradicts its data, or states another claim."""
    evidence = evidence_of(claim.name, folder=folder)
    size, verdict = evidence.size, evidence.verdicts[None]
    entry = records.read(claim.name, folder)[size]
    if entry["measure"] != claim.version:
        yield f"the data of {size} are of VERSION {entry['measure']}, measure.py has {claim.version}: record them again"
    if verdict.outcome == "fails":
        yield f"the check says fails on the data of {size}: the sentence is not what was measured"
    if contradictions := list(evidence.contradictions()):
        yield f"{contradictions[0]}{f' and {more} more' if (more := len(contradictions) - 1) else ''}"
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
    """Yield each control under which the check does not say ``fails``, or whose record has other arguments."""
    evidence = evidence_of(claim.name, folder=folder)
    entries = records.read(claim.name, folder)[evidence.size]["controls"]
    for name, control in claim.controls.items():
        command = records.commands(claim.name, evidence.size, folder, name)
        if name not in entries or name not in evidence.verdicts:
            yield f"control {name} is {records.NOT_RECORDED}; {command}"
        elif control.measured and entries[name].get("definition") != records.definition(control):
            yield f"control {name} was recorded with other arguments; {command}"
        elif (outcome := evidence.verdicts[name].outcome) != "fails":
            yield f"control {name}: the check must say fails, it says {outcome}"
        elif control.simulated:
            from icllab.lab.judging import judge, predicted

            under = judge(claim, predicted(claim, evidence.datasets[name]))
            for fault in _straw(evidence.verdicts[None], under, axes=bool(control.axes)):
                yield f"control {name}: {fault}"


def _straw(verdict: "Verdict", under: "Verdict", *, axes: bool) -> Iterator[str]:
    """Yield faults of a control: it must keep the findings and, without ``axes``, their predictions."""
    before = {finding.id: finding for finding in verdict.findings if finding.about == "claim"}
    pairs = [(before[finding.id], finding) for finding in under.findings if finding.id in before]
    sizes = [(max(abs(b.measured), abs(b.predicted)), abs(f.measured)) for b, f in pairs if f.outcome == "fails"]
    if sizes and all(now > FOLD * size > FOLD * _ROUNDING for size, now in sizes):
        yield f"it changes the numbers by which it refutes more than {FOLD:g} times: any claim fails in such a world"
    moved = {f.name for b, f in pairs if not math.isclose(b.predicted, f.predicted, rel_tol=1e-6, abs_tol=1e-12)}
    if moved and not axes:
        yield f"what is predicted of {', '.join(sorted(moved))} moves with the measured data: a theory knows none"


def falsification_faults(claim: Claim, folder: Path | None) -> Iterator[str]:
    """Yield findings that fail under no control, and tolerances above the prediction itself."""
    evidence = evidence_of(claim.name, folder=folder)
    if names := unfalsified(evidence.findings):
        yield f"no control falsifies {', '.join(sorted(names))}: add a world in which it is false"
    sides: dict[str, list[tuple[float, float]]] = {}
    for finding in evidence.verdicts[None].findings:
        two_sided = finding.about == "claim" and not re.search(" [<>] ", finding.what)
        if two_sided and abs(finding.measured - finding.predicted) <= finding.tolerance:
            sides.setdefault(finding.name, []).append((finding.tolerance, abs(finding.predicted)))
    for name, pairs in sides.items():
        if 0 < max(size for _, size in pairs) < min(tolerance for tolerance, _ in pairs):
            yield f"the tolerance of {name} exceeds the prediction itself: nothing holds as well"


def figure_faults(claim: Claim, folder: Path | None) -> Iterator[str]:
    """Yield each way in which the figure is not a pure function of the recorded results."""
    dataset = records.predicted_data(claim.name, None, None, folder)
    yield from impurities(claim, dataset)


def impurities(claim: Claim, dataset: "xr.Dataset") -> Iterator[str]:
    """Yield each way in which the figure is not a pure function of the Dataset."""
    from icllab.figures import png_bytes
    from icllab.lab.drawing import picture

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


RECORDED: dict[str, Faults] = {
    "record": record_faults,
    "controls fail": control_faults,
    "findings can fail": falsification_faults,
    "figure": figure_faults,
}


def measured_again(claim: Claim, folder: Path, key: int) -> str | None:
    """Measure a random cell of the smallest judged size again; its differences, or None if a cell takes too long."""
    size = next(size for size in SIZES[1:] if size in records.groups(claim.name, folder))
    grid, seconds = claim.at(size).grid(size), records.read(claim.name, folder)[size]["seconds"]
    if seconds > AGAIN * len(grid):
        return None
    seeds = claim.reduce is None and any(SEED in v.dims for v in records.data(claim.name, size, None, folder).values())
    try:
        differs = rerun(Evidence(claim.name, size, None, str(folder)), 1e-6, key, two_seeds=seeds).differs
    except IclError as error:
        return str(error)
    return "; ".join(differs)
