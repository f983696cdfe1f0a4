"""Check an environment in which icl-lab and the wheel of ``template`` are installed; run by its own interpreter.

    python -m venv fresh && fresh/bin/pip install ICL_LAB_WHEEL ./template && fresh/bin/python -P tests/installed.py

The claim is listed, checked, cited and drawn without an import of its code; then it runs, and has the recorded numbers.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

CLAIM, WHEEL = "random_matrices/resolvent", "my-claims 0.1.0"
ROOT = Path(__file__).resolve().parents[1]


def answer(*words):
    """The JSON object of a command, which must end with status 0."""
    from icllab.cli import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        status = main([*words, "--json"])
    assert status == 0, (words, status, text.getvalue())
    return json.loads(text.getvalue())


def imported():
    """Modules of the template's package, or of its claim."""
    return [name for name in sys.modules if name.startswith(("my_claims", "icllab_claim"))]


def main():
    """Examine the environment; an assertion says what is wrong."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["ICLLAB_CONFIG"] = folder
        import icllab

        assert not Path(icllab.__file__).is_relative_to(ROOT / "src"), "expected an installed wheel, got the checkout"
        listing = answer("list")
        (row,) = [row for row in listing["claims"] if row["claim"] == CLAIM]
        assert (row["origin"], row["record"]["small"]["verdict"], listing["warnings"]) == (WHEEL, "holds", [])
        assert answer("check", CLAIM, "--recorded")["claims"][0]["verdict"] == "holds"
        assert "MarchenkoPastur67" in answer("cite", CLAIM)["bibtex"]
        answer("draw", CLAIM, "--recorded")
        assert imported() == [], imported()
        assert answer("run", CLAIM, "--size", "smoke")["numbers"] == "as recorded"
        assert imported() != []
        answer("new", "mine/first", "--from", "theory")
        os.chdir("/")
    print(f"icl-lab {icllab.__version__} with {WHEEL}: listed without running, run as recorded")


if __name__ == "__main__":
    main()
