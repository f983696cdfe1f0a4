"""Sections in a process of their own: a network by its name, resuming, an end after the stated cost, and errors."""

import json
import sys

import pytest

from icllab.core.errors import EnvironmentFault, InputError
from icllab.examination import child
from icllab.examination.child import sections_in_child

NETWORK = """
from icllab import algorithms
from icllab.core.prompt import RegressionPrompt

print("a line on stdout")


def network():
    return algorithms.Ridge(0.25)
"""
TASK = "linear_regression:raventos dim=2 length=4"


def request(folder, file, **changes):
    plain = {"name": "mine", "task": TASK, "key": 0, "size": "small", "minutes": 5.0, "trained_on": None}
    plain |= {"checkpoints": None, "load": None, "store": None, "family": None, "heads": None}
    return plain | {"network": f"{file}:network", "all": ["in_context"], "folder": str(folder)} | changes


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "network.py"
    path.write_text(NETWORK)
    return path


@pytest.mark.slow
def test_a_section_runs_in_a_child_and_is_read_from_its_file_the_second_time(file, tmp_path):
    said = []
    header, (section,) = sections_in_child(request(tmp_path / "cells", file), said.append)
    assert section.finding.verdict == "learns in context"
    assert header["task"] == TASK
    assert list(header["files"]) == ["network.py"]
    assert said[0].startswith("in_context: about ")
    said.clear()
    _, (again,) = sections_in_child(request(tmp_path / "cells", file), said.append)
    assert again.finding == section.finding
    assert not said
    file.write_text(NETWORK.replace("0.25", "0.5"))
    with pytest.raises(InputError, match="weights is"):
        sections_in_child(request(tmp_path / "cells", file), said.append)


def command(tmp_path, body):
    """A child that answers as ``body`` does."""
    path = tmp_path / "child.py"
    path.write_text("import json, sys, time\nrequest = json.load(sys.stdin)\n" + body)
    return sys.executable, str(path)


def test_a_section_beyond_twice_its_cost_is_ended_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "LEAST", 0.5)
    body = """
print(json.dumps({"header": {"weights": "1"}}), flush=True)
for name in request["sections"]:
    print(json.dumps({"begin": name, "cost": 0.1}), flush=True)
    if name == "algorithm":
        time.sleep(60)
    print(json.dumps({"end": name, "status": "not asked", "reason": "no"}), flush=True)
"""
    names = ["contract", "algorithm", "theory"]
    plain = request(tmp_path, tmp_path / "network.py", all=names)
    _, sections = sections_in_child(plain, lambda line: None, command(tmp_path, body))
    assert [section.status for section in sections] == ["not asked", "ended", "not asked"]
    assert "twice" in sections[1].reason or "2 times its stated cost" in sections[1].reason


def test_files_that_run_and_files_that_the_task_reads_have_a_digest(file, tmp_path):
    text = tmp_path / "book.txt"
    text.write_text("once upon a time")
    plain = request(tmp_path, file, task=f"text {text} tokens=8")
    before = child.files(plain)
    assert sorted(before) == ["book.txt", "network.py"]
    text.write_text("twice upon a time")
    assert child.files(plain)["book.txt"] != before["book.txt"]


def test_an_error_of_the_child_is_one_line_here(tmp_path):
    body = 'print(json.dumps({"error": "network: expected a file", "exit_status": 2}), flush=True)\n'
    plain = request(tmp_path, tmp_path / "network.py")
    with pytest.raises(InputError, match="network: expected a file"):
        sections_in_child(plain, lambda line: None, command(tmp_path, body))


def test_a_child_that_dies_before_the_first_section_is_a_fault(tmp_path):
    plain = request(tmp_path, tmp_path / "network.py")
    with pytest.raises(EnvironmentFault, match="ended before the first"):
        sections_in_child(plain, lambda line: None, command(tmp_path, "sys.exit(3)\n"))


def test_a_child_that_dies_in_a_section_loses_that_section_alone(tmp_path):
    body = """
print(json.dumps({"header": {}}), flush=True)
for name in request["sections"]:
    print(json.dumps({"begin": name, "cost": 5}), flush=True)
    if name == "contract":
        sys.exit(9)
    print(json.dumps({"end": name, "status": "not asked", "reason": "no"}), flush=True)
"""
    plain = request(tmp_path, tmp_path / "network.py", all=["contract", "theory"])
    _, sections = sections_in_child(plain, lambda line: None, command(tmp_path, body))
    assert [section.status for section in sections] == ["ended", "not asked"]
    assert json.dumps(plain)
