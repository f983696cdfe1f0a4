"""Whether a training curve has a break, and where."""

import jax
import numpy as np
import xarray as xr

from icllab.diagnostics.curves.breakpoints import change_points

STATISTIC = "icllab.diagnostics.curves.breakpoints.change_points"
CLAIMS = (
    "singular/llc_along_training",
    "singular/toy_superposition",
)
FAMILY = (
    "Smooth falls (a power law, an exponential, a line in log t; noise of neighbouring records with correlation 0, .5 "
    "or .7), 40 records over three decades, and a drop of so many standard deviations of the noise at t = 300."
)
AXIS = "drop / standard deviation of the noise"
STRENGTHS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 10.0)
NO, YES, ELSEWHERE = "no break", "break", "break elsewhere"
FALSE = {0.0: (YES, ELSEWHERE), 10.0: (NO, ELSEWHERE)}
REPLICATES = 108

STEPS, PLACE, NOISE = np.geomspace(10.0, 1e4, 40), 300.0, 0.03
FALLS = (
    lambda t: 1 / (1 + (t / 100) ** 0.5),
    lambda t: np.exp(-((t / 1000) ** 0.5)),
    lambda t: 1 - 0.1 * np.log(t / 10),
)
CORRELATIONS = (0.0, 0.5, 0.7)


def curve(strength, replicate, rng):
    """A curve with a drop and correlated noise; replicates cycle through falls and correlations."""
    fall, rho = FALLS[replicate % 3], CORRELATIONS[replicate // 3 % 3]
    noise = rng.normal(size=len(STEPS))
    for i in range(1, len(noise)):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return fall(STEPS) - strength * NOISE * (PLACE <= STEPS) + NOISE * noise


def verdicts(strength, *, replicates, key):
    """One verdict for each replicate: a break is found if the interval of a reported break holds the drop."""
    found = []
    for i in range(replicates):
        rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, i))))
        records = xr.DataArray(curve(strength, i, rng), dims="step", coords={"step": STEPS})
        table = change_points(records, key=int(rng.integers(2**31)), resamples=100, progress=False)
        low, high = table["change_interval"].values[table["reported"].values].T
        found.append(NO if not len(low) else YES if ((low <= PLACE) & (high >= PLACE)).any() else ELSEWHERE)
    return found
