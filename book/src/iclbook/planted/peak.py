"""Does a curve rise and fall again, beyond its own noise and inside the record?"""

import jax
import numpy as np
import xarray as xr

from icllab.diagnostics.curves.peaks import peaks

STATISTIC = "icllab.diagnostics.curves.peaks.peaks"
CLAIMS = (
    "routing/peaks_in_networks",
    "routing/susceptibility_peaks",
)
FAMILY = (
    "Logarithms of 240 records that rise by r over 60 and then fall by 6, with noise of 0.15 and a correlation of 0.8 "
    "from record to record; at r = 0 as many only fall, step down, or step up."
)
AXIS = "rise of the logarithm, r"
STRENGTHS = (0.0, 0.3, 0.6, 0.9, 1.2, 1.8, 2.4)
FALSE = {0.0: ("peak",), 2.4: ("none",)}
REPLICATES = 300

RECORDS, TOP, NOISE, CORRELATION = 240, 60, 0.15, 0.8


def curve(strength, index):
    """The logarithm of the curve without noise."""
    t = np.arange(RECORDS)
    fall = -6 * np.clip((t - TOP) / (RECORDS - TOP), 0, 1)
    if strength:
        return strength * np.clip(t / TOP, 0, 1) + fall
    return (fall, -3.0 * (t >= TOP), 3.0 * (t >= RECORDS - TOP))[index % 3]


def verdicts(strength, *, replicates, key):
    """``peak`` or ``none``, one for each replicate."""
    rows = []
    for i in range(replicates):
        rng = np.random.default_rng([i, *np.asarray(jax.random.key_data(key)).ravel().tolist()])
        noise = NOISE * rng.normal(size=RECORDS)
        for t in range(1, RECORDS):
            noise[t] = CORRELATION * noise[t - 1] + (1 - CORRELATION**2) ** 0.5 * noise[t]
        rows.append(np.exp(curve(strength, i) + noise))
    curves = xr.DataArray(np.stack(rows), coords={"step": np.arange(RECORDS)}, dims=("seed", "step"))
    return ["peak" if peaked else "none" for peaked in peaks(curves)["peaked"].values]
