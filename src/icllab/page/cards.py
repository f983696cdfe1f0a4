"""What is shown of a claim, as HTML: the same on the page, in a report and in the documentation's gallery."""

import json
import math
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import icllab
from icllab.core.sources import Reference
from icllab.core.spelling import number, with_error
from icllab.lab.claim import SIZES
from icllab.lab.records import Card
from icllab.page.markup import Html, joined, table, tag

VERDICTS = ("holds", "fails", "undecided")
NOT_RUN, NOT_JUDGED = "not yet run", "not judged"
# Of a checkout the figures lie with the documentation, and a wheel brings them along.
_FIGURES = (
    Path(icllab.__file__).parents[2] / "docs" / "figures",
    Path(sysconfig.get_path("data")) / "share" / "icl-lab" / "figures",
)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one run of a claim found: an entry of its record, or results on this machine.

    Attributes:
        size: The size of the run; ``control``: the negative control it was under, None for the claim itself.
        verdict: One of ``VERDICTS``; None where nothing was judged.
        findings: As ``record.json`` and ``verdict.json`` have them.
        stale: Whether what was measured has changed since.
        here: Whether these are results on this machine.
        controls: Name of a negative control -> its verdict in the same record.
        origin: What is known of the run, one phrase each.
        notes: What else is to be said.
        links: Label and address of what can be had: data, figures.
        command: What measures it again.
        fault: Why it cannot be shown; empty where it can.
    """

    size: str
    control: str | None = None
    verdict: str | None = None
    findings: Sequence[Mapping[str, Any]] = ()
    stale: bool = False
    here: bool = False
    controls: Mapping[str, str] = field(default_factory=dict)
    origin: Sequence[str] = ()
    notes: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()
    command: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure: where it is, what it shows in words, and a line beneath it."""

    address: str
    words: str
    caption: str = ""


def of_record(card: Card) -> list[Evidence]:
    """The entries of a claim's record, the smallest size first."""
    return [
        Evidence(
            size=size,
            verdict=entry["verdict"],
            findings=entry["findings"],
            stale=entry["stale"],
            controls={name: found["verdict"] for name, found in entry["controls"].items()},
            origin=origin(entry["commit"], entry["created"], entry["machine"], entry["seconds"]),
        )
        for size, entry in card.record.items()
    ]


def origin(commit: str, created: str, machine: str, seconds: float) -> list[str]:
    """Where a result comes from, in phrases; cells of several commits or machines have a list of them in JSON."""
    commits, machines = (json.loads(one) if one.startswith("[") else [one] for one in (commit, machine))
    known = ", ".join(one[:12] for one in commits if one)
    said = [f"commit{'s' * (len(commits) > 1)} {known}" if known else "", created[:10], ", ".join(machines)]
    return [*filter(None, said), f"{seconds:.0f} s"]


def standing(found: Iterable[Evidence]) -> Evidence | None:
    """What the badge of a claim goes by: of what was judged, the largest size; here rather than in the record."""
    judged = [one for one in found if one.control is None and one.verdict is not None]
    return max(judged, key=lambda one: (one.here, SIZES.index(one.size)), default=None)


def badge(verdict: str | None, stale: bool = False, *, refuted: bool = False, none: str = NOT_RUN) -> Html:
    """A verdict, or that there is none, as a word in a frame; and whether it is of what has changed since.

    ``refuted``: whether it is of a negative control, under which to fail is right. ``none``: what none is called.
    """
    kind = verdict if verdict in VERDICTS else "none"
    kind = "refuted" if refuted and kind == "fails" else kind
    mark = [" ", tag("span", "stale", class_="verdict stale")] if stale else []
    return joined(tag("span", verdict or none, class_=f"verdict {kind}"), *mark)


def standing_badge(one: Evidence | None) -> Html:
    """The badge of a claim, and which run it is of."""
    if one is None:
        return badge(None)
    where = "run here" if one.here else "recorded"
    return joined(badge(one.verdict, one.stale), " ", tag("span", f"{one.size}, {where}", class_="where"))


def recorded_figure(claim: str) -> Path | None:
    """The figure of a built-in claim that comes with the library; None where there is none."""
    paths = (folder / f"{claim.split('/')[-1]}.png" for folder in _FIGURES)
    return next((path for path in paths if path.is_file()), None)


def words_of(card: Card) -> str:
    """The text alternative of the figure of a claim."""
    return f"Figure of the claim {card.claim}: {card.sentence}"


def drawn(picture: Picture | None) -> Html:
    """A figure on a white ground, in light and in dark."""
    if picture is None:
        return Html("")
    image = tag("img", src=picture.address, alt=picture.words, loading="lazy")
    caption = [tag("figcaption", picture.caption)] if picture.caption else []
    return tag("figure", tag("div", image, class_="mat"), *caption, class_="drawing")


