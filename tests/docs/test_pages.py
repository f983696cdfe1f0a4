"""The pages are complete and hold on any machine."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "icllab"


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if path.name != "__init__.py" and len(parts) > 1:
            yield ".".join(("icllab", *parts))


def test_every_module_has_a_place_in_the_reference():
    listed = {
        name
        for page in (DOCS / "api").glob("*.md")
        for name in re.findall(r"^\.\. automodule:: (\S+)", page.read_text("utf-8"), re.MULTILINE)
    }
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert listed == {*modules(), *(f"icllab.{room}" for room in rooms)}


def test_no_absolute_paths():
    for page in [*DOCS.rglob("*.md"), *DOCS.glob("*.py"), *ROOT.glob("*.md")]:
        if "_build" not in page.parts:
            assert not re.search(r"/(?:home|work|tmp|root|Users)/", page.read_text("utf-8")), page
