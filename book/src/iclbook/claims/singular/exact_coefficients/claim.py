r"""Two estimators of the learning coefficient compared with formulas: slopes of free energies, and chains.

For a prior :math:`\mathcal N(w^*, \gamma^{-1}I)` the slope of annealed free energies on :math:`\log n\beta`, without
:math:`(m-1)\log\log n\beta`, is compared with :math:`\lambda`, and :math:`n\beta E[K]` by chains with
:math:`\lambda - (m-1)/\log n\beta`. The last models are strata of two layers :math:`3\times3\times3` with a product of
rank 1: neighbourhoods, by a narrow prior, of points where A or B has a higher rank.
"""

import itertools

import numpy as np
import xarray as xr

from icllab.core.axes import Quantity
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import learning_coefficients as exact

SLOPE = (0.02, 0.03)  # margin of a slope around the coefficient: relative plus absolute
CHAINS = (0.05, 0.03)  # margin of an estimate by chains: the larger of relative and absolute
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
MODELS = ("quadratic", "crossing", "power 2,4", *LAYERS, "linear attention", "two tanh", "mixture", *STRATA)


def formula(model: str) -> tuple[exact.LearningCoefficient, int]:
    """Learning coefficient of a model, and its number of parameters."""
    if model in LAYERS:
        widths, rank = LAYERS[model]
        return exact.deep_linear(widths, rank), sum(a * b for a, b in itertools.pairwise(widths))
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


def theory(dataset: xr.Dataset, coefficient=formula) -> xr.Dataset:
    """Lambda and m of every model, and the expected value of chains."""
    n = fixed_values(dataset)["samples"]
    coefficients = [coefficient(str(model))[0] for model in dataset.model.values]
    columns = np.array([(entry.value, entry.multiplicity, entry.at(n / np.log(n))) for entry in coefficients], float).T
    names = ("coefficient", "multiplicity", "learning_coefficient_theory")
    return dataset.assign({name: ("model", values) for name, values in zip(names, columns, strict=True)})


def slopes(dataset: xr.Dataset, multiplicity: xr.DataArray | float) -> Estimate:
    """Slope of the free energy plus (m-1) log log nbeta by least squares in each repeat, and the mean by model."""
    t = np.log(dataset["nbeta"])
    energies, x = dataset["free_energy"] + (multiplicity - 1) * np.log(t), t - t.mean()
    return estimates.mean((energies * x).sum("nbeta", skipna=False) / (x**2).sum())


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every slope and every estimate is within its margin; a slope that ignores m is too small."""
    dataset = dataset.isel(draws=-1, drop=True)
    value, folds = dataset["coefficient"], dataset["multiplicity"]
    plain = slopes(dataset, 1.0).sel(model=folds.model[folds > 1])
    shortfall = Estimate(value.sel(model=plain.value.model), 0.0) - plain
    sampled = dataset.isel(model=dataset["learning_coefficient"].notnull().values)
    chains, target = estimates.stored(sampled, "learning_coefficient"), sampled["learning_coefficient_theory"]
    warnings = float((dataset["sampler_warnings"] + dataset["annealing_warnings"]).sum())
    return [
        *checks.near("slope", "slope given m", slopes(dataset, folds), value, margin=SLOPE[0] * value + SLOPE[1]),
        *checks.above("without_m", "coefficient - the slope given m = 1", shortfall),
        *checks.near("chains", "estimate by chains", chains, target, margin=np.maximum(CHAINS[0] * target, CHAINS[1])),
        *checks.complete("quiet", "no warning", warnings == 0),
        *checks.complete("models", "every model", set(MODELS) <= set(map(str, dataset.model.values))),
    ]


def figure(dataset: xr.Dataset):
    """Draw estimates divided by their targets, for every model."""
    dataset = dataset.isel(draws=-1, drop=True)
    dataset = dataset.sel(model=[model for model in MODELS if model in dataset.model.values])
    value, folds = dataset["coefficient"], dataset["multiplicity"]
    chains, target = estimates.stored(dataset, "learning_coefficient"), dataset["learning_coefficient_theory"]
    over = {
        "slope given $m$, over $\\lambda$": slopes(dataset, folds) / value,
        "slope as if $m = 1$, over $\\lambda$": slopes(dataset, 1.0) / value.where(folds > 1),
        "chains, over $\\lambda - (m-1)/\\log n\\beta$": chains / target,
    }
    series, name = xr.Variable("series", list(over)), "relative_estimate"
    table = xr.Dataset({f"{name}_line": xr.ones_like(value)}, attrs=dataset.attrs)
    table[name] = xr.concat([estimate.value for estimate in over.values()], series)
    table[f"{name}_error"] = xr.concat([estimate.error for estimate in over.values()], series)
    return panels(table, [Panel(name, f"{name}_line")], x="model", hue="series", line_name="exact", columns=2)


def regular(model: str) -> tuple[exact.LearningCoefficient, int]:
    """Coefficient of a model without redundant parameters."""
    _, count = formula(model)
    return exact.regular(count), count


FINE = tuple(10.0 ** (4 + i / 4) for i in range(13))

claim = Claim(
    title="Samplers find known coefficients",
    sentence=(
        "Slopes of sampled free energies and chains find the known learning coefficients of fourteen losses, to 2 % "
        "and 5 %, once the multiplicity is taken out."
    ),
    conditions=(
        "Slopes from nbeta = 1e4 to 1e7, to 2 % and 0.03; chains at n = 1e6, to 5 % or 0.03 of "
        "lambda - (m-1)/log nbeta. Where m > 1 the slope that takes m = 1 is below lambda."
    ),
    sources=("Watanabe09", "Aoyagi05", "Aoyagi24", "AoyagiNagata12", "Yamazaki03"),
    quantities=(
        "free_energy",
        "learning_coefficient",
        "sampler_warnings",
        "annealing_warnings",
        Quantity("coefficient", r"\lambda", "learning coefficient, exact"),
        Quantity("relative_estimate", r"\hat\lambda/\lambda", "estimate over exact"),
        Quantity("multiplicity", "m", "multiplicity, exact"),
    ),
    static=("draws", "model"),
    fixed={"particles": 500, "samples": 1e6, "chains": 64, "warm_up": 4000},
    sizes={
        "smoke": {"draws": (1000,), "model": ("layers 3,2,3 r=1",), "nbeta": FINE[::4], "seed": 4},
        "small": {"draws": (48_000,), "model": MODELS, "nbeta": FINE, "seed": 8},
        "medium": {"draws": (96_000,), "model": MODELS, "nbeta": FINE, "seed": 32},
    },
    precision="float64",
    controls={
        "rank_lost": Control("the layers sampled have a product of zero", measure={"rank_lost": True}),
        "full_rank": Control(
            "the layers sampled have a product of full rank",
            measure={"full_rank": True},
            axes={"model": ("layers 2,2,2 r=0", "layers 2,2,2,2 r=0", "layers 3,2,3 r=1")},
        ),
        "regular": Control("every parameter counts a half", theory={"coefficient": regular}),
    },
)
