"""Stored results as HTML: beside a claim, and alone."""

import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icllab.core.errors import EnvironmentFault, IclError, InputError
from icllab.lab.job import OUT
from icllab.page import cards, reading
from icllab.page.cards import Evidence, Picture
from icllab.page.catalogue import Entry
from icllab.page.index import Stored
from icllab.page.markup import Html, joined, spelled, table, tag

if TYPE_CHECKING:
    import xarray as xr

DATA = {
    "figure.png": "Figure (PNG)",
    "figure.pdf": "Figure (PDF)",
    "data.nc": "Data (NetCDF)",
    "data.csv": "Data (CSV)",
}
_FILES = {"figure.png": "figure.png", "figure.pdf": "figure.pdf", "data.nc": "results.nc", "data.csv": "results.nc"}
_HIDDEN = ("names", "configuration")


def file_of(one: Stored, what: str) -> Path | None:
    """The file behind a download; None where there is none."""
    name = _FILES[what]
    if name not in one.files:
        return None
    return one.path if one.kind == "file" else one.path / name


def links(one: Stored) -> list[tuple[str, str]]:
    """What can be had of a result: label and address."""
    return [(label, address(one, what)) for what, label in DATA.items() if file_of(one, what) is not None]


def address(one: Stored, what: str) -> str:
    """Where a part of a result is had."""
    return f"/api/results/{one.id}/{what}?v={int(one.updated * 1000) % 10**9}"


def command(claim: str, size: str, control: str | None, out: Path, claims: Path | None) -> str:
    """What measures a claim again, as it is typed."""
    words = ["icl", "run", claim, "--size", size]
    words += ["--control", control] if control else []
    words += ["--out", str(out)] if str(out) != OUT else []
    words += ["--claims", str(claims)] if claims is not None else []
    return shlex.join(words)


def is_stale(one: Stored, entry: Entry | None) -> bool:
    """Whether what was measured has changed since."""
    return bool(entry and one.verdict and one.version != entry.version)


def evidence(one: Stored, entry: Entry | None, again: str) -> Evidence:
    """A result of a claim on this machine."""
    notes = list(one.notes)
    if one.cells < one.of:
        notes.insert(0, f"{one.cells} of {one.of} cells are finished; the same command goes on.")
    return Evidence(
        size=one.size,
        control=one.control,
        verdict=one.verdict,
        findings=one.findings,
        stale=is_stale(one, entry),
        here=True,
        notes=notes,
        links=links(one),
        command=again,
        origin=[f"last changed {when(one.updated)}"],
        fault=one.fault,
    )


def when(seconds: float) -> str:
    """A time, as people write it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def picture(claim: Entry, found: Iterable[Stored]) -> Picture | None:
    """The figure of a claim: of the largest results here that were judged, else the one that comes with the library."""
    words = cards.words_of(claim.card)
    judged = [one for one in found if one.control is None and one.verdict and "figure.png" in one.files]
    if judged:
        one = max(judged, key=lambda one: cards.SIZES.index(one.size))
        return Picture(address(one, "figure.png"), words, f"Drawn from the results here at size {one.size}.")
    if (path := cards.recorded_figure(claim.card.claim)) is not None:
        stamp = path.stat().st_mtime_ns % 10**9
        return Picture(f"/api/claims/{claim.card.claim}/figure.png?v={stamp}", words, "The figure of the library.")
    return None


def result_html(one: Stored) -> Html:
    """One result alone: its figure, what is in its data, its configuration; a red card where it cannot be read."""
    title = tag("h1", one.claim or one.label, class_="sentence")
    where = tag("p", tag("code", one.label), f", last changed {when(one.updated)}", class_="origin")
    if one.fault:
        return tag("div", title, where, cards.fault(one.fault), class_="claim")
    parts: list[str] = [title, where]
    if one.kind == "claim":
        parts.append(tag("p", cards.badge(one.verdict, none=cards.NOT_JUDGED), class_="status"))
    if "figure.png" in one.files:
        parts.append(cards.drawn(Picture(address(one, "figure.png"), f"Figure of the results {one.label}")))
    path = file_of(one, "data.nc")
    if path is None:
        parts.append(tag("p", f"{one.cells} of {one.of} cells are finished; data are written at the end of a run."))
    else:
        try:
            parts += [_data(reading.dataset(path)), cards.downloads(links(one))]
        except (InputError, EnvironmentFault, OSError) as error:
            parts.append(cards.fault(reason(error, one)))
    if one.configuration:
        parts += [tag("h2", "Configuration"), fields(flat(one.configuration))]
    return tag("div", *parts, class_="claim")


def reason(error: Exception, one: Stored) -> str:
    """Why a file cannot be read, without where it lies."""
    said = str(error) if isinstance(error, IclError) else f"{type(error).__name__}: {error}"
    return " ".join(said.replace(str(one.path), one.label).split())[:500]


def _data(of: "xr.Dataset") -> Html:
    """Variables and attributes of a Dataset."""
    columns = {"name": "", "axes": "", "type": "", "meaning": "", "unit": ""}
    rows: list[list[str]] = []
    for name, variable in of.variables.items():
        axes = ", ".join(f"{axis}: {of.sizes[axis]}" for axis in variable.dims)
        said = [str(variable.attrs.get(key, "")) for key in ("meaning", "unit")]
        rows.append([tag("code", str(name)), axes, str(variable.dtype), *said])
    attributes = {str(name): value for name, value in of.attrs.items() if name not in _HIDDEN}
    return joined(
        tag("h2", "Data"),
        tag("div", table(columns, rows), class_="scroll"),
        tag("details", tag("summary", "Where it comes from"), fields(attributes)),
    )


def fields(values: Mapping[str, Any]) -> Html:
    """Names and values, one a row."""
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", spelled(value))) for name, value in values.items()]
    return tag("div", tag("table", tag("tbody", *rows), class_="fields"), class_="scroll")


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``fixed.alpha`` for what is nested."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value and len(prefix) < 200:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
