"""Write docs/papers.md: which statements of which paper are tested by which claim. Made anew at each build.

What is said of a paper is in ``docs/papers.toml``, by the keys of ``references.bib``. A row of it has

- ``says``: a statement or a figure of the paper, and ``where``: its place there, for those that were read;
- ``claims``: the claims that test it; none where nothing does yet;
- ``differs``: where the claims or their results differ from the paper, and why.

A key that is no source of any claim and a claim that is not there are errors.
"""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from make_gallery import badge, command, escaped, link

from icllab.core.errors import InputError, unknown
from icllab.lab import records, registry
from icllab.lab.records import Card

HERE = Path(__file__).parent
_HEAD = """:header-rows: 1
:widths: 36 32 32
:class: papers

* - In the paper
  - Tested by
  - Where we differ"""
_ROW = {"where", "says", "claims", "differs"}


def read(path: Path, known: Mapping[str, Card]) -> dict[str, dict[str, Any]]:
    """What ``papers.toml`` says of each paper; a name that it does not know the meaning of is refused."""
    found = tomllib.loads(path.read_text("utf-8"))
    cited = {source.key for card in known.values() for source in card.sources}
    for key, paper in found.items():
        if key not in cited:
            raise unknown(f"source in {path.name}", key, cited)
        for row in paper["row"]:
            if other := row.keys() - _ROW:
                raise unknown(f"field of {key} in {path.name}", min(other), _ROW)
            if "says" not in row:
                raise InputError(f"{path.name}, {key}: expected a row with what the paper says, got {dict(row)}")
            for claim in row.get("claims", ()):
                if claim not in known:
                    raise unknown(f"claim of {key} in {path.name}", claim, known)
    return found


def page(papers: Mapping[str, Mapping[str, Any]], known: Mapping[str, Card]) -> str:
    """The text of the index."""
    rows = [row for paper in papers.values() for row in paper["row"]]
    tested = sum(bool(row.get("claims")) for row in rows)
    parts = [
        "# Claims by paper",
        f"{len(papers)} sources, and {len(rows)} of their statements: {tested} are tested by a claim, the others not\n"
        "yet. A verdict is that of the claim's [record](gallery.md) and about the claim: where this differs from the\n"
        "paper stands beside it. A place in a paper is named where it has been read, and left out elsewhere. Made\n"
        "from `docs/papers.toml` and the records by `docs/make_papers.py`.",
    ]
    cited = {source.key: source for card in known.values() for source in card.sources}
    for key, paper in sorted(papers.items(), key=lambda paper: paper[0].lower()):
        parts += [f"## {escaped(cited[key].short)}, {key}", escaped(cited[key].text)]
        if "note" in paper:
            parts.append(escaped(paper["note"]))
        head = (
            ":header-rows: 1\n:widths: 36 32 32\n:class: papers\n\n* - In the paper\n  - Tested by\n  - Where we differ"
        )
        table = "\n".join(_row(row, known) for row in paper["row"])
        parts.append(f"`````{{list-table}}\n{head}\n{table}\n`````")
    return "\n\n".join(parts) + "\n"


def _row(row: Mapping[str, Any], known: Mapping[str, Card]) -> str:
    where = f"*{escaped(row['where'])}*: " if "where" in row else ""
    tests = [_test(known[claim]) for claim in row.get("claims", ())] or ["not tested yet"]
    cells = [where + escaped(row["says"]), "\n\n".join(tests), escaped(row.get("differs", ""))]
    return "\n".join(("* - " if i == 0 else "  - ") + cell.replace("\n", "\n    ") for i, cell in enumerate(cells))


def _test(card: Card) -> str:
    return f"{link(card)} {badge(card)}\n\n`{command(card)}`"


def missing(papers: Mapping[str, Mapping[str, Any]], known: Sequence[Card]) -> list[tuple[str, str]]:
    """Sources that a claim cites and for which no row names it."""
    named = {(key, claim) for key, paper in papers.items() for row in paper["row"] for claim in row.get("claims", ())}
    return [(s.key, card.claim) for card in known for s in card.sources if (s.key, card.claim) not in named]


def write(docs: Path) -> None:
    """Write the page into ``docs``."""
    known = {claim: records.card(claim) for claim in registry.claims()}
    (docs / "papers.md").write_text(page(read(docs / "papers.toml", known), known), "utf-8")


def main() -> int:
    """Write the page; an error is one line."""
    try:
        write(HERE)
    except InputError as error:
        print(f"docs/make_papers.py: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
