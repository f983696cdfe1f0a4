"""The card of a claim as HTML: the same on the page, in a report and in the documentation's gallery."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icllab.core.axes import AXES, Quantity
from icllab.core.files import parse_json, read_object
from icllab.core.sources import Reference
from icllab.figures.markup import Html, joined, table, tag, with_formulas
from icllab.lab import registry
from icllab.lab.claim import SIZES
from icllab.lab.outcomes import Outcome, counts, worded
from icllab.lab.records import NOT_RECORDED, Card
from icllab.page import sentences

VERDICTS = tuple(Outcome)
NOT_RUN, NOT_JUDGED = "not yet run", "not judged"
_DURATIONS = {
    "smoke": "seconds",
    "small": "minutes",
    "medium": "an hour or two",
    "full": "the time of the papers' runs",
}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One run of a claim: an entry of its record, or results on this machine.

    Attributes:
        size: Size of the run.
        control: Negative control of the run; None for the claim itself.
        verdict: One of ``VERDICTS``; None if the run was not judged.
        findings: Findings as in ``record.json`` and ``verdict.json``.
        stale: Whether the measurement has another version since.
        local: Whether these are results on this machine.
        by_author: Whether the author of a claim from elsewhere states them.
        controls: Name of a negative control -> its verdict in the same record; None if it is not recorded.
        origin: Phrases on the commit, date and machine of the run.
        notes: Further sentences.
        links: Labels and addresses of data and figures.
        command: Command that measures it again.
        fault: Why it cannot be shown; empty if it can.
    """

    size: str
    control: str | None = None
    verdict: str | None = None
    findings: Sequence[Mapping[str, Any]] = ()
    stale: bool = False
    local: bool = False
    by_author: bool = False
    controls: Mapping[str, str | None] = field(default_factory=dict)
    origin: Sequence[str] = ()
    notes: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()
    command: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure: its address, a text alternative, a caption, and the address of a smaller one for lists."""

    address: str
    words: str
    caption: str = ""
    small: str | None = None


def from_record(card: Card) -> list[Evidence]:
    """The entries of a claim's record, the smallest size first."""
    return [
        Evidence(
            size=size,
            verdict=entry["verdict"],
            findings=entry["findings"],
            stale=entry["stale"],
            by_author=bool(card.origin),
            controls={name: control["verdict"] for name, control in entry["controls"].items()},
            origin=origin(entry["commit"], entry["created"], entry["machine"], entry["seconds"]),
        )
        for size, entry in card.record.items()
    ]


def origin(commit: str, date: str, machine: str, seconds: float) -> list[str]:
    """Phrases on the origin of a result; cells of several commits or machines have a JSON list of them."""
    commits, machines = (parse_json(text) if text.startswith("[") else [text] for text in (commit, machine))
    digests = ", ".join(digest[:12] for digest in commits if digest)
    phrases = [f"commit{'s' * (len(commits) > 1)} {digests}" if digests else "", date[:10], ", ".join(machines)]
    return [*filter(None, phrases), f"{seconds:.0f} s"]


def standing(runs: Iterable[Evidence]) -> Evidence | None:
    """The run behind the badge of a claim: the largest judged one, on this machine if there is any."""
    candidates = [run for run in runs if run.control is None and run.verdict is not None]
    return max(candidates, key=lambda run: (run.local, SIZES.index(run.size)), default=None)


def badge(verdict: str | None, stale: bool = False, *, control: bool = False, missing: str = NOT_RUN) -> Html:
    """A verdict as a word in a frame, and a mark if it is stale.

    Args:
        verdict: The verdict; None shows ``missing``.
        stale: Whether the measurement has another version since.
        control: Whether this is a negative control, which ought to fail.
        missing: Words for no verdict.
    """
    kind = verdict if verdict in VERDICTS else "none"
    kind = "refuted" if control and kind == "fails" else kind
    mark = [" ", tag("span", "stale", class_="verdict stale")] if stale else []
    return joined(tag("span", verdict or missing, class_=f"verdict {kind}"), *mark)


