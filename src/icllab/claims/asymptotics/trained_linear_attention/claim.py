r"""Linear attention trained by optimisers, beside the minimum that the closed forms are about.

One head on n contexts minimises, over :math:`\Gamma` or over the P and Q it is a product of,

.. math:: \frac1n \sum_{\mu=1}^n (y^\mu - x^{\mu\top} \Gamma h^\mu)^2 + \frac{\lambda}{d} \|\Gamma\|_F^2

For :math:`\tau > 1` or :math:`\lambda > 0` the minimum is one matrix, whatever finds it. For :math:`\tau < 1` and
:math:`\lambda = 0` a whole plane of matrices fits the contexts exactly. The closed form is that of the one of least
norm: gradient descent on :math:`\Gamma` from zero never leaves the span of the contexts, which has one
interpolator only, and Adam and the product leave it.

The full layer is this head where the part :math:`v_{21}` of its values is zero, so there it is held at zero. A layer
that trains it too ends elsewhere at these sizes, even for :math:`\tau > 1`: a wrong world here.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import extrapolated_mean, mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.theory import linear_attention

NEAR = 0.01  # relative distance from the exact matrix that counts as reaching it
FITTED = 1e-4  # share of the labels' mean square that counts as fitting them exactly
LARGEST = 0.1  # standard error of a limit, relative to the closed form


def measure(point, *, key, start=0.0, free=False):
    """One cell. ``start``: scale of a random first matrix, zero otherwise; ``free``: train v21 too."""
    import equinox as eqx
    import jax

    from icllab.claims.asymptotics.trained_linear_attention import heads as trained_heads

    shape = (len(point.training), len(point.ridge), len(point.seed))
    found = {name: np.full(shape, np.nan) for name in ("icl_error", "gamma_distance", "gamma_norm", "training_error")}
    blank = None
    for s, seed in enumerate(point.seed):
        of_pool, of_contexts, of_start = jax.random.split(jax.random.fold_in(key, seed), 3)
        contexts = trained_heads.Contexts.drawn(point, of_pool, of_contexts, merged=not free)
        exact = contexts.exact(point.ridge)
        blank = exact[0] if blank is None else blank  # one for all seeds, so that training is compiled once
        begin = eqx.tree_at(lambda m: m.gamma, blank, start * jax.random.normal(of_start, blank.gamma.shape))
        for w, way in enumerate(point.training):
            if point.dim > {"Adam": point.adam_dim, "layer": point.layer_dim}.get(way, point.dim):
                continue
            models = {
                "exact": lambda exact=exact: exact,
                "descent": functools.partial(trained_heads.by_descent, point, contexts, begin, of_start),
                "Adam": functools.partial(trained_heads.by_adam, point, contexts, begin, of_start),
                "layer": functools.partial(trained_heads.as_a_layer, point, contexts, of_start, free=free),
            }[way]()
            for r, model in enumerate(models):
                for name, value in contexts.compared(model, exact[r]).items() if model is not None else ():
                    found[name][w, r, s] = value
    return {name: (("training", "ridge", "seed"), values) for name, values in found.items()}


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """The closed form, and as a line at every dimension."""
    fixed = {name: fixed_values(dataset)[name] for name in ("alpha", "kappa", "rho")}
    values = linear_attention.icl_error(tau=dataset.tau.values[:, None], ridge=dataset.ridge.values, **fixed)
    form = xr.DataArray(values, dims=("tau", "ridge"), coords={"tau": dataset.tau, "ridge": dataset.ridge})
    line = form.expand_dims({"dim": dataset.dim.values})
    return dataset.assign(icl_theory=form, icl_line=line)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Where there is one minimum all reach it; elsewhere gradient descent alone; and what it reaches obeys theory."""
    findings = []
    for tau in dataset.tau.values:
        for ridge in dataset.ridge.values:
            part = dataset.sel(tau=tau, ridge=ridge)
            where = f"tau={tau:g}, ridge={ridge:g}"
            findings += _one_minimum(part, where) if tau > 1 or ridge > 0 else _many(part, where)
            findings += _closed_form(part, where)
    sizes = exactly(
        "dimensions to extrapolate from, at least 3", 1, dataset.sizes["dim"] >= 3, otherwise=Outcome.UNDECIDED
    )
    return [*findings, sizes]


def _one_minimum(part: xr.Dataset, where: str) -> list[Finding]:
    return [_reaches(part, way, where) for way in ("descent", "Adam", "layer") if _there(part, way)]


