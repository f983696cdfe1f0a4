"""Templates are claims that run; the template repository is one of them; a badge says how many items are met."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import strangers

import icllab as icl
from icllab.lab import authoring, conformance, registry

TEMPLATES = authoring.templates()
LONGEST = 100


def written(template, tmp_path):
    """The name and the folder of a new claim."""
    authoring.new("mine/first", template, tmp_path)
    return "mine/first", tmp_path / "mine" / "first"


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_short_and_lacks_but_its_record(template, tmp_path):
    name, folder = written(template, tmp_path)
    claim = registry.load(name, folder)
    for path in (authoring.TEMPLATES / template).glob("*.py"):
        assert len(path.read_text().splitlines()) < LONGEST
    for item, faults in conformance.STATIC.items():
        assert list(faults(claim, folder)) == [], item
    assert f"icl conform {folder.relative_to(tmp_path).as_posix()}" in (folder / "README.md").read_text().replace(
        f"{tmp_path.as_posix()}/", ""
    )


@pytest.mark.parametrize(
    "template", ["trained", pytest.param("double_descent", marks=pytest.mark.slow)]
)  # book/tests/docs/test_howto_claim.py runs the third
def test_a_template_runs_at_smoke(template, tmp_path):
    name, folder = written(template, tmp_path)
    dataset = icl.run(name, "smoke", out=tmp_path / "out", claims=folder, progress=False)
    assert list(conformance.impurities(registry.load(name, folder), dataset)) == []


@pytest.mark.parametrize(
    ("template", "claim"), [("double_descent", "asymptotics/double_descent"), ("trained", "descent/best_step")]
)
def test_claims_of_the_fixture_book_are_those_of_the_templates(template, claim, tmp_path):
    _, folder = written(template, tmp_path)
    for name in ("claim.py", "measure.py"):
        assert registry.file(claim).with_name(name).read_text() == (folder / name).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_test_of_a_template_passes_alone(template, tmp_path):
    """The claim holds at ``small`` and fails under its controls, under plain pytest."""
    _, folder = written(template, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, folder]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_recorded_template_conforms(template, tmp_path):
    from icllab.cli import main

    name, folder = written(template, tmp_path)
    places = ["--claims", str(folder), "--out", str(tmp_path / "out")]
    for options in (["--size", "smoke"], [], *(["--control", c] for c in registry.load(name, folder).controls)):
        assert main(["run", name, *options, *places]) in (0, 1)
        main(["check", name, *options, *places, "--record"])
    assert {item.name: item.fault for item in conformance.conform(folder)[1] if item.fault} == {}


def test_the_template_repository_is_the_template_of_the_library():
    folder = strangers.PACKAGE / strangers.CLAIM
    for path in folder.glob("*.py"):
        source = "test_claim.py" if path.name.startswith("test_") else f"theory/{path.name}"
        assert path.read_bytes() == (authoring.TEMPLATES / source).read_bytes()
    assert "test_resolvent.py" in {path.name for path in folder.iterdir()}
    claim = registry.load(strangers.CLAIM, folder)
    for item, faults in conformance.RECORDED.items():
        assert list(faults(claim, folder)) == [], item
    assert (strangers.PACKAGE.parents[1] / "badge.svg").read_text() == authoring.badge(12, 12)


@pytest.mark.parametrize(("met", "words"), [(12, "conforms, no verdict"), (11, "11 of 12"), (0, "0 of 12")])
def test_a_badge_is_an_image_with_its_words(met, words):
    tree = ElementTree.fromstring(authoring.badge(met, 12))
    texts = [element.text for element in tree.iter() if element.tag.endswith("text")]
    assert texts == ["icl-lab", words]
    rectangles = [element for element in tree.iter() if element.tag.endswith("rect")]
    assert int(tree.get("width")) == sum(int(rectangle.get("width")) for rectangle in rectangles)
    colours = {rectangle.get("fill") for rectangle in rectangles}
    assert ("#00734f" in colours) == (met == 12)


def test_the_page_of_the_template_names_its_own_files():
    text = (strangers.PACKAGE.parents[1] / "README.md").read_text()
    for name in re.findall(r"`(src/[\w/]+|pyproject.toml)`", text):
        assert (Path(strangers.PACKAGE).parents[1] / name).exists(), name
