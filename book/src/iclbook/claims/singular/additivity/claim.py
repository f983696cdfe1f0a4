r"""Do the learning coefficients of loss terms add? In separate weights always; in shared weights sometimes.

Each context c asks two linear layers for zero, :math:`K_c = \frac12\lVert BAh_c\rVert^2`. Contexts ``apart`` have
hidden units of their own, :math:`\lambda = \frac12 + 1`; ``shared`` are two orthogonal :math:`h_c` in the same two
units, :math:`1 + 1`; ``crowded`` are three of them, :math:`\frac52` and not 3; ``repeated`` is one context twice, 1 and
not 2. Contributions :math:`n\beta\,E[K_c]` always add; their covariance is zero in separate weights and positive in
shared ones. Derived: docs/singular-learning.md, Terms that share weights.
"""

import functools

import xarray as xr

from icllab.core.axes import Quantity
from icllab.core.grid import tabulated
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory.posterior_integrals import shared_units

# Hidden units of each context, and the number of its h.
ARRANGEMENTS = {
    "apart": (((0,), 0), ((1, 2), 1)),
    "shared": (((0, 1), 0), ((0, 1), 1)),
    "crowded": (((0, 1), 0), ((0, 1), 1), ((0, 1), 2)),
    "repeated": (((0, 1), 0), ((0, 1), 0)),
}
MOST = 3  # largest number of contexts, and of hidden units
integrals = functools.cache(shared_units)  # arrangements have terms in common
LARGEST = 0.05  # standard error of any number
SIGMAS = 3.5  # some sixty numbers are compared: one in forty such checks is wrong by chance
NAMES = {
    "learning_coefficient": "coefficient of the whole",
    "additivity_gap": "coefficient of the whole - those of its terms",
    "contribution": "contribution of one context",
    "term_covariance": "covariance of two contexts",
}


def integral_values(arrangement: str, dim: int, t: float, shared: bool = True) -> dict[str, float]:
    """Measured quantities by integrals; unless ``shared``, with separate weights."""
    contexts = ARRANGEMENTS[arrangement]
    separate, units = sum(integrals(1, len(hidden), dim, t).mean for hidden, _ in contexts), len(contexts[0][0])
    if arrangement == "apart":
        total, contribution, covariance = separate, integrals(1, units, dim, t).mean, 0.0
    elif arrangement == "repeated":  # one context at twice the temperature, in two halves
        total, variance, _ = integrals(1, units, dim, 2 * t)
        contribution, covariance = total / 2, variance / 4
    else:
        contribution, _, covariance = integrals(len(contexts), units, dim, t)
        total = len(contexts) * contribution
    total, covariance = (total, covariance) if shared else (separate, 0.0)
    return dict(zip(NAMES, (total, total - separate, contribution, covariance), strict=True))


def theory(dataset: xr.Dataset, shared: bool = True) -> xr.Dataset:
    """Integrals at every temperature."""
    dim, swept = int(fixed_values(dataset)["dim"]), {n: dataset[n].values.tolist() for n in ("arrangement", "nbeta")}
    predictions = tabulated(lambda arrangement, nbeta: integral_values(arrangement, dim, nbeta, shared), **swept)
    return dataset.assign({f"{name}_theory": values for name, values in predictions.items()})


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every quantity agrees with its integral; gaps and covariances have the predicted signs."""
    dataset, findings = dataset.isel(draws=-1, drop=True), []
    sampled = {name: estimates.stored(dataset, name) for name in NAMES}
    for name, quantity in NAMES.items():
        line = dataset[f"{name}_theory"]
        findings += checks.agrees(name, quantity, sampled[name], line, largest_error=LARGEST, sigmas=SIGMAS)
    arrangements = [str(name) for name in dataset.arrangement.values]
    crowded = [name for name in arrangements if name in ("crowded", "repeated")]
    sharing = [name for name in arrangements if name != "apart"]
    gaps = sampled["additivity_gap"].sel(arrangement=crowded, nbeta=dataset.nbeta[-1].item())
    covariance = sampled["term_covariance"].sel(arrangement=sharing).average("nbeta")
    return [
        *findings,
        *checks.below("whole_is_less", NAMES["additivity_gap"], gaps, -0.25),
        *checks.above("covariance", "covariance of two contexts, mean over nbeta", covariance),
        *checks.complete("arrangements", "every arrangement", set(ARRANGEMENTS) <= set(arrangements)),
        *checks.complete("quiet", "no warning", float(dataset["sampler_warnings"].sum()) == 0),
    ]


def figure(dataset: xr.Dataset):
    """Draw the gap and the covariance against nbeta; lines: the integrals."""
    rows = [Panel(name, f"{name}_theory") for name in ("additivity_gap", "term_covariance")]
    dataset = dataset.isel(draws=-1, drop=True)
    return panels(dataset, rows, x="nbeta", hue="arrangement", xscale="log", line_name="integral", columns=2)


EVERY = {"arrangement": tuple(ARRANGEMENTS), "nbeta": (10.0, 100.0, 1000.0, 10_000.0)}

claim = Claim(
    title="Coefficients add in separate weights",
    sentence=(
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
        Quantity("additivity_gap", r"\hat\lambda - \sum_c\hat\lambda_c", "coefficient minus its terms'"),
    ),
    static=("draws", "arrangement", "nbeta"),
    fixed={"dim": 3, "chains": 32, "warm_up": 500},
    sizes={
        "smoke": {"draws": (1200,), "arrangement": ("shared",), "nbeta": (10.0,)},
        # With 4000 draws the errors of chains are understated: squared deviations were 2.7 of them, with 16,000 1.0.
        "small": EVERY | {"draws": (16_000,)},
        "medium": EVERY | {"draws": (64_000,), "nbeta": (*EVERY["nbeta"], 100_000.0)},
    },
    precision="float64",
    controls={
        "separate": Control("contexts that are to share weights have their own", measure={"separate": True}),
        "opposed": Control(
            "contexts that share weights ask for opposite answers",
            measure={"opposed": True},
            axes={"arrangement": ("repeated",), "nbeta": (10.0, 100.0)},
        ),
        "no_sharing": Control("shared weights count as separate ones", theory={"shared": False}),
    },
)
