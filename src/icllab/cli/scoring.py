"""``icl arena``: the tables, the scores of theories, and their registration."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from icllab.arena import registry
from icllab.cli.progress import bar
from icllab.cli.reports import Report, typeset
from icllab.core.errors import InputError
from icllab.core.spelling import with_error
from icllab.lab import registry as books

if TYPE_CHECKING:
    from rich.console import Console

    from icllab.arena.scores import Score


def arena(table: str | None, theories: Path | None, register: bool, fresh: int | None = None) -> Report:
    """The tables; or the scores of one, or the theories that were registered."""
    if table is None:
        if theories is not None or register or fresh is not None:
            raise InputError("icl arena: expected a table beside other options, got none; `icl arena` lists them")
        return _tables()
    if register:
        names = registry.register(table, theories)
        text = f"registered: {', '.join(names)}" if names else "every theory is registered as it is"
        return Report({"table": table, "registered": names}, lambda console: console.out(text, highlight=False))
    return _scores(table, theories) if fresh is None else _fresh_scores(table, theories, fresh)


def _tables() -> Report:
    if not registry.tables():
        raise InputError("; ".join(["icl arena: expected tables, got none", *books.absent()]))
    rows = [{"table": name, "title": registry.title(name), **_counts(name)} for name in registry.tables()]

    def plain(console: "Console") -> None:
        for row in rows:
            parts = f"{row['cells']} cells, {row['held_out']} held out, {row['theories']} theories"
            console.out(f"{row['table']:<16}  {row['title']}  {parts}", highlight=False)

    return Report({"tables": rows}, plain)


def _counts(table: str) -> dict[str, int]:
    phenomenon = registry.phenomenon(table)
    theories = registry.theories(table).values()
    counts = {"cells": len(phenomenon.cells), "held_out": phenomenon.held_out, "seeds": phenomenon.seeds}
    return counts | {"theories": sum(not theory.null for theory in theories)}


def _scores(table: str, theories: Path | None) -> Report:
    """Scores of a table; the exit status is 3 where a theory has none."""
    from icllab.arena.scores import score_theories

    rows, phenomenon = score_theories(table, theories), registry.phenomenon(table)
    _, held_out = phenomenon.parts(registry.record(table))
    censored = int(held_out["censored"].sum())
    data = {"table": table, "title": registry.title(table), "value": phenomenon.value, **_counts(table)}
    data |= {"censored": censored, "scores": [asdict(row) for row in rows]}

    def plain(console: "Console") -> None:
        console.print(typeset((f"{registry.title(table)}  {phenomenon.value}", "bold")))
        cells, seeds = len(phenomenon.cells), phenomenon.seeds
        console.out(
            f"  {cells - phenomenon.held_out} cells to fit, {phenomenon.held_out} held out, {seeds} seeds; "
            f"{censored} of {held_out['value'].size} held-out values censored",
            highlight=False,
        )
        _write(console, rows)

    return Report(data, plain, 3 if any(row.refused for row in rows) else 0)


def _fresh_scores(table: str, theories: Path | None, key: int) -> Report:
    """Scores on fresh cells, which are predicted and measured unless their file has them."""
    from icllab.arena import fresh

    file = fresh.path(table, key)
    dataset = fresh.read(file) if file.is_file() else fresh.predicted(table, key, theories)
    unknown = set(registry.theories(table, theories)) - set(dataset["theory"].values.tolist())
    if unknown:
        names = ", ".join(sorted(unknown))
        raise InputError(f"{file}: expected theories that predicted first, {names} did not; try another key")
    if dataset["value"].isnull().any():
        with bar(f"icl arena {table}") as show:
            dataset = fresh.measured(table, file, dataset, show=show)
    rows, phenomenon = fresh.scores(dataset), registry.phenomenon(table)
    censored, size = int(dataset["censored"].sum()), dataset["value"].size
    data = {"table": table, "title": registry.title(table), "value": phenomenon.value, "fresh": key, "file": str(file)}
    data |= {"cells": dataset.sizes["cell"], "censored": censored, "scores": [asdict(row) for row in rows]}

    def plain(console: "Console") -> None:
        console.print(typeset((f"{registry.title(table)}  {phenomenon.value}", "bold")))
        counts = f"{dataset.sizes['cell']} fresh cells of key {key}; {censored} of {size} values censored"
        console.out(f"  {counts}; {file}", highlight=False)
        _write(console, rows)

    return Report(data, plain)


def _write(console: "Console", rows: "Sequence[Score]") -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("theory", no_wrap=True)
    for name in ("log score ± SE", "- best null's", "in 50 %", "in 90 %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("beats", no_wrap=True)
    for row in rows:
        if not row.refused:
            best = with_error(*min(row.differences.values()))
            within = [f"{inside:.2f}" for inside, _ in row.coverage.values()]
            name = typeset((row.theory + " *" * row.late, "dim" if row.null else ""))
            table.add_row(name, with_error(*row.log_score), best, *within, "(null)" if row.null else _beaten(row))
    console.print(table)
    for row in rows:
        if row.refused:
            console.print(typeset((f"{row.theory}: {row.refused}", "bold red")))
    if any(row.late for row in rows):
        console.print("* registered late: held-out values had been measured", style="dim")


def _beaten(row: "Score") -> str:
    """Number of null theories that a theory beats, in words."""
    if len(row.beats) == len(row.differences):
        return "every null"
    return f"{len(row.beats)} of {len(row.differences)}" if row.beats else "no null"
