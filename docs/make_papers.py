"""Write docs/papers.md: statements of papers, and the claims or theories that test them. Each build writes it again.

What is said of a paper is in ``docs/papers.toml``, by the keys of ``references.bib``. A row of it has

- ``says``: a statement or a figure of the paper, and ``where``: its place there, for those that were read;
- ``claims``: the claims that test it, and ``theories``: the theories ``TABLE/NAME`` of the arena that state it; none
  where nothing does yet;
- ``differs``: where claims, theories or their results differ from the paper, and why.

The key of an unknown paper, and a claim or theory that is not there, are errors. A paper that no claim cites is in the
list of references, and its note says what of it is here.
"""

import sys
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from make_gallery import badge, command, escaped, link, slug

from icllab import arena
from icllab.arena import Score
from icllab.arena import registry as tables
from icllab.core.errors import InputError, unknown
from icllab.core.sources import Reference, reference, references
from icllab.lab import records, registry
from icllab.lab.records import Card

HERE = Path(__file__).parent
_HEAD = """:header-rows: 1
:widths: 36 32 32
:class: papers

* - In the paper
  - Tested by
  - Where we differ"""
_ROW = {"where", "says", "claims", "theories", "differs"}


def table_sources() -> dict[str, list[Reference]]:
    """Map each table of the arena to the papers of its theories."""
    return {table: [reference(key) for key in tables.phenomenon(table).sources] for table in tables.tables()}


def theory_scores() -> dict[str, Score]:
    """Map ``TABLE/THEORY`` to its score, without null theories."""
    rows = {table: arena.score_theories(table) for table in tables.tables()}
    return {f"{table}/{row.theory}": row for table, scores in rows.items() for row in scores if not row.null}


def theory_names() -> list[str]:
    """Return ``TABLE/THEORY`` of all theories except null theories."""
    return [f"{at}/{name}" for at in tables.tables() for name, theory in tables.theories(at).items() if not theory.null]


def read(
    path: Path,
    known: Mapping[str, Card],
    theories: Collection[str] = (),
    sources: Mapping[str, Sequence[Reference]] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """Read the rows of each paper from ``papers.toml``; raise on an unknown name.

    Args:
        path: The file.
        known: Claims by name.
        theories: Names ``TABLE/THEORY`` of the arena.
        sources: Papers of each table of the arena.
    """
    found = tomllib.loads(path.read_text("utf-8"))
    cited = _cited(known, sources)
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
            for theory in row.get("theories", ()):
                if theory not in theories:
                    raise unknown(f"theory of {key} in {path.name}", theory, theories)
    return found


def _cited(known: Mapping[str, Card], sources: Mapping[str, Sequence[Reference]]) -> dict[str, Reference]:
    """Map each key to its paper, for the list of references, all claims and all tables."""
    papers = [source for card in known.values() for source in card.sources]
    tables = [paper for table in sources.values() for paper in table]
    return {source.key: source for source in [*references().values(), *papers, *tables]}


def page(
    papers: Mapping[str, Mapping[str, Any]],
    known: Mapping[str, Card],
    scores: Mapping[str, Score] = MappingProxyType({}),
    sources: Mapping[str, Sequence[Reference]] = MappingProxyType({}),
) -> str:
    """Return the text of the index, with the verdicts of claims and the ``scores`` of theories."""
    rows = [row for paper in papers.values() for row in paper["row"]]
    tested = sum(bool(row.get("claims") or row.get("theories")) for row in rows)
    parts = [
        "# Claims by paper",
        f"{len(papers)} sources, and {len(rows)} of their statements: {tested} are tested by a claim, or by a theory\n"
        "of [the arena](arena.md), the others not yet. The verdict is taken from the claim's [record](gallery.md) and\n"
        "concerns the claim; differences from the paper are beside it. A theory beats null theories, which use no\n"
        "knowledge of the subject, on cells that it was not fitted to. A section or equation of a paper is named only\n"
        "if it has been read there. `docs/make_papers.py` makes this page from `docs/papers.toml` and the records.",
    ]
    cited = _cited(known, sources)
    for key, paper in sorted(papers.items(), key=lambda paper: paper[0].lower()):
        parts += [f"## {escaped(cited[key].short)}, {key}", escaped(cited[key].text)]
        if "note" in paper:
            parts.append(escaped(paper["note"]))
        table = "\n".join(_row(row, known, scores) for row in paper["row"])
        parts.append(f"`````{{list-table}}\n{_HEAD}\n{table}\n`````")
    return "\n\n".join(parts) + "\n"


def _row(row: Mapping[str, Any], known: Mapping[str, Card], scores: Mapping[str, Score]) -> str:
    where = f"*{escaped(row['where'])}*: " if "where" in row else ""
    tests = [_test(known[claim]) for claim in row.get("claims", ())]
    tests += [_theory(name, scores[name]) for name in row.get("theories", ())]
    tests = tests or ["not tested yet"]
    cells = [where + escaped(row["says"]), "\n\n".join(tests), escaped(row.get("differs", ""))]
    return "\n".join(("* - " if i == 0 else "  - ") + cell.replace("\n", "\n    ") for i, cell in enumerate(cells))


def _test(card: Card) -> str:
    return f"{link(card)} {badge(card)}\n\n`{command(card)}`"


def _theory(name: str, score: Score) -> str:
    table, _, theory = name.partition("/")
    count = {0: "no null theory", len(score.differences): "every null theory"}.get(
        len(score.beats), f"{len(score.beats)} of {len(score.differences)} null theories"
    )
    verdict = score.refused or f"beats {count}" + ", registered late" * score.late
    return f"[`{theory}`](arena.md#{slug(tables.title(table))}) {verdict}\n\n`icl arena {table}`"


def missing(
    papers: Mapping[str, Mapping[str, Any]],
    known: Sequence[Card],
    sources: Mapping[str, Sequence[Reference]] = MappingProxyType({}),
) -> list[tuple[str, str]]:
    """Return (source, claim or table) for each citation without a row."""
    rows = [(key, row) for key, paper in papers.items() for row in paper["row"]]
    named = {(key, claim) for key, row in rows for claim in row.get("claims", ())}
    named |= {(key, theory.partition("/")[0]) for key, row in rows for theory in row.get("theories", ())}
    cited = [(source.key, card.claim) for card in known for source in card.sources]
    cited += [(source.key, table) for table, papers in sources.items() for source in papers]
    return [pair for pair in cited if pair not in named]


def write(docs: Path) -> None:
    """Write the page into ``docs``."""
    known = {claim: records.card(claim) for claim in registry.claims()}
    scores, sources = theory_scores(), table_sources()
    papers = read(docs / "papers.toml", known, scores, sources)
    (docs / "papers.md").write_text(page(papers, known, scores, sources), "utf-8")


def main() -> int:
    """Write the page, or print an error of one line."""
    try:
        write(HERE)
    except InputError as error:
        print(f"docs/make_papers.py: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
