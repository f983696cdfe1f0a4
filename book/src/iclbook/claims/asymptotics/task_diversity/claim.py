r"""Gap between the errors on fresh and on pretraining tasks against the number of pretraining tasks.

The gap is :math:`g(\kappa) = e_{\mathrm{ICL}} - e_{\mathrm{IDG}}` at :math:`\tau = \alpha`, :math:`n = \tau\, d(d+1)`.
For :math:`\alpha \to \infty` it is :math:`\max(1-\kappa, 0)\,(1 + \rho/(1+\rho))`, with a corner. The remainder beyond
it, :math:`g(3/2)/g(1/2)`, tends to 0; the bend there, :math:`1 - 2g(1)/g(1/2) + g(3/2)/g(1/2)`, to 1. The gap of the
posterior mean over the pool (dMMSE) has no corner there.
"""

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics._fitted import convergence
from icllab.core.axes import Quantity
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import linear_attention

BEFORE, AT, BEYOND = 0.5, 1.0, 1.5
LARGEST = 0.04  # standard error; three of them tell the corner from the crossover, 0.13 above it
FLAT = 0.25  # linear attention bends more from alpha = tau = 4 on
LINE = np.geomspace(0.2, 4.0, 161)
KAPPAS = (0.3, 0.5, 1.0, 1.5, 3.0)


def gap(alpha, kappa, rho):
    r"""The closed form of :math:`e_{\mathrm{ICL}} - e_{\mathrm{IDG}}` at :math:`\tau = \alpha`, without a ridge."""
    law = {"tau": alpha, "alpha": alpha, "kappa": kappa, "rho": rho}
    return linear_attention.icl_error(**law) - linear_attention.idg_error(**law)


def limit(kappa, rho):
    r"""The gap in the limit :math:`\alpha = \tau \to \infty`, where the error on pretraining tasks is the noise."""
    return linear_attention.large_context_limit(kappa=kappa, rho=rho, alpha_over_tau=1.0) - rho


def theory(dataset: xr.Dataset, cornered: bool = False) -> xr.Dataset:
    """Measured gap, and its closed form at the points (``cornered``: its limit), along a line and in the limit."""
    rho, alpha, kappa = fixed_values(dataset)["rho"], dataset.alpha.values[:, None], dataset.kappa.values
    form = np.zeros_like(alpha) + limit(kappa, rho) if cornered else gap(alpha, kappa, rho)
    line, end = (("alpha", "kappa_line"), gap(alpha, LINE, rho)), ("kappa_line", limit(LINE, rho))
    dataset = dataset.assign_coords(kappa_line=LINE).assign(gap_line=line, gap_limit=end)
    return dataset.assign(gap=dataset.icl_error - dataset.idg_error, gap_theory=(("alpha", "kappa"), form))


def corner(gaps: xr.DataArray, over: str = "seed") -> tuple[Estimate, Estimate]:
    """Remaining gap beyond kappa = 1 and bend at it, relative to the gap before it; ``over``: axis of the samples."""
    gaps = gaps.reindex(kappa=[BEFORE, AT, BEYOND])
    before, at, beyond = (estimates.mean(gaps.sel(kappa=kappa, drop=True), over) for kappa in gaps.kappa.values)
    return beyond / before, Estimate(1.0, 0.0) - (at / 0.5 - beyond) / before


def check(dataset: xr.Dataset) -> list[Finding]:
    """Agreement of the gaps in the limit of large d, the approach to a corner, and the smooth gap of dMMSE."""
    limits, form = estimates.limit(estimates.mean(dataset["gap"]), order=2), dataset["gap_theory"]
    agreement = checks.agrees("gap", "gap, d to infinity", limits, form, largest_error=LARGEST)
    if dataset.sizes["dim"] < 3:
        agreement = checks.complete("dimensions", "at least three dimensions to extrapolate from", False)
    short, long = dataset.alpha.values[[0, -1]]
    (left, bend), sizes = corner(dataset["gap"].isel(dim=-1)), f"at alpha=tau={long:g} - at {short:g}"
    # The claim is about dMMSE at all context lengths together.
    dmmse_left, dmmse_bend = corner(dataset["dmmse_gap"].stack(draw=("alpha", "seed"), create_index=False), "draw")
    return [
        *agreement,
        *checks.below("left_falls", f"g(3/2)/g(1/2) {sizes}", left.sel(alpha=long) - left.sel(alpha=short)),
        *checks.above("bend_grows", f"bend {sizes}", bend.sel(alpha=long) - bend.sel(alpha=short)),
        *checks.above("dmmse_left", "g(3/2)/g(1/2) of dMMSE", dmmse_left, 0.5),
        *checks.below("dmmse_bend", "bend of dMMSE", dmmse_bend, FLAT),
        *convergence(dataset),
    ]


