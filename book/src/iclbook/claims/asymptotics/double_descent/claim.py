r"""Sample-wise double descent: the ICL error of ridgeless linear attention peaks at :math:`n = d(d+1)`.

Here ``tau`` counts contexts per parameter, :math:`n = \tau\, d(d+1)`. The papers' :math:`n = \tau d^2` puts the peak at
:math:`\tau = 1 + 1/d`, which no expansion in 1/d can follow. Near the peak errors have no mean (the smallest singular
value reaches zero): it is located by mean logarithms, and the formula is tested where :math:`|\tau - 1| \ge 1/2`.
"""

from functools import partial

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics._fitted import TAU_LINE, against_tau, closed_forms, convergence
from icllab.core.statistics import extrapolate
from icllab.lab import Claim, Control, Estimate, Finding, Outcome, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import linear_attention
from icllab.theory.wishart import stieltjes, stieltjes_derivative

BELOW, ABOVE = (0.25, 0.5, 0.75), (1.0, 1.02, 1.1, 1.25, 1.5, 2.0, 3.0)
APART = 0.5
LARGEST = 0.07  # relative standard error: three of them still tell the controls' formulas from the right one


def theory(dataset: xr.Dataset, icl=linear_attention.icl_error) -> xr.Dataset:
    """Closed forms at the measured points and along a line; ``icl``: formula of the ICL error."""
    dataset, parameters = dataset.assign_coords(tau_line=TAU_LINE), fixed_values(dataset)
    for kind, formula in (("icl", icl), ("idg", linear_attention.idg_error)):
        dataset[f"{kind}_theory"] = ("tau", formula(tau=dataset.tau.values, **parameters))
        dataset[f"{kind}_line"] = ("tau_line", formula(tau=TAU_LINE, **parameters))
    return dataset


def check(dataset: xr.Dataset) -> list[Finding]:
    """Agreement in the limit of large d, the position of the peak at every d, and its limit."""
    away = dataset.sel(tau=np.abs(dataset.tau - 1) >= APART)
    return [*closed_forms(away, LARGEST), *_peak(dataset), *convergence(away, "every solve compared")]


def _peak(dataset: xr.Dataset) -> list[Finding]:
    """The mean log ICL error is largest at n = d(d+1), clearly above every other n; and the limit of this n.

    A position on a grid has a uniform error of half the way to both neighbours. Solves that missed their tolerance are
    left out: there the problem is singular to float64 and the error largest, which lowers the peak.
    """
    logarithms = estimates.geometric_mean(dataset["icl_error"].where(dataset["converged"] == 1))
    taus, findings, places = dataset.tau.values, [], []
    for dim, mean, error in zip(dataset.dim.values, logarithms.value.values, logarithms.error.values, strict=True):
        at, around = {"dim": int(dim)}, taus[np.isfinite(mean) & np.isfinite(error)]
        enough = bool(1.0 in around and around.min() < 1 < around.max())
        findings += checks.complete("peak_covered", "solved at tau = 1 and on both sides", enough, at=at)
        if not enough:
            continue
        top, second = np.argsort(np.where(np.isnan(mean), -np.inf, mean))[:-3:-1]
        margin = Estimate(mean[top] - mean[second], np.hypot(error[top], error[second]), freedom=len(dataset.seed) - 1)
        clear = bool(margin.value > 3 * margin.error)
        otherwise = Outcome.FAILS if clear else Outcome.UNDECIDED
        findings += checks.equal("peak", "n/(d(d+1)) of the peak", taus[top], 1.0, otherwise=otherwise, at=at)
        above = checks.above("peak_height", "", margin)[0].outcome is Outcome.HOLDS
        findings += checks.complete("peak_height", f"clearly above the error at tau={taus[second]:.4g}", above, at=at)
        if clear:
            reach = np.ptp(taus[max(top - 1, 0) : top + 2]) / 2
            places.append((dim, *np.array([taus[top], reach / np.sqrt(12)]) * (dim + 1) / dim))
    limit = Estimate(*extrapolate(*np.reshape(places, (-1, 3)).T))
    return [*findings, *checks.agrees("peak_limit", "n/d^2 of the peak, d to infinity", limit, 1.0, largest_error=0.05)]


def figure(dataset: xr.Dataset):
    """Draw both errors against tau, one colour per d."""
    return against_tau(dataset, "dim", {"icl": (0.4, 100.0), "idg": (0.05, 20.0)})


def slide_formula(*, tau, alpha, kappa, rho, printed=False, whole_pool=False):
    r"""The slides' two branches, right with :math:`q^* = (1+\rho)/\alpha`, :math:`\mu^* = q^* M_{\kappa/\tau}(q^*)`.

    They print :math:`q^* = (1+\rho)/\rho`; ``whole_pool`` is :math:`\kappa` for :math:`\kappa/\tau`. Source: [Letey24].
    """
    q, ratio = (1 + rho) / (rho if printed else alpha), kappa if whole_pool else kappa / tau
    mu, m, slope = q * stieltjes(q, ratio), stieltjes(q, kappa), stieltjes_derivative(q, kappa)
    with np.errstate(divide="ignore"):
        below = tau * (1 + q) / (1 - tau) * (1 - tau * (1 - mu) ** 2 + mu * (rho / q - 1)) - 2 * tau * (1 - mu)
        above = (1 + q) * (1 - 2 * q * m - q**2 * slope + (rho + q - q**2 * m) * m / (tau - 1)) - 2 * (1 - q * m)
    return np.where(tau < 1, below, above) + 1 + rho


claim = Claim(
    title="Error peaks at n = d(d+1) contexts",
    sentence=(
        "The ICL error of ridgeless linear attention peaks at n = d(d+1) pretraining contexts and follows the closed "
        "form on both sides of the peak."
    ),
    conditions="alpha = 10, kappa = 0.5, rho = 0.01; the limit of large d, from three dimensions.",
    sources=("Lu24", "Letey24"),
    quantities=("icl_error", "idg_error", "converged", "icl_theory", "idg_theory", "icl_line", "idg_line"),
    static=("dim", "tau"),
    fixed={"alpha": 10.0, "kappa": 0.5, "rho": 0.01},
    # The grids hold n = d^2, which is tau = d/(d+1), for every d (smoke: for the middle one); kappa d is whole.
    sizes={
        "smoke": {"dim": (8, 16, 32), "tau": (16 / 17, 1.0, 1.06, 3.0), "seed": 28},
        "small": {"dim": (10, 20, 40), "tau": (*BELOW, 10 / 11, 20 / 21, 40 / 41, *ABOVE), "seed": 48},
        "medium": {"dim": (20, 40, 80), "tau": (*BELOW, 0.9, 20 / 21, 40 / 41, 80 / 81, *ABOVE), "seed": 64},
    },
    controls={
        "slide_q": Control("q* = (1+rho)/rho, as on the slides", theory={"icl": partial(slide_formula, printed=True)}),
        "pool_ratio": Control(
            "kappa in place of kappa/tau inside mu*",
            theory={"icl": partial(slide_formula, whole_pool=True)},
            axes={"tau": (0.25, 3.0)},  # below the peak, where it is plain
        ),
        "ridge": Control(
            "the fit has a ridge",
            measure={"ridge": 1.0},
            axes={"dim": (10, 20), "tau": (0.25, 0.5, 1.0, 2.0), "seed": tuple(range(24))},
        ),
        "shuffled_labels": Control("the labels of the pretraining contexts are permuted", measure={"shuffled": True}),
    },
)
