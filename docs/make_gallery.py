"""Write docs/gallery.md: a card for each claim, from its record. Each build writes it again.

The page and reports make their cards by the same code.
"""

import importlib
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from icllab.core.sources import Reference
from icllab.lab import cost, records, registry
from icllab.lab.claim import SIZES
from icllab.lab.job import Request
from icllab.lab.records import NOT_RECORDED, Card
from icllab.page.cards import (
    VERDICTS,
    Picture,
    alternative_text,
    card_html,
    from_record,
    recorded_caption,
    standing_badge,
)

HERE = Path(__file__).parent
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|$~&@^]")


def escaped(text: str) -> str:
    """Escape a text so that Markdown shows it unchanged."""
    return _SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def slug(title: str) -> str:
    """Return the anchor that MyST gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def badge(card: Card) -> str:
    """Return the recorded verdict at the largest size, as HTML."""
    return standing_badge(from_record(card))


def command(card: Card) -> str:
    """Return the command that measures the claim again."""
    return f"icl run {card.claim} --size {card.ordinary}"


def link(card: Card) -> str:
    """Return a link to the claim's card."""
    return f"[`{card.claim}`](gallery.md#{slug(card.claim)})"


def standing(found: Sequence[Card]) -> str:
    """Return a table of the numbers of verdicts by size."""
    numbers = Counter((card.recorded, card.verdict or NOT_RECORDED) for card in found)
    columns = [*VERDICTS, *({NOT_RECORDED} & {verdict for _, verdict in numbers})]
    sizes = [size for size in SIZES if any(size == recorded for recorded, _ in numbers)]
    rows = [f"| {size} | " + " | ".join(str(numbers[size, column]) for column in columns) + " |" for size in sizes]
    return "\n".join(["| judged at | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns), *rows])


def price(card: Card) -> str:
    """Return the estimated cost of ``medium``, or an empty text if it, or a larger size, is recorded."""
    if "medium" not in card.sizes or (card.verdict and card.recorded in ("medium", "full")):
        return ""
    hours = cost.estimate(Request(card.claim, "medium")).seconds / 3600
    about = f"{float(f'{hours:.1g}'):g} core-hours, within a factor of {cost.FACTOR:g}"
    return f"Not recorded at `medium`, which would take {about}, and its controls besides."


def page(found: Sequence[Card], figures: Path) -> str:
    """Return the text of the gallery: cards by subject."""
    recorded = [card for card in found if card.verdict]
    parts = [
        "# Gallery",
        f"{len(found)} claims, each a sentence that can be false; {len(recorded)} have a record in this version, the\n"
        "verdict of a run with its numbers, its commit and its machine. A record is *stale* if the measurement has\n"
        "changed since. The command below a claim measures and judges it again ([Claims](claims.md)).\n"
        "[Claims by paper](papers.md) sorts them by the statements that they test. [`icl page`](page.md) shows the\n"
        "same cards with the results on your machine. `docs/make_gallery.py` makes this page from the records.",
        standing([card for card in found if card.recorded]),
    ]
    for subject, ones in itertools.groupby(found, key=lambda card: card.subject):
        about = importlib.import_module(f"iclbook.claims.{subject}").__doc__ or ""
        parts += [f"## {subject.replace('_', ' ').capitalize()}", escaped(about.strip())]
        parts += [_card(card, figures) for card in ones]
    return "\n\n".join(parts) + "\n"


def _card(card: Card, figures: Path) -> str:
    path = figures / f"{card.claim.split('/')[1]}.png"
    words = alternative_text(card), recorded_caption(card.claim)
    picture = Picture(f"_static/{path.name}", *words) if path.is_file() else None
    html = card_html(card, from_record(card), picture, source_address=_paper, command=command(card), expand=False)
    fence = "`" * (3 + max(map(len, re.findall("`+", html)), default=0))
    return "\n\n".join(filter(None, (f"### `{card.claim}`", f"{fence}{{raw}} html\n{html}\n{fence}", price(card))))


def _paper(source: Reference) -> str:
    """Return the address of a source in the list of papers."""
    return f"papers.html#{slug(f'{source.short} {source.key}')}"


def write(docs: Path) -> None:
    """Write the page into ``docs``."""
    found = [records.card(claim) for claim in registry.claims()]
    (docs / "gallery.md").write_text(page(found, docs.parent / "book/src/iclbook/figures"), "utf-8")


if __name__ == "__main__":
    write(HERE)
