"""The scripts of the page on clusters say what the batch systems and the library understand."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import icllab as icl

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
        ("claim submit", {"--jobs", "--time", "--partition", "--out", "--dry-run"}),
    ],
)
def test_the_options_of_its_commands_exist(name, some, capfd):
    from icllab.cli import main

    assert main([*name.split(), "--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capfd.readouterr().out))
    commands = re.findall(rf"icl {name} ([^`\n|]*(?:\\\n[^`\n]*)?)", PAGE)
    used = {option for command in commands for option in re.findall(r"--[a-z-]+", command)}
    assert used >= some
    assert used <= known
