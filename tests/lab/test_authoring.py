"""Templates are claims that run; the template repository is a book of one; a badge says how many items are met."""

import os
import re
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path
from xml.etree import ElementTree

import pytest
import strangers
from packaging.requirements import Requirement

import icllab as icl
from icllab.lab import authoring, conformance, registrations, registry
from icllab.testing import CONTRACTS

TEMPLATES = authoring.templates()
REPOSITORY = strangers.PACKAGE.parents[1]
MEASURED = ("record.json", "record.nc", "badge.svg")
CACHES = ("__pycache__", ".pytest_cache")
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
    assert f"icl claim conform {folder.relative_to(tmp_path).as_posix()}" in (folder / "README.md").read_text().replace(
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
    assert {item: fault for item, fault in conformance.conform(folder)[1].items() if fault} == {}


def texts(folder):
    """The text of each file, by its path in the folder; what runs have made apart."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return {
        path.as_posix(): (folder / path).read_text("utf-8")
        for path in files
        if path.name not in MEASURED and not any(part in CACHES or part.endswith(".egg-info") for part in path.parts)
    }


def test_the_template_repository_is_what_the_command_writes(tmp_path):
    written = authoring.new_book("my_claims", authoring.EXAMPLE_TEMPLATE, tmp_path)
    assert texts(tmp_path / "my_claims") == texts(REPOSITORY)
    assert {*written} == {tmp_path / "my_claims" / path for path in texts(REPOSITORY)}
    claim = registry.load(strangers.CLAIM, strangers.PACKAGE)
    for item, faults in conformance.RECORDED.items():
        assert list(faults(claim, strangers.PACKAGE / strangers.CLAIM)) == [], item
    assert (REPOSITORY / "badge.svg").read_text() == authoring.badge(12, 12)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_book_has_its_names_and_its_claim(template, tmp_path, monkeypatch):
    package, subject, finding = (f"{letter}_{uuid.uuid4().hex}" for letter in "bsf")
    authoring.new_book(f"{package}/{subject}/{finding}", template, tmp_path / "books")
    folder = tmp_path / "books" / package
    assert texts(folder).keys() == {
        re.sub("my_claims", package, path.replace("random_matrices", subject).replace("resolvent", finding))
        for path in texts(REPOSITORY)
    }
    for path, text in texts(folder).items():
        if finding not in path:  # the claim's own files are those of its template
            assert not re.search("my[_-]claims|random_matrices|resolvent", text), path
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == package.replace("_", "-")
    laboratory = tomllib.loads((REPOSITORY.parent / "pyproject.toml").read_text())["project"]
    assert Requirement(*project["project"]["dependencies"]).specifier.contains(laboratory["version"])
    assert all((folder / path).is_dir() for path in project["tool"]["pytest"]["ini_options"]["testpaths"])
    ((_, value),) = project["project"]["entry-points"]["icllab.claims"].items()
    strangers.installed(folder / "src", name=package, value=value)
    monkeypatch.syspath_prepend(str(folder / "src"))
    monkeypatch.setattr(registrations, "_installed", registrations._installed.__wrapped__)
    place = folder / "src" / package / subject / finding
    assert registry.foreign()[0][f"{subject}/{finding}"] == registry.Foreign(place / "claim.py", f"{package} 1.2")
    claim = registry.load(f"{subject}/{finding}", place)
    controls = re.search("^CONTROLS := (.*)$", (folder / "Makefile").read_text(), re.MULTILINE)
    assert controls[1].split() == [*claim.controls]
    printed = subprocess.run(["make", "-n", "record"], cwd=folder, capture_output=True, text=True).stdout
    assert all(f'"--control {control}"' in printed for control in claim.controls)


@pytest.mark.slow
def test_a_new_book_is_recorded_and_tested_by_its_makefile(tmp_path):
    authoring.new_book("new_book", authoring.EXAMPLE_TEMPLATE, tmp_path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["make", "record", "test"]
    done = subprocess.run(
        command, cwd=tmp_path / "new_book", env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{2 + len(CONTRACTS)} passed" in done.stdout


@pytest.mark.parametrize(("met", "words"), [(12, "conforms, no verdict"), (11, "11 of 12"), (0, "0 of 12")])
def test_a_badge_is_an_image_with_its_words(met, words):
    tree = ElementTree.fromstring(authoring.badge(met, 12))
    texts = [element.text for element in tree.iter() if element.tag.endswith("text")]
    assert texts == ["icl-lab", words]
    rectangles = [element for element in tree.iter() if element.tag.endswith("rect")]
    assert int(tree.get("width")) == sum(int(rectangle.get("width")) for rectangle in rectangles)
    colours = {rectangle.get("fill") for rectangle in rectangles}
    assert ("#00734f" in colours) == (met == 12)
