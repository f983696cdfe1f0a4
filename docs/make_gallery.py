"""Write docs/gallery.md: a card for each claim. Made anew at each build, from the claims and their records."""

import importlib
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from icllab.core.spelling import number, with_error
from icllab.experiments import cards, registry
from icllab.experiments.cards import Card

HERE = Path(__file__).parent
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|$~&@^]")


def escaped(text: str) -> str:
    """Text as Markdown that reads the same: nothing in it is markup."""
    return _SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def slug(title: str) -> str:
    """A heading's anchor, as MyST makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def badge(verdict: str | None, stale: bool = False) -> str:
    """A verdict, or that there is none, as a coloured word; and whether it is of measurements that have changed."""
    kind = verdict if verdict in ("holds", "fails", "undecided") else "none"
    mark = ' <span class="verdict stale">stale</span>' if stale else ""
    return f'<span class="verdict {kind}">{verdict or "not recorded"}</span>{mark}'


def of_record(card: Card) -> str:
    """The badge of a claim's record at its largest size."""
    size = f" at size {card.recorded}" if card.recorded else ""
    return badge(card.verdict, card.stale) + size


def command(card: Card) -> str:
    """What measures the claim again."""
    return f"icl run {card.claim} --size small"


def link(card: Card) -> str:
    """A link to the claim's card."""
    return f"[`{card.claim}`](gallery.md#{slug(card.claim)})"


def page(found: Sequence[Card], figures: Path) -> str:
    """The text of the gallery: cards by subject."""
    recorded = [card for card in found if card.recorded]
    parts = [
        "# Gallery",
        f"{len(found)} claims, each a sentence that can be false; {len(recorded)} have a record in this version, the\n"
        "verdict of a run with its numbers, its commit and its machine. A record is *stale* when what it measured\n"
        "has changed since. Every command measures a claim again and judges it anew ([Claims](claims.md)).\n"
        "[Claims by paper](papers.md) has them by the statements that they test. Made from the claims and their\n"
        "records by `docs/make_gallery.py`.",
    ]
    for subject, ones in itertools.groupby(found, key=lambda card: card.subject):
        about = importlib.import_module(f"icllab.claims.{subject}").__doc__ or ""
        parts += [f"## {subject.replace('_', ' ').capitalize()}", escaped(about.strip())]
        parts += [_card(card, figures) for card in ones]
    return "\n\n".join(parts) + "\n"


def _card(card: Card, figures: Path) -> str:
    parts = [of_record(card), f"**{escaped(card.sentence)}**"]
    if card.conditions:
        parts.append(f"*Conditions:* {escaped(card.conditions)}")
    figure = figures / f"{card.claim.split('/')[1]}.png"
    if figure.is_file():
        parts.append(
            f"```{{image}} {figures.name}/{figure.name}\n:width: 480px\n:alt: Figure of the claim {card.claim}\n```"
        )
    cited = [f"[{escaped(one.short)}](papers.md#{slug(f'{one.short} {one.key}')})" for one in card.sources]
    parts.append(f"*Sources:* {', '.join(cited)}.")
    if card.controls:
        parts.append("*Negative controls*, under which the check has to fail:")
        parts.append("\n".join(_control(card, name) for name in card.controls))
    parts += [_findings(size, entry["findings"]) for size, entry in card.record.items()]
    parts.append(f"```console\n$ {command(card)}\n```")
    parts += [_origin(size, entry) for size, entry in card.record.items()]
    inside = "\n\n".join(parts)
    return f"### `{card.claim}`\n\n`````{{container}} claim\n{inside}\n`````"


def _control(card: Card, name: str) -> str:
    found = {size: entry["controls"].get(name) for size, entry in card.record.items()}
    said = ", ".join(f"{_under_control(one['verdict'])} at size {size}" for size, one in found.items() if one)
    return f"- `{name}`: {escaped(card.controls[name])}. {said or badge(None)}"


def _under_control(verdict: str) -> str:
    """To fail is what a control is for."""
    return badge(verdict).replace('"verdict fails"', '"verdict refuted"')


def _findings(size: str, findings: Sequence[Mapping[str, Any]]) -> str:
    rows = ["| finding | predicted | measured ± SE | tolerance | outcome |", "|---|---:|---:|---:|---|"]
    for finding in findings:
        predicted, measured, error, tolerance = (
            float(finding[name]) for name in ("predicted", "measured", "standard_error", "tolerance")
        )
        numbers = f"{number(predicted)} | {with_error(measured, error)} | {number(tolerance) if tolerance else 'exact'}"
        rows.append(f"| {escaped(finding['what'])} | {numbers} | {badge(finding['outcome'])} |")
    count = f"{len(findings)} finding{'s' if len(findings) != 1 else ''}"
    table = "\n".join(rows)
    return f"<details>\n<summary>{count} at size {size}</summary>\n\n{table}\n\n</details>"


def _origin(size: str, entry: Mapping[str, Any]) -> str:
    machine, day = escaped(entry["machine"]), entry["created"][:10]
    return f"*Record at size {size}:* commit `{entry['commit'][:12]}`, {day}, {machine}, {entry['seconds']:.0f} s."


def write(docs: Path) -> None:
    """Write the page into ``docs``."""
    found = [cards.card(claim) for claim in registry.claims()]
    (docs / "gallery.md").write_text(page(found, docs / "figures"), "utf-8")


if __name__ == "__main__":
    write(HERE)
