"""The README's example runs as it stands; its commands, files and subjects exist."""

import re
from pathlib import Path

import pytest

from icllab.cli import commands
from icllab.lab import registry

ROOT = Path(__file__).parents[1]
README = ROOT.joinpath("README.md").read_text("utf-8")


def test_the_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "neighbour" in printed
    assert float(printed.split(":")[-1]) < 1.0  # better than predicting 0, whose error is 1.1


def test_it_is_short():
    assert len(README.splitlines()) <= 120


def test_every_subject_has_a_line():
    subjects = {name.split("/")[0] for name in registry.claims()}
    assert set(re.findall(r"^\| `([a-z_]+)` \|", README, re.MULTILINE)) == subjects


@pytest.mark.parametrize("line", re.findall(r"^icl (.*?)(?:  +#.*)?$", README, re.MULTILINE))
def test_every_command_can_be_typed(line):
    commands.app.parse_args(line, exit_on_error=False, print_error=False)


def test_every_file_that_it_names_is_there():
    links = re.findall(r"\]\(([^)#]+)", README) + re.findall(r'src="([^"]+)"', README)
    assert len(links) >= 12
    assert [link for link in links if not ROOT.joinpath(link).is_file()] == []
