"""HTML from text: everything but :class:`Html` is escaped, so that no stored text becomes markup."""

import html


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
