"""The one writer of HTML: everything but :class:`Html` is escaped, so that no stored text becomes markup."""

import base64
import hashlib
import html
import inspect
import re
from collections.abc import Sequence
from html.entities import html5

_ACCENTS = {"hat": "\u0302", "bar": "\u0304", "tilde": "\u0303", "dot": "\u0307"}
_ACCENT = re.compile(rf"\\({'|'.join(_ACCENTS)})\s*\{{?(\\[A-Za-z]+|\w)\}}?")
_STYLE = re.compile(r"\\(?:math\w+|text\w*)\{([^{}]*)\}|\\(?:[Bb]igg?[lr]?|[td]?frac|left|right)(?![A-Za-z])|\\[,;:! ]")
_CHARACTERS = {
    "cdot": "\u00b7",
    "to": "\u2192",
    "infty": "\u221e",
    "lVert": "\u2016",
    "rVert": "\u2016",
}  # HTML has others
_INLINE = re.compile(r"``(?P<code>.+?)``|:math:`(?P<tex>.+?)`|(?::\w+:)?`~?(?P<name>[^`]+)`", re.DOTALL)
_FIELDS = ("Args:", "Returns:", "Raises:", "Attributes:", "Source:", "Derived:")


class Html(str):
    """Text that is HTML: the value of :func:`tag`, never text from a file."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | int | bool | None) -> Html:
    """An element; children that are not :class:`Html` are text, and so is every attribute.

    Args:
        name: Name of the element.
        children: Children in order.
        attributes: ``class_`` is ``class``, ``data_id`` is ``data-id``. True: no value. None, False: no attribute.
    """
    text = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in ("img", "br", "meta"):
        return Html(f"<{name}{text}>")
    return Html(f"<{name}{text}>{joined(*children)}</{name}>")


def joined(*parts: str) -> Html:
    """The parts in order."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def table(columns: dict[str, str], rows: list[list[str]], **attributes: str | int | bool | None) -> Html:
    """A table; ``columns`` are headings and the class of their cells, empty for none."""
    kinds = [kind or None for kind in columns.values()]
    heads = [tag("th", name, scope="col", class_=kind) for name, kind in zip(columns, kinds, strict=True)]
    body = [tag("tr", *(tag("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True))) for row in rows]
    return tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body), **attributes)


def embedded(png: bytes) -> str:
    """The address of a picture that stands in the file itself."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def document(title: str, style: str, body: Sequence[str]) -> str:
    """A page as one file: the style sheet is inside, and the policy of the page forbids to load anything."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"icl-lab: {title}"),
        tag("style", Html(style)),
    ]
    page = tag("html", tag("head", *head), tag("body", *body), lang="en")
    return f"<!doctype html>\n{page}\n"


def formula(tex: str, display: bool = False) -> Html:
    """A formula: TeX that KaTeX renders on the page, and readable text where no script runs."""
    return tag("span", _readable(tex), class_="math", data_tex=tex, data_display=display)


def with_formulas(text: str) -> Html:
    """Text whose formulas stand between dollars."""
    return joined(*(formula(part) if i % 2 else part for i, part in enumerate(text.split("$"))))


def _readable(tex: str) -> Html:
    r"""The letters and signs of TeX with sub- and superscripts, such as nβ for ``n\beta``."""
    text = _STYLE.sub(r"\1", _ACCENT.sub(lambda match: match[2] + _ACCENTS[match[1]], tex))
    text = re.sub(r"\\([A-Za-z]+)( ?)", _letter, text)
    text = html.escape(text.replace("\\", ""))
    for sign, name in (("_", "sub"), (r"\^", "sup")):
        text = re.sub(rf"{sign}(?:\{{([^{{}}]*)\}}|(&\w+;|.))", rf"<{name}>\1\2</{name}>", text)
    return Html(re.sub("[{}]", "", text))


def _letter(match: re.Match[str]) -> str:
    """The character that a command names, or its name, such as log."""
    name, space = match.groups()
    character = _CHARACTERS.get(name) or html5.get(f"{name};")
    return name + space if character is None else character + space * (not match.string[match.end() :][:1].isalpha())


def prose(docstring: str) -> Html:
    """Paragraphs, formulas and code of a docstring in reStructuredText, up to its list of arguments and sources."""
    text, paragraphs = re.sub(r"(\.\. math::)\s*\n\s*\n", r"\1 ", inspect.cleandoc(docstring)), []
    for block in re.split(r"\n\s*\n", text):
        if block.startswith(_FIELDS):
            break
        if block.startswith(".. math::"):
            tex = block.removeprefix(".. math::").strip()
            rows = r"\\" in tex and r"\begin" not in tex
            paragraphs.append(
                tag("p", formula(rf"\begin{{aligned}}{tex}\end{{aligned}}" if rows else tex, display=True))
            )
        else:
            paragraphs.append(tag("p", _inline(block)))
    return joined(*paragraphs)


def _inline(text: str) -> Html:
    parts: list[str] = []
    end = 0
    for match in _INLINE.finditer(text):
        parts += [
            text[end : match.start()],
            formula(match["tex"]) if match["tex"] else tag("code", match["code"] or match["name"]),
        ]
        end = match.end()
    return joined(*parts, text[end:])
