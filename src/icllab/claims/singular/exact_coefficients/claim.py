r"""Two estimators of the learning coefficient against the formulas: slopes of free energies, and chains.

Losses whose :math:`\lambda` and m are known, near a point :math:`w^*`, with a prior
:math:`\mathcal N(w^*, \gamma^{-1}I)`. Annealing has the free energy from :math:`n\beta = 10^4` on, and its slope on
:math:`\log n\beta` with :math:`(m-1)\log\log n\beta` taken out is compared with :math:`\lambda`. Hamiltonian Monte
Carlo has :math:`n\beta E[K]` at one :math:`n\beta`, which is compared with :math:`\lambda - (m-1)/\log n\beta`. Neither
knows the formula: it is a sampler and a loss.

The last rows are strata. Of the same two layers :math:`3\times3\times3` with a product of rank 1, a neighbourhood
where A has full rank has 4.5, and one where both have rank 2 has 4; the whole model has 4. Their prior is narrow.
"""

import functools
import itertools

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds, within
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures import style
from icllab.theory import learning_coefficients as exact

SLOPE = (0.02, 0.03)  # relative and absolute: how far a slope may be from the coefficient
CHAINS = (0.05, 0.03)  # the larger of them: how far an estimate may be from what it estimates
LAYERS = {
    "layers 2,2,2 r=0": ((2, 2, 2), 0),
    "layers 3,2,3 r=1": ((3, 2, 3), 1),
    "layers 4,2,4 r=2": ((4, 2, 4), 2),
    "layers 3,2,2,3 r=1": ((3, 2, 2, 3), 1),
    "layers 2,2,2,2 r=0": ((2, 2, 2, 2), 0),
}
# Diagonals of the first and of the second layer, and one over the variance of the prior.
STRATA = {
    "stratum 2,1": ((1, 1, 0), (1, 0, 0), 10.0),
    "stratum 2,2": ((1, 1, 0), (1, 0, 1), 100.0),
    "stratum 3,1": ((1, 1, 1), (1, 0, 0), 100.0),
}
ATTENTION = (3, 2, 1)  # dimension, width of keys, rank of the tasks
SPECTRUM = (1.0, 0.5, 0.25)  # of E[hh^T]
MODELS = ("quadratic", "crossing", "power 2,4", *LAYERS, "linear attention", "two tanh", "mixture", *STRATA)


def _loss(model):
    """A loss, a minimum of it, one over the variance of the prior there, and a region or None."""
    import jax.numpy as jnp

    def product(layers):
        return functools.reduce(lambda below, layer: layer @ below, layers)

    def linear(layers, spectrum=None, precision=1.0):
        truth = product(layers)
        root = jnp.sqrt(jnp.asarray(SPECTRUM if spectrum else jnp.ones(truth.shape[1])))[None]
        return lambda w: jnp.sum(((product(w) - truth) * root) ** 2) / 2, layers, precision, None

    def plain(widths, rank):
        return [jnp.eye(b, a).at[:, rank:].set(0) for a, b in itertools.pairwise(widths)]

    if model in LAYERS:
        return linear(plain(*LAYERS[model]))
    if model in STRATA:
        first, second, precision = STRATA[model]
        return linear([jnp.diag(jnp.asarray(side, float)) for side in (first, second)], precision=precision)
    if model == "linear attention":
        dim, width, rank = ATTENTION
        return linear(plain((dim, width, dim), rank), spectrum=True)
    if model == "two tanh":
        x, weight = (jnp.asarray(a)[None] for a in np.polynomial.hermite_e.hermegauss(6))

        def tanh(w):
            answer = jnp.sum(w[0][:, None] * jnp.tanh(w[1][:, None] * x), axis=0, keepdims=True)
            return jnp.sum(weight * answer**2) / 2

        return tanh, [jnp.zeros(2), jnp.zeros(2)], 1.0, None
    if model == "mixture":
        x, weight = (jnp.asarray(a) for a in np.polynomial.hermite_e.hermegauss(30))

        def divergence(w):
            share, *means = w
            first, second = (jnp.exp(mean * x - mean**2 / 2) for mean in means)
            ratio = (1 - share) * first + share * second
            return jnp.sum(weight * (ratio - 1 - jnp.log(ratio))) / jnp.sum(weight)

        return divergence, jnp.array([0.5, 0, 0]), 1.0, lambda w: (w[0] > 0) & (w[0] < 1)
    losses = {
        "quadratic": (lambda w: jnp.sum(w**2) / 2, 10),
        "crossing": (lambda w: (w[0] * w[1] ** 2) ** 2, 2),
        "power 2,4": (lambda w: w[0] ** 2 + w[1] ** 4, 2),
    }
    loss, dim = losses[model]
    return loss, jnp.zeros(dim), 1.0, None


