r"""A ridge removes the divergence of linear attention's errors, and shifts the covariance by more than its own value.

With ridge :math:`\lambda` both errors are finite at every :math:`\tau`. Their closed forms have an effective ridge
:math:`\xi > \lambda`, as finitely many contexts act like a ridge,

.. math:: 1 - \tau + \tau \frac\lambda\xi = \xi M_\kappa(q + \xi).

At :math:`\lambda = 0` and :math:`n = d(d+1)` the errors have no mean; the peak is judged by geometric means. All ridges
are fitted to the same contexts.
"""

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics._fitted import TAU_LINE, against_tau, closed_forms, convergence
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import linear_attention

LARGEST = 0.07  # relative standard error of a limit; under the controls some errors are off by a fifth and more


def theory(dataset: xr.Dataset, **overrides) -> xr.Dataset:
    """Closed forms at the measured points and along a line, with ``overrides`` of parameters."""
    ridge = dataset.ridge.values[:, None]
    dataset = dataset.assign_coords(tau_line=TAU_LINE)
    for name, axis in (("theory", "tau"), ("line", "tau_line")):
        at = {"tau": dataset[axis].values, **fixed_values(dataset), **overrides, "ridge": ridge}
        shape = (ridge.size, dataset.sizes[axis])
        dataset[f"icl_{name}"] = (("ridge", axis), np.broadcast_to(linear_attention.icl_error(**at), shape))
        dataset[f"idg_{name}"] = (("ridge", axis), np.broadcast_to(linear_attention.idg_error(**at), shape))
    return dataset


def check(dataset: xr.Dataset) -> list[Finding]:
    """Closed forms in the limit of large d with a ridge, including the peak; and the peak without a ridge."""
    with_ridge = dataset.sel(ridge=dataset.ridge > 0)  # without one some solves are singular to float64
    return [*closed_forms(with_ridge, LARGEST), *_peak(dataset), *convergence(with_ridge, "every solve with a ridge")]


def _peak(dataset: xr.Dataset) -> list[Finding]:
    """At tau = 1 the error without a ridge exceeds the error with any ridge, and grows with d."""
    if not (1.0 in dataset.tau.values and 0.0 in dataset.ridge.values):
        return []
    errors = dataset["icl_error"].sel(tau=1.0, drop=True)
    bare, with_ridge = errors.sel(ridge=0.0, drop=True), errors.sel(ridge=errors.ridge > 0)
    peak_ratio = estimates.geometric_mean((bare / with_ridge).isel(dim=-1))
    first, last = (estimates.geometric_mean(bare.isel(dim=end, drop=True)) for end in (0, -1))
    sizes = f"d={dataset.dim.values[-1]} / d={dataset.dim.values[0]}"
    return [
        *checks.above("peak_ratio", "ICL error at tau=1 without a ridge / with it", peak_ratio, 1.0),
        *checks.above("peak_growth", f"ICL error at tau=1 without a ridge, {sizes}", last / first, 1.0),
    ]


def figure(dataset: xr.Dataset):
    """Draw both errors against tau at the largest d, one colour per ridge."""
    limits = {"icl": (0.5, 30.0), "idg": (0.05, 20.0)}
    return against_tau(dataset.isel(dim=-1), "ridge", limits, title=f"$d = {int(dataset.dim[-1])}$")


GRID = {"tau": (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 3.0), "ridge": (0.0, 0.01, 0.1, 1.0)}
claim = Claim(
    title="A ridge removes the error's peak",
    sentence=(
        "A ridge removes the divergence of linear attention's errors at n = d(d+1): at every n they follow closed "
        "forms in an effective ridge."
    ),
    conditions=(
        "Errors on fresh and on pretraining tasks at alpha = 10, kappa = 0.5, rho = 0.01; the limit of large d, from "
        "three dimensions."
    ),
    sources=("Lu24",),
    quantities=("icl_error", "idg_error", "converged", "icl_theory", "idg_theory", "icl_line", "idg_line"),
    static=("dim", "tau"),
    fixed={"alpha": 10.0, "kappa": 0.5, "rho": 0.01},
    sizes={
        "smoke": {"dim": (6, 12, 32), "tau": (1.0, 2.0), "ridge": (0.0, 1.0), "seed": 20},
        "small": {"dim": (10, 20, 40), **GRID, "seed": 48},
        "medium": {"dim": (20, 40, 80), **GRID, "seed": 64},
    },
    controls={
        "bare_ridge": Control(
            "the ridge itself in place of the effective ridge, as for infinitely many contexts", theory={"tau": np.inf}
        ),
        "more_contexts": Control(
            "four times as many contexts: no solve is nearly singular",
            measure={"more": 4},
            axes={"dim": (10, 20), "tau": (1.0,)},
        ),
        "implicit_ridge": Control(
            "every fit has a ridge of 0.1 besides its own: there is no peak to remove",
            measure={"implicit": 0.1},
            axes={"dim": (10, 20), "tau": (1.0,)},
        ),
        "unscaled_ridge": Control("a penalty n * ridge on Gamma instead of (n/d) * ridge", measure={"unscaled": True}),
    },
)
