"""References of formulas by key."""

import functools
import importlib.resources
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from icllab.core.errors import InputError, unknown

_ENTRY = re.compile(r"^@(?P<kind>\w+)\{(?P<key>\w+),\n(?P<body>.*?)\n\}$", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(?P<name>\w+)\s*=\s*\{(?P<value>.*)\},?$")


@dataclass(frozen=True)
class Reference:
    """One entry of ``references.bib``."""

    key: str
    kind: str
    fields: dict[str, str]
    bibtex: str

    @property
    def text(self) -> str:
        """Authors, year, title and place of publication, on one line."""
        authors = [" ".join(reversed(name.split(", "))) for name in self.fields["author"].split(" and ")]
        parts = [f"{', '.join(authors)} ({self.fields['year']})", self.fields["title"]]
        parts += [self.fields[name] for name in ("journal", "booktitle", "note") if name in self.fields]
        parts += [f"arXiv:{self.fields['eprint']}"] if "eprint" in self.fields else []
        return _spelled(". ".join(parts)) + "."

    @property
    def short(self) -> str:
        """Short citation, such as ``Lu et al. (2025)``."""
        surnames = [_spelled(name.split(",")[0]) for name in self.fields["author"].split(" and ")]
        names = " and ".join(surnames) if len(surnames) < 3 else f"{surnames[0]} et al."
        return f"{names} ({self.fields['year']})"


def _spelled(text: str) -> str:
    """Replace TeX accents by letters and remove braces."""
    marks = {"'": "\u0301", "`": "\u0300", "^": "\u0302", '"': "\u0308", "~": "\u0303"}
    text = re.sub(r"""\\(['`^"~])\{?(\w)\}?""", lambda m: m[2] + marks[m[1]], text)
    return unicodedata.normalize("NFC", re.sub(r"[{}]", "", text))


@functools.cache
def references() -> dict[str, Reference]:
    """All shared references by key."""
    return parsed(importlib.resources.files("icllab.core").joinpath("references.bib").read_text("utf-8"))


@functools.cache
def parsed(text: str, origin: str = "references.bib") -> dict[str, Reference]:
    """The references of a BibTeX text by key; raise unless each field stands on one line."""
    text = text.strip()
    entries: dict[str, Reference] = {}
    for match in _ENTRY.finditer(text):
        fields: dict[str, str] = {}
        for line in match["body"].splitlines():
            field = _FIELD.match(line)
            if field is None:
                raise InputError(f"{origin}, {match['key']}: expected 'name = {{value}},' got {line.strip()!r}")
            fields[field["name"]] = field["value"]
        for name in ("author", "title", "year"):
            if name not in fields:
                raise InputError(f"{origin}, {match['key']}: expected a field {name!r}, got {sorted(fields)}")
        if match["key"] in entries:
            raise InputError(f"{origin}: expected different keys, got {match['key']!r} twice")
        entries[match["key"]] = Reference(match["key"], match["kind"], fields, match[0])
    if len(entries) != len(re.findall(r"^@", text, re.MULTILINE)):
        raise InputError(f"{origin}: expected every '@' to open an entry that a lone '}}' closes")
    return entries


def reference(key: str) -> Reference:
    """The reference called ``key``; raise with the nearest key if it is unknown."""
    if key not in references():
        raise unknown("source", key, references())
    return references()[key]


def bibliography(sources: Iterable[Reference]) -> str:
    """BibTeX of the given references."""
    return "\n\n".join(source.bibtex for source in sources)
