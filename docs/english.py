"""Count sentences of a syntax that a stranger has to decode, and fail unless there are exactly `LIMIT` of them.

Counted are first lines of docstrings, texts of errors and lines of pages. A match is a place to look: rewrite the
sentence so that it is understood at once (docs/style.md), then lower `LIMIT`. It is never raised.

.venv/bin/python docs/english.py [--list]
"""

import ast
import re
import sys
from collections import Counter
from pathlib import Path

LIMIT = 63
ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "book/src", "docs")
_VERB = "is|are|was|were|has|have"
KINDS = {
    "negated noun": rf"\b(?:{_VERB}|be) no "
    r"(?!longer|more|less|later|larger|smaller|better|worse|fewer|doubt)[a-z-]+",
    "so many": r"\bso many\b(?! (?:that|as))",
    "what for a noun": r"(?:^|[,;:(] ?|\b(?:of|in|from|with|to|and|by|at|for|than) )"
    rf"what (?:{_VERB}|it|they|one|no|does|do|follows|of)\b",
    "of which, of whom": r"\bof (?:which|whom)\b",
    "that of, those of": r"\b(?:than|as|is|are|and|with|from|to) (?:that|those) of\b",
    "one who, they who": r"\b(?:one|he|they) (?:who|that)\b",
    "dangling so": r"(?:^|[.;:] )[Ss]o (?:do|does|are|is|has|have|it|they|with)\b",
}
OPENER = r"^(?:Of|That|What|How|Whether|In what|Into|Whose|Where|Begin|Those|Numbers|Squares) "


def texts(path: Path):
    """Yield (line, text, kinds to look for) for each text of a Python file or a page."""
    lines = path.read_text("utf-8").split("\n")
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(lines, 1):
            fenced ^= line.startswith("```")
            if not fenced:
                yield number, line, KINDS
        return
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text.split("\n")[0], {**KINDS, "opener": OPENER}
        if isinstance(node, ast.Raise) and node.exc:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value:
                    yield node.lineno, part.value, KINDS


def matches(folder: Path):
    """Yield (path, line, matched kinds, text) for each text of a folder that matches; what git ignores is skipped."""
    ignored = [ROOT / line for line in (ROOT / ".gitignore").read_text("utf-8").split()]
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.md")]):
        if not any(path.is_relative_to(other) for other in ignored):
            for line, text, kinds in texts(path):
                if matched := [kind for kind, pattern in kinds.items() if re.search(pattern, text)]:
                    yield path, line, matched, text.strip()


def verdict(count: int, limit: int) -> str:
    """Return the line that fails the check, or an empty one."""
    if count > limit:
        return (
            f"docs/english.py: expected at most {limit} sentences, found {count}; `--list` shows them: rewrite the new"
        )
    if count < limit:
        return f"docs/english.py: {count} sentences are left of {limit}; set LIMIT = {count}"
    return ""


def main() -> None:
    """Print the number of each kind, with `--list` each place too, and exit with 1 unless the number is the limit."""
    found = [match for folder in FOLDERS for match in matches(ROOT / folder)]
    if "--list" in sys.argv:
        for path, line, kinds, text in found:
            print(f"{path.relative_to(ROOT)}:{line}: [{', '.join(kinds)}] {text[:140]}")
    numbers = Counter(kind for *_, kinds, _ in found for kind in kinds)
    print(f"{len(found)} sentences;", ", ".join(f"{kind} {number}" for kind, number in sorted(numbers.items())))
    sys.exit(verdict(len(found), LIMIT) or 0)


if __name__ == "__main__":
    main()
