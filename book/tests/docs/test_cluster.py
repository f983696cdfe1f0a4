"""The scripts of the page on clusters say what the batch systems and the library understand."""

import ast
import inspect
import os
import re
from pathlib import Path

import pytest

import icllab as icl
from icllab.lab.executors import parameter

PAGE = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text("utf-8")
(SCRIPT,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "icl.run(" in block)


def calls(text):
    """Name -> a call of that name."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {ast.unparse(call.func): call for call in found}


def test_the_script_calls_the_library_as_it_is():
    script = calls(SCRIPT)
    for name, function in {"icl.run": icl.run, "icl.check": icl.check}.items():
        call = script[name]
        bound = inspect.signature(function).bind(*call.args, **{k.arg: k.value for k in call.keywords})
        assert bound.arguments


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("run", {"--shard", "--scheduler", "--workers", "--size", "--out", "--dry-run"}),
        ("submit", {"--slurm", "--print", "--jobs", "--time", "--partition", "--image", "--volume"}),
    ],
)
def test_the_options_of_its_commands_exist(name, some, capfd):
    from icllab.cli import main

    assert main([name, "--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capfd.readouterr().out))
    commands = re.findall(rf"icl {name} ([^`\n|]*(?:\\\n[^`\n]*)?)", PAGE)
    used = {option for command in commands for option in re.findall(r"--[a-z-]+", command)}
    assert used >= some
    assert used <= known


def test_parameters_of_slurm_are_those_of_submitit(tmp_path, monkeypatch):
    """No Slurm is needed to make a job's script."""
    import submitit

    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (text,) = re.findall(r"--scheduler slurm:(\S+=\S+,\S+)$", PAGE, re.MULTILINE)
    parameters = dict(parameter(pair) for pair in text.split(","))
    executor = submitit.AutoExecutor(folder=tmp_path, cluster="slurm", slurm_max_num_timeout=3)
    executor.update_parameters(**parameters)
    script = executor._executor._make_submission_file_text("command", "id")
    assert all(f"#SBATCH --{line}" in script for line in ("partition=normal", "time=240", "cpus-per-task=1", "mem=4GB"))
