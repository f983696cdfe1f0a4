"""The claim in CONTRIBUTING.md runs as it stands there: it holds, and fails under its negative control."""

import re
import shlex
import time
from pathlib import Path

import pytest

from icllab.cli import main
from icllab.lab import api, registry

TEXT = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text("utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the folder that the page tells to make."""
    (name,) = re.findall(r"Make a folder `(.*?)` with", TEXT)
    sources = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    path = tmp_path / name
    path.mkdir(parents=True)
    for file, source in zip(("claim.py", "measure.py"), sources, strict=True):
        (path / file).write_text(source, "utf-8")
    monkeypatch.chdir(tmp_path)
    return path.parent


def commands():
    return [shlex.split(line)[1:] for line in re.findall(r"^\$ (icl .*)$", TEXT, re.MULTILINE)]


def test_the_page_shows_two_commands():
    assert [command[0] for command in commands()] == ["run", "run"]


@pytest.mark.parametrize(("which", "status", "verdict"), [(0, 0, "holds"), (1, 1, "fails")])
def test_the_commands_end_as_the_page_says(folder, capfd, which, status, verdict):
    start = time.process_time()  # what else the machine does is not the claim's cost
    try:
        returned = main(commands()[which])
    except SystemExit as ended:
        returned = ended.code
    assert returned == status
    assert verdict in capfd.readouterr().out
    assert time.process_time() - start < 20


def test_every_finding_fails_or_holds_and_the_figure_is_drawn(folder):
    from icllab.figures import png_bytes

    dataset = api.run("my_subject/ridge_on_one_context", claims=folder, out="here")
    verdict = api.check("my_subject/ridge_on_one_context", claims=folder, out="here")
    assert [finding.outcome.value for finding in verdict.findings] == ["holds"] * 5
    assert png_bytes(api.draw(dataset, claims=folder))
    assert registry.load("my_subject/ridge_on_one_context", folder).controls.keys() == {"overregularised"}
