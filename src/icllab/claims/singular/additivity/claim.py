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

# Hidden units that each context uses, and which h it has.
ARRANGEMENTS = {
    "apart": (((0,), 0), ((1, 2), 1)),
    "shared": (((0, 1), 0), ((0, 1), 1)),
    "crowded": (((0, 1), 0), ((0, 1), 1), ((0, 1), 2)),
    "repeated": (((0, 1), 0), ((0, 1), 0)),
}
MOST = 3  # contexts, and hidden units
integrals = functools.cache(shared_units)  # arrangements have terms in common
LARGEST = 0.05  # standard error of any number
SIGMAS = 3.5  # some sixty numbers are compared: one in forty such checks is wrong by chance
NAMES = {
    "learning_coefficient": "coefficient of the whole",
    "additivity_gap": "the whole - its terms alone",
    "contribution": "contribution of one context",
    "term_covariance": "covariance of two contexts",
}


def predicted(arrangement: str, dim: int, t: float, shared: bool = True) -> dict[str, float]:
    """What is measured, by integrals; not ``shared``: as if all weights were separate."""
    chosen = ARRANGEMENTS[arrangement]
    alone, units = sum(integrals(1, len(own), dim, t).mean for own, _ in chosen), len(chosen[0][0])
    if arrangement == "apart":
        total, one, covariance = alone, integrals(1, units, dim, t).mean, 0.0
    elif arrangement == "repeated":  # one context at twice the temperature, in two halves
        total, variance, _ = integrals(1, units, dim, 2 * t)
        one, covariance = total / 2, variance / 4
    else:
        one, _, covariance = integrals(len(chosen), units, dim, t)
        total = len(chosen) * one
    total, covariance = (total, covariance) if shared else (alone, 0.0)
    return dict(zip(NAMES, (total, total - alone, one, covariance), strict=True))


def theory(dataset: xr.Dataset, shared: bool = True) -> xr.Dataset:
    """The integrals at every temperature."""
    dim, swept = int(fixed_values(dataset)["dim"]), {n: dataset[n].values.tolist() for n in ("arrangement", "nbeta")}
    found = tabulated(lambda arrangement, nbeta: predicted(arrangement, dim, nbeta, shared), **swept)
    return dataset.assign({f"{name}_theory": values for name, values in found.items()})


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every number is the integral's; gaps and covariances have the signs that tell the arrangements apart."""
    dataset, findings = dataset.isel(draws=-1, drop=True), []
    found = {name: estimates.stored(dataset, name) for name in NAMES}
    for name, what in NAMES.items():
        line = dataset[f"{name}_theory"]
        findings += checks.agrees(name, what, found[name], line, largest_error=LARGEST, sigmas=SIGMAS)
    there = [str(name) for name in dataset.arrangement.values]
    less, together = [one for one in there if one in ("crowded", "repeated")], [one for one in there if one != "apart"]
    gaps = found["additivity_gap"].sel(arrangement=less, nbeta=dataset.nbeta[-1].item())
    covariance = found["term_covariance"].sel(arrangement=together).average("nbeta")
    return [
        *findings,
        *checks.below("whole_is_less", NAMES["additivity_gap"], gaps, -0.25),
        *checks.above("covariance", "covariance of two contexts, mean over nbeta", covariance),
        *checks.complete("arrangements", "every arrangement", set(ARRANGEMENTS) <= set(there)),
        *checks.complete("quiet", "no warning", float(dataset["sampler_warnings"].sum()) == 0),
    ]


def figure(dataset: xr.Dataset):
    """The gap and the covariance against nbeta; lines: the integrals."""
    rows = [Panel(name, f"{name}_theory") for name in ("additivity_gap", "term_covariance")]
    dataset = dataset.isel(draws=-1, drop=True)
    return panels(dataset, rows, x="nbeta", hue="arrangement", xscale="log", line_name="integral", columns=2)


EVERY = {"arrangement": tuple(ARRANGEMENTS), "nbeta": (10.0, 100.0, 1000.0, 10_000.0)}

claim = Claim(
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
        Quantity("additivity_gap", r"\hat\lambda - \sum_c\hat\lambda_c", "coefficient less its terms'"),
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
