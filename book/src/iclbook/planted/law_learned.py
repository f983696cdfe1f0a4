"""Was a context law learned? Fast weights with a law after training, and untrained ones that lack more and more."""

import runpy
from pathlib import Path

import jax
import numpy as np

from icllab.diagnostics.contexts.verdicts import learned

FAST_WEIGHTS = runpy.run_path(str(Path(__file__).with_name("fast_weight_law.py")))

STATISTIC = "icllab.diagnostics.contexts.verdicts.learned"
CLAIMS = ()
FAMILY = "The family of fast weights: eps = 0.01 in the trained model, from 0 to 10 in the untrained one."
AXIS = r"share of what weights cannot have without training, $\epsilon$"
STRENGTHS = FAST_WEIGHTS["STRENGTHS"]
FALSE = dict.fromkeys(STRENGTHS[:4], ("learned", "absent")) | dict.fromkeys(STRENGTHS[5:], ("given", "absent"))
REPLICATES = 100
TRAINED = 0.01


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    tests = FAST_WEIGHTS["measured"]
    with jax.enable_x64(True):
        return [learned(tests(TRAINED, rng), tests(strength, rng)).outcome.value for _ in range(replicates)]
