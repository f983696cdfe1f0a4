"""Write docs/statements.md: statements of five sources and where each is shown. ``--run`` makes every row's calls.

``docs/statements.toml`` has the rows. A row has

- ``says``: the statement, in own words;
- ``claims``: claims, which are judged again on their recorded data, and ``tests``: test files or tests, which are run;
- ``names``: modules, or ``module:name``, and ``pages``: pages of the documentation, with an anchor or not;
- ``open``: the part that is not shown; ``state``, prose or missing, for a row without a call.

Each build of the documentation writes the page, and runs nothing; ``make statements`` makes the calls, and fails if one
does.
"""

import importlib
import re
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from make_gallery import badge, escaped, link, slug

from icllab.core.errors import InputError, ResultWarning, unknown
from icllab.lab import records, registry
from icllab.lab.records import Card

HERE = Path(__file__).parent
GENERATED = {"gallery", "papers", "power", "coming-from"}
FIELDS = {"says", "claims", "tests", "names", "pages", "open", "state"}
# A test that hangs ends the process, and tests after it did not run.
LIMIT = ("-o", "faulthandler_timeout=600", "-o", "faulthandler_exit_on_timeout=true")
_HEAD = ":header-rows: 1\n:widths: 8 46 46\n:class: papers\n\n* -\n  - Statement\n  - Shown by"


