"""``icl list``: the claims, what their records say, and which results are here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.cli.reports import STYLES, Report, lines, typeset
from icllab.core.errors import IclError, InputError, require_known
from icllab.lab import records, registry, search
from icllab.lab.job import results_root, sizes_present
from icllab.lab.outcomes import counts, worded

if TYPE_CHECKING:
    from rich.console import Console


_NAME = 30  # columns of a name; a longer one has a shorter title


def listed(
    words: Sequence[str], *, subject: str | None, paper: str | None, long: bool, out: Path, claims: Path | None
) -> Report:
    """The claims that fit the filters; a filter that nothing could ever fit raises InputError."""
    cards = [records.card(name, claims) for name in registry.claims(claims)]
    foreign, warnings = _foreign(claims)
    cards += foreign
    if not cards:
        raise InputError(f"icl list: expected claims, got none; {'; '.join([*registry.absent(), *warnings])}")
    if subject is not None:
        require_known("subject", subject, {card.subject for card in cards})
    sources = {card.claim: {source.key for source in card.sources} for card in cards}
    if paper is not None:
        require_known("paper", paper, set().union(*sources.values()))
    fitting = [
        card for card in cards if subject in (None, card.subject) and (paper is None or paper in sources[card.claim])
    ]
    query = " ".join(words)
    if query:
        fitting, whole = search.claims(query, fitting)
        fitting.sort(key=lambda card: bool(card.origin))
        if fitting and not whole:
            warnings.append(f"no claim has all of {query!r}; these have some of it")
    if not fitting:
        near = search.nearest(query, cards, {source.key: source for card in cards for source in card.sources}.values())
        raise InputError(
            f"icl list: expected a word of a claim, got {query!r}; none of {len(cards)} claims has it, near are {near}"
        )
    files = {name: claim.path for name, claim in registry.foreign()[0].items()} | registry.claims(claims)
    rows = [_row(card, out, registry.version(files[card.claim])) for card in fitting]

    def plain(console: "Console") -> None:
        (_write_long if long else _write)(console, rows)
        lines(console, [("note", warning) for warning in warnings])

    return Report({"claims": rows, "warnings": warnings}, plain)


def _foreign(claims: Path | None) -> tuple[list[records.Card], list[str]]:
    """The claims from elsewhere by their records, and a line for each that is left out. None is imported."""
    (names, warnings), cards = registry.foreign(), []
    for name in names:
        if name in registry.claims(claims):  # of --claims
            continue
        try:
            cards.append(records.card(name, claims))
        except IclError as error:
            warnings.append(str(error))
    return cards, warnings


def _row(card: records.Card, out: Path, version: int) -> dict[str, Any]:
    return {
        "claim": card.claim,
        "title": card.title,
        "sentence": card.sentence,
        "conditions": card.conditions,
        "sources": [source.key for source in card.sources],
        "sizes": list(card.sizes),
        "controls": dict(card.controls),
        "record": {
            size: {"verdict": entry["verdict"], "stale": entry["stale"], "counts": counts(entry["findings"])}
            for size, entry in card.record.items()
        },
        "recorded": card.recorded,
        "origin": card.origin or None,
        "results": _present(out, card.claim, [None, *card.controls], version) if out.is_dir() else [],
    }


def _present(out: Path, claim: str, controls: Sequence[str | None], version: int) -> list[dict[str, Any]]:
    rows = []
    for control in controls:
        for size in sizes_present(out, claim, control):
            from icllab.lab.results import Store
            from icllab.lab.verdict_files import noted_verdict

            store = Store(results_root(out, claim, size, control))
            cells = {store.path(cell) for grid in store.requests() for cell in grid.cells()}
            note = noted_verdict(store.root)
            rows.append(
                {
                    "size": size,
                    "control": control,
                    "cells": sum(path.is_file() for path in cells),
                    "of": len(cells),
                    "path": store.root,
                    "verdict": note and note["verdict"],
                    "counts": counts(note["findings"]) if note and note["verdict"] else None,
                    "stale": bool(note and note.get("measure", 1) != version),
                }
            )
    return rows


def _write(console: "Console", rows: Sequence[Mapping[str, Any]]) -> None:
    """One line a claim, within 80 columns: its name, the verdict of its record and its title; then results here.

    Claims from elsewhere come last, under a heading that says whose verdicts those are.
    """
    elsewhere = next((i for i, row in enumerate(rows) if row["origin"]), len(rows))
    columns = [(row["claim"], *_recorded(row)[::2], row["title"] or row["sentence"], _here(row)) for row in rows]
    verdict_width = max([6, *(len(verdict) for _, verdict, *_ in columns if verdict != records.NOT_RECORDED)])
    heading = f"{'claim':<{_NAME}}  {'record':<{verdict_width}}  about"
    console.print(typeset((heading + "; results here" * any(column[-1] for column in columns), "dim")), soft_wrap=True)
    for i, (name, verdict, style, title, here) in enumerate(columns):
        if i == elsewhere:
            console.print(typeset(("from elsewhere, with their authors' verdicts; `icl run` alone runs them", "dim")))
        # Titles fit 80 columns; a narrower terminal wraps them.
        room = max(console.width, 80) - max(len(name), _NAME) - max(len(verdict), verdict_width) - 4
        about = title if len(title) <= room else f"{title[: room - 1].rstrip()}…"
        parts = [
            f"{name:<{_NAME}}  ",
            (f"{verdict:<{verdict_width}}", style),
            f"  {about}",
            (here and f"; {here}", "dim"),
        ]
        console.print(typeset(*parts), soft_wrap=True)


def _recorded(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """The verdict of the record at its largest size, with that size, and its colour."""
    if not row["record"]:
        return "none", "none", "dim"
    size, others = row["recorded"], [s for s, e in row["record"].items() if e["verdict"] is None]
    entry = row["record"][size]
    texts = [f"{_spelled(entry) or records.NOT_RECORDED} ({size})"]
    texts += [f"{records.NOT_RECORDED} ({other})" for other in others if other != size]
    return _spelled(entry) or records.NOT_RECORDED, ", ".join(texts), STYLES.get(entry["verdict"], "dim")


def _spelled(entry: Mapping[str, Any]) -> str:
    """A verdict; one on results of another version of the measurement is stale. Empty where there is none."""
    return f"{entry['verdict']}{', stale' if entry['stale'] else ''}" if entry["verdict"] else ""


def _counted(text: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """A verdict with the counts of its findings."""
    return "; ".join([text, *(worded(entry["counts"]) for entry in entries if entry["counts"])])


def _here(row: Mapping[str, Any]) -> str:
    parts = []
    for result in row["results"]:
        size = result["size"] + (f" under {result['control']}" if result["control"] else "")
        complete = result["cells"] == result["of"]
        state = _spelled(result) or "not judged" if complete else f"{result['cells']} of {result['of']} cells"
        parts.append(f"{size}: {state}")
    return ", ".join(parts)


def _write_long(console: "Console", rows: Sequence[Mapping[str, Any]]) -> None:
    from rich.padding import Padding

    for row in rows:
        console.print(typeset((row["claim"], "bold")))
        console.print(Padding(typeset(row["sentence"]), (0, 0, 0, 2)))
        if row["conditions"]:
            console.print(Padding(typeset((row["conditions"], "dim")), (0, 0, 0, 2)))
        fields = [
            (
                "record",
                _counted(_recorded(row)[1], [e for size, e in row["record"].items() if size == row["recorded"]]),
            ),
            ("sizes", ", ".join(row["sizes"])),
        ]
        if row["origin"]:
            fields.insert(0, ("from", f"{row['origin']}; the record is its author's"))
        if row["controls"]:
            fields.append(("negative controls", ", ".join(row["controls"])))
        fields.append(("sources", ", ".join(row["sources"])))
        for result in row["results"]:
            under = f" under {result['control']}" if result["control"] else ""
            state = ", ".join(
                filter(None, (f"{result['cells']} of {result['of']} cells", _counted(_spelled(result), [result])))
            )
            fields.append(("results", f"{result['size']}{under}: {state} in {result['path']}"))
        lines(console, fields)
        console.print()
