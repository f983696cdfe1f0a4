"""The README's example runs as it stands, and its table of claims is the registry's."""

import re
from pathlib import Path

from icllab.experiments import registry

README = Path(__file__).parents[1].joinpath("README.md").read_text()


def test_the_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "neighbour" in printed
    assert float(printed.split(":")[-1]) < 1.0  # better than predicting 0, whose error is 1.1


def test_every_claim_is_in_the_table():
    assert set(re.findall(r"^\| `([a-z_]+/[a-z_]+)`", README, re.MULTILINE)) == set(registry.claims())