def formula(model: str) -> tuple[exact.LearningCoefficient, int]:
    """The coefficient, and how many parameters there are."""
    if model in LAYERS:
        widths, rank = LAYERS[model]
        count = sum(a * b for a, b in itertools.pairwise(widths))
        return exact.deep_linear(widths, rank), count
    if model in STRATA:
        rank_in, rank_out = (sum(side) for side in STRATA[model][:2])
        return exact.reduced_rank_stratum(3, 3, 3, 1, rank_in=rank_in, rank_out=rank_out), 18
    return {
        "quadratic": (exact.regular(10), 10),
        "crossing": (exact.normal_crossing((1, 2)), 2),
        "power 2,4": (exact.quasi_homogeneous((1 / 2, 1 / 4)), 2),
        "linear attention": (exact.linear_attention(*ATTENTION), 2 * ATTENTION[0] * ATTENTION[1]),
        "two tanh": (exact.tanh_network(2), 4),
        "mixture": (exact.gaussian_mixture(2), 3),
    }[model]


def measure(point, *, key):
    """One cell: free energies of every repeat, and the estimate of chains where there is no region."""
    import jax

    from icllab.diagnostics import HMC, SMC, free_energy, learning_coefficient

    loss, at, precision, region = _loss(point.model)
    of_annealing, of_chains = jax.random.split(key)
    energies = free_energy(
        loss,
        at,
        nbeta=point.nbeta,
        key=of_annealing,
        localization=precision,
        region=region,
        sampler=SMC(repeats=len(point.seed), particles=point.particles, moves=(2, 20)),
    )
    estimate, error, warned = np.nan, np.nan, 0
    if region is None:
        sampler = HMC(chains=point.chains, draws=point.draws, warm_up=min(point.warm_up, point.draws))
        chains = learning_coefficient(loss, at, n=point.samples, key=of_chains, sampler=sampler, localization=precision)
        estimate, error = float(chains["estimate"]), float(chains["mcse"])
        warned = len(chains.attrs["warnings"])
    return {
        "free_energy": (("seed", "nbeta"), energies["repeat_free_energy"].values),
        "learning_coefficient": ((), estimate),
        "learning_coefficient_error": ((), error),
        "sampler_warnings": ((), warned),
        "annealing_warnings": ((), len(energies.attrs["warnings"])),
    }


def theory(dataset: xr.Dataset, coefficient=formula) -> xr.Dataset:
    """Lambda and m of every model, and what chains estimate of them."""
    n = fixed_values(dataset)["samples"]
    found = [coefficient(str(model))[0] for model in dataset.model.values]
    return dataset.assign(
        coefficient_theory=("model", [one.value for one in found]),
        multiplicity_theory=("model", [float(one.multiplicity) for one in found]),
        learning_coefficient_theory=("model", [float(one.at(n / np.log(n))) for one in found]),
    )