def tile(card: Card, found: Sequence[Evidence], picture: Picture | None, address: str) -> Html:
    """A claim in a gallery: badge, figure, sentence, name."""
    sources = ", ".join(source.short for source in card.sources)
    return tag(
        "article",
        tag("p", standing_badge(standing(found)), class_="status"),
        drawn(picture) if picture else tag("p", "No figure yet: it is drawn by a run.", class_="nofigure"),
        tag("h3", tag("a", card.sentence, href=address)),
        tag("p", tag("code", card.claim), class_="name"),
        tag("p", sources, class_="sources"),
        *(fault(f"{one.size}: {one.fault}") for one in found if one.fault),
        class_="tile",
    )


def card_html(
    card: Card,
    found: Sequence[Evidence],
    picture: Picture | None,
    *,
    linked: Callable[[Reference], str | None] = lambda source: None,
    command: str | None = None,
    heading: str | None = None,
    opened: bool = True,
) -> Html:
    """All of a claim.

    Args:
        card: What the claim says.
        found: What runs of it found, those of its record and those here.
        picture: Its figure.
        linked: The address of a source; None for one without.
        command: What measures it again.
        heading: The element of the sentence, such as ``h1``; None where the claim has a heading already.
        opened: Whether the findings of the run that the badge is of are shown at once.
    """
    found_at = [(source, linked(source) or None) for source in card.sources]
    sources = [tag("a" if at else "span", source.short, href=at, title=source.text) for source, at in found_at]
    listed = [part for source in sources for part in (", ", source)][1:]
    parts: list[str] = [
        tag("p", standing_badge(standing(found)), class_="status"),
        tag(heading or "p", card.sentence, class_="sentence"),
    ]
    if card.conditions:
        parts.append(tag("p", tag("em", "Conditions: "), card.conditions, class_="conditions"))
    parts += [drawn(picture), tag("p", tag("em", "Sources: "), *listed, ".", class_="sources")]
    shown = standing(found)
    parts += [_evidence(one, opened and one is shown) for one in found]
    if card.controls:
        parts.append(tag("p", tag("em", "Negative controls"), ", under which the check has to fail:"))
        parts.append(tag("ul", *(_control(card, name, found) for name in card.controls), class_="controls"))
    parts.append(console(command or f"icl run {card.claim} --size {card.ordinary}"))
    return tag("div", *parts, class_="claim")


def console(command: str) -> Html:
    """A command to be copied."""
    return tag("div", tag("pre", tag("code", command)), class_="command highlight")


def _control(card: Card, name: str, found: Sequence[Evidence]) -> Html:
    said: list[tuple[str, str]] = [(one.controls[name], one.size) for one in found if name in one.controls]
    said += [(one.verdict, f"{one.size}, run here") for one in found if one.control == name and one.verdict]
    shown = [joined(badge(verdict, refuted=True), f" {size}") for verdict, size in said] or [badge(None)]
    listed = [part for one in shown for part in (", ", one)][1:]
    return tag("li", tag("code", name), f": {card.controls[name]}. ", *listed)


def _evidence(one: Evidence, opened: bool) -> Html:
    """A run of a claim: its findings behind its verdict, where it comes from, what can be had of it."""
    if one.fault:
        return fault(f"{one.size}: {one.fault}")
    count = f"{len(one.findings)} finding{'s' if len(one.findings) != 1 else ''}"
    where = "run here" if one.here else "recorded"
    under = f" under {one.control}" if one.control else ""
    about = f" {count} at size {one.size}{under}, {where}"
    inside: list[str] = []
    if one.findings:
        inside.append(tag("div", findings(one.findings), class_="scroll"))
    inside += [tag("p", note, class_="note") for note in one.notes]
    if one.origin:
        inside.append(tag("p", ", ".join(one.origin), class_="origin"))
    if one.links:
        inside.append(downloads(one.links))
    if one.command:
        inside.append(console(one.command))
    refuted = one.control is not None
    summary = tag("summary", badge(one.verdict, one.stale, refuted=refuted, none=NOT_JUDGED), about)
    return tag("details", summary, *inside, open=opened)


def downloads(links: Sequence[tuple[str, str]]) -> Html:
    """What can be had, by label and address."""
    listed = (joined(tag("a", label, href=address, download=True), " ") for label, address in links)
    return tag("p", *listed, class_="links")


def findings(rows: Sequence[Mapping[str, Any]]) -> Html:
    """What was compared with what, and how it came out."""
    columns = {"finding": "", "predicted": "number", "measured ± SE": "number", "tolerance": "number", "outcome": ""}
    return table(columns, [finding(row) for row in rows], class_="findings")


def finding(row: Mapping[str, Any]) -> list[str]:
    """What was compared, prediction, measurement with error, tolerance, outcome."""
    names = ("predicted", "measured", "standard_error", "tolerance")
    predicted, measured, error, tolerance = (_float(row.get(name)) for name in names)
    return [
        str(row.get("what", "")),
        number(predicted),
        with_error(measured, error),
        number(tolerance) if tolerance else "exact",
        badge(str(row.get("outcome", ""))),
    ]


def _float(value: Any) -> float:
    """A number of a file, also of one that is not ours."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def fault(reason: str) -> Html:
    """What cannot be shown, and why."""
    return tag("div", tag("strong", "Cannot be shown. "), reason, class_="fault", role="alert")
