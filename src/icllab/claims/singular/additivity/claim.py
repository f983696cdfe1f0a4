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

from icllab.core.axes import axis, quantity
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures import style
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


def measure(point, *, key):
    """One cell: all arrangements, whole and term by term, at all temperatures."""
    import jax
    import jax.numpy as jnp

    from icllab.diagnostics import HMC, learning_coefficient

    @functools.cache  # one function of each, which is compiled once for all temperatures
    def contexts(chosen):
        units, h = np.zeros((len(chosen), MOST)), np.zeros((len(chosen), MOST))
        for c, (some, which) in enumerate(chosen):
            units[c, list(some)], h[c, which] = 1.0, 1.0

        def terms(w):
            answers = jnp.einsum("iu,cu,uj,cj->ci", w["b"], jnp.asarray(units), w["a"], jnp.asarray(h))
            return jnp.sum(answers**2, axis=1) / 2

        return terms

    at = {"a": jnp.zeros((MOST, MOST)), "b": jnp.zeros((point.dim, MOST))}
    sampler = HMC(chains=point.chains, warm_up=point.warm_up, draws=point.draws)

    @functools.cache
    def estimated(chosen, nbeta):
        own = jax.random.fold_in(jax.random.fold_in(key, int(nbeta)), sum(map(ord, repr(chosen))))
        return learning_coefficient(
            contexts(chosen), at, n=nbeta, nbeta=nbeta, localization=1.0, sampler=sampler, key=own
        )

    shape = (len(point.arrangement), len(point.nbeta))
    names = ("learning_coefficient", "additivity_gap", "contribution", "term_covariance")
    found = {f"{name}{suffix}": np.full(shape, np.nan) for name in names for suffix in ("", "_error")}
    warned = np.zeros(shape)
    for i, arrangement in enumerate(point.arrangement):
        chosen = ARRANGEMENTS[arrangement]
        for j, nbeta in enumerate(point.nbeta):
            whole = estimated(chosen, nbeta)
            alone = [estimated((((*range(len(units)),), 0),), nbeta) for units, _ in chosen]
            rows = {
                "learning_coefficient": (whole["estimate"], whole["mcse"]),
                "contribution": (whole["term_estimate"][0], whole["term_mcse"][0]),
                "term_covariance": (whole["term_covariance"][0, 1], whole["term_covariance_mcse"][0, 1]),
                "additivity_gap": _gap(whole, alone),
            }
            for name, (value, error) in rows.items():
                found[name][i, j], found[f"{name}_error"][i, j] = float(value), float(error)
            warned[i, j] = sum(len(one.attrs["warnings"]) for one in (whole, *alone))
    dims = ("arrangement", "nbeta")
    return {**{name: (dims, values) for name, values in found.items()}, "sampler_warnings": (dims, warned)}


def _gap(whole, alone):
    """The whole less its terms alone; of terms that are alike one run stands for all."""
    error = float(whole["mcse"]) ** 2
    for one in {id(run): run for run in alone}.values():
        error += (sum(run is one for run in alone) * float(one["mcse"])) ** 2
    return float(whole["estimate"]) - sum(float(run["estimate"]) for run in alone), error**0.5


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


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every number is the integral's; gaps and covariances have the signs that tell the arrangements apart."""
    dataset = dataset.isel(draws=-1)
    findings = []
    names = {
        "learning_coefficient": "coefficient of the whole",
        "additivity_gap": "the whole less its terms alone",
        "contribution": "contribution of one context",
        "term_covariance": "covariance of two contexts",
    }
    for arrangement in dataset.arrangement.values:
        for nbeta in dataset.nbeta.values:
            cell = dataset.sel(arrangement=arrangement, nbeta=nbeta)
            at = f"{arrangement}, nbeta={nbeta:g}"
            for name, what in names.items():
                value = (float(cell[f"{name}_theory"]), float(cell[name]), float(cell[f"{name}_error"]))
                findings.append(agreement(f"{what}, {at}", *value, largest_error=LARGEST, sigmas=SIGMAS))
        along = dataset.sel(arrangement=arrangement)
        gap = float(along["additivity_gap"][-1]), float(along["additivity_gap_error"][-1])
        error = float(np.sqrt((along["term_covariance_error"] ** 2).sum())) / along.sizes["nbeta"]
        if arrangement in ("crowded", "repeated"):
            findings.append(exceeds(f"the terms alone less the whole, {arrangement}", -gap[0], gap[1], bound=0.25))
        if arrangement != "apart":
            mean = float(along["term_covariance"].mean())
            findings.append(exceeds(f"covariance at all nbeta above 0, {arrangement}", mean, error))
    missing = len(set(ARRANGEMENTS) - set(dataset.arrangement.values))
    findings.append(exactly("arrangements that are missing", 0, missing, otherwise=Outcome.UNDECIDED))
    wrong = float(dataset["sampler_warnings"].sum())
    findings.append(exactly("warnings of the estimates", 0, wrong, otherwise=Outcome.UNDECIDED))
    return findings


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
            axes.set(xscale="log", xlabel=axis("nbeta").label, ylabel=quantity(name).label)
        sides[1].legend(loc="center right")
    return drawn


experiment = Experiment(
    claim=(
        "Learning coefficients of loss terms add where the terms have weights of their own, and can add where all "
        "share their weights: then their covariance under the posterior and the multiplicity tell. With more contexts "
        "than the shared units can tell apart, or one context twice, the whole is less than its terms."
    ),
    sources=("Watanabe09", "Aoyagi05"),
    static=("draws",),
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
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "no_sharing": World("shared weights count as separate ones", theory=functools.partial(theory, shared=False))
    },
)