def read(path: Path) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Titles of sources by letter, and rows by label such as S1; raise on a field that is unknown or missing."""
    content = tomllib.loads(path.read_text("utf-8"))
    sources = content.pop("sources")
    rows = {f"{letter}{number}": row for letter in content for number, row in content[letter].items()}
    for label, row in rows.items():
        if other := row.keys() - FIELDS:
            raise unknown(f"field of {label} in {path.name}", min(other), FIELDS)
        if label[0] not in sources or "says" not in row:
            raise InputError(f"{path.name}, {label}: expected a known source and a statement, got {row}")
        if bool(calls(row)) == ("state" in row):
            raise InputError(f"{path.name}, {label}: expected either claims or tests, or a state, got {row}")
        if row.get("state", "prose") not in ("prose", "missing"):
            raise InputError(f"{path.name}, {label}: expected the state prose or missing, got {row['state']!r}")
    return sources, rows


def calls(row: Mapping[str, Any]) -> list[str]:
    """Claims and tests of a row."""
    return [*row.get("claims", ()), *row.get("tests", ())]


def absences(rows: Mapping[str, Mapping[str, Any]], root: Path = HERE.parent) -> list[tuple[str, str]]:
    """Return (label, name) for each claim, test, module, page or anchor that does not exist."""
    known, checks = set(registry.claims()), {"tests": _has_test, "pages": _has_page, "names": _has_name}
    absent = [(label, claim) for label, row in rows.items() for claim in row.get("claims", ()) if claim not in known]
    for label, row in rows.items():
        for field, exists in checks.items():
            absent += [(label, name) for name in row.get(field, ()) if not exists(root, name)]
    return absent


def _has_test(root: Path, name: str) -> bool:
    file, _, test = name.partition("::")
    return (root / file).is_file() and f"def {test}{'(' * bool(test)}" in (root / file).read_text("utf-8")


def _has_page(root: Path, name: str) -> bool:
    page, _, anchor = name.partition("#")
    if not (path := root / "docs" / f"{page}.md").is_file():
        return page in GENERATED and not anchor
    titles = [line.lstrip("#").strip() for line in path.read_text("utf-8").splitlines() if line.startswith("#")]
    return not anchor or anchor in map(slug, titles)


def _has_name(_: Path, name: str) -> bool:
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
        return not attribute or attrgetter(attribute)(found) is not None
    except (ImportError, AttributeError):
        return False


def failures(calls: Iterable[str]) -> dict[str, str]:
    """Make calls, and return the reasons of those that failed; the tests of a distribution run in one process."""
    tests = [call for call in calls if ".py" in call]
    reasons = {call: _failed_claim(call) for call in calls if call not in tests}
    for of_book in (False, True):
        reasons |= _failed_tests([test for test in tests if test.startswith("book/") == of_book])
    return {call: reason for call, reason in reasons.items() if reason}


def _failed_claim(claim: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResultWarning)  # `icl check` shows them; here they would hide the rows
            size, verdict = records.judged(claim)
        stated = records.read(claim)[size]["verdict"]
    except (InputError, KeyError) as error:
        return str(error)
    outcome = verdict.outcome.value
    return "" if outcome == stated else f"{claim}: the record says {stated}, its data {outcome}"


def _failed_tests(tests: list[str]) -> dict[str, str]:
    """Test -> why it does not show its statement: it failed, was skipped or did not run; empty if it passed."""
    if not tests:
        return {}
    command = [sys.executable, "-m", "pytest", "-vv", "-m", "not gpu", *LIMIT, *tests]
    said = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent).stdout
    lines = re.findall(r"^(.+?) (PASSED|SKIPPED|FAILED|ERROR)(?: |$)", said, re.MULTILINE)
    reasons = {}
    for test in tests:
        outcomes = {outcome for name, outcome in lines if name == test or name.startswith((f"{test}::", f"{test}["))}
        passed = "PASSED" in outcomes and not outcomes & {"FAILED", "ERROR"}
        reasons[test] = "" if passed else f"{test}: {' and '.join(sorted(outcomes)).lower() or 'did not run'}"
    if any(reasons.values()):
        print(said, file=sys.stderr)
    return reasons


def page(sources: Mapping[str, str], rows: Mapping[str, Mapping[str, Any]], known: Mapping[str, Card]) -> str:
    """Return the text of the page, with recorded verdicts of claims."""
    shown = sum(bool(calls(row)) for row in rows.values())
    parts = [
        "# Statements of the sources",
        f"{len(rows)} statements of the five texts that the book began with, in our words: {shown} have a call, that\n"
        "is a claim whose recorded data are judged again, or a test that is run. `make statements` makes all calls,\n"
        "and fails if one does. A verdict is the claim's. The open part stands below a statement.",
    ]
    for letter, title in sources.items():
        table = "\n".join(_row(label, row, known) for label, row in rows.items() if label[0] == letter)
        parts.append(f"## {escaped(title)}\n\n`````{{list-table}}\n{_HEAD}\n{table}\n`````")
    return "\n\n".join(parts) + "\n"


def _row(label: str, row: Mapping[str, Any], known: Mapping[str, Card]) -> str:
    says = escaped(row["says"]) + (f"\n\n*Open*: {escaped(row['open'])}" if "open" in row else "")
    by = [f"{link(known[claim])} {badge(known[claim])}" for claim in row.get("claims", ())]
    by += [f"`{name.replace(':', '.')}`" for name in row.get("names", ())]
    by += [f"`pytest {test.partition('::')[0]}`" for test in row.get("tests", ())]
    for name in row.get("pages", ()):
        page, mark, anchor = name.partition("#")
        by.append(f"[{page}{mark and ': '}{anchor.replace('-', ' ')}]({page}.md{mark}{anchor})")
    cells = [label, says, "\n\n".join([row["state"], *by] if "state" in row else by)]
    return "\n".join(("* - " if i == 0 else "  - ") + cell.replace("\n", "\n    ") for i, cell in enumerate(cells))


def write(docs: Path) -> None:
    """Write the page into ``docs``; raise if a row names something that does not exist."""
    sources, rows = read(docs / "statements.toml")
    if absent := absences(rows):
        raise InputError(
            "statements.toml: " + "; ".join(f"{label} names {name}, which is not there" for label, name in absent)
        )
    known = {claim: records.card(claim) for row in rows.values() for claim in row.get("claims", ())}
    (docs / "statements.md").write_text(page(sources, rows, known), "utf-8")


def run(rows: Mapping[str, Mapping[str, Any]]) -> int:
    """Make the calls of all rows and print a line for each; return the number of rows that failed."""
    begin, failed = time.monotonic(), 0
    reasons = failures(dict.fromkeys(call for row in rows.values() for call in calls(row)))
    for label, row in rows.items():
        why = "; ".join(reasons[call] for call in calls(row) if call in reasons)
        failed += bool(why)
        print(f"{label:4} {'FAILED' if why else row.get('state', 'shown'):8} {why or row['says']}", flush=True)
    print(f"{len(rows)} rows, {failed} failed; {time.monotonic() - begin:.0f} s")
    return failed


def main(arguments: list[str]) -> int:
    """Write the page; with ``--run`` make the calls of all rows, or of the labels that follow."""
    try:
        write(HERE)
    except InputError as error:
        print(f"docs/make_statements.py: {error}", file=sys.stderr)
        return error.exit_status
    rows = read(HERE / "statements.toml")[1]
    labels = arguments[1:] or list(rows)
    return int(bool(run({label: rows[label] for label in labels}))) if arguments[:1] == ["--run"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
