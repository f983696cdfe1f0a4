"""Every citation can be looked up, and the reference list is well formed."""

import importlib.resources
import re
from pathlib import Path

import pytest

import icllab
from icllab.core import sources
from icllab.core.errors import InputError


@pytest.fixture
def bibliography(monkeypatch):
    """A reference list of our own in the package's place."""

    def use(text):
        class Files:
            def joinpath(self, name):
                return self

            def read_text(self, encoding):
                return text

        monkeypatch.setattr(importlib.resources, "files", lambda package: Files())
        sources.references.cache_clear()

    yield use
    sources.references.cache_clear()


def test_every_entry_has_a_line_and_is_itself():
    for key, reference in sources.references().items():
        assert reference.key == key
        assert reference.bibtex.startswith(f"@{reference.kind}{{{key},\n")
        assert reference.fields["year"] in reference.text
        assert "{" not in reference.text
        assert re.fullmatch(r"\d{4}", reference.fields["year"])
    assert sources.reference("Lu24").text.startswith("Yue M. Lu, Mary Letey, ")
    assert sources.reference("Raventos23").text.startswith("Allan Ravent\u00f3s, ")
    assert sources.reference("Lu24").short == "Lu et al. (2025)"
    assert sources.reference("MarchenkoPastur67").short == "Marchenko and Pastur (1967)"


def test_every_citation_in_the_library_is_in_the_list():
    package = Path(icllab.__file__).parent
    cited = 0
    for path in package.rglob("*.py"):
        for line in re.findall(r"^\s*Source: (.*)$", path.read_text(), re.MULTILINE):
            found = [sources.reference(key) for key in re.findall(r"\[(\w+)\]", line)]
            assert found, f"{path.name}: 'Source:' without a [Key]"
            cited += len(found)
    assert cited


def test_bibliography_is_bibtex_in_the_order_asked():
    text = sources.bibliography(map(sources.reference, ["Letey24", "Lu24"]))
    assert text.index("{Letey24,") < text.index("{Lu24,")
    assert text.count("\n\n@") == 1


def test_an_unknown_key_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="unknown source 'Lu25'; did you mean 'Lu24'"):
        sources.reference("Lu25")


ENTRY = "@misc{One,\n  author = {A},\n  title = {T},\n  year = {2024},\n}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENTRY + ENTRY, "expected different keys, got 'One' twice"),
        (ENTRY.replace("{A}", "A"), r"One: expected 'name = \{value\},' got 'author = A,'"),
        (ENTRY.replace("  year = {2024},\n", ""), "One: expected a field 'year'"),
        (ENTRY.removesuffix("}\n"), "expected every '@' to open an entry that a lone '}' closes"),
    ],
)
def test_a_malformed_list_is_refused(text, said, bibliography):
    bibliography(text)
    with pytest.raises(InputError, match=said):
        sources.references()
