r"""Does a context that selects weights lower the learning coefficient? Only where the pushed-forward prior diverges.

A few-shot loss :math:`K(w) = K^{\mathrm{zs}}(f(w))` with :math:`K^{\mathrm{zs}}(u) = \frac12|u|^2`, at w = 0, for six
maps: ``BAh, k units``, the map of a context of two linear layers into :math:`\mathbb R^3`; ``w1 w2``; and
:math:`|w|^2` of a vector of three. The coefficient with the context, :math:`\lambda_a`, that of the weights which it
selects, :math:`\lambda_a^c`, half the dimension of u, and that of :math:`\frac12|f(w)-f(0)|^2`, which measures the
density. Derived: docs/routing.md, Few-shot and zero-shot.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates
from icllab.theory import learning_coefficients as exact

DIM = 3  # of the image of the two layers, and of the vector whose square is taken
UNITS = {f"BAh, {k} unit{'s' * (k > 1)}": k for k in (1, 2, 3, 4)}
MAPS = (*UNITS, "w1 w2", "|w|^2")
SIDES = ("few_shot", "zero_shot", "pushed_forward")
SIGNS = {"below": -1, "tie": 0, "above": 1}
MARGIN = 0.05  # of a coefficient
LEVEL = 0.15  # what a tie may leave of the difference


def exact_coefficients(name: str) -> tuple[exact.LearningCoefficient, exact.LearningCoefficient]:
    """Coefficients of the few-shot and of the zero-shot loss."""
    if name in UNITS:
        return exact.reduced_rank_regression(1, UNITS[name], DIM, 0), exact.regular(DIM)
    few_shot = exact.normal_crossing((1, 1)) if name == "w1 w2" else exact.power_of_norm(DIM, 2)
    return few_shot, exact.regular(1)


def theory(dataset: xr.Dataset, never_above: bool = False) -> xr.Dataset:
    """The coefficients, and the sign of their difference; ``never_above``: as if a context could only lower."""
    rows, signs = [], []
    for name in dataset["map"].values:
        few_shot, zero_shot = (coefficient.value for coefficient in exact_coefficients(str(name)))
        few_shot = min(few_shot, zero_shot) if never_above else few_shot
        rows.append([zero_shot if side == "zero_shot" else few_shot for side in dataset["side"].values])
        signs.append(np.sign(few_shot - zero_shot))
    return dataset.assign(
        learning_coefficient_theory=(("map", "side"), np.array(rows)), coefficient_sign_theory=("map", np.array(signs))
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every coefficient within 5 %, the sign of every difference, and of the density that is to set it."""
    dataset = dataset.isel(particles=-1, drop=True)
    estimate, formula = estimates.stored(dataset, "learning_coefficient"), dataset["learning_coefficient_theory"]
    sign, density = dataset["coefficient_sign_theory"], dataset["density_sign"]
    gap = estimates.stored(dataset, "coefficient_difference")
    ties = dataset["map"].values[(sign == 0).values]
    tie_gap = Estimate(gap.value.sel(map=ties), gap.error.sel(map=ties))
    names = {str(name) for name in dataset["map"].values}
    return [
        *checks.near("coefficient", "coefficient, multiplicity taken out", estimate, formula, margin=MARGIN * formula),
        *checks.equal("sign", "sign of few-shot less zero-shot", dataset["coefficient_sign"], sign),
        *checks.equal("density", "sign of the density's exponent", density, sign),
        *checks.near("tie", "zero-shot - few-shot where they tie", tie_gap, 0.0, margin=LEVEL),
        *checks.complete("quiet", "no warning", float(dataset["annealing_warnings"].sum()) == 0),
        *checks.complete("maps", "every map", names >= set(MAPS)),
    ]


def figure(dataset: xr.Dataset):
    """The three coefficients of every map; lines: exact."""
    return panels(
        dataset.isel(particles=-1, drop=True),
        [Panel("learning_coefficient", "learning_coefficient_theory")],
        x="map",
        hue="side",
        line_name="exact",
    )


claim = Claim(
    title="When a context adds degeneracy",
    sentence=(
        "A context's learning coefficient is below that of the weights it selects where the pushed-forward prior's "
        "density diverges, above it where that vanishes, and ties where its singularity is logarithmic."
    ),
    conditions=(
        "Exact toys: two linear layers of one to four units into three dimensions, a product of two weights, the "
        "square of a vector. Slopes of annealed free energies up to n beta = 1e6, multiplicity fitted."
    ),
    sources=("SLT22", "Watanabe09", "Aoyagi05"),
    axes=(
        Axis("map", "f_c", "map from weights to weights"),
        Axis("side", "K", "loss"),
        Axis("particles", "N", "particles of each population", least=10),
    ),
    quantities=(
        "learning_coefficient",
        "annealing_warnings",
        Quantity("fitted_multiplicity", r"\hat m", "multiplicity that leaves the slope most constant"),
        Quantity(
            "coefficient_difference", r"\lambda_a^c - \lambda_a", "zero-shot coefficient minus few-shot coefficient"
        ),
        Quantity(
            "coefficient_sign", r"\mathrm{sgn}(\lambda_a-\lambda_a^c)", "sign of few-shot minus zero-shot coefficient"
        ),
        Quantity("density_sign", r"\mathrm{sgn}(\lambda_f - d/2)", "sign of the density's exponent"),
    ),
    static=("particles", "map"),
    outputs=("side",),
    fixed={"nbeta": 1e6, "localization": 1.0, "repeats": 16},
    sizes={
        "smoke": {"particles": (200,), "map": ("|w|^2",), "side": SIDES},
        "small": {"particles": (1000,), "map": MAPS, "side": SIDES},
        "medium": {"particles": (1000, 4000), "map": MAPS, "side": SIDES},
    },
    precision="float64",
    controls={
        "submersion": Control("the maps are regular at the point", measure={"away": 1.0}),
        "never_above": Control("a context can only lower the coefficient", theory={"never_above": True}),
    },
)
