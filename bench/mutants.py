"""Which plausible bugs the tests notice: one change at a time in each part of the library, and in every claim.

    python bench/mutants.py [--count 300] [--seed 0] [--only TEXT] [--report FILE] [--nearest]
    python bench/mutants.py --bugs bench/thought_up_bugs.json [--report FILE] [--nearest]

The changes are those of ``mutations.py``. They are drawn by a rule: in each part functions and constants in a random
order, one change of each. A change counts as noticed if one of its nearest tests fails or takes longer than the limit:
the files that name its module, and the function most often, then those of the whole folder; of a ``measure`` its own
and the golden numbers of its smoke, of which no two seeds may be alike. Slow tests are left out. Those that survive are
printed with file and line, and belong into docs/mutants.md with a reason, or get a test. With ``--bugs`` the changes
are those of a file of JSON instead: objects with ``file``, the text ``old`` and the text ``new``. At the end all
tests that have failed run without a change: one that fails then as well has noticed nothing, and ends the command.
"""

import argparse
import ast
import collections
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import machine
from mutations import Mutant, mutants

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT / "src/icllab", ROOT / "book/src/iclbook")
PARTS = {
    "theory": ("theory", "*.py", 0.15),
    "diagnostics": ("diagnostics", "*.py", 0.25),
    "models": ("models", "*.py", 0.15),
    "training": ("training", "*.py", 0.07),
    "lab": ("lab", "*.py", 0.08),
    "arena": ("arena", "*.py", 0.03),
    "cli": ("cli", "*.py", 0.05),
    "page": ("page", "*.py", 0.05),
    "measure": ("claims", "measure.py", 0.1),
    "claim": ("claims", "claim.py", 0.07),
}
"""Part -> its folder, its files, and its share of the changes."""
CLAIM_FILES = {  # and what looks at every one of them
    "measure": ("test_smoke_measures_the_golden_numbers", "test_no_seed_is_measured_twice"),
    "claim": (
        "test_the_check_gives_the_recorded_verdict_on_the_recorded_data",
        "test_the_claim_fails_under_a_negative_control",
    ),
}
NEAREST, LIMIT = 4, 600  # files of tests, and seconds of them
BROKEN = (3, 4, 70)  # exit status of pytest where it or its arguments are broken, and of a child that did not get to it
NONE = 5  # pytest's where all tests are left out
QUIETLY = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:xdist", "-p", "no:cacheprovider"]
QUIETLY += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is imported already
FUNCTIONS = (ast.FunctionDef, ast.ClassDef)
IMPORTED = ("pytest", "jax", "equinox", "optax", "xarray", "scipy.stats", "matplotlib")  # once, for all


def drawn(count: int, seed: int) -> list[Mutant]:
    """As many changes as asked for, at most one of a function or constant."""
    chosen = []
    for part, (folder, pattern, share) in PARTS.items():
        rng, places = random.Random(f"{seed} {part}"), collections.defaultdict(list)
        for file in sorted(file for source in SOURCES for file in (source / folder).rglob(pattern)):
            for mutant in mutants(file):
                places[file, mutant.where].append(mutant)
        order = sorted(places)
        rng.shuffle(order)
        chosen += [rng.choice(places[place]) for place in order[: round(count * share)]]
    return chosen


def written(file: Path) -> list[Mutant]:
    """The changes that a file of JSON lists; each text must occur once in its file."""
    chosen = []
    for row in json.loads(file.read_text("utf-8")):
        place, old = ROOT / row["file"], row["old"]
        source = place.read_text("utf-8")
        if source.count(old) != 1:
            raise SystemExit(f"{row['file']}: expected {old!r} once, got it {source.count(old)} times")
        start = source.index(old)
        line = source.count("\n", 0, start) + 1
        tops = (node for node in ast.parse(source).body if node.lineno <= line <= (node.end_lineno or node.lineno))
        where = next((getattr(node, "name", "") for node in tops), "")
        chosen.append(Mutant(place, where, line, row.get("bug", ""), start, start + len(old), old, row["new"]))
    return chosen


def inner(file: Path) -> Path:
    """The place of a file in its package."""
    return next(file.relative_to(source) for source in SOURCES if file.is_relative_to(source))


def part_of(file: Path) -> str:
    """The part that a file belongs to."""
    folder = inner(file).parts[0]
    return file.stem if folder == "claims" else folder


def nearest(mutant: Mutant) -> list[str]:
    """Files of tests, those that name what has changed most often first; of a measure, those of its claim."""
    page, files = (
        ROOT / "tests/page",
        sorted(path for at in ("tests", "book/tests") for path in (ROOT / at).rglob("test_*.py")),
    )
    near = files if part_of(mutant.file) == "page" else [path for path in files if page not in path.parents]
    tests = {path: path.read_text("utf-8") for path in near}
    if part_of(mutant.file) in CLAIM_FILES:
        claim = mutant.file.parent.name
        near = [path for path in tests if path.stem == f"test_{claim}" or claim in path.parent.parts]
    else:
        own = ROOT / "tests" / inner(mutant.file).with_name(f"test_{mutant.file.stem}.py")
        tree = ast.parse(mutant.file.read_text("utf-8"))
        public = [node.name for node in tree.body if isinstance(node, FUNCTIONS) and not node.name.startswith("_")]
        first = re.compile(rf"\b{mutant.where}\b")
        others = re.compile(rf"\b({'|'.join([mutant.file.stem, *public])})\b")
        module = re.compile(rf"\b{mutant.file.stem}\b")  # `fit` alone is named everywhere
        counts = {
            path: (path == own, bool(module.search(text)), len(first.findall(text)), len(others.findall(text)))
            for path, text in tests.items()
        }
        near = sorted((path for path in tests if any(counts[path])), key=counts.__getitem__, reverse=True)[:NEAREST]
    return [str(path.relative_to(ROOT)) for path in near]


