"""Write docs/coming-from.md: names of other libraries here, and the largest differences on equal inputs.

Made anew at each build from ``docs/peers/template.md`` and the records ``docs/peers/NAME.json``, which
``bench/peers.py`` measures. In a section of the template with a line ``<!-- measured: NAME ... -->``

- that line becomes the table of all cases of these peers;
- a table ``| there | here |`` gets a third column: the cases that name what stands in its first column.

Peers that no section names follow in sections of their own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_MARK = re.compile(r"^<!-- measured: (.*) -->$", re.MULTILINE)
_TABLE = re.compile(r"^\| there \| here \|\n\|---\|---\|\n((?:\|.*\n)+)", re.MULTILINE)
_WHAT = {"absolute": "", "relative": " of the largest", "standard errors": " standard errors"}

Row = Mapping[str, Any]


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Map each peer to its record."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}


def equal(row: Row) -> bool:
    """Return True if the two answers agree within the tolerance."""
    return row["difference"] is not None and row["difference"] <= row["tolerance"]


def shown(row: Row) -> str:
    """Return the largest difference with its unit; a dash if the peer no longer has the name."""
    if row["difference"] is None:
        return "-"
    return f"{row['difference']:.2g}{_WHAT[row['unit']]}"


def compared(cell: str, rows: Sequence[Row]) -> str:
    """Summarise the cases that call a function named in a cell."""
    codes = re.findall(r"`([^`]+)`", cell)
    named = [row for row in rows if any(re.search(rf"(?<!\w){re.escape(code)}(?!\w)", row["theirs"]) for code in codes)]
    if not named:
        return "not compared"
    named = [row for row in named if row["difference"] is not None] or named
    if named[0]["difference"] is None:
        return escaped(named[0]["note"])
    worst = max(named, key=lambda row: row["difference"] / row["tolerance"] if row["tolerance"] else row["difference"])
    text = f"equal in {sum(map(equal, named))} of {len(named)}, {shown(worst)}"
    return text if equal(worst) else escaped(f"{text}: {worst['note']}")


def escaped(cell: str) -> str:
    """Escape the sign that separates cells."""
    return cell.replace("|", r"\|")


def table(rows: Sequence[Row]) -> str:
    """Return the table of all cases with names, largest difference and verdict."""
    lines = ["| case | there | here | largest difference | tolerance | |", "|---|---|---|---|---|---|"]
    for row in rows:
        verdict = "equal" if equal(row) else "**removed**" if row["difference"] is None else "**not equal**"
        verdict += f": {row['note']}" * bool(row["note"])
        names = (text if "`" in text else f"`{text}`" for text in (row["theirs"], row["ours"]))
        cells = (row["case"], *names, shown(row), f"{row['tolerance']:.2g}", verdict)
        lines.append("| " + " | ".join(map(escaped, cells)) + " |")
    return "\n".join(lines)


def measured(name: str, record: Mapping[str, Any]) -> str:
    """Return the table of one peer, below a line with versions, date and command."""
    option = f" --checkout {name}=DIR" if record["clone"] else ""
    versions = f"`{record['peer']}`, {record['version']}, beside icl-lab {record['package']}"
    return (
        f"*Measured*: {versions} on {record['date']},\n"
        f"by `bench/peers.py --only {name}{option}`.\n\n{table(record['rows'])}"
    )


def section(text: str, records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a section of the template with its measured cases."""
    names = [name for match in _MARK.finditer(text) for name in match[1].split()]
    rows = [row for name in names if name in records for row in records[name]["rows"]]

    def with_cases(match: re.Match[str]) -> str:
        lines = match[1].splitlines()
        cells = [compared(re.split(r" \| ", line)[0], rows) for line in lines]
        body = "".join(f"{line} {cell} |\n" for line, cell in zip(lines, cells, strict=True))
        return f"| there | here | measured |\n|---|---|---|\n{body}"

    text = _TABLE.sub(with_cases, text)
    tables = "\n\n".join(measured(name, records[name]) for name in names if name in records)
    return _MARK.sub(lambda _: tables, text)


def summary(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one line per peer: its version and the number of equal cases."""
    lines = ["| peer | version | cases | equal | not equal |", "|---|---|---|---|---|"]
    for record in records.values():
        rows = [row for row in record["rows"] if row["difference"] is not None]
        good = sum(map(equal, rows))
        lines.append(f"| `{record['peer']}` | {record['version']} | {len(rows)} | {good} | {len(rows) - good} |")
    return "\n".join(lines)


def page(template: str, records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of the page."""
    parts = re.split(r"^(?=##+ )", template, flags=re.MULTILINE)
    named = {name for match in _MARK.finditer(template) for name in match[1].split()}
    others = [
        f"## {record['peer']}\n\n{measured(name, record)}\n" for name, record in records.items() if name not in named
    ]
    text = "".join(section(part, records) for part in parts) + "".join(f"\n{other}" for other in others)
    return text.replace("<!-- summary -->", summary(records))


def write(docs: Path) -> None:
    """Write the page into ``docs``."""
    template = (docs / "peers" / "template.md").read_text("utf-8")
    (docs / "coming-from.md").write_text(page(template, read(docs / "peers")), "utf-8")


if __name__ == "__main__":
    write(HERE)
