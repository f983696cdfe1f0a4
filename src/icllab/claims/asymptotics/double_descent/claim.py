r"""Sample-wise double descent: the ICL error of ridgeless linear attention peaks at :math:`n = d(d+1)`.

Here ``tau`` counts pretraining contexts per parameter of Gamma, :math:`n = \tau\, d(d+1)`. The papers'
:math:`n = \tau d^2` has the same limit; at finite d it puts the peak at :math:`\tau = 1 + 1/d`, which no
expansion in 1/d can follow. Near the peak the errors have no mean at all (at :math:`n = d(d+1)` the
smallest singular value reaches zero), so theory and simulation are compared where
:math:`|\tau - 1| \ge 1/2`, and the peak is located by mean logarithms.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import extrapolate, extrapolated_mean, mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.theory import linear_attention
from icllab.theory.wishart import stieltjes, stieltjes_derivative

BELOW, ABOVE = (0.25, 0.5, 0.75), (1.0, 1.02, 1.1, 1.25, 1.5, 2.0, 3.0)
APART = 0.5
LARGEST = 0.07  # relative standard error: three of them still tell the formulas of the wrong worlds from the right one
NEAR = np.geomspace(1e-4, 0.1, 30)
LINE = np.unique(np.concatenate([np.geomspace(0.2, 4.0, 161), 1 - NEAR, [1.0], 1 + NEAR]))


def measure(point, *, key, shuffled=False):
    """Fit Gamma once per seed and return its exact population errors; each seed has a task pool of its own."""
    import jax

    from icllab.models import reduced
    from icllab.tasks import LinearRegression

    prompts = reduced.prompts_at(point.tau, point.dim, per="d(d+1)")
    rows = []
    for seed in point.seed:
        of_pool, of_contexts, of_shuffle = jax.random.split(jax.random.fold_in(key, seed), 3)
        task = LinearRegression.from_scaling(
            dim=point.dim, alpha=point.alpha, kappa=point.kappa, rho=point.rho, key=of_pool
        )
        samples = reduced.sample(task, prompts=prompts, key=of_contexts)
        if shuffled:
            samples = samples.shuffled(key=of_shuffle)
        fitted = reduced.fit_features(task, samples, ridge=0.0)
        rows.append((fitted.icl_error(), fitted.idg_error(), fitted.converged))
    columns = np.array(rows, dtype=float).T
    return {
        name: (("seed",), column) for name, column in zip(("icl_error", "idg_error", "converged"), columns, strict=True)
    }


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """The closed forms, at the measured points and along a line."""
    fixed = fixed_values(dataset)
    return dataset.assign_coords(tau_line=LINE).assign(
        icl_theory=("tau", linear_attention.icl_error(tau=dataset.tau.values, **fixed)),
        idg_theory=("tau", linear_attention.idg_error(tau=dataset.tau.values, **fixed)),
        icl_line=("tau_line", linear_attention.icl_error(tau=LINE, **fixed)),
        idg_line=("tau_line", linear_attention.idg_error(tau=LINE, **fixed)),
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """Agreement in the limit of large d, the place of the peak at every d, and its limit."""
    return [*_agreement(dataset), *_peak(dataset), _solved(dataset)]


def _agreement(dataset: xr.Dataset) -> list[Finding]:
    """Seed means, taken to :math:`1/d \to 0` with a quadratic in 1/d, against the closed forms."""
    findings = []
    for kind in ("icl", "idg"):
        samples = dataset[f"{kind}_error"].transpose("tau", "dim", "seed").values
        for tau, predicted, own in zip(dataset.tau.values, dataset[f"{kind}_theory"].values, samples, strict=True):
            if abs(tau - 1) >= APART:
                limit, uncertainty = extrapolated_mean(dataset.dim.values, own)
                what = f"{kind.upper()} error, tau={tau:g}, d to infinity"
                findings.append(agreement(what, predicted, limit, uncertainty, largest_error=LARGEST * predicted))
    return findings


def _peak(dataset: xr.Dataset) -> list[Finding]:
    """Where the mean log ICL error is largest: at n = d(d+1), clearly above every other n; and its limit.

    From ``small`` on the grid holds n = d^2 for every d, so the two cannot be confused. A place on a grid is known to
    within a uniform error of half the way to both neighbours. A solve that missed its tolerance is left
    out: that happens where the problem is singular to float64 and the error largest, so the peak loses.
    """
    dims, taus = dataset.dim.values, dataset.tau.values
    solved = dataset["icl_error"].where(dataset["converged"] == 1)
    findings, places, errors = [], [], []
    for dim, logarithms in zip(dims, np.log(solved.transpose("dim", "tau", "seed").values), strict=True):
        mean, error = mean_and_error(logarithms)
        around_it = np.isfinite(mean) & np.isfinite(error)
        if not (1.0 in taus[around_it] and taus[around_it].min() < 1 < taus[around_it].max()):
            what = f"n/(d(d+1)) of the peak, d={dim}"
            findings.append(Finding(what, 1.0, np.nan, np.nan, np.nan, Outcome.UNDECIDED, "no tau=1 with neighbours"))
            places.append(np.nan)
            errors.append(np.nan)
            continue
        top, second = np.argsort(np.where(np.isnan(mean), -np.inf, mean))[:-3:-1]
        margin, spread = float(mean[top] - mean[second]), float(np.hypot(error[top], error[second]))
        clear = margin > 3 * spread
        what = f"n/(d(d+1)) of the peak, d={dim}"
        findings.append(exactly(what, 1.0, taus[top], otherwise=Outcome.FAILS if clear else Outcome.UNDECIDED))
        findings.append(exceeds(f"log error there above n={taus[second]:.4g}d(d+1)", margin, spread))
        around = taus[[max(top - 1, 0), min(top + 1, taus.size - 1)]]
        places.append(taus[top] * (dim + 1) / dim if clear else np.nan)
        errors.append(np.ptp(around) / 2 / np.sqrt(12) * (dim + 1) / dim)
    limit, uncertainty = extrapolate(dims, places, errors)
    return [*findings, agreement("n/d^2 of the peak, d to infinity", 1.0, limit, uncertainty, largest_error=0.05)]


def _solved(dataset: xr.Dataset) -> Finding:
    """An error of an unconverged solve is no measurement of the mean."""
    compared = dataset["converged"].sel(tau=np.abs(dataset.tau - 1) >= APART)
    unsolved = int((compared == 0).sum())
    return exactly("solves compared that missed their tolerance", 0.0, unsolved, otherwise=Outcome.UNDECIDED)


def figure(dataset: xr.Dataset):
    """Both errors against tau, one colour per d."""
    limits = {"icl": (0.4, 100.0), "idg": (0.05, 20.0)}
    rows = [Panel(f"{kind}_error", line=f"{kind}_line", yscale="log", ylim=limits[kind]) for kind in limits]
    return panels(dataset, rows, x="tau", hue="dim", line_x="tau_line", xscale="log", vertical=1.0)


def slide_formula(*, tau, alpha, kappa, rho, q=None, pool_ratio=None):
    r"""The two-branch ridgeless formula of the slides, with :math:`q^*` and the ratio inside :math:`\mu^*` free.

    Right with the defaults :math:`q^* = (1+\rho)/\alpha` and :math:`\mu^* = q^* M_{\kappa/\tau}(q^*)`; the
    slides print :math:`q^* = (1+\rho)/\rho`.

    Source: [Letey24].
    """
    q = (1 + rho) / alpha if q is None else q
    mu = q * stieltjes(q, kappa / tau if pool_ratio is None else pool_ratio)
    m, slope = stieltjes(q, kappa), stieltjes_derivative(q, kappa)
    with np.errstate(divide="ignore"):
        below = tau * (1 + q) / (1 - tau) * (1 - tau * (1 - mu) ** 2 + mu * (rho / q - 1)) - 2 * tau * (1 - mu)
        above = (1 + q) * (1 - 2 * q * m - q**2 * slope + (rho + q - q**2 * m) * m / (tau - 1)) - 2 * (1 - q * m)
    return np.where(tau < 1, below, above) + 1 + rho


def _with_formula(**changes):
    """A theory in which the ICL error follows another formula; ``changes`` are functions of the fixed values."""

    def wrong(dataset: xr.Dataset) -> xr.Dataset:
        fixed = fixed_values(dataset)
        other = {name: change(**fixed) for name, change in changes.items()}
        return theory(dataset).assign(
            icl_theory=("tau", slide_formula(tau=dataset.tau.values, **fixed, **other)),
            icl_line=("tau_line", slide_formula(tau=LINE, **fixed, **other)),
        )

    return wrong


experiment = Experiment(
    claim=(
        "The in-context error of ridgeless linear attention has a double descent in the number of pretraining "
        "contexts: it peaks at n = d(d+1), which tends to tau = n/d^2 = 1, and follows the closed form on both sides."
    ),
    sources=("Lu24", "Letey24"),
    static=("dim", "tau"),
    fixed={"alpha": 10.0, "kappa": 0.5, "rho": 0.01},
    # The grids hold n = d^2, which is tau = d/(d+1), for every d (smoke: for the middle one); kappa d is whole.
    sizes={
        "smoke": {"dim": (8, 16, 32), "tau": (0.5, 16 / 17, 1.0, 1.06, 2.0), "seed": 24},
        "small": {"dim": (10, 20, 40), "tau": (*BELOW, 10 / 11, 20 / 21, 40 / 41, *ABOVE), "seed": 48},
        "medium": {"dim": (20, 40, 80), "tau": (*BELOW, 0.9, 20 / 21, 40 / 41, 80 / 81, *ABOVE), "seed": 64},
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "slide_q": World(
            "q* = (1+rho)/rho, as the slides print, instead of (1+rho)/alpha",
            theory=_with_formula(q=lambda alpha, kappa, rho: (1 + rho) / rho),
        ),
        "pool_ratio": World(
            "kappa in place of kappa/tau inside mu*", theory=_with_formula(pool_ratio=lambda alpha, kappa, rho: kappa)
        ),
        "shuffled_labels": World(
            "the labels of the pretraining contexts are permuted", measure=functools.partial(measure, shuffled=True)
        ),
    },
)
