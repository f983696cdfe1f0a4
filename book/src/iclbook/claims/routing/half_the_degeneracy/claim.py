r"""Does the zero-shot coefficient exceed the few-shot one by half the degeneracy of the context's map?

The fast weights of two linear layers, :math:`f_c(w) = b + BAh_c` in four dimensions, with k hidden units: at weights
that are ``drawn``, and at those that ``trained`` on regression in context. Either only A varies, of whose map
:math:`Df_c` has the rank k everywhere; or A and B do, and it has rank 4 wherever :math:`Ah_c\ne0`. The degeneracy
:math:`\delta_c = \operatorname{rank}G' - \operatorname{rank}Df_c` is measured on answers to queries, the coefficients
of the divergence from the answers at the point by annealing. Derived: docs/routing.md, Few-shot and zero-shot.
"""

import math

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.estimates import Estimate
from icllab.lab.results import fixed_values

POINTS, VARIED, SIDES = ("drawn", "trained"), ("A", "A and B"), ("few_shot", "zero_shot")
MARGIN = 0.05  # of a coefficient, and of the larger one for their difference
LEFT_OUT = 0.1  # of the estimates, at most
LEARNED = 0.7  # largest loss after training over that before


def theory(dataset: xr.Dataset, whole: bool = False) -> xr.Dataset:
    """Ranks where they are locally constant; ``whole``: every map gets full rank."""
    dim = fixed_values(dataset)["dim"]
    ranks = np.array([[dim if whole or name != "A" else k for name in VARIED] for k in dataset["hidden"].values])
    rank = xr.DataArray(ranks, {"hidden": dataset["hidden"].values, "varied": list(VARIED)}, ("hidden", "varied"))
    rank = rank.sel(varied=dataset["varied"].values)
    coefficients = xr.concat([rank, xr.full_like(rank, dim)], xr.Variable("side", list(SIDES))) / 2
    return dataset.assign(
        map_degeneracy_theory=dim - rank,
        learning_coefficient_theory=coefficients.sel(side=dataset["side"].values),
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """Degeneracies equal counts, coefficients equal the ranks' values, and the difference is half the degeneracy."""
    if "particles" in dataset.dims:
        dataset = dataset.isel(particles=-1, drop=True)
    formula = dataset["learning_coefficient_theory"]
    margin = MARGIN * float(formula.max())
    gap = estimates.stored(dataset, "coefficient_difference") - dataset["map_degeneracy"] / 2
    words = "zero-shot - few-shot coefficient - half the measured degeneracy"
    learned = dataset["training_ratio"].sel(point="trained") if "trained" in dataset["point"].values else np.ones(1)
    names = set(map(str, dataset["point"].values))
    estimate = estimates.stored(dataset, "learning_coefficient")
    degeneracy = dataset["map_degeneracy_theory"].broadcast_like(dataset["map_degeneracy"])
    sound = dataset["annealing_warnings"] == 0
    coefficient = checks.near(
        "coefficient", "coefficient", _where(estimate, sound), formula.broadcast_like(estimate.value), margin=margin
    )
    half = checks.near("half", words, _where(gap, sound), 0.0, margin=margin)
    measured = [finding for finding in (*coefficient, *half) if not math.isnan(finding.measured)]
    left_out = 1 - len(measured) / len([*coefficient, *half])
    return [
        *checks.equal("degeneracy", "degeneracy of the map", dataset["map_degeneracy"], degeneracy),
        *measured,
        *checks.complete("quiet", "at most one estimate in ten warns and is left out", left_out <= LEFT_OUT),
        *checks.complete("converged", "every fit of a map has converged", bool((dataset["map_converged"] == 1).all())),
        *checks.complete("learned", "training has lowered the loss", bool((learned < LEARNED).all())),
        *checks.complete("points", "drawn and trained weights", names == set(POINTS)),
    ]


def _where(estimate: Estimate, sound: xr.DataArray) -> Estimate:
    """The estimate at sound points, NaN elsewhere."""
    return Estimate(estimate.value.where(sound), estimate.error.where(sound))


def figure(dataset: xr.Dataset):
    """Draw both coefficients against the number of hidden units, for either point, with lines at half the ranks."""
    part = dataset.isel(particles=-1, drop=True) if "particles" in dataset.dims else dataset
    rows = [
        Panel("learning_coefficient", "learning_coefficient_theory", at={"varied": varied, "point": point})
        for varied in part["varied"].values
        for point in part["point"].values
    ]
    return panels(part, rows, x="hidden", hue="side", line_name="half the rank", columns=len(part["point"]))


claim = Claim(
    title="Half the degeneracy of a context",
    sentence=(
        "Where a context's map has locally constant rank and the zero-shot loss is regular, the zero-shot coefficient "
        "exceeds the few-shot one by half the map's degeneracy, at trained weights too."
    ),
    conditions=(
        "Fast weights of two linear layers in four dimensions with one to three hidden units; drawn, and trained for "
        "1000 updates on in-context regression. Slopes of annealed free energies up to n beta = 1e6; an estimate whose "
        "populations disagree is left out."
    ),
    sources=("SLT22", "Watanabe09"),
    axes=(
        Axis("hidden", "k", "hidden units", least=1),
        Axis("point", "w^*", "how the weights came about"),
        Axis("varied", "w", "weights that vary"),
        Axis("side", "K", "loss"),
        Axis("particles", "N", "particles of each population", least=10),
    ),
    quantities=(
        "learning_coefficient",
        "annealing_warnings",
        Quantity("coefficient_difference", r"\lambda_a^c - \lambda_a", "zero-shot minus few-shot coefficient"),
        Quantity("map_degeneracy", r"\delta_c", "rank of all weights' answers less that of the map"),
        Quantity("map_converged", "1", "whether the fit of the map has converged"),
        Quantity("training_ratio", "L_T/L_0", "loss after training over that before"),
    ),
    static=("particles", "hidden"),
    outputs=("point", "varied", "side"),
    fixed={"dim": 4, "length": 8, "nbeta": 1e6, "localization": 1.0, "repeats": 16, "updates": 1000},
    sizes={
        "smoke": {"particles": (100,), "hidden": (2,), "point": POINTS, "varied": ("A",), "side": SIDES}
        | {"updates": 20, "nbeta": 1e4, "repeats": 4},
        "small": {"particles": (500,), "hidden": (1, 2, 3), "point": POINTS, "varied": VARIED, "side": SIDES},
        "medium": {"particles": (500, 2000), "hidden": (1, 2, 3, 4), "point": POINTS, "varied": VARIED, "side": SIDES},
    },
    precision="float64",
    key=2,
    controls={
        "at_zero": Control(
            "both layers are zero where both vary, and ranks are not constant", measure={"at_zero": True}
        ),
        "full_rank": Control("every map has full rank", theory={"whole": True}),
    },
)
