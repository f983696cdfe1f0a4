"""``icl posteriors``: the problems of known answer, their files for PyTorch, and scores of estimators."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from icllab import posteriors
from icllab.cli.reports import Report, paragraph
from icllab.core.errors import expected, require_known
from icllab.core.spelling import with_error
from icllab.core.user_files import named
from icllab.posteriors import scores
from icllab.posteriors.problems import DIFFICULTIES, Problem

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = ("coefficient", "level")


def listed() -> Report:
    """All problems."""
    rows = [_row(posteriors.problem(name)) for name in posteriors.names()]
    data = {"version": posteriors.version(), "digest": posteriors.digest(), "problems": rows}

    def plain(console: "Console") -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for name in ("problem", "difficulty", "parameters", "samples", *_SHOWN):
            table.add_column(name, no_wrap=True, justify="left" if name in ("problem", "difficulty") else "right")
        for row in rows:
            numbers = [f"{row[name]:.4g}" if row[name] is not None else "" for name in _SHOWN]
            samples = str(row["samples"]) if row["samples"] else ""
            table.add_row(row["problem"], row["difficulty"], str(row["parameters"]), samples, *numbers)
        console.print(table)
        console.out(f"posteriors {data['version']}, digest {data['digest'][:16]}", highlight=False)

    return Report(data, plain)


def _row(problem: Problem) -> dict[str, Any]:
    values = {name: problem.answers[name].value if name in problem.answers else None for name in _SHOWN}
    samples = problem.data and len(next(iter(problem.data.values())))
    known = {"problem": problem.name, "difficulty": problem.difficulty, "parameters": np.size(problem.at)}
    known |= {"samples": samples, "nbeta": problem.nbeta, "localization": problem.localization}
    return known | values | {"answers": list(problem.answers)}


def export(name: str, *, folder: Path | None, key: int | None, setting: int) -> Report:
    """Write a problem for PyTorch."""
    drawn = None if key is None else jax.random.key(key)
    problem = posteriors.problem(name, key=drawn, setting=setting)
    files = posteriors.write_torch(problem, folder or Path(name))
    return Report(
        {"problem": name, "files": files},
        lambda console: paragraph(console, "\n".join(map(str, files))),
    )


def score(estimator: str, names: Sequence[str], difficulty: str | None, keys: Sequence[int]) -> Report:
    """Score a user's function; the exit status is 1 if it is wrong anywhere without a warning."""
    function = _function(estimator)
    if difficulty is not None:
        require_known("difficulty", difficulty, DIFFICULTIES)
    chosen = [name for name in names or posteriors.names() if difficulty in (None, posteriors.difficulty(name))]
    with jax.enable_x64(True):
        rows = list(scores.score(function, problems=chosen, keys=(None, *keys)))
    found = scores.summaries(rows)
    silent = [row for row in rows if row.unwarned]
    data = {"version": posteriors.version(), "digest": posteriors.digest(), "estimator": estimator}
    data |= {"summaries": [asdict(summary) for summary in found], "rows": [asdict(row) for row in rows]}

    def plain(console: "Console") -> None:
        _write(console, found)
        for row in silent:
            answer = f"the answer is {row.answer:.4g}" if np.isfinite(row.answer) else "it has no answer"
            member = "" if row.key is None else f" at key {row.key}"
            console.out(f"wrong without a warning: {row.problem}{member}, {row.value:.4g}; {answer}", highlight=False)

    return Report(data, plain, 1 if silent else 0)


def _write(console: "Console", summaries: Sequence[scores.Summary]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("quantity", "difficulty"):
        table.add_column(name, no_wrap=True)
    for name in ("runs", "none", "in 50 %", "in 90 %", "off", "wrong", "silent", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in summaries:
        coverage = [with_error(*row.coverage[level]) if row.coverage else "" for level in scores.WITHIN]
        off = f"{row.bias:.1%}" if np.isfinite(row.bias) else ""
        counts = [str(row.count), str(row.missing), *coverage, off, str(row.wrong), str(row.unwarned)]
        table.add_row(row.quantity, row.difficulty, *counts, f"{row.seconds:.2g}")
    console.print(table)


def _function(text: str) -> Any:
    """The function that ``FILE:FUNCTION`` names; the file's code runs."""
    file, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        raise expected("FILE:FUNCTION", "a file and the name of a function in it", text, "mine.py:estimate")
    _, function = named(text)
    if not callable(function):
        raise expected("FILE:FUNCTION", f"a function of {file}", name)
    return function
