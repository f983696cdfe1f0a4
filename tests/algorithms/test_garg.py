"""Tasks and baselines beside the code of Garg et al., where a clone of it and PyTorch are there."""

import os
import runpy
from pathlib import Path

import pytest

CLONE = os.environ.get("ICLLAB_GARG_CLONE", "")


@pytest.mark.slow
@pytest.mark.skipif(not CLONE, reason="ICLLAB_GARG_CLONE names no clone of dtsip/in-context-learning")
@pytest.mark.filterwarnings("ignore")
def test_prompts_and_answers_are_theirs():
    pytest.importorskip("torch")
    bench = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "peers" / "garg.py"))
    wrong = [
        case for case in bench["cases"](Path(CLONE)) if case["difference"] > case["tolerance"] and not case["note"]
    ]
    assert not wrong
