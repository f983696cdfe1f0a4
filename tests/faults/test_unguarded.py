"""A script may start workers without a guard: they do not import it."""

import subprocess
import sys

from faults.processes import CLAIM, CLAIMS, STORE, environment


def test_a_script_without_a_guard(tmp_path):
    out = tmp_path / "out"
    call = f"icl.run({CLAIM!r}, claims={str(CLAIMS)!r}, out={str(out)!r}, workers=2)"
    script = tmp_path / "script.py"
    script.write_text(f"import icllab as icl\nprint('imported')\n{call}\n")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("imported") == 1
    assert (out / STORE / "results.nc").is_file()
