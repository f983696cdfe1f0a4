r"""Linear attention trained by optimisers, compared with the exact minimum of the closed forms.

.. math:: \arg\min_\Gamma\; \frac1n \sum_{\mu=1}^n (y^\mu - x^{\mu\top}\Gamma h^\mu)^2 + \frac\lambda d \|\Gamma\|_F^2

is one matrix for :math:`\tau > 1` or :math:`\lambda > 0`. Otherwise a plane of matrices fits the contexts exactly, and
the closed form is that of the matrix of least norm: gradient descent from zero never leaves the span of the contexts,
which has one interpolator only. The full layer is this head if the part :math:`v_{21}` of its values is zero; a layer
that trains it too ends elsewhere at these sizes, even for :math:`\tau > 1`.
"""

import itertools

import xarray as xr

from icllab.core.axes import Quantity
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import linear_attention

MEASURED: tuple[str, ...] = ("icl_error", "gamma_distance", "gamma_norm", "training_error")
NEAR = 0.01  # relative distance from the exact matrix that counts as reaching it
FITTED = 1e-4  # fraction of the labels' mean square that counts as fitting them exactly
LARGEST = 0.1  # standard error of a limit, relative to the closed form


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Closed form at the measured points, and as a line at every dimension."""
    parameters = {name: fixed_values(dataset)[name] for name in ("alpha", "kappa", "rho")}
    values = linear_attention.icl_error(tau=dataset.tau.values[:, None], ridge=dataset.ridge.values, **parameters)
    form = xr.DataArray(values, dims=("tau", "ridge"), coords={"tau": dataset.tau, "ridge": dataset.ridge})
    return dataset.assign(icl_theory=form, icl_line=form.expand_dims({"dim": dataset.dim.values}))


def check(dataset: xr.Dataset) -> list[Finding]:
    """All optimisers reach a unique minimum; only gradient descent finds the least norm, with the theory's error."""
    findings, ways = [], [way for way in ("descent", "Adam", "layer") if way in dataset.training]
    for tau, ridge, way in itertools.product(dataset.tau.values, dataset.ridge.values, ways):
        part = dataset.sel(tau=tau, ridge=ridge)
        head = part.sel(training=way)
        head = head.sel(dim=head["gamma_distance"].notnull().any("seed"))
        if not head.sizes["dim"]:
            continue
        if tau > 1 or ridge > 0 or way == "descent":
            away, quantity = (
                head["gamma_distance"].max(("dim", "seed")),
                "largest relative distance from the exact matrix",
            )
            findings += checks.near("distance", quantity, Estimate(away, 0.0), 0.0, margin=NEAR)
        else:
            findings += _ends_elsewhere(head, part)
    enough = dataset.sizes["dim"] >= 3
    if enough:
        limits = estimates.limit(estimates.mean(dataset["icl_error"].sel(training="descent", drop=True)), order=2)
        form, quantity = dataset["icl_theory"], "ICL error after gradient descent, d to infinity"
        findings += checks.agrees("closed_form", quantity, limits, form, largest_error=LARGEST * form)
    return [*findings, *checks.complete("dimensions", "at least three dimensions to extrapolate from", enough)]


def _ends_elsewhere(head: xr.Dataset, part: xr.Dataset) -> list[Finding]:
    """The head fits the contexts as well as the matrix of least norm, with a larger norm and a larger error."""
    at = {name: head[name].item() for name in ("tau", "ridge", "training")}
    fits = float(head["training_error"].max()) <= FITTED
    norms = estimates.geometric_mean(head["gamma_norm"])
    errors = estimates.geometric_mean(head["icl_error"] / part["icl_error"].sel(training="exact", drop=True))
    return [
        *checks.complete("fits", f"training error at most {FITTED:g}", fits, at=at),
        *checks.above("norm", "norm / least norm", norms, 1.0),
        *checks.above("error", "ICL error / that of least norm", errors, 1.0),
    ]


def figure(dataset: xr.Dataset):
    """Draw the error without ridge against d for every way of training, one panel for each tau."""
    part = dataset.sel(ridge=0.0).drop_sel(training="exact")
    rows = [Panel("icl_error", line="icl_line", at={"tau": float(tau)}) for tau in dataset.tau.values]
    scale = "log" if dataset.sizes["dim"] > 1 else "linear"
    return panels(part, rows, x="dim", hue="training", line_name=r"closed form, $d \to \infty$", xscale=scale)


WAYS = {"training": ("exact", "descent", "Adam", "layer"), "ridge": (0.0, 0.3)}
claim = Claim(
    title="Training reaches the minimum",
    sentence=(
        "Gradient descent on linear attention's merged matrix from zero always reaches the closed form's minimum; Adam "
        "and training of the factors reach it only where the minimum is unique."
    ),
    conditions=(
        "Unique: more contexts than parameters, or a ridge (which the factors do not have); v21 of the layer is held "
        "at zero. On fewer contexts Adam and the factors fit as well, with a larger norm and a larger ICL error. "
        "alpha = 1, kappa = 2, rho = 0.1; 3000 steps of Adam up to adam_dim and layer_dim."
    ),
    sources=("Lu24",),
    quantities=(
        "icl_error",
        Quantity("gamma_distance", r"\|\Gamma-\Gamma^*\|/\|\Gamma^*\|", "relative distance from the exact matrix"),
        Quantity("gamma_norm", r"\|\Gamma\|/\|\Gamma^*\|", "norm over that of the exact matrix"),
        *("training_error", "icl_theory", "icl_line"),
    ),
    static=("dim", "tau"),
    fixed={"alpha": 1.0, "kappa": 2.0, "rho": 0.1}
    | {"steps": 3000, "adam_rate": 0.05, "adam_dim": 12, "layer_rate": 0.02, "layer_std": 0.1, "layer_dim": 8},
    sizes={
        "smoke": {"dim": (6,), "tau": (0.3, 3.0), **WAYS, "seed": 5, "steps": 1500},
        "small": {"dim": (6, 12, 24), "tau": (0.4, 3.0), **WAYS, "seed": 48},
        "medium": {"dim": (8, 16, 32), "tau": (0.3, 0.5, 2.0, 4.0), **WAYS, "seed": 48},
    },
    precision="float64",
    controls={
        "random_start": Control("gradient descent starts at a random matrix", measure={"start": 0.5}),
        "free_values": Control("the layer trains v21 too", measure={"free": True}),
    },
)
