"""Write docs/gallery.md: a card for each claim. Made anew at each build, from the claims and their records.

The cards are those of the page and of reports, by the same code.
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
    """Text as Markdown that reads the same: nothing in it is markup."""
    return _SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def slug(title: str) -> str:
    """A heading's anchor, as MyST makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def badge(card: Card) -> str:
    """The verdict of a claim's record at its largest size, as HTML."""
    return standing_badge(from_record(card))


def command(card: Card) -> str:
    """What measures the claim again."""
    return f"icl run {card.claim} --size {card.ordinary}"


def link(card: Card) -> str:
    """A link to the claim's card."""
    return f"[`{card.claim}`](gallery.md#{slug(card.claim)})"


def standing(found: Sequence[Card]) -> str:
    """A table of claims that hold, fail, are undecided and not recorded, by the size of the verdict."""
    numbers = Counter((card.recorded, card.verdict or NOT_RECORDED) for card in found)
    columns = [*VERDICTS, *({NOT_RECORDED} & {verdict for _, verdict in numbers})]
    sizes = [size for size in SIZES if any(size == recorded for recorded, _ in numbers)]
    rows = [f"| {size} | " + " | ".join(str(numbers[size, column]) for column in columns) + " |" for size in sizes]
    return "\n".join(["| judged at | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns), *rows])


def price(card: Card) -> str:
    """What ``medium`` would cost where nothing is recorded at it, or above; empty elsewhere."""
    if "medium" not in card.sizes or (card.verdict and card.recorded in ("medium", "full")):
        return ""
    record = cost.basis(Request(card.claim, "medium"))
    seconds = (record.seconds.value, *cost.seconds_here(record, None).interval)
    hours, low, high = (f"{float(f'{value / 3600:.1g}'):g}" for value in seconds)
    return f"Not recorded at `medium`, which would take {hours} core-hours ({low} to {high}), and its controls besides."


def page(found: Sequence[Card], figures: Path) -> str:
    """The text of the gallery: cards by subject."""
    recorded = [card for card in found if card.verdict]
    parts = [
        "# Gallery",
        f"{len(found)} claims, each a sentence that can be false; {len(recorded)} have a record in this version, the\n"
        "verdict of a run with its numbers, its commit and its machine. A record is *stale* when what it measured\n"
        "has changed since. Every command measures a claim again and judges it anew ([Claims](claims.md)).\n"
        "[Claims by paper](papers.md) has them by the statements that they test; [`icl page`](page.md) shows the same\n"
        "cards with the results on your machine. Made from the claims and their records by `docs/make_gallery.py`.",
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
    """Where the list of papers has it."""
    return f"papers.html#{slug(f'{source.short} {source.key}')}"


def write(docs: Path) -> None:
    """Write the page into ``docs``."""
    found = [records.card(claim) for claim in registry.claims()]
    (docs / "gallery.md").write_text(page(found, docs.parent / "book/src/iclbook/figures"), "utf-8")


if __name__ == "__main__":
    write(HERE)
