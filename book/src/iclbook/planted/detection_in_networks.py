"""While a network's loss falls, does a rise of the loss find the beginning of a program's data?"""

import jax
import numpy as np
import xarray as xr

from iclbook.claims.routing import _detection
from iclbook.claims.routing.blind_in_networks import claim
from icllab.diagnostics.curves import detection

STATISTIC = "iclbook.claims.routing.blind_in_networks.claim.check"
CLAIMS = ("routing/blind_in_networks",)
FAMILY = (
    "64 judged runs and 64 that set thresholds, whose mean losses of 60 records fall from 1.8 to 0.7 nats with a "
    "scatter of 4 %; an onset adds a share of 2 nats to one record, a third of it to the next. Gradients and responses "
    "scatter by 20 and 50 % and change by as much at the onset."
)
AXIS = "frequency of the program that begins"
STRENGTHS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
FALSE = {0.0: ("holds",), 0.02: ("holds",), 0.5: ("fails",)}
REPLICATES = 100

RECORDS, RUNS, UPDATES = 60, 128, 3000
FALL, SCATTER, SURPRISE = (1.8, 0.7), np.array([0.04, 0.2, 0.5]), 2.0


def series(strength, rng):
    """Series of runs of one kind, [run, record, series], and their onsets in records."""
    onset = rng.uniform(0.3, 0.6, RUNS) * RECORDS
    mean = np.geomspace(*FALL, RECORDS)[None] * np.ones((RUNS, 1))
    first = np.ceil(onset).astype(int)
    for late, part in ((0, 1.0), (1, 1 / 3)):
        mean[np.arange(RUNS), first + late] += part * strength * SURPRISE
    logs = np.stack([np.log(mean), np.zeros_like(mean), np.zeros_like(mean)], axis=-1)
    logs[np.arange(RUNS), first, 1:] += strength * SCATTER[1:]
    return np.exp(logs + SCATTER * rng.normal(size=logs.shape)), onset * UPDATES / RECORDS


def _verdict(strength, rng):
    steps = UPDATES / RECORDS * np.arange(1, RECORDS + 1)
    passages, onsets = [], []
    for share in (0.0, 0.0, strength):
        rows, onset = series(share, rng)
        rows = np.moveaxis(rows, -1, -2)
        values = np.stack([np.abs(detection.scores(rows)), detection.rises(rows) / 0.05], axis=-2)
        quiet = np.where(steps < _detection.QUIET * steps[-1], 0.0, values)
        passages.append(detection.first_passages(quiet, steps, np.array(_detection.LEVELS)))
        onsets.append(onset)
    axes = ("kind", "seed", "series", "rule", "level")
    coords = {
        "kind": [*_detection.NULLS, str(claim.LARGEST)],
        "seed": np.arange(RUNS),
        "series": list(_detection.SERIES),
    }
    coords |= {"rule": list(claim.RULES), "level": list(_detection.LEVELS)}
    dataset = xr.Dataset({"first_passage": (axes, np.stack(passages)), "onset": (axes[:2], np.stack(onsets))}, coords)
    dataset.attrs["configuration"] = f'{{"fixed": {{"updates": {UPDATES}}}}}'
    outcomes = {finding.outcome.value for finding in claim.check(claim.theory(dataset))}
    return next(outcome for outcome in ("fails", "undecided", "holds") if outcome in outcomes)


def verdicts(strength, *, replicates, key):
    """The verdict of the claim's check, one for each replicate."""
    seeds = np.asarray(jax.random.bits(key, (replicates,))).tolist()
    return [_verdict(strength, np.random.default_rng(seed)) for seed in seeds]
