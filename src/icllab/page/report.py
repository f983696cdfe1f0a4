"""A report of claims as one HTML file, with cards, figures and numbers; it loads nothing from anywhere."""

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import icllab
from icllab.core.axes import Quantity
from icllab.core.errors import IclError
from icllab.figures.markup import Html, document, embedded, joined, tag
from icllab.lab import provenance, records
from icllab.lab.claim import SIZES
from icllab.lab.job import sizes_present, stored_request
from icllab.lab.records import Card
from icllab.lab.run import read
from icllab.page import cards, catalogue
from icllab.page.cards import Evidence, Picture

_STATIC = Path(__file__).parent / "static"
_DPI = 160
_COLOURS = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1e21; --muted: #5a616a; --line: #dcdfe3; --accent: #0b5c8f;
  --good: #00734f; --bad: #b3401a; --doubt: #8a6100; --serif: Palatino, Georgia, "DejaVu Serif", serif; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181b; --ink: #e8e6e1; --muted: #a3abb3; --line: #343a41;
  --accent: #7fc1ec; --good: #55cda0; --bad: #f59067; --doubt: #e3b54a; --mat: #141414;
  --figure: invert(0.92) hue-rotate(180deg) saturate(1.8); } }
@media print { :root { --paper: #fff; --ink: #000; --muted: #444; --line: #bbb; --good: #00734f; --bad: #b3401a;
  --doubt: #8a6100; --mat: #fff; --figure: none; } .claim { break-inside: avoid-page; } }
body { margin: 0 auto; max-width: 54rem; padding: 2rem 1.2rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, "DejaVu Sans", sans-serif; }
h1, h2 { font-family: var(--serif); line-height: 1.25; }
h2 { margin-top: 3rem; overflow-wrap: anywhere; font-size: 1.35rem; }
h2 code { color: var(--muted); font-weight: 400; font-size: 0.65em; }
a { color: var(--accent); }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 0.87em; overflow-wrap: anywhere; }
.overview li { margin: 0.6rem 0; }
"""


@dataclass(frozen=True)
class Section:
    """One claim of a report.

    Attributes:
        card: Its statement and its record.
        runs: Its record, and the results on this machine, judged again.
        png: Its figure, or None; ``pdf`` is the same figure if it shows results on this machine.
        caption: Caption of the figure.
        symbols: The claim's axes and quantities.
    """

    card: Card
    runs: tuple[Evidence, ...]
    png: bytes | None = None
    pdf: bytes | None = None
    caption: str = ""
    symbols: tuple[Quantity, ...] = ()

    @property
    def standing(self) -> Evidence | None:
        """The run behind the claim's badge."""
        return cards.standing(self.runs)


def section(claim: str, out: str | Path, folder: str | Path | None = None) -> Section:
    """A claim with its results under ``out``: each size is read and judged again, without a computation.

    One from elsewhere has what its record states: to judge would run its code.
    """
    from icllab.figures import pdf_bytes, png_bytes
    from icllab.figures.style import PAGE, drawn_as
    from icllab.lab.drawing import picture
    from icllab.lab.judging import judge

    card, symbols = records.card(claim, folder), tuple(catalogue.symbols(claim, Path(folder) if folder else None))
    runs, figure, figure_size = cards.from_record(card), None, None
    for size in () if card.origin else sizes_present(out, claim):
        if size == SIZES[0]:  # which gets no verdict
            continue
        try:
            request = stored_request(claim, size, out=out, claims=folder)
            dataset, notes = read(request)
            verdict = judge(request.claim(), dataset, notes)
        except IclError as error:
            runs.append(Evidence(size=size, local=True, fault=" ".join(str(error).split())))
            continue
        figure = None
        with contextlib.suppress(Exception), drawn_as(PAGE):  # whatever a claim's figure raises; `icl draw` shows it
            figure, figure_size = picture(request.claim(), dataset), size
        judgement = verdict.as_dict()
        names = ("git_commit", "created", "machine")
        commit, date, machine = (str(dataset.attrs.get(name, "")) for name in names)
        runs.append(
            Evidence(
                size=size,
                verdict=verdict.outcome.value,
                findings=judgement["findings"],
                stale=any(note.startswith("stale") for note in notes),
                local=True,
                origin=cards.origin(commit, date, machine, float(dataset.attrs["seconds"])),
                notes=judgement["notes"],
            )
        )
    if figure is not None:
        caption = f"{getattr(figure, 'caption', '')} Results of this machine at size {figure_size}.".strip()
        return Section(card, tuple(runs), png_bytes(figure, _DPI), pdf_bytes(figure), caption, symbols)
    path = cards.recorded_figure(claim)
    caption = cards.recorded_caption(claim)
    return Section(card, tuple(runs), path.read_bytes() if path else None, None, caption, symbols)


def html(sections: Sequence[Section], pdfs: Sequence[str | None] = ()) -> str:
    """The text of the file; ``pdfs`` are the names of the figures beside it."""
    title = sections[0].card.claim if len(sections) == 1 else f"{len(sections)} claims"
    names = [*pdfs, *[None] * len(sections)]
    day, commit = datetime.datetime.now(datetime.UTC).date().isoformat(), provenance.commit()
    origin = f"Made on {day} by icl-lab {icllab.__version__}" + (f", commit {commit[:12]}." if commit else ".")
    body: list[str] = [tag("h1", f"Report: {title}"), tag("p", origin, class_="origin")]
    if len(sections) > 1:
        body.append(_overview(sections))
    body += [_card(section, pdf) for section, pdf in zip(sections, names, strict=False)]
    body.append(tag("h2", "References"))
    sources = {source.key: source for section in sections for source in section.card.sources}
    body.append(tag("ul", *(tag("li", sources[key].text) for key in sorted(sources))))
    return document(title, (_STATIC / "cards.css").read_text("utf-8") + _COLOURS, body)


def _overview(sections: Sequence[Section]) -> Html:
    rows = []
    for section in sections:
        name = tag("a", section.card.sentence, href=f"#{_anchor(section.card.claim)}")
        rows.append(tag("li", cards.standing_badge(section.runs), tag("br"), name))
    return tag("ol", *rows, class_="overview")


def _anchor(claim: str) -> str:
    return claim.replace("/", "-")


def _card(section: Section, pdf: str | None) -> Html:
    picture = None
    if section.png is not None:
        picture = Picture(embedded(section.png), cards.alternative_text(section.card), section.caption)
    claim = section.card.claim
    parts: list[str] = [tag("h2", cards.title(section.card), " ", tag("code", claim), id=_anchor(claim))]
    parts.append(cards.card_html(section.card, section.runs, picture, symbols=section.symbols))
    if pdf is not None:
        parts.append(tag("p", "The figure for print: ", tag("a", pdf, href=pdf), "."))
    return joined(*parts)
