"""A report of claims as one file: cards, their figures and numbers, and nothing that is fetched from anywhere."""

import base64
import contextlib
import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import icllab
from icllab.core.errors import IclError
from icllab.lab import provenance, records, registry
from icllab.lab.claim import SIZES
from icllab.lab.job import sizes_present, stored_request
from icllab.lab.records import Card
from icllab.lab.run import read
from icllab.page import cards
from icllab.page.cards import Evidence, Picture
from icllab.page.markup import Html, joined, tag

_STATIC = Path(__file__).parent / "static"
_COLOURS = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1e21; --muted: #5a616a; --line: #dcdfe3; --accent: #0b5c8f;
  --good: #00734f; --bad: #b3401a; --doubt: #8a6100; --serif: Palatino, Georgia, "DejaVu Serif", serif; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181b; --ink: #e8e6e1; --muted: #a3abb3; --line: #343a41;
  --accent: #7fc1ec; --good: #55cda0; --bad: #f59067; --doubt: #e3b54a; } }
@media print { :root { --paper: #fff; --ink: #000; --muted: #444; --line: #bbb; --good: #00734f; --bad: #b3401a;
  --doubt: #8a6100; } .claim { break-inside: avoid-page; } }
body { margin: 0 auto; max-width: 54rem; padding: 2rem 1.2rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, "DejaVu Sans", sans-serif; }
h1, h2 { font-family: var(--serif); line-height: 1.25; }
h2 { margin-top: 3rem; overflow-wrap: anywhere; font-size: 1.05rem; }
a { color: var(--accent); }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 0.87em; overflow-wrap: anywhere; }
.overview li { margin: 0.6rem 0; }
.claim .scroll { max-height: none; }
"""


@dataclass(frozen=True)
class Section:
    """One claim of a report.

    Attributes:
        card: What it says, and its record.
        found: What runs found: its record, and the results on this machine, judged again.
        png: Its figure; None where there is none. ``pdf`` is the same, of results on this machine.
        here: The size of which the figure is drawn; None where it is the library's.
    """

    card: Card
    found: tuple[Evidence, ...]
    png: bytes | None = None
    pdf: bytes | None = None
    here: str | None = None

    @property
    def standing(self) -> Evidence | None:
        """What the claim's badge goes by."""
        return cards.standing(self.found)


def section(claim: str, out: str | Path, folder: str | Path | None = None) -> Section:
    """A claim with its results under ``out``: each size is read and judged anew; nothing is computed."""
    from icllab.lab.results import judge, picture

    card = records.card(claim, folder)
    found, figure, here = cards.of_record(card), None, None
    for size in sizes_present(out, claim):
        if size == SIZES[0]:  # which gets no verdict
            continue
        try:
            request = stored_request(claim, size, out=out, claims=folder)
            dataset, notes = read(request)
            verdict = judge(request.claim(), dataset, notes)
        except IclError as error:
            found.append(Evidence(size=size, here=True, fault=" ".join(str(error).split())))
            continue
        figure = None
        with contextlib.suppress(Exception):  # whatever a claim's figure raises; `icl draw` says what
            figure, here = picture(request.claim(), dataset), size
        said = verdict.as_dict()
        names = ("git_commit", "created", "machine")
        commit, created, machine = (str(dataset.attrs.get(name, "")) for name in names)
        found.append(
            Evidence(
                size=size,
                verdict=verdict.outcome.value,
                findings=said["findings"],
                stale=any(note.startswith("stale") for note in notes),
                here=True,
                origin=cards.origin(commit, created, machine, float(dataset.attrs["seconds"])),
                notes=said["notes"],
            )
        )
    if figure is not None:
        from icllab.figures import pdf_bytes, png_bytes

        return Section(card, tuple(found), png_bytes(figure), pdf_bytes(figure), here)
    path = cards.recorded_figure(claim) if claim in registry.claims() else None
    return Section(card, tuple(found), path.read_bytes() if path else None)


def html(sections: Sequence[Section], pdfs: Sequence[str | None] = ()) -> str:
    """The whole file; ``pdfs`` are the names of the figures that lie beside it."""
    style = Html((_STATIC / "cards.css").read_text("utf-8") + _COLOURS)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = sections[0].card.claim if len(sections) == 1 else f"{len(sections)} claims"
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"icl-lab: {title}"),
        tag("style", style),
    ]
    beside = [*pdfs, *[None] * len(sections)]
    day, commit = datetime.datetime.now(datetime.UTC).date().isoformat(), provenance.commit()
    made = f"Made on {day} by icl-lab {icllab.__version__}" + (f", commit {commit[:12]}." if commit else ".")
    body: list[str] = [tag("h1", f"Report: {title}"), tag("p", made, class_="origin")]
    if len(sections) > 1:
        body.append(_overview(sections))
    body += [_shown(one, pdf) for one, pdf in zip(sections, beside, strict=False)]
    body.append(tag("h2", "References"))
    sources = {source.key: source for one in sections for source in one.card.sources}
    body.append(tag("ul", *(tag("li", sources[key].text) for key in sorted(sources))))
    page = tag("html", tag("head", *head), tag("body", *body), lang="en")
    return f"<!doctype html>\n{page}\n"


def _overview(sections: Sequence[Section]) -> Html:
    rows = []
    for one in sections:
        name = tag("a", one.card.sentence, href=f"#{_anchor(one.card.claim)}")
        rows.append(tag("li", cards.standing_badge(one.standing), tag("br"), name))
    return tag("ol", *rows, class_="overview")


def _anchor(claim: str) -> str:
    return claim.replace("/", "-")


def _shown(one: Section, pdf: str | None) -> Html:
    picture = None
    if one.png is not None:
        caption = f"Drawn from the results at size {one.here}." if one.here else "The figure of the library."
        address = f"data:image/png;base64,{base64.b64encode(one.png).decode()}"
        picture = Picture(address, cards.words_of(one.card), caption)
    parts: list[str] = [tag("h2", tag("code", one.card.claim), id=_anchor(one.card.claim))]
    parts.append(cards.card_html(one.card, one.found, picture))
    if pdf is not None:
        parts.append(tag("p", "The figure for print: ", tag("a", pdf, href=pdf), "."))
    return joined(*parts)