def slope(dataset: xr.Dataset, multiplicity: float) -> tuple[float, float]:
    """Of the free energy plus (m-1) log log nbeta, by least squares in each repeat; its mean and standard error."""
    t = np.log(dataset.nbeta.values)
    energies = dataset["free_energy"].transpose("nbeta", "seed").values
    slopes = np.polyfit(t, energies + ((multiplicity - 1) * np.log(t))[:, None], 1)[0]
    mean, error = mean_and_error(slopes)
    return float(mean), float(error)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every slope and every estimate within its margin, by three standard errors; and what m takes from a slope."""
    dataset = dataset.isel(draws=-1)
    findings = []
    for model in dataset.model.values:
        cell = dataset.sel(model=model)
        value, m = float(cell["coefficient_theory"]), float(cell["multiplicity_theory"])
        margin = SLOPE[0] * value + SLOPE[1]
        findings.append(within(f"slope given m={m:g}, {model}", value, *slope(cell, m), margin=margin))
        if m > 1:
            plain, error = slope(cell, 1.0)
            findings.append(exceeds(f"coefficient less the slope given m=1, {model}", value - plain, error))
        target = float(cell["learning_coefficient_theory"])
        estimate, error = (float(cell[f"learning_coefficient{suffix}"]) for suffix in ("", "_error"))
        if np.isfinite(estimate):
            margin = max(CHAINS[0] * target, CHAINS[1])
            findings.append(within(f"estimate by chains, {model}", target, estimate, error, margin=margin))
        warned = float(cell["sampler_warnings"] + cell["annealing_warnings"])
        findings.append(exactly(f"warnings, {model}", 0, warned, otherwise=Outcome.UNDECIDED))
    missing = len(set(MODELS) - set(map(str, dataset.model.values)))
    return [*findings, exactly("models that are missing", 0, missing, otherwise=Outcome.UNDECIDED)]


def figure(dataset: xr.Dataset):
    """Estimates over what they estimate, for every model."""
    dataset = dataset.isel(draws=-1)
    models = [model for model in MODELS if model in dataset.model.values]
    rows = []
    for model in models:
        cell = dataset.sel(model=model)
        value, target = (float(cell[name]) for name in ("coefficient_theory", "learning_coefficient_theory"))
        rows.append(
            [
                (np.array(pair) / over)
                for pair, over in (
                    (slope(cell, float(cell["multiplicity_theory"])), value),
                    (slope(cell, 1.0), value),
                    (tuple(float(cell[f"learning_coefficient{suffix}"]) for suffix in ("", "_error")), target),
                )
            ]
        )
    columns = np.array(rows)  # [model, kind, (value, error)]
    known = [f"{float(dataset['coefficient_theory'].sel(model=m)):.3g}" for m in models]
    folds = [f"{float(dataset['multiplicity_theory'].sel(model=m)):g}" for m in models]
    with style.context():
        drawn = Figure(figsize=(2 * style.COLUMN, 3.0), layout="constrained")
        FigureCanvasAgg(drawn)
        axes = drawn.subplots()
        at = np.arange(len(models))
        axes.axhline(1, color=style.INK, linewidth=0.7, zorder=1)
        seen = dataset["multiplicity_theory"].sel(model=models).values > 1
        looks = [
            ("slope of the free energy given $m$, over $\\lambda$", 0, "o", -0.15, at >= 0),
            ("the same as if $m = 1$", 4, "s", -0.15, seen),
            ("chains, over $\\lambda - (m-1)/\\log n\\beta$", 1, "^", 0.15, np.isfinite(columns[:, 2, 0])),
        ]
        for i, (label, color, marker, shift, there) in enumerate(looks):
            value, error = columns[there, i].T
            axes.errorbar(
                at[there] + shift,
                value,
                3 * error,
                linestyle="none",
                marker=marker,
                color=style.CATEGORIES[color],
                label=label,
                linewidth=1,
                markerfacecolor="white" if i == 1 else style.CATEGORIES[color],
            )
        names = [
            f"{model}\n$\\lambda={value}$, $m={fold}$" for model, value, fold in zip(models, known, folds, strict=True)
        ]
        axes.set_xticks(at, names, rotation=40, ha="right", rotation_mode="anchor")
        axes.set_ylabel("estimate over what it estimates,\n3 standard errors")
        drawn.legend(loc="outside upper left", ncols=3)
    return drawn


def _regular(model):
    """As if no parameters computed the same."""
    _, count = formula(model)
    return exact.regular(count), count


def _without_a_rank(model):
    """As if the product of all layers were zero."""
    found, count = formula(model)
    return (exact.deep_linear(LAYERS[model][0], 0), count) if model in LAYERS else (found, count)


DECADES = tuple(10.0**i for i in (4, 5, 6, 7))
FINE = tuple(10.0 ** (4 + i / 4) for i in range(13))

experiment = Experiment(
    claim=(
        "Of fourteen losses with known learning coefficient and multiplicity, the slope of the sampled free energy "
        "from 1e4 to 1e7 is within 2 % and 0.03 of lambda once the multiplicity is taken out, and chains at n = 1e6 "
        "are within 5 % or 0.03 of lambda - (m-1)/log nbeta; where m > 1 the slope is below lambda otherwise."
    ),
    sources=("Watanabe09", "Aoyagi05", "Aoyagi24", "AoyagiNagata12", "Yamazaki03"),
    static=("draws", "model"),
    fixed={"particles": 500, "samples": 1e6, "chains": 64, "warm_up": 4000},
    sizes={
        "smoke": {"draws": (300,), "model": ("layers 3,2,3 r=1",), "nbeta": DECADES, "seed": 4},
        "small": {"draws": (48_000,), "model": MODELS, "nbeta": FINE, "seed": 8},
        "medium": {"draws": (96_000,), "model": MODELS, "nbeta": FINE, "seed": 32},
    },
    precision="float64",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "regular": World("every parameter counts a half", theory=functools.partial(theory, coefficient=_regular)),
        "no_rank": World("the truth is zero", theory=functools.partial(theory, coefficient=_without_a_rank)),
    },
)
