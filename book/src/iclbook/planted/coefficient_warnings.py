"""Whether a learning coefficient that its interval misses is warned of: curves that come down from a part far away."""

import math

import jax
import numpy as np

from icllab.diagnostics.singular.extrapolation import extrapolated
from icllab.diagnostics.singular.limits import DECADES, POINTS, POPULATIONS, RARELY, RECOGNISED
from icllab.diagnostics.singular.minimum_geometry import UNSURE, Geometry

STATISTIC = "icllab.diagnostics.singular.extrapolation.extrapolated"
CLAIMS = ()
FAMILY = (
    "Two squares, of curvatures from 0.3 to 3, and four flat directions at n = 1e4; the slope of the free energy has "
    "beside theirs a part that falls to zero, in a line, over the two and a half decades."
)
AXIS = "what the slope falls by, $s$"
STRENGTHS = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
FALSE = dict.fromkeys(STRENGTHS, ("misses",)) | {3.0: ("misses", "holds")}
REPLICATES = 100
SAMPLES = 1e4
NOISE = 0.01  # of a mean slope over all repeats, over the root of the slope
VALUE, PARAMETERS = 1.0, 6


def verdicts(strength, *, replicates, key):
    """``"holds"`` or ``"misses"``, with ``", warned"`` if none of the considered curves fits."""
    log_t = math.log(SAMPLES / math.log(SAMPLES)) + np.linspace(-DECADES * math.log(10), 0, POINTS)
    intervals = np.stack([log_t[:-1], log_t[1:]], axis=1)
    falling = strength * np.linspace(1, 0, POINTS - 1)
    answers = []
    for one in jax.random.split(key, replicates):
        rng = np.random.default_rng(np.asarray(jax.random.key_data(one)))
        h = np.exp(rng.uniform(-1.2, 1.2, 2))
        slopes = falling + np.diff(np.log1p(np.exp(log_t)[:, None] * h).sum(1) / 2) / np.diff(log_t)
        spread = NOISE * math.sqrt(POPULATIONS.repeats) * np.sqrt(slopes)
        noisy = slopes + spread * rng.normal(size=(POPULATIONS.repeats, len(slopes)))
        limit = extrapolated(intervals, noisy, parameters=PARAMETERS, hypotheses=[Geometry(h, UNSURE)])
        low, high = limit.interval
        held = "holds" if low - 1e-9 <= VALUE <= high + 1e-9 else "misses"
        answers.append(held + (", warned" if limit.misfit < RARELY and limit.regular <= RECOGNISED else ""))
    return answers
