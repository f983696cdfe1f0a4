"""``icl claim new``, ``conform`` and ``add``: claims of a user's own, and claims from elsewhere."""

from pathlib import Path
from typing import TYPE_CHECKING

from icllab.cli.reports import Report, lines, typeset
from icllab.core.errors import InputError
from icllab.core.files import disk_faults, write_atomically
from icllab.lab import registry

if TYPE_CHECKING:
    from rich.console import Console

CONSENT = "their code runs on `icl run` alone; list, check, draw, cite and the page show what their records state"


def add(folder: Path, *, remove: bool) -> Report:
    """Note a folder of claims, or forget it; nothing of it is imported."""
    from icllab.lab import registrations

    if remove:
        path = registrations.remove(folder)
        return Report({"removed": path}, lambda console: lines(console, [("removed", path)]))
    if not folder.is_dir():
        raise InputError(f"icl claim add: expected a folder of claims, got {str(folder)!r}, which is not a folder")
    names = registry.foreign_files(folder)
    if not names:
        form = f"<subject>/<finding>/claim.py in {folder.resolve()}"
        raise InputError(f"icl claim add: expected {form}, found none; `icl claim new` makes one")
    if clashes := registry.clashes(folder):
        raise InputError(
            f"icl claim add: expected names that are free, got others' ({'; '.join(clashes)}); rename the folder"
        )
    if places := registry.twice(folder):
        added = f"got {'; '.join(places)}; `icl claim add --remove` forgets that"
        raise InputError(f"icl claim add: expected claims that are not added yet, {added}")
    path = registrations.add(folder)
    data = {"added": path, "claims": list(names), "note": CONSENT}
    rows = [("added", path), *(("claim", name) for name in names), ("note", CONSENT)]
    return Report(data, lambda console: lines(console, rows))


def new(name: str, template: str, *, book: bool) -> Report:
    """Write a claim or a book from a template below the working directory."""
    from icllab.lab import authoring

    if book:
        files = authoring.new_book(name, template)
        commands = [f"cd {name.partition('/')[0]}", "pip install -e '.[test]'", "make record", "make test"]
    else:
        files = authoring.new(name, template)
        commands = [f"icl run {name} --claims {name} --size smoke", f"icl claim conform {name}"]

    def plain(console: "Console") -> None:
        lines(console, [*(("written", file) for file in files), *(("next", command) for command in commands)])

    return Report({"book" if book else "claim": name, "template": template, "files": files, "next": commands}, plain)


def conform(folder: Path, badge: Path | None) -> Report:
    """Examine a claim's folder, whose code runs; exit status 1 where something is missing."""
    from icllab.lab import authoring, conformance

    name, items = conformance.conform(folder)
    met = sum(not fault for fault in items.values())
    if badge is not None:
        with disk_faults(f"cannot write {badge}", "nothing was written"):
            badge.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(badge, authoring.badge(met, len(items)).encode(), "nothing was written")

    def plain(console: "Console") -> None:
        from rich.padding import Padding
        from rich.table import Table

        console.print(typeset((name, "bold"), f"  {met} of {len(items)}"))
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for item, fault in items.items():
            state = typeset(("missing", "bold red")) if fault else typeset(("ok", "green"))
            table.add_row(state, typeset(item), typeset(fault))
        console.print(Padding(table, (0, 0, 0, 2)))
        if badge is not None:
            lines(console, [("badge", badge)])

    rows = [{"item": item, "met": not fault, "missing": fault} for item, fault in items.items()]
    data = {"claim": name, "conforms": met == len(items), "items": rows, "badge": badge}
    return Report(data, plain, int(met < len(items)))
