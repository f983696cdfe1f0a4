"""The README's example runs as it stands; its commands, files and subjects exist."""

import re
from collections import Counter
from pathlib import Path

import pytest
from faults.processes import ICL, inside, strictly

from icllab.cli import commands
from icllab.core.spelling import with_error
from icllab.lab import records, registry

ROOT = Path(__file__).parents[2]
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


def test_the_numbers_that_it_prints_are_those_of_its_commands(capfd):
    command, printed = re.search(r"^\$ \.venv/bin/icl (.*)\n((?:.+\n)+)```", README, re.MULTILINE).groups()
    assert inside(capfd, [*ICL, *command.split()]) == (0, printed, "")
    measured, command = re.search(r"errs by (\S+ ± \S+) there[^`]*`\.venv/bin/icl (.*)`", README).groups()
    (claim,) = strictly(inside(capfd, [*ICL, *command.split(), "--json"])[1])["claims"]
    (row,) = [row for row in claim["findings"] if re.fullmatch("ICL error, d to infinity = .*, tau=2", row["what"])]
    assert with_error(row["measured"], row["standard_error"]) == measured
    assert f"{row['predicted']:.6g}" == printed.split()[-1]


def test_the_number_of_claims_is_that_of_the_registry():
    assert {int(number) for number in re.findall(r"(\d+) claims", README)} == {len(registry.claims())}
    assert "some fifty" not in README


def test_the_verdicts_that_it_counts_are_those_of_the_records():
    counted = Counter(
        (card.recorded, card.verdict or records.NOT_RECORDED) for card in map(records.card, registry.claims())
    )
    (sentence,) = re.findall(r"\*\*How many hold\?\*\*(.*?)`icl list`", README, re.DOTALL)
    stated = {}
    for size, words in re.findall(r"`(\w+)`: ([^.]*)\.", " ".join(sentence.split())):
        for number, word in re.findall(r"(\d+) (?:are |is )?(not recorded|\w+)", words):
            stated[size, {"hold": "holds"}.get(word, word)] = int(number)
    assert stated == counted
    assert "None fails" in " ".join(sentence.split())


def test_its_first_screen_says_why_and_where_it_stands_beside_other_libraries():
    screen = " ".join(README.partition("\n## ")[0].split())
    assert len(README.partition("\n## ")[0].splitlines()) <= 36
    for text in ("notebook", "JAX", "PyTorch", "FromTorch", "negative controls"):
        assert text in screen
    assert "every question" not in README
