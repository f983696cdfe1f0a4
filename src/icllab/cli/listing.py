"""``icl list``: the claims, what their records say, and which results are here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.cli.reports import STYLES, Report, lines
from icllab.core.errors import InputError, require_known
from icllab.experiments import cards, records, registry, requests, store
from icllab.experiments.judging import noted

if TYPE_CHECKING:
    from rich.console import Console


def listed(
    word: str | None, *, subject: str | None, paper: str | None, long: bool, out: Path, claims: Path | None
) -> Report:
    """The claims that fit the filters; a filter that nothing could ever fit is refused."""
    known = {name: registry.load(name, claims) for name in registry.claims(claims)}
    if subject is not None:
        require_known("subject", subject, {name.split("/")[0] for name in known})
    if paper is not None:
        require_known("paper", paper, {key for experiment in known.values() for key in experiment.sources})
    fitting = [
        name
        for name, experiment in known.items()
        if subject in (None, name.split("/")[0])
        and (paper is None or paper in experiment.sources)
        and (word is None or word.lower() in f"{name} {experiment.claim} {experiment.conditions}".lower())
    ]
    if not fitting:
        raise InputError(f"icl list: expected a word of a claim, got {word!r}; none of {len(known)} claims has it")
    rows = [_row(cards.card(name, claims), out, claims) for name in fitting]
    return Report({"claims": rows}, lambda console: (_write_long if long else _write)(console, rows))


def _row(card: cards.Card, out: Path, claims: Path | None) -> dict[str, Any]:
    return {
        "claim": card.claim,
        "sentence": card.sentence,
        "conditions": card.conditions,
        "sources": [source.key for source in card.sources],
        "sizes": list(card.sizes),
        "controls": dict(card.controls),
        "record": {size: {name: found[name] for name in ("verdict", "stale")} for size, found in card.record.items()},
        "results": _present(out, card.claim, [None, *card.controls], claims),
    }


def _present(out: Path, claim: str, controls: Sequence[str | None], claims: Path | None) -> list[dict[str, Any]]:
    found = []
    for control in controls:
        for size in requests.sizes_present(out, claim, control):
            kept = store.Store(requests.store_root(out, claim, size, control))
            cells = {kept.path(cell) for grid in kept.requested() for cell in grid.cells()}
            there = sum(path.is_file() for path in cells)
            judged = noted(kept.root)
            verdict = judged and judged["verdict"]
            stale = bool(judged and records.is_stale(claim, judged, claims))
            found.append(
                {"size": size, "control": control, "cells": there, "of": len(cells), "path": kept.root}
                | {"verdict": verdict, "stale": stale}
            )
    return found


def _write(console: "Console", rows: Sequence[Mapping[str, Any]]) -> None:
    """One line a claim: its name, the verdict of its record at the largest size, and what was found here."""
    from rich.text import Text

    columns = [(row["claim"], *_recorded(row), _here(row)) for row in rows]
    widths = [max(len(column[i]) for column in [*columns, ("claim", "record", "", "here")]) for i in range(2)]
    heading = f"{'claim':<{widths[0]}}  {'record':<{widths[1]}}  here"
    console.print(Text(heading, "dim"), soft_wrap=True)
    for name, verdict, style, here in columns:
        line = Text.assemble(f"{name:<{widths[0]}}  ", (f"{verdict:<{widths[1]}}", style), f"  {here}")
        console.print(line, soft_wrap=True)


def _recorded(row: Mapping[str, Any]) -> tuple[str, str]:
    if not row["record"]:
        return "none", "dim"
    size, found = list(row["record"].items())[-1]
    return f"{_spelled(found)} ({size})", STYLES[found["verdict"]]


def _spelled(found: Mapping[str, Any]) -> str:
    """A verdict; one on results of sources that have changed since is stale."""
    return (found["verdict"] or "") + (", stale" if found["stale"] else "")


def _here(row: Mapping[str, Any]) -> str:
    parts = []
    for found in row["results"]:
        where = found["size"] + (f" under {found['control']}" if found["control"] else "")
        whole = found["cells"] == found["of"]
        said = _spelled(found) or "not judged" if whole else f"{found['cells']} of {found['of']} cells"
        parts.append(f"{where}: {said}")
    return ", ".join(parts)


def _write_long(console: "Console", rows: Sequence[Mapping[str, Any]]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    for row in rows:
        console.print(Text(row["claim"], "bold"))
        console.print(Padding(Text(row["sentence"]), (0, 0, 0, 2)))
        if row["conditions"]:
            console.print(Padding(Text(row["conditions"], "dim"), (0, 0, 0, 2)))
        described = [("record", _recorded(row)[0]), ("sizes", ", ".join(row["sizes"]))]
        if row["controls"]:
            described.append(("negative controls", ", ".join(row["controls"])))
        described.append(("sources", ", ".join(row["sources"])))
        for found in row["results"]:
            under = f" under {found['control']}" if found["control"] else ""
            cells = f"{found['cells']} of {found['of']} cells"
            said = ", ".join(filter(None, (cells, _spelled(found))))
            described.append(("results", f"{found['size']}{under}: {said} in {found['path']}"))
        lines(console, described)
        console.print()
