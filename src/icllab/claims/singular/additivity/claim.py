r"""Do the learning coefficients of loss terms add? In separate weights always; in shared weights sometimes.

Each context c asks two linear layers for zero, :math:`K_c = \frac12\lVert BAh_c\rVert^2`, with A of shape
:math:`k\times T`, B of shape :math:`d\times k`; alone it is reduced-rank regression of one input. Four
arrangements of contexts:

- ``apart``: two contexts in different hidden units, one and two of them: :math:`\frac12 + 1 = \frac32`;
- ``shared``: two contexts, orthogonal :math:`h_c`, in the same two hidden units: :math:`1 + 1 = 2`, additive, though
  no weight of B is one context's own; the multiplicity is 2 and tells it from separate weights;
- ``crowded``: three contexts in the same two hidden units: :math:`\frac52`, not :math:`3`;
- ``repeated``: the same context twice: 1, not 2.

What is always additive are contributions, :math:`n\beta\,E[K_c]` under the posterior of the whole, and they need not be
the coefficients of the terms. Their covariance is zero in separate weights, and positive in shared ones.

With a normal prior the columns of A can be integrated out, which leaves an integral over the eigenvalues
:math:`s` of :math:`B^\top B`, a Wishart matrix. All numbers at finite :math:`n\beta` are compared with it.

Derived: docs/singular-learning.md, Terms that share weights.
"""

import functools

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from icllab.core.axes import Quantity
from icllab.experiments import checks, estimates
from icllab.experiments.checks import Finding
from icllab.experiments.experiment import Control, Experiment
from icllab.experiments.results import fixed_values
from icllab.figures import style
from icllab.figures.labels import named
from icllab.theory import learning_coefficients as exact

# Hidden units that each context uses, and which h it has.
ARRANGEMENTS = {
    "apart": (((0,), 0), ((1, 2), 1)),
    "shared": (((0, 1), 0), ((0, 1), 1)),
    "crowded": (((0, 1), 0), ((0, 1), 1), ((0, 1), 2)),
    "repeated": (((0, 1), 0), ((0, 1), 0)),
}
MOST = 3  # contexts, and hidden units
LARGEST = 0.05  # standard error of any number
SIGMAS = 3.5  # some sixty numbers are compared: one in forty such checks is wrong by chance


