"""The commands of *A claim of mine* in their order, in an empty folder: from nothing to a claim that conforms."""

import json
import re
import shlex
from pathlib import Path

from faults.processes import ICL, inside

from icllab.lab import conformance

TEXT = (Path(__file__).parents[3] / "docs" / "howto-claim.md").read_text("utf-8")
COMMANDS = [shlex.split(line)[1:] for line in re.findall(r"^\$ (icl .*)$", TEXT, re.MULTILINE)]
STATUSES = {"--control": 1, "--size smoke --record": 3}


def status(command):
    """The exit status that the page states."""
    line = " ".join(command)
    return next((code for words, code in STATUSES.items() if words in line), 0)


def test_the_commands_end_as_the_page_says(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ICLLAB_CONFIG", str(tmp_path / "config"))
    answers = {}
    for command in COMMANDS:
        name = command[command[0] == "claim"]
        returned, answers[name], err = inside(capfd, [*ICL, *command])
        assert returned == status(command), (command, answers[name], err)
    assert [command[command[0] == "claim"] for command in COMMANDS] == (
        ["new", *["run"] * 3, *["check"] * 3, "conform", "add", "list", "check", "cite", "run", "add"]
    )
    assert "13 of 13" in answers["conform"]
    assert "missing" not in answers["conform"]
    assert "conforms, no verdict</text>" in (tmp_path / "badge.svg").read_text()
    assert "nothing of it was run here" in answers["check"]
    assert json.loads((tmp_path / "config" / "claims.json").read_text()) == {"folders": []}


def test_the_table_has_every_item():
    table = TEXT[TEXT.index("| item |") : TEXT.index("The theory and the check")]
    items = re.findall(r"^\| ([a-z ]+) \| ", table, re.MULTILINE)
    whole = [
        "loads",
        *conformance.STATIC,
        "smoke",
        "no network",
        "golden numbers",
        *conformance.RECORDED,
        "measured again",
    ]
    assert items == ["item", *whole]
