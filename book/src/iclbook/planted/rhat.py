"""Whether chains agree, by R-hat at most 1.01."""

import jax
import numpy as np
from scipy.signal import lfilter

from icllab.diagnostics.sampling.convergence import rhat

STATISTIC = "icllab.diagnostics.sampling.convergence.rhat"
CLAIMS = ()
FAMILY = (
    "Four chains of 1000 draws of N(0, 1) whose neighbours correlate by 0.6, as 1000 independent draws; one of "
    "the chains is shifted."
)
AXIS = "shift of one chain / standard deviation"
STRENGTHS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
AGREE, DISAGREE = "agree", "disagree"
FALSE = {0.0: (DISAGREE,), 2.0: (AGREE,)}
REPLICATES = 400

CHAINS, DRAWS, SHARE = 4, 1000, 0.6


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate; the chains start in their stationary distribution."""
    rng, names = np.random.default_rng(np.asarray(jax.random.key_data(key))), []
    for _ in range(replicates):
        noise = rng.normal(size=(CHAINS, DRAWS))
        noise[:, 1:] *= np.sqrt(1 - SHARE**2)
        chains = lfilter([1.0], [1.0, -SHARE], noise, axis=1)
        chains[0] += strength
        names.append(AGREE if rhat(chains) <= 1.01 else DISAGREE)
    return names
