r"""A ridge takes the divergence of linear attention's errors away, and shifts the covariance by more than itself.

With ridge :math:`\lambda` both errors are finite at every :math:`\tau`. Finitely many contexts act as an effective
ridge :math:`\xi > \lambda`,

.. math:: 1 - \tau + \tau \frac\lambda\xi = \xi M_\kappa(q + \xi),

and the errors are closed forms in it. At :math:`\lambda = 0` and :math:`n = d(d+1)` the errors have no mean, so what
is said of the peak is said of geometric means. All ridges are fitted to the same contexts.
"""

import functools

import numpy as np
import xarray as xr

from icllab.experiments import checks, estimates
from icllab.experiments.checks import Finding
from icllab.experiments.experiment import Control, Experiment
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.theory import linear_attention

LARGEST = 0.07  # relative standard error of a limit; under the controls some errors are off by a fifth and more
NEAR = np.geomspace(1e-4, 0.1, 30)
LINE = np.unique(np.concatenate([np.geomspace(0.2, 4.0, 161), 1 - NEAR, [1.0], 1 + NEAR]))


def theory(dataset: xr.Dataset, **changed) -> xr.Dataset:
    """The closed forms, at the measured points and along a line; ``changed`` parameters, for a control."""
    ridge = dataset.ridge.values[:, None]
    dataset = dataset.assign_coords(tau_line=LINE)
    for name, axis in (("theory", "tau"), ("line", "tau_line")):
        at = {"tau": dataset[axis].values, **fixed_values(dataset), **changed, "ridge": ridge}
        shape = (ridge.size, dataset.sizes[axis])
        dataset[f"icl_{name}"] = (("ridge", axis), np.broadcast_to(linear_attention.icl_error(**at), shape))
        dataset[f"idg_{name}"] = (("ridge", axis), np.broadcast_to(linear_attention.idg_error(**at), shape))
    return dataset


def check(dataset: xr.Dataset) -> list[Finding]:
    """With a ridge the closed forms in the limit of large d, the peak included; and how the ridge lowers the peak."""
    findings = []
    ridged = dataset.sel(ridge=dataset.ridge > 0)
    for kind in ("icl", "idg"):
        limits = estimates.limit(estimates.mean(ridged[f"{kind}_error"]), order=2)
        form, what = ridged[f"{kind}_theory"], f"{kind.upper()} error, d to infinity"
        findings += checks.covers(f"{kind}_error", what, limits, form, largest_error=LARGEST * form)
    # An error of a solve that missed its tolerance is no measurement; without a ridge some are singular to float64.
    solved = not bool((ridged["converged"] == 0).any())
    return [
        *findings,
        *_peak(dataset),
        *checks.complete("solved", "every solve with a ridge met its tolerance", solved),
    ]


def _peak(dataset: xr.Dataset) -> list[Finding]:
    """At tau = 1 the error without a ridge is above that with every ridge, and grows with d."""
    if not (1.0 in dataset.tau.values and 0.0 in dataset.ridge.values):
        return []
    errors = dataset["icl_error"].sel(tau=1.0, drop=True)
    bare, ridged = errors.sel(ridge=0.0, drop=True), errors.sel(ridge=errors.ridge > 0)
    raised = estimates.geometric_mean((bare / ridged).isel(dim=-1))
    first, last = (estimates.geometric_mean(bare.isel(dim=end, drop=True)) for end in (0, -1))
    sizes = f"d={dataset.dim.values[-1]} / d={dataset.dim.values[0]}"
    return [
        *checks.above("peak_ratio", "ICL error at tau=1 without a ridge / with it", raised, 1.0),
        *checks.above("peak_growth", f"ICL error at tau=1 without a ridge, {sizes}", last / first, 1.0),
    ]


def figure(dataset: xr.Dataset):
    """Both errors against tau at the largest d, one colour per ridge."""
    limits = {"icl": (0.5, 30.0), "idg": (0.05, 20.0)}
    rows = [Panel(f"{kind}_error", line=f"{kind}_line", yscale="log", ylim=limits[kind]) for kind in limits]
    return panels(
        dataset.isel(dim=-1),
        rows,
        x="tau",
        hue="ridge",
        line_x="tau_line",
        xscale="log",
        vertical=1.0,
        title=f"$d = {int(dataset.dim[-1])}$",
        line_name=r"closed form, $d \to \infty$",
    )


GRID = {"tau": (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 3.0), "ridge": (0.0, 0.01, 0.1, 1.0)}

experiment = Experiment(
    claim=(
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
        "smoke": {"dim": (8, 16, 32), "tau": (0.5, 1.0, 2.0), "ridge": (0.0, 0.1, 1.0), "seed": 12},
        "small": {"dim": (10, 20, 40), **GRID, "seed": 48},
        "medium": {"dim": (20, 40, 80), **GRID, "seed": 64},
    },
    theory=theory,
    check=check,
    figure=figure,
    controls={
        "bare_ridge": Control(
            "the ridge itself in place of the effective ridge, as for infinitely many contexts",
            theory=functools.partial(theory, tau=np.inf),
        ),
        "unscaled_ridge": Control("a penalty n * ridge on Gamma instead of (n/d) * ridge", measure={"unscaled": True}),
    },
)