def figure(dataset: xr.Dataset):
    """Draw both gaps against kappa at the largest d, one colour for each alpha, and the limit with its corner."""
    part = dataset.isel(dim=[-1])
    rows = [Panel("gap", "gap_line", ylim=(-0.05, 1.0)), Panel("dmmse_gap", ylim=(0.0, 1.75))]
    title, name = rf"$\tau = \alpha$, $d = {part.dim.values[0]}$", r"closed form, $d \to \infty$"
    drawing = panels(part, rows, x="kappa", hue="alpha", title=title, line_name=name, xscale="log", vertical=1.0)
    upper, grey = drawing.axes[0], "0.35"
    upper.plot(part.kappa_line.values, part.gap_limit.values, color=grey, linestyle=":", linewidth=1.2, zorder=2)
    upper.text(0.62, 0.17, r"$\alpha \to \infty$", color=grey, ha="right", va="center", fontsize="medium")
    return drawing


LIMIT = {"dim": (8, 16, 32), "seed": (0, 1, 2, 3)}  # as much as it takes to see another gap
claim = Claim(
    title="Tasks needed to answer fresh tasks",
    sentence=(
        "Linear attention's gap between fresh and pretraining tasks follows a closed form that bends at kappa = 1, "
        "more sharply as alpha = tau grows; dMMSE's gap has no bend."
    ),
    conditions=(
        "No ridge, rho = 0.01; the closed form in the limit of large d, from three dimensions, the bends at finite d. "
        "Only where alpha = tau tends to infinity is there a corner at as many tasks as dimensions."
    ),
    sources=("Lu24", "Raventos23"),
    quantities=(
        *("icl_error", "idg_error", "converged", "gap", "gap_theory", "gap_line"),
        Quantity("gap_limit", "g", "excess on fresh tasks, limit of long contexts and many of them"),
        Quantity("dmmse_gap", r"g_{\mathrm{dMMSE}}", "excess of dMMSE"),
    ),
    static=("dim", "alpha", "kappa"),
    fixed={"rho": 0.01},
    # kappa d is whole, and divides measure.ROWS d.
    sizes={
        "smoke": {"dim": (16,), "alpha": (4.0, 12.0), "kappa": (BEFORE, AT, BEYOND), "seed": 12},
        "small": {"dim": (10, 20, 40), "alpha": (4.0, 8.0, 16.0), "kappa": KAPPAS, "seed": 64},
        "medium": {"dim": (20, 40, 80), "alpha": (4.0, 8.0, 16.0, 32.0), "kappa": KAPPAS, "seed": 64},
    },
    key=1,
    controls={
        "corner_at_finite_alpha": Control(
            "the limit's corner at finite alpha and tau", theory={"cornered": True}, axes={"dim": (8, 16, 32)}
        ),
        "fresh_on_the_pool": Control(
            "the error on fresh tasks is measured on half of the pool", {"fresh": False}, axes=LIMIT
        ),
        "gaussian_prior": Control(
            "the posterior mean is that of a normal prior with the pool's covariance",
            {"gaussian": True},
            axes={"dim": (20,), "kappa": (BEFORE, AT, BEYOND), "seed": tuple(range(12))},
        ),
        "shorter_as_alpha_grows": Control(
            "contexts become shorter and fewer as alpha grows: their length over d is 64 / alpha",
            {"inverse": 64.0},
            axes={"dim": (20,), "alpha": (4.0, 16.0), "kappa": (BEFORE, AT, BEYOND), "seed": tuple(range(24))},
        ),
        "one_pool_size": Control(
            "pretraining sees d/2 tasks whatever kappa is",
            {"kappa": BEFORE},
            axes=LIMIT | {"alpha": (4.0, 8.0), "kappa": (BEFORE, AT, BEYOND), "seed": tuple(range(12))},
        ),
    },
)
