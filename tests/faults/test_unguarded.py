"""A script may start workers without a guard: they do not import it."""

import subprocess
import sys

import pytest
from faults.processes import CLAIM, CLAIMS, STORE, environment


@pytest.mark.parametrize("place", ["file", pytest.param("standard input", marks=pytest.mark.slow)])
def test_a_script_without_a_guard(place, tmp_path):
    out = tmp_path / "out"
    call = f"icl.run({CLAIM!r}, claims={str(CLAIMS)!r}, out={str(out)!r}, axes={{'dim': [2]}}, workers=2)"
    script = tmp_path / "script.py"
    script.write_text(f"import icllab as icl\nprint('imported')\n{call}\n")
    command = [sys.executable, "-" if place == "standard input" else str(script)]
    with script.open() as text:
        done = subprocess.run(command, stdin=text, capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("imported") == 1
    assert (out / STORE / "results.nc").is_file()
