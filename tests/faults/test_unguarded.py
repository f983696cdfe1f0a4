"""A script that starts workers whenever it is imported ends in one line that says where the guard goes."""

import subprocess
import sys

from faults.processes import CLAIM, CLAIMS, environment

SAID = (
    "icllab.core.errors.InputError: workers: expected a script that starts none when it is imported, got "
    "one that does; put the call under `if __name__ == '__main__':`"
)
CALL = "icl.run({claim!r}, 'smoke', claims={claims!r}, out={out!r}, workers=2, fresh=True)"
OWN_CHILD = """
import multiprocessing
import icllab as icl
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
else:
    try:
        {call}
    except icl.experiments.registry.InputError as error:
        print(error)
"""


def ran(tmp_path, text):
    script = tmp_path / "script.py"
    out = tmp_path / "out"
    script.write_text(text.replace("{call}", CALL.format(claim=CLAIM, claims=str(CLAIMS), out=str(out))))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=environment(), check=False
    )
    return done, out


def test_the_parent_alone_says_so_in_its_last_line(tmp_path):
    done, out = ran(tmp_path, "import icllab as icl\n{call}\n")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == SAID
    assert done.stderr.count("Traceback") == 1
    assert not list(out.rglob("*.before-*"))  # no child set the store aside
    assert not list(out.rglob("*.nc"))


def test_the_child_of_another_gets_the_error_itself(tmp_path):
    done, out = ran(tmp_path, OWN_CHILD)
    assert done.stdout.strip() == SAID.partition(": ")[2]
    assert done.stderr == ""
    assert not out.exists()