def _eigenvalues(units: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a Wishart matrix of one or two units with d degrees of freedom: points [unit, ...], weights."""
    if units == 1:
        x = np.linspace(-160, 6, 40_001)
        return np.exp(x)[None], np.exp(dim / 2 * x - np.exp(x) / 2)
    x, r = np.linspace(-160, 6, 1601)[:, None], np.linspace(-160, 0, 1601)[None]
    large, share = np.exp(x), np.exp(r)
    density = large * (1 - share) * share ** ((dim - 3) / 2) * large ** (dim - 3)
    return np.stack(np.broadcast_arrays(large, large * share)), density * np.exp(
        -large * (1 + share) / 2
    ) * large**2 * share


def integrals(terms: int, units: int, dim: int, t: float) -> tuple[float, float, float]:
    r"""Of T contexts in the same k units at :math:`n\beta = t`: the contribution of one, its variance, a covariance.

    With :math:`g(s) = \frac12\sum_i\frac{ts_i}{1+ts_i}` and the weights :math:`\prod_i(1+ts_i)^{-T/2}` on top of
    Wishart's, they are :math:`E[g]`, :math:`\mathrm{Var}\,g + E[\frac12\sum_i(\frac{ts_i}{1+ts_i})^2]`, and
    :math:`\mathrm{Var}\,g`.
    """
    s, density = _eigenvalues(units, dim)
    share = t * s / (1 + t * s)
    weight = density * np.prod(1 + t * s, axis=0) ** (-terms / 2)
    weight = weight / weight.sum()
    g = share.sum(axis=0) / 2
    mean = float((weight * g).sum())
    between = float((weight * (g - mean) ** 2).sum())
    return mean, between + float((weight * (share**2).sum(axis=0) / 2).sum()), between


def predicted(arrangement: str, dim: int, t: float) -> dict[str, float]:
    """The same numbers as are measured, by integrals."""
    chosen = ARRANGEMENTS[arrangement]
    alone = sum(integrals(1, len(units), dim, t)[0] for units, _ in chosen)
    units = len(chosen[0][0])
    if arrangement == "apart":
        total, one, covariance = alone, integrals(1, units, dim, t)[0], 0.0
    elif arrangement == "repeated":  # one context at twice the temperature, in two halves
        total, variance, _ = integrals(1, units, dim, 2 * t)
        one, covariance = total / 2, variance / 4
    else:
        one, _, covariance = integrals(len(chosen), units, dim, t)
        total = len(chosen) * one
    return {"learning_coefficient": total, "additivity_gap": total - alone, "contribution": one} | {
        "term_covariance": covariance
    }


def closed_form(arrangement: str, dim: int) -> tuple[exact.LearningCoefficient, float]:
    """The coefficient of the whole, and the sum of those of its terms."""
    chosen = ARRANGEMENTS[arrangement]
    alone = [exact.reduced_rank_regression(1, len(units), dim, 0) for units, _ in chosen]
    if arrangement == "apart":
        return exact.of_sum(*alone), sum(one.value for one in alone)
    inputs = len({which for _, which in chosen})
    return exact.reduced_rank_regression(inputs, len(chosen[0][0]), dim, 0), sum(one.value for one in alone)


def theory(dataset: xr.Dataset, shared: bool = True) -> xr.Dataset:
    """Lines along nbeta; ``shared``: whether shared weights are known to be shared."""
    dim, dims = int(fixed_values(dataset)["dim"]), ("arrangement", "nbeta")
    names = ("learning_coefficient", "additivity_gap", "contribution", "term_covariance")
    found = {name: np.full([dataset.sizes[d] for d in dims], np.nan) for name in names}
    for i, arrangement in enumerate(dataset.arrangement.values):
        for j, t in enumerate(dataset.nbeta.values):
            for name, value in predicted(str(arrangement), dim, float(t)).items():
                found[name][i, j] = value
            if not shared:
                found["learning_coefficient"][i, j] -= found["additivity_gap"][i, j]
                found["additivity_gap"][i, j] = found["term_covariance"][i, j] = 0.0
    return dataset.assign({f"{name}_theory": (dims, values) for name, values in found.items()})


NAMES = {
    "learning_coefficient": "coefficient of the whole",
    "additivity_gap": "the whole - its terms alone",
    "contribution": "contribution of one context",
    "term_covariance": "covariance of two contexts",
}


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every number is the integral's; gaps and covariances have the signs that tell the arrangements apart."""
    dataset, findings = dataset.isel(draws=-1, drop=True), []
    for name, what in NAMES.items():
        line = dataset[f"{name}_theory"]
        found = estimates.stored(dataset, name)
        findings += checks.covers(name, what, found, line, largest_error=LARGEST, sigmas=SIGMAS)
    there = [str(name) for name in dataset.arrangement.values]
    less = [name for name in ("crowded", "repeated") if name in there]
    gaps = estimates.stored(dataset.isel(nbeta=-1), "additivity_gap").sel(arrangement=less)
    findings += checks.below("whole_is_less", NAMES["additivity_gap"], gaps, -0.25)
    together = [name for name in there if name != "apart"]
    covariance = estimates.stored(dataset, "term_covariance").sel(arrangement=together).average("nbeta")
    findings += checks.above("covariance", "covariance of two contexts, mean over nbeta", covariance)
    findings += checks.complete("arrangements", "every arrangement", set(ARRANGEMENTS) <= set(there))
    return [*findings, *checks.complete("quiet", "no warning", float(dataset["sampler_warnings"].sum()) == 0)]


def figure(dataset: xr.Dataset):
    """The gap and the covariance against nbeta; lines: the integrals, dotted: the closed forms."""
    dim, dataset = int(fixed_values(dataset)["dim"]), dataset.isel(draws=-1)
    line = np.geomspace(float(dataset.nbeta.min()) / 2, float(dataset.nbeta.max()) * 100, 24)
    with style.context():
        drawn = Figure(figsize=(2 * style.COLUMN, 2.8), layout="constrained")
        FigureCanvasAgg(drawn)
        sides = drawn.subplots(1, 2)
        for i, arrangement in enumerate(map(str, dataset.arrangement.values)):
            part = dataset.sel(arrangement=arrangement)
            exactly_there = [predicted(arrangement, dim, t) for t in line]
            look = {"color": style.CATEGORIES[i]}
            for axes, name in zip(sides, ("additivity_gap", "term_covariance"), strict=True):
                axes.plot(line, [values[name] for values in exactly_there], linewidth=1, **look)
                axes.errorbar(
                    part.nbeta.values,
                    part[name].values,
                    part[f"{name}_error"].values,
                    linestyle="none",
                    marker=style.marker(i),
                    label=arrangement,
                    **look,
                )
            whole, alone = closed_form(arrangement, dim)
            sides[0].axhline(whole.value - alone, linestyle=":", linewidth=1, zorder=0, **look)
        for axes, name in zip(sides, ("additivity_gap", "term_covariance"), strict=True):
            axes.set(xscale="log", xlabel=named(dataset, "nbeta").label, ylabel=named(dataset, name).label)
        sides[1].legend(loc="center right")
    return drawn


experiment = Experiment(
    claim=(
        "Learning coefficients of loss terms add in separate weights and can add in shared ones, where the covariance "
        "of the terms tells; shared units without room make the whole less."
    ),
    conditions=(
        "Two linear layers asked for zero by one to three contexts, d = 3, standard normal prior; all numbers at "
        "finite nbeta against integrals."
    ),
    sources=("Watanabe09", "Aoyagi05"),
    quantities=(
        "learning_coefficient",
        "contribution",
        "term_covariance",
        "sampler_warnings",
        Quantity("additivity_gap", r"\hat\lambda - \sum_c\hat\lambda_c", "coefficient less its terms'"),
    ),
    static=("draws", "arrangement", "nbeta"),
    fixed={"dim": 3, "chains": 32, "warm_up": 500},
    sizes={
        "smoke": {"draws": (500,), "arrangement": ("shared",), "nbeta": (100.0,)},
        "small": {"draws": (4000,), "arrangement": tuple(ARRANGEMENTS), "nbeta": (10.0, 100.0, 1000.0, 10_000.0)},
        "medium": {
            "draws": (16_000,),
            "arrangement": tuple(ARRANGEMENTS),
            "nbeta": (10.0, 100.0, 1000.0, 10_000.0, 100_000.0),
        },
    },
    precision="float64",
    theory=theory,
    check=check,
    figure=figure,
    controls={
        "separate": Control("contexts that are to share weights have their own", measure={"separate": True}),
        "no_sharing": Control("shared weights count as separate ones", theory=functools.partial(theory, shared=False)),
    },
)
