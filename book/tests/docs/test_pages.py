"""The pages are complete and hold on any machine, and what they name exists."""

import importlib.util
import itertools
import pkgutil
import re
from pathlib import Path

import pytest

from icllab.lab import registry

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "icllab"


_spec = importlib.util.spec_from_file_location("make_api", DOCS / "make_api.py")
make_api = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_api)


def test_every_module_has_a_place_in_the_reference(tmp_path):
    make_api.write(tmp_path)
    pages = {path.stem: path.read_text("utf-8") for path in (tmp_path / "api").glob("*.md")}
    assert set(pages) == {"names", "claims", *(path.parent.name for path in PACKAGE.glob("*/__init__.py"))}
    for line in ("`icllab.run` | ", "`icllab.tasks.LinearRegression` | ", "`icllab.theory.wishart` | "):
        assert re.search(rf"^\| {re.escape(line)}\w", pages["names"], re.MULTILINE)
    listed = {name for text in pages.values() for name in re.findall(r"^\.\. automodule:: (\S+)", text, re.MULTILINE)}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if path.name != "__init__.py" and len(parts) > 2 and parts[1] != "templates":
            assert ".".join(parts) in listed
    assert {f"iclbook.claims.{name.replace('/', '.')}.claim" for name in registry.claims()} <= listed


def test_a_page_of_a_subpackage_that_is_gone_goes_too(tmp_path):
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "gone.md").write_text("# gone")
    make_api.write(tmp_path)
    assert not (tmp_path / "api" / "gone.md").exists()


def test_every_page_is_in_a_table_of_contents():
    index = (DOCS / "index.md").read_text("utf-8")
    listed = set(re.findall(r"^([\w/-]+)$", index, re.MULTILINE))
    assert {f"api/{name}" for name in ("names", *make_api.subpackages())} <= listed
    assert {page.stem for page in DOCS.glob("*.md")} - {"index"} <= listed | {"equations", "gallery", "papers"}


def test_no_absolute_paths():
    for page in [*DOCS.rglob("*.md"), *DOCS.glob("*.py"), *ROOT.glob("*.md")]:
        if "_build" not in page.parts:
            assert not re.search(r"/(?:home|work|tmp|root|Users)/", page.read_text("utf-8")), page


def test_each_of_four_readers_is_sent_to_three_pages():
    *_, formula, torch, language, question = (DOCS / "reading.md").read_text("utf-8").split("\n## ")
    for section in (formula, torch, language, question):
        assert re.findall(r"^(\d)\. \[[^]]+\]\([\w-]+\.md\)", section, re.MULTILINE) == ["1", "2", "3"]
    assert "](docs/reading.md)" in (ROOT / "README.md").read_text("utf-8")


def commands(text):
    """(claim, size, control) of what a text runs, in a shell or in Python; "" where one is not given."""
    words = r"[`$]?\bicl (?:run|check|draw|export)((?:\\\n|[^\n`|\"])*)"
    for line in (found.replace("\\\n", " ").split() for found in re.findall(words, text)):
        given = dict(itertools.pairwise(line))
        if line and re.fullmatch(r"[a-z_]+/[a-z_]+", line[0]):
            yield line[0], given.get("--size", ""), given.get("--control", "")
    calls = r"icl\.(?:run|check|draw|load)\(\s*\"([a-z_]+/[a-z_]+)\"(?:,\s*(?:size=)?\"([a-z]+)\")?"
    yield from ((claim, size, "") for claim, size in re.findall(calls, text))


WRITTEN = [page for page in sorted(DOCS.glob("*.md")) if page.stem not in ("equations", "gallery", "papers")]


@pytest.mark.parametrize("page", [ROOT / "README.md", *WRITTEN], ids=lambda page: page.stem)
def test_what_a_page_runs_exists(page):
    subjects = {claim.split("/")[0] for claim in registry.claims()}
    for claim, size, control in commands(page.read_text("utf-8")):
        if claim.split("/")[0] not in subjects:  # a reader's own
            continue
        experiment = registry.load(claim)
        assert size in {"", *experiment.sizes}, (claim, size)
        assert control in {"", *experiment.controls}, (claim, control)


def test_commands_are_found_as_pages_write_them():
    text = """
`icl run a/b --size full`, or | `icl draw a/c` |
$ srun .venv/bin/icl run a/d --out /shared \\
    --size small --control wrong
sbatch --wrap ".venv/bin/icl run a/e --size medium --out x"
icl.run("a/f", "smoke", out=out), icl.check(
    "a/g"
)"""
    assert sorted(commands(text)) == [
        ("a/b", "full", ""),
        ("a/c", "", ""),
        ("a/d", "small", "wrong"),
        ("a/e", "medium", ""),
        ("a/f", "smoke", ""),
        ("a/g", "", ""),
    ]


def names(page):
    return set(re.findall(r"\{py:\w+\}`[^`<]*<(icllab[\w.]*)>`", page.read_text("utf-8")))


@pytest.mark.parametrize(
    "page", [page for page in sorted(DOCS.glob("*.md")) if names(page)], ids=lambda page: page.stem
)
def test_every_name_that_a_page_links_to_exists(page):
    for name in names(page):
        pkgutil.resolve_name(name)
