"""Search claims and references by words of titles, sentences, conditions, subjects and sources."""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeVar

from icllab.core.sources import Reference
from icllab.lab.records import Card

Item = TypeVar("Item")

_STOP = frozenset(
    "a about an and are arxiv as at by does for how in is it of on or that the to what when which with".split()  # noqa: SIM905
)
_ENDINGS = re.compile(r"(?<=[a-z]{4})(ations?|ings?|ed|es|e|s)$")
_VERSION = re.compile(r"(?<=\d{4}\.\d{5})v\d+$")
_NEAREST = 3


def words(text: str) -> list[str]:
    """The stems of the words of a text, without case, accents, stop words and the version of an arXiv number."""
    plain = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    parts = re.findall(r"[a-z0-9]+(?:\.[a-z0-9]+)*", plain)
    return [_ENDINGS.sub("", _VERSION.sub("", part)).replace("iz", "is") for part in parts if part not in _STOP]


def claims(query: str, cards: Iterable[Card]) -> tuple[list[Card], bool]:
    """The claims that fit a query, by their names, titles, sentences, conditions and sources."""

    def text(card: Card) -> str:
        return " ".join([card.claim, card.title, card.sentence, card.conditions, *map(_text, card.sources)])

    return ranked(query, ((card, f"{card.claim} {card.title}", text(card)) for card in cards))


def sources(query: str, references: Iterable[Reference]) -> tuple[list[Reference], bool]:
    """The references that fit a query, by their keys, authors, years, titles and arXiv numbers."""
    return ranked(query, ((reference, reference.key, _text(reference)) for reference in references))


def _text(reference: Reference) -> str:
    return f"{reference.key} {reference.text.replace(':', ' ')}"


def ranked(query: str, texts: Iterable[tuple[Item, str, str]]) -> tuple[list[Item], bool]:
    """The items that fit a query among ``(item, name, text)``, the best first; and whether they fit all of it.

    An item has a word if a word of its text begins with that; in a name a word counts twice. Items that have all words
    of the query, or all on one side of an "or", leave out those that have some.
    """
    sides = [side for part in re.split(r"\bor\b", query.casefold()) if (side := words(part))]
    matches = []
    for place, (item, name, text) in enumerate(texts):
        in_name, in_text = words(name), words(text)
        hits = [{word: _has(word, in_text) + _has(word, in_name) for word in side} for side in sides]
        total = {word: score for side in hits for word, score in side.items()}
        if any(total.values()):
            whole = any(all(side.values()) for side in hits)
            matches.append((-sum(map(bool, total.values())), -sum(total.values()), place, whole, item))
    matches.sort(key=lambda match: match[:3])
    best = [match for match in matches if match[3]] or matches
    return [match[-1] for match in best], bool(best and best[0][3])


def _has(word: str, texts: Sequence[str]) -> bool:
    return any(text.startswith(word) for text in texts)


def nearest(query: str, cards: Iterable[Card], references: Iterable[Reference] = ()) -> str:
    """The few claims, and keys of references, whose names, titles and authors are most like the words of a query."""
    texts = {card.claim: f"{card.claim} {card.title}" for card in cards}
    texts |= {reference.key: f"{reference.key} {_text(reference)}" for reference in references}

    def likeness(name: str) -> float:
        return sum(
            max(difflib.SequenceMatcher(None, word, other).ratio() for other in words(texts[name]))
            for word in words(query)
        )

    return ", ".join(sorted(texts, key=likeness, reverse=True)[:_NEAREST])