def _many(part: xr.Dataset, where: str) -> list[Finding]:
    """Plain descent reaches the matrix of least norm; the others fit as well, with a larger norm and another error."""
    findings = [_reaches(part, "descent", where)] if _there(part, "descent") else []
    for way in ("Adam", "layer"):
        for dim in part.dim.values:
            here = part.sel(dim=dim)
            if not _there(here, way):
                continue
            own, least, at = here.sel(training=way), here.sel(training="exact"), f"of {way}, {where}, d={dim}"
            worst = float(own["training_error"].max())
            fits = Outcome.HOLDS if worst <= FITTED else Outcome.UNDECIDED
            findings.append(Finding(f"training error {at}", 0.0, worst, 0.0, FITTED, fits))
            norms = mean_and_error(np.log(own["gamma_norm"].values))
            findings.append(exceeds(f"log norm {at}, above the least", *map(float, norms)))
            excess = mean_and_error(np.log(own["icl_error"].values / least["icl_error"].values))
            findings.append(exceeds(f"log ICL error {at}, above that of least norm", *map(float, excess)))
    return findings


def _there(part: xr.Dataset, way: str) -> bool:
    return way in part.training and bool(part["gamma_distance"].sel(training=way).notnull().any())


def _reaches(part: xr.Dataset, way: str, where: str) -> Finding:
    """The largest distance over all seeds and dimensions."""
    largest = float(part["gamma_distance"].sel(training=way).max())
    what = f"relative distance from the exact matrix, {way}, {where}, largest"
    return Finding(what, 0.0, largest, 0.0, NEAR, Outcome.HOLDS if largest <= NEAR else Outcome.FAILS)


def _closed_form(part: xr.Dataset, where: str) -> list[Finding]:
    """The error of what gradient descent finds, taken to infinite dimension with a quadratic in 1/d."""
    if part.sizes["dim"] < 3:
        return []
    samples = part["icl_error"].sel(training="descent").transpose("dim", "seed").values
    limit = extrapolated_mean(part.dim.values, samples)
    predicted = float(part["icl_theory"])
    what = f"ICL error after gradient descent, {where}, d to infinity"
    return [agreement(what, predicted, *limit, largest_error=LARGEST * predicted)]


def figure(dataset: xr.Dataset):
    """Without ridge: the error against d for every way of training, one panel for each tau."""
    shown = dataset.sel(ridge=0.0).drop_sel(training="exact")
    rows = [Panel("icl_error", line="icl_line", at={"tau": float(tau)}) for tau in dataset.tau.values]
    return panels(
        shown, rows, x="dim", hue="training", line_x="dim", line_name=r"closed form, $d \to \infty$", xscale="log"
    )


experiment = Experiment(
    claim=(
        "Trained on more contexts than it has parameters, or with a ridge, linear attention reaches the minimum of the "
        "closed form by gradient descent, by Adam and, without a ridge, as a full layer of factors P and Q with v21 "
        "held at zero. On fewer contexts gradient descent on the merged matrix from zero does so too; Adam and the "
        "factors fit the contexts as well, but with a larger norm and a larger error on fresh tasks."
    ),
    sources=("Lu24",),
    static=("dim", "tau"),
    fixed={
        "alpha": 1.0,
        "kappa": 2.0,
        "rho": 0.1,
        "steps": 3000,
        "adam_rate": 0.05,
        "adam_dim": 12,
        "layer_rate": 0.02,
        "layer_std": 0.1,
        "layer_dim": 8,
    },
    sizes={
        "smoke": {
            "dim": (6,),
            "tau": (0.4, 3.0),
            "training": ("exact", "descent", "Adam", "layer"),
            "ridge": (0.0, 0.3),
            "seed": 3,
        },
        "small": {
            "dim": (6, 12, 24),
            "tau": (0.4, 3.0),
            "training": ("exact", "descent", "Adam", "layer"),
            "ridge": (0.0, 0.3),
            "seed": 48,
        },
        "medium": {
            "dim": (8, 16, 32),
            "tau": (0.3, 0.5, 2.0, 4.0),
            "training": ("exact", "descent", "Adam", "layer"),
            "ridge": (0.0, 0.3),
            "seed": 48,
        },
    },
    precision="float64",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "random_start": World("descent starts at a random matrix", measure=functools.partial(measure, start=0.5)),
        "free_values": World("the layer trains v21 too", measure=functools.partial(measure, free=True)),
    },
)
