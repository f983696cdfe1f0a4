"""A claim from elsewhere, whose files say when their code runs: the one of ``template``, with its record."""

import json
import shutil
from pathlib import Path

CLAIM = "random_matrices/resolvent"
PACKAGE = Path(__file__).parents[1] / "template" / "src" / "my_claims"
RAN = 'from pathlib import Path\n\nPath({mark!r}).write_text("ran")\n'


def planted(folder, mark):
    """A copy of the template's package in ``folder``; whatever of it is imported writes the file ``mark``."""
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*folder.rglob("*.py")]:
        path.write_text(RAN.format(mark=str(mark)) + path.read_text("utf-8"), "utf-8")
    return folder


def edited(folder, change):
    """The record of the claim in ``folder``, changed by ``change(record)``."""
    path = folder / CLAIM / "record.json"
    record = json.loads(path.read_text("utf-8"))
    change(record)
    path.write_text(json.dumps(record), "utf-8")


def installed(site, name="my_claims", group="icllab.claims", value="my_claims"):
    """Metadata in ``site`` of a wheel with an entry point, as an installer writes them."""
    metadata = site / f"{name}-1.2.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