def standing_badge(runs: Iterable[Evidence]) -> Html:
    """The badge of a claim, with the size and place of the run behind it."""
    runs = list(runs)
    run = standing(runs)
    if run is None:
        stated = [run.size for run in runs if not run.local and run.control is None]
        return badge(None, missing=f"{NOT_RECORDED} ({stated[-1]})" if stated else NOT_RUN)
    label = tag("span", f"{run.size}, {_place(run)}", class_="where", title=meaning(run))
    return joined(badge(run.verdict, run.stale), " ", label)


def meaning(run: Evidence) -> str:
    """The place and the size of a run in sentences."""
    place = "on this machine" if run.local else "of its author" if run.by_author else "whose data the book keeps"
    return f"The verdict on a run {place}. A run of size {run.size} takes {_DURATIONS[run.size]}."


def _place(run: Evidence) -> str:
    stated = "recorded" if run.verdict else "stated without data"
    return "run here" if run.local else f"{stated} by its author" if run.by_author else stated


def title(card: Card) -> str:
    """The title of a claim, or the words of its name."""
    return card.title or card.claim.split("/")[-1].replace("_", " ").capitalize()


def recorded_figure(claim: str, *, small: bool = False) -> Path | None:
    """The figure of a claim in its trusted book, or the one for lists; None if there is none."""
    if claim not in registry.claims():
        return None
    name = f"{'cards/' * small}{claim.split('/')[-1]}.png"
    return next((folder / name for folder in registry.beside("figures") if (folder / name).is_file()), None)


def recorded_caption(claim: str) -> str:
    """The caption of the figure in the book; empty if there is none."""
    paths = [path for folder in registry.beside("figures") if (path := folder / "captions.json").is_file()]
    captions = [read_object(path, "restore it").get(claim, {}).get("caption", "") for path in paths]
    return next(filter(None, captions), "")


def alternative_text(card: Card) -> str:
    """The text alternative of a claim's figure."""
    return f"Figure of the claim {card.claim}: {card.sentence}"


def figure(picture: Picture | None) -> Html:
    """A figure on a ground of its own; in dark colours the style sheet turns both dark."""
    if picture is None:
        return Html("")
    image = tag("img", src=picture.address, alt=picture.words, loading="lazy")
    caption = [tag("figcaption", with_formulas(picture.caption))] if picture.caption else []
    return tag("figure", tag("div", image, class_="mat"), *caption, class_="drawing")


def tile(card: Card, runs: Sequence[Evidence], picture: Picture | None, address: str) -> Html:
    """A claim in a gallery: title, badge, sentence, figure, name."""
    sources = ", ".join(source.short for source in card.sources)
    small = picture and Picture(picture.small or picture.address, picture.words)
    return tag(
        "article",
        tag("h3", tag("a", title(card), href=address)),
        tag("p", standing_badge(runs), class_="status"),
        tag("p", card.sentence, class_="sentence"),
        figure(small) if small else tag("p", "No figure yet: a run draws it.", class_="nofigure"),
        tag("p", tag("code", card.claim), class_="name"),
        tag("p", sources, class_="sources"),
        *(fault(f"{run.size}: {run.fault}") for run in runs if run.fault),
        class_="tile",
    )


