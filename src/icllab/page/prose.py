"""A docstring as HTML: paragraphs, code and formulas, the latter in the LaTeX in which they are written."""

import re
import textwrap

from icllab.page.markup import Html, joined, tag

_INLINE = re.compile(
    r"``(?P<code>[^`]+)``|:math:`(?P<math>[^`]+)`|:\w+:`~?(?P<name>[^`<>]+)`|\*\*?(?P<strong>[^*\n]+)\*\*?"
)
_MATH = re.compile(r"\.\. math::[ \t]*(?P<first>[^\n]*)\n?(?P<rest>.*)", re.DOTALL)
_MARGIN = "    "


def prose(text: str) -> Html:
    """Paragraphs of a docstring; what is no paragraph and no formula is shown as it is written."""
    return joined(*(_block(block) for block in _blocks(text)))


def _blocks(text: str) -> list[str]:
    """What blank lines part; an indented block belongs to the formula before it."""
    found: list[str] = []
    for block in re.split(r"\n\s*\n", textwrap.dedent(text).strip("\n")):
        if found and found[-1].startswith(".. math::") and block.startswith(_MARGIN):
            found[-1] += "\n\n" + block
        elif block.strip():
            found.append(block)
    return found


def _block(block: str) -> Html:
    if match := _MATH.fullmatch(block):
        lines = "\n".join(filter(None, [match["first"].strip(), textwrap.dedent(match["rest"]).strip()]))
        return tag("pre", lines, class_="formula")
    if block.startswith(_MARGIN) or re.match(r"[-*=] |\.\. ", block):
        return tag("pre", block, class_="formula")
    parts, end = [], 0
    line = " ".join(block.split())
    for match in _INLINE.finditer(line):
        parts.append(line[end : match.start()])
        kind, said = next((name, value) for name, value in match.groupdict().items() if value is not None)
        parts.append(
            tag("em", said) if kind == "strong" else tag("code", said, class_="math" if kind == "math" else None)
        )
        end = match.end()
    return tag("p", *parts, line[end:])
