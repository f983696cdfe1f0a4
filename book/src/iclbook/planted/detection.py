"""When a new context's data begin, does the mean training loss raise an alarm?"""

import functools

import jax
import numpy as np
import xarray as xr

from icllab.diagnostics.curves import detection

STATISTIC = "icllab.diagnostics.curves.detection.alarms"
CLAIMS = (
    "routing/blind_detection",
    "routing/blind_in_networks",
)
FAMILY = (
    "Mean losses of 800 examples a record, half the squared noise of four outputs, to which a context of frequency p "
    "adds 1/2 an example from the 20th of 48 records on, until it is learned; 400 runs without it set the threshold."
)
AXIS = "frequency of the hidden context, p"
STRENGTHS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.15)
FALSE = {0.0: ("alarm",), 0.15: ("silent",)}
REPLICATES = 300

RECORDS, ONSET, EXAMPLES, OUTPUTS, NOISE = 48, 20, 800, 4, 0.2
LEARNED = 0.8  # records over the frequency, in which the context's loss falls by a factor of e
CALIBRATION, RATE = 400, 0.02
LEVELS = np.geomspace(2, 60, 200)


def passages(strength, rngs):
    """First passages of the cumulative sums of runs, [run, level]."""
    late = np.arange(RECORDS) - ONSET
    rows = []
    for rng in rngs:
        loss = NOISE**2 / 2 * rng.chisquare(OUTPUTS * EXAMPLES, RECORDS) / EXAMPLES
        new = rng.binomial(EXAMPLES, np.where(late >= 0, strength, 0.0)) / EXAMPLES
        rows.append(loss + new / 2 * np.exp(-np.maximum(late, 0) * strength / LEARNED))
    sums = detection.cumulative_sums(detection.scores(np.stack(rows)))
    first = detection.first_passages(sums, np.arange(RECORDS), LEVELS)
    return xr.DataArray(first, coords={"level": LEVELS}, dims=("seed", "level"))


@functools.lru_cache
def threshold():
    """The level set by runs without the context."""
    return detection.threshold(passages(0.0, [np.random.default_rng([38, i]) for i in range(CALIBRATION)]), rate=RATE)


def verdicts(strength, *, replicates, key):
    """``alarm`` or ``silent``, one for each replicate."""
    digits = np.asarray(jax.random.key_data(key)).ravel().tolist()
    rngs = [np.random.default_rng([i, *digits]) for i in range(replicates)]
    alarms = detection.alarms(passages(strength, rngs), threshold())
    return ["alarm" if alarm else "silent" for alarm in alarms.notnull().values]