def card_html(
    card: Card,
    runs: Sequence[Evidence],
    picture: Picture | None,
    *,
    source_address: Callable[[Reference], str | None] = lambda source: None,
    symbols: Sequence[Quantity] = (),
    command: str | None = None,
    heading: str | None = None,
    expand: bool = True,
) -> Html:
    """The whole card of a claim.

    Args:
        card: The statement of the claim.
        runs: Its runs, from its record and from this machine.
        picture: Its figure.
        source_address: Function from a source to its address, or None.
        symbols: The claim's axes and quantities; without them only shared axes are explained.
        command: Command that measures it again.
        heading: Element of the title, such as ``h1``; None if the claim has a heading already.
        expand: Whether to show the findings of the run behind the badge at once.
    """
    addresses = [(source, source_address(source) or None) for source in card.sources]
    sources = [tag("a" if href else "span", source.short, href=href, title=source.text) for source, href in addresses]
    badge_run = standing(runs)
    parts: list[str] = [
        *([tag(heading, title(card))] if heading else []),
        tag("p", card.sentence, class_="sentence"),
        tag("p", standing_badge(runs), class_="status"),
        *([tag("p", meaning(badge_run), class_="where")] if badge_run else []),
    ]
    if card.conditions:
        parts.append(tag("p", tag("em", "Conditions: "), card.conditions, class_="conditions"))
    parts += [figure(picture), tag("p", tag("em", "Sources: "), *_listed(sources), ".", class_="sources")]
    names = AXES | {row.name: row for row in symbols}
    parts += [_evidence(run, names, expand and run is badge_run) for run in runs]
    if symbols:
        texts = [str(row.get("what", "")) for run in runs for row in run.findings]
        parts.append(sentences.glossary(symbols, " ".join([card.sentence, card.conditions, *texts])))
    if card.controls:
        parts.append(tag("p", tag("em", "Negative controls"), ", under which the check must fail:"))
        parts.append(tag("ul", *(_control(card, name, runs) for name in card.controls), class_="controls"))
    parts.append(console(command or f"icl run {card.claim} --size {card.ordinary}"))
    return tag("div", *parts, class_="claim")


def console(command: str) -> Html:
    """A command with a frame for copying."""
    return tag("div", tag("pre", tag("code", command)), class_="command highlight")


def _listed(parts: Sequence[Html]) -> list[str]:
    """The parts with commas between them."""
    return [item for part in parts for item in (", ", part)][1:]


def _control(card: Card, name: str, runs: Sequence[Evidence]) -> Html:
    verdicts: list[tuple[str | None, str]] = [(run.controls[name], run.size) for run in runs if name in run.controls]
    verdicts += [(run.verdict, f"{run.size}, run here") for run in runs if run.control == name and run.verdict]
    badges = [joined(badge(verdict, control=True, missing=NOT_RECORDED), f" {size}") for verdict, size in verdicts] or [
        badge(None)
    ]
    return tag("li", tag("code", name), f": {card.controls[name]}. ", *_listed(badges))


def _evidence(run: Evidence, symbols: Mapping[str, Quantity], expand: bool) -> Html:
    """A run of a claim: its verdict, and behind it findings, origin, downloads and command."""
    if run.fault:
        return fault(f"{run.size}: {run.fault}")
    control = f" under {run.control}" if run.control else ""
    parts: list[str] = []
    if run.findings:
        parts.append(tag("div", findings(run.findings, symbols), class_="scroll"))
    parts += [tag("p", note, class_="note") for note in run.notes]
    if run.origin:
        parts.append(tag("p", ", ".join(run.origin), class_="origin"))
    if run.links:
        links = (joined(tag("a", label, href=address, download=True), " ") for label, address in run.links)
        parts.append(tag("p", *links, class_="links"))
    if run.command:
        parts.append(console(run.command))
    missing = NOT_JUDGED if run.local else NOT_RECORDED
    verdict = badge(run.verdict, run.stale, control=run.control is not None, missing=missing)
    summary = tag("summary", verdict, f" at size {run.size}{control}, {_place(run)}: {worded(counts(run.findings))}")
    return tag("details", summary, *parts, open=expand)


def findings(rows: Sequence[Mapping[str, Any]], symbols: Mapping[str, Quantity] = AXES) -> Html:
    """A table of findings and conditions as sentences, each with its outcome."""
    cells: list[list[str]] = [[badge(str(row.get("outcome", ""))), sentences.sentence(row, symbols)] for row in rows]
    return table({"outcome": "", "finding": ""}, cells, class_="findings")


def fault(reason: str) -> Html:
    """A red frame with the reason why something cannot be shown."""
    return tag("div", tag("strong", "Cannot be shown. "), reason, class_="fault", role="alert")
