r"""Longer contexts harm linear attention that was pretrained on few tasks.

.. math::
    \tau \text{ fixed}, \kappa < 1: \quad & e \simeq \frac{(1-\kappa)\,\rho}{(1+\rho)(\tau-1)}\; \alpha \to \infty \\
    \tau \text{ fixed}, \kappa > 1: \quad & e \to \rho \Bigl( 1 + \frac{\kappa}{(\kappa-1)(\tau-1)} \Bigr) \\
    \tau = \alpha / c \to \infty: \quad & e \to \rho + \max(1-\kappa, 0) \Bigl( 1 + \frac{\rho}{1+\rho}\, c \Bigr)

With few tasks errors vary by factors from pool to pool, so geometric means are extrapolated to large d.
"""

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics._fitted import convergence
from icllab.core.axes import Quantity
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import linear_attention

LARGEST = 0.1  # standard error of a log error: three of them still tell the controls from the claim
LINE = np.geomspace(2.0, 500.0, 97)


def theory(dataset: xr.Dataset, *, inverted: bool = False) -> xr.Dataset:
    """Closed form at the measured points and along a line, and its joint limit; ``inverted``: c is tau/alpha."""
    tau, alpha = dataset.tau.values[:, None, None], dataset.alpha.values[:, None]
    forms = {"kappa": dataset.kappa.values, "rho": fixed_values(dataset)["rho"]}
    limit = linear_attention.large_context_limit(alpha_over_tau=tau / alpha if inverted else alpha / tau, **forms)
    form, line = (linear_attention.icl_error(tau=tau, alpha=at, **forms) for at in (alpha, LINE[:, None]))
    dims, line_dims = ("tau", "alpha", "kappa"), ("tau", "alpha_line", "kappa")
    dataset = dataset.assign_coords(alpha_line=LINE)
    return dataset.assign(icl_theory=(dims, form), icl_line=(line_dims, line), icl_limit=(dims, limit))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Agreement everywhere, growth or a bound at fixed tau, and the joint limit along alpha = c tau."""
    limits, form = estimates.limit(estimates.geometric_mean(dataset["icl_error"]), order=2), dataset["icl_theory"]
    agreement = checks.agrees("icl_error", "ICL error, d to infinity", limits, form, largest_error=LARGEST)
    return [*agreement, *_at_fixed_tau(dataset, limits), *_jointly(dataset, limits), *convergence(dataset)]


def _at_fixed_tau(dataset: xr.Dataset, limits: Estimate) -> list[Finding]:
    """The two longest contexts at the smallest tau give the limit for kappa > 1 and the slope of the growth below."""
    tau, alphas, kappas = dataset.tau.values.min(), dataset.alpha.values, dataset.kappa
    if not (tau > 1 and alphas.size > 1):
        return []
    rho, (before, after) = fixed_values(dataset)["rho"], map(float, alphas[-2:])
    large_pools, small_pools = kappas[kappas > 1], kappas[kappas < 1]
    plateau = estimates.limit(limits.sel(tau=tau, alpha=[before, after], kappa=large_pools), "alpha", order=1)
    level = rho * (1 + large_pools / ((large_pools - 1) * (tau - 1)))
    first, last = (limits.sel(tau=tau, kappa=small_pools, alpha=alpha) for alpha in (before, after))
    slopes, slope = (
        (last.number() - first.number()) / (after - before),
        (1 - small_pools) * rho / ((1 + rho) * (tau - 1)),
    )
    return [
        *checks.agrees("bounded", "ICL error, d and then alpha to infinity", plateau, level, largest_error=LARGEST),
        *checks.agrees("slope", "slope of the ICL error in alpha", slopes, slope, largest_error=slope / 4),
    ]


def _jointly(dataset: xr.Dataset, limits: Estimate) -> list[Finding]:
    r"""The limit :math:`1/\tau \to 0` along :math:`\alpha = c\tau`, for the largest c with most points on the grid."""
    taus, alphas = dataset.tau.values, dataset.alpha.values
    lines = {c: [tau for tau in taus if c * tau in alphas] for c in sorted({a / t for a in alphas for t in taus})}
    ratio, on_it = max(lines.items(), key=lambda item: (len(item[1]), item[0]))
    if len(on_it) < 2:
        return checks.complete("line", "two values of tau on a line alpha = c tau", False)
    line = {"tau": xr.DataArray(on_it, dims="tau"), "alpha": xr.DataArray(ratio * np.array(on_it), dims="tau")}
    limit = estimates.limit(limits.sel(**line), "tau", order=min(2, len(on_it) - 1))
    target = dataset["icl_limit"].sel(line).isel(tau=-1, drop=True)
    quantity, at = "ICL error, d and then tau to infinity", {"alpha/tau": float(ratio)}
    return checks.agrees("joint_limit", quantity, limit, target, largest_error=1.5 * LARGEST, at=at)


def figure(dataset: xr.Dataset):
    """Draw the error against alpha at the largest d, one colour per tau, one panel per kappa."""
    rows = [Panel("icl_error", "icl_line", "log", at={"kappa": float(kappa)}) for kappa in dataset.kappa.values]
    title, name = f"$d = {int(dataset.dim[-1])}$", r"closed form, $d \to \infty$"
    return panels(dataset.isel(dim=-1), rows, x="alpha", hue="tau", xscale="log", title=title, line_name=name)


SHARED = {"tau": (2.0, 8.0, 32.0), "alpha": (8.0, 32.0, 128.0, 512.0), "kappa": (0.5, 2.0), "seed": 48}
claim = Claim(
    title="Long contexts, few tasks: error grows",
    sentence=(
        "At fixed pretraining size, the ICL error of linear attention grows in proportion to context length if there "
        "were fewer tasks than dimensions, and stays bounded if more."
    ),
    conditions=(
        "rho = 1, no ridge; tau > 1, geometric means over task pools taken to infinite dimension. Where tau grows "
        "with alpha, the error tends to the noise with more tasks than dimensions, and to a level above it with fewer."
    ),
    sources=("Lu24", "Letey24"),
    quantities=(
        *("icl_error", "converged", "icl_theory", "icl_line"),
        Quantity("icl_limit", r"e_{\mathrm{ICL}}", "error on fresh tasks, limit of long contexts and many of them"),
    ),
    static=("dim", "tau", "alpha"),
    fixed={"rho": 1.0},
    sizes={
        "smoke": {"dim": (6, 12, 32), "tau": (4.0,), "alpha": (16.0, 64.0), "kappa": (0.5, 2.0), "seed": 10},
        "small": {"dim": (10, 20, 40), **SHARED},
        "medium": {"dim": (20, 40, 80), **SHARED},
    },
    controls={
        "slide_limit": Control(
            "tau/alpha in the joint limit, as on the slides", theory={"inverted": True}, axes={"tau": (4.0, 16.0)}
        ),
        "little_noise": Control(
            "labels have a thousandth of the noise",
            measure={"noise": 1e-3},
            axes={"tau": (2.0,), "alpha": (8.0, 32.0)},
        ),
        "fresh_tasks": Control("a new task in every context, instead of a pool of kappa d", measure={"fresh": True}),
    },
)