def noticed(mutant: Mutant, copy: Path, *, folder: bool) -> str:
    """The test that fails, or how the tests end otherwise; empty where none notices."""
    file, own = copy / mutant.file.relative_to(ROOT), inner(mutant.file).parent
    stages = [some for near in [nearest(mutant)] for some in (near[:1], near[1:]) if some]  # most fail in the first
    if contracts := CLAIM_FILES.get(part_of(mutant.file)):
        claim, words = Path(*own.parts[1:]), " or ".join(contracts)
        every = ["book/tests/test_every_claim.py", "-k", f"({words}) and {claim.name}"]
        stages.append(["-m", "claims and not slow", *every])
    elif folder:
        stages.append([f"tests/{own}", *(["tests/agreement"] if own.name == "theory" else [])])
    source = file.read_text("utf-8")
    file.write_text(mutant.applied(source), "utf-8")
    try:
        for arguments in stages:
            failed = tested(arguments, copy, LIMIT)
            if failed:
                return failed
    finally:
        file.write_text(source, "utf-8")
    return ""


def tested(arguments: list[str], copy: Path, limit: float) -> str:
    """The first test that fails, in a process of its own that has JAX already; empty if all pass."""
    printed = copy / "printed.txt"
    child = os.fork()
    if child == 0:
        try:
            _test(arguments, copy, printed)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(BROKEN[-1])
    until = time.monotonic() + limit
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"longer than {limit} s"
        time.sleep(0.05)
    code, said = os.waitstatus_to_exitcode(status[1]), printed.read_text("utf-8")
    if code in BROKEN:
        raise RuntimeError(f"the tests did not start: {said[-500:]}")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    return "" if code in (0, NONE) else failed[1] if failed else f"exit status {code}"


def _test(arguments: list[str], copy: Path, printed: Path) -> None:
    """What the child does; it does not return."""
    os.setsid()
    with printed.open("w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    os.chdir(copy)
    benches = ROOT / "bench"  # whose names hide folders of tests
    sys.path[:] = [str(copy / "src"), *(path for path in sys.path if Path(path) != benches)]
    import pytest

    status = int(pytest.main([*QUIETLY, *arguments]))
    if not Path(importlib.import_module("icllab").__file__ or "").is_relative_to(copy):
        raise RuntimeError("the tests are of another icllab")
    os._exit(status)


def main():
    """Tries all that are drawn, and says which survive."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="text in the path of a file")
    parser.add_argument("--report", type=Path, help="a file of JSON lines; what it has already is not tried again")
    parser.add_argument("--bugs", type=Path, help="a file of JSON with the changes, instead of drawn ones")
    parser.add_argument("--nearest", action="store_true", help="leave the tests of the whole folder out")
    asked = parser.parse_args()
    report, known = asked.report, {}
    if report is not None and report.exists():
        known = {(one["file"], one["line"], one["after"]): one for one in map(json.loads, report.open())}
    changes = drawn(asked.count, asked.seed) if asked.bugs is None else written(asked.bugs)
    chosen = [one for one in changes if asked.only in str(one.file)]
    print(f"{len(chosen)} changes, seed {asked.seed}; {machine.described('jax', 'pytest')}", flush=True)
    for name in IMPORTED:
        importlib.import_module(name)
    counts, failed = collections.Counter(), set()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv*", "_build", "__pycache__", ".*_cache", "icl-results")
        shutil.copytree(ROOT, copy, ignore=ignored)
        for mutant in chosen:
            place, part = str(mutant.file.relative_to(ROOT)), part_of(mutant.file)
            row = known.get((place, mutant.line, mutant.text))
            if row is None:
                began = time.monotonic()
                row = {"file": place, "line": mutant.line, "where": mutant.where, "kind": mutant.kind}
                row |= {
                    "before": mutant.before,
                    "after": mutant.text,
                    "noticed": noticed(mutant, copy, folder=not asked.nearest),
                }
                row["seconds"] = round(time.monotonic() - began, 1)
                if report is not None:
                    with report.open("a") as stream:
                        stream.write(json.dumps(row) + "\n")
            counts[part, bool(row["noticed"])] += 1
            failed |= {row["noticed"]} if row["noticed"].startswith("tests/") else set()
            if not row["noticed"]:
                what = f"{row['where']}, {row['kind']}: {row['before']}  ->  {row['after']}"
                print(f"survives: {place}:{row['line']} {what}", flush=True)
        broken = tested(["-m", "not slow and not gpu", *sorted(failed)], copy, len(failed) * LIMIT) if failed else ""
        if broken:
            raise SystemExit(f"fails without a change as well: {broken}")
    for part in PARTS:
        known, all_of = counts[part, True], counts[part, True] + counts[part, False]
        print(f"{part}: {known} of {all_of} noticed")
    found, lost = (sum(n for (_, seen), n in counts.items() if seen is which) for which in (True, False))
    print(f"all: {found} of {found + lost} noticed, {found / max(found + lost, 1):.1%}; target 95 %")
    raise SystemExit(found < 0.95 * (found + lost))


if __name__ == "__main__":
    main()
