"""Whether the free energies of two phases follow n L + lambda log n up to a term of order one."""

import json

import jax
import numpy as np
import xarray as xr

from iclbook.claims.singular.phase_selection import claim

STATISTIC = "iclbook.claims.singular.phase_selection.claim.check"
CLAIMS = ("singular/phase_selection",)
FAMILY = (
    "Two phases on 128 data sets, n from 64 to 4096; the remainder grows by some nats, with a spread of 1.4 over data."
)
AXIS = "growth of the remainder in nats"
STRENGTHS = (0.0, 0.3, 0.6, 1.0, 1.4, 1.7, 2.0)
FALSE = {0.0: ("fails",), 0.3: ("fails",), 1.4: ("holds",), 1.7: ("holds",), 2.0: ("holds",)}
REPLICATES = 100
SPREAD, ERROR, DATA_SETS = 1.4, 0.02, claim.DATA_SETS
N = 2 ** np.arange(6, 13)
LOGS = np.log(N / N[0]) / np.log(N[-1] / N[0])


def verdicts(strength, *, replicates, key):
    """The outcome of the finding on the remainder."""
    seeds = np.asarray(jax.random.bits(key, (replicates,))).tolist()
    return [_verdict(strength, seed) for seed in seeds]


def _verdict(strength, seed):
    rng = np.random.default_rng(seed)
    prediction = 4.0 - 0.01125 * N + 2 * np.log(N) - 4 * np.log(np.log(N)) + 0 * rng.normal(size=(DATA_SETS, 1))
    remainder = (strength + SPREAD * rng.normal(size=(DATA_SETS, 1))) * LOGS
    energies = np.stack([np.zeros((DATA_SETS, N.size)), prediction + remainder], axis=-1)
    dims = ("seed", "samples", "phase")
    dataset = xr.Dataset(
        {
            "phase_free_energy": (dims, energies + ERROR * rng.normal(size=energies.shape)),
            "phase_free_energy_error": (dims, np.full(energies.shape, ERROR)),
            "phase_free_energy_theory": (dims, energies),
            "phase_gap_theory": (dims[:2], prediction),
            "annealing_warnings": (dims, np.zeros(energies.shape)),
            "coefficient_gap": 2.0,
            "multiplicity_gap": 4.0,
        },
        coords={"seed": np.arange(DATA_SETS), "samples": N, "phase": list(claim.PHASES)},
        attrs={"configuration": json.dumps({"fixed": {"barrier": 3.0, "effect": 0.15}})},
    )
    (finding,) = (finding for finding in claim.check(dataset) if finding.name == "remainder")
    return finding.outcome.value
