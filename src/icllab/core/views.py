"""How results show themselves in a notebook: a heading and a table, as HTML without styles of its own."""

import html
from collections.abc import Iterable, Mapping, Sequence


def html_table(heading: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A heading in bold and a table; every cell is escaped."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<b>{html.escape(heading)}</b><table><thead><tr>{names}</tr></thead><tbody>{cells}</tbody></table>"


def html_fields(heading: str, fields: Mapping[str, object]) -> str:
    """A heading in bold and one row a field."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>" for name, value in fields.items()
    )
    return f"<b>{html.escape(heading)}</b><table><tbody>{rows}</tbody></table>"
