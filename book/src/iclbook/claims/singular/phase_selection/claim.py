r"""A statistical model whose posterior moves from a simpler to a richer phase as samples grow.

A gate s chooses between two experts: the model is that of :func:`icllab.theory.posterior_integrals.gated`, the truth
:math:`(0, \delta, 0, \dots, 0)`. The simple phase, :math:`s < \frac12`, misses the effect, a loss of
:math:`\delta^2/2`, and determines the gate alone: :math:`\lambda = \frac12, m = 1`. The rich one has no loss, and
:math:`\lambda = \frac12 + \frac d2,\ m = 1 + d`. (A slope of the effect at s = 0 would move the minimum to where the
products count.)
"""

import numpy as np
import xarray as xr
from scipy.interpolate import PchipInterpolator
from scipy.special import expit

from iclbook.claims.singular._phases import between
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds, tabulated
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, Outcome, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import free_energy as expansion
from icllab.theory import learning_coefficients as exact
from icllab.theory.posterior_integrals import gated

PHASES = ("simple", "rich")
LARGEST = 0.1  # nats: standard error of a mean free energy
SIGMAS = 3.5  # some thirty numbers are compared
DATA_SETS = 128  # that were planned: 1.4 nats are the spread of the remainder's growth over data sets
FEWEST = 8  # least number of data sets for the growth of the remainder
GROWTH = 1.0  # nats: largest difference of the mean remainder between the fewest and the most samples


def coefficients(products: int) -> tuple[exact.LearningCoefficient, exact.LearningCoefficient]:
    """Learning coefficients of the simple and of the rich phase."""
    gate = exact.regular(1)
    return gate, exact.of_sum(gate, *[exact.normal_crossing((1, 1))] * products)


def counted(products: int) -> tuple[exact.LearningCoefficient, exact.LearningCoefficient]:
    """Coefficients if the data determined every parameter of the rich phase."""
    return exact.regular(1), exact.regular(1 + 2 * products)


def theory(dataset: xr.Dataset, coefficient=coefficients, layers: int = 2) -> xr.Dataset:
    """Integrals for the same data, and the expansion of the difference of the phases."""
    dataset = dataset.isel(products=-1) if "products" in dataset.dims else dataset
    parameters = {name: fixed_values(dataset)[name] for name in ("barrier", "effect")}
    means, effect = dataset["sample_mean"], parameters["effect"]

    def energy(seed: int, samples: float, phase: str) -> dict[str, float]:
        of_data = means.sel(seed=seed, samples=samples).values
        return {"phase_free_energy_theory": gated(phase, of_data, float(samples), layers=layers, **parameters)}

    simple, rich = coefficient(int(dataset.products))
    spread, folds = rich.value - simple.value, rich.multiplicity - simple.multiplicity
    log_n = np.log(dataset.samples.astype(float))
    loss_gap = effect**2 / 2 - effect * means.sel(output=1, drop=True)  # loss of the rich phase less that of the simple
    prediction = dataset.samples * loss_gap + spread * log_n - folds * np.log(log_n)
    energies = tabulated(energy, **{name: dataset[name].values.tolist() for name in ("seed", "samples", "phase")})
    gaps = {"coefficient_gap": spread, "multiplicity_gap": float(folds)}
    return dataset.assign(energies | gaps | {"phase_gap_theory": prediction.transpose("seed", "samples")})


def _gap(dataset: xr.Dataset, name: str) -> Estimate:
    """The rich phase minus the simple one."""
    return between(dataset, name, "rich", "simple", "seed", "samples")


def crossing(samples: np.ndarray, gaps: np.ndarray) -> float:
    """Logarithm of the n at which a difference of free energies last falls through zero; NaN if it does not."""
    curve = PchipInterpolator(np.log(samples), gaps)
    places = [x for x in curve.roots(extrapolate=False) if curve.derivative()(x) < 0]
    return float(max(places)) if places else np.nan


def check(dataset: xr.Dataset) -> list[Finding]:
    """Free energies against integrals, the remainder of the expansion, and the n at which the posterior moves."""
    sampled = estimates.stored(dataset, "phase_free_energy") - dataset["phase_free_energy_theory"]
    gap, n = _gap(dataset, "phase_free_energy"), dataset.samples.values
    remainder = gap - dataset["phase_gap_theory"]
    last, first = (remainder.value.isel(samples=end, drop=True) for end in (-1, 0))
    growth, errors = estimates.mean(last - first), remainder.error.isel(samples=[0, -1])
    growth = growth + Estimate(0.0, np.sqrt((errors**2).sum()) / dataset.sizes["seed"])
    rich = xr.apply_ufunc(expit, -gap.value)
    shares = {"simple": 1 - rich.isel(samples=0), "rich": rich.isel(samples=-1)}
    quantity, words = "sampled free energy - the integral", f"remainder of the expansion, n={n[-1]:g} - n={n[0]:g}"
    findings = checks.agrees("energy", quantity, sampled.average("seed"), 0.0, largest_error=LARGEST, sigmas=SIGMAS)
    judgement = checks.near("remainder", words, growth, 0.0, margin=GROWTH)
    scarce = dataset.sizes["seed"] < FEWEST and judgement[0].outcome is Outcome.UNDECIDED
    quantity = f"{FEWEST} data sets, for the remainder of the expansion"
    findings += checks.complete("data_sets", quantity, False) if scarce else judgement
    if len(n) < 2:
        shares = {}
        findings += checks.complete("sample_sizes", "few samples and many are compared", False)
    for phase, share in shares.items():
        quantity = f"share of the {phase} phase"
        findings += checks.above("share", quantity, estimates.mean(share), 0.5, at={"phase": phase})
    findings += _crossings(dataset, gap, float(last.mean()))
    quiet = float((dataset["annealing_warnings"] > 0).mean()) <= 0.1
    return findings + checks.complete("warnings", "at most one run in ten warns", quiet)


def _crossings(dataset: xr.Dataset, gap: Estimate, constant: float) -> list[Finding]:
    """Crossings of each data set by samples and by integrals, and of the mean, with the last remainder as constant."""
    samples = dataset.samples.values.astype(float)
    fine = len(samples) > 3 and bool((samples[1:] / samples[:-1] < 2.1).all())
    findings = checks.complete("steps", "n in steps of two, for crossings", fine)
    if not fine:
        return findings
    log_n, gaps, integrals = np.log(samples), gap.value.values, _gap(dataset, "phase_free_energy_theory").value.values
    sampled, exact_crossings = (np.array([crossing(samples, row) for row in rows]) for rows in (gaps, integrals))
    finite = np.isfinite(sampled + exact_crossings)
    quantity, complete = "at most one data set in eight has no crossing", bool((~finite).sum() <= len(gaps) / 8)
    findings += checks.complete("crossed", quantity, complete)
    if finite.any():
        errors = gap.error.values / np.abs(np.gradient(gaps, log_n, axis=1))
        crossing_errors = errors[finite, np.abs(log_n - sampled[finite, None]).argmin(axis=1)]
        offset = Estimate(
            (sampled - exact_crossings)[finite].mean(), np.sqrt((crossing_errors**2).sum()) / len(crossing_errors)
        )
        quantity = "log of the crossing n of one data set, sampled - that of the integrals"
        findings += checks.agrees("crossing", quantity, offset, 0.0, largest_error=0.05)
    difference = exact.LearningCoefficient(float(dataset["coefficient_gap"]), int(dataset["multiplicity_gap"]) + 1)
    simple = expansion.Phase(fixed_values(dataset)["effect"] ** 2 / 2, exact.LearningCoefficient(0.0))
    predicted = expansion.crossings(simple, expansion.Phase(0.0, difference, constant))
    mean = estimates.mean(gap.value)
    place = crossing(samples, mean.value.values)
    steepness = np.interp(place, log_n, np.abs(np.gradient(mean.value.values, log_n)))
    error = np.interp(place, log_n, mean.error.values) / steepness
    quantity = "log of the crossing n of the mean over data, the constant as measured at the largest n"
    line = float(np.log(predicted[-1])) if predicted.size else 0.0
    estimate = Estimate(place, error, freedom=dataset.sizes["seed"] - 1)
    return findings + checks.agrees("mean_crossing", quantity, estimate, line, largest_error=0.2)


def figure(dataset: xr.Dataset):
    """Draw the difference of free energies for some data sets and the rich phase's share, with lines from integrals."""
    gap, line = _gap(dataset, "phase_free_energy"), _gap(dataset, "phase_free_energy_theory")
    values = {"phase_gap": gap.value, "phase_gap_error": gap.error, "phase_gap_line": line.value}
    values |= {"phase_weight": expit(-gap.value), "phase_weight_line": expit(-line.value)}
    table = xr.Dataset(values, attrs=dataset.attrs).isel(seed=slice(6))
    rows = [Panel(name, f"{name}_line") for name in ("phase_gap", "phase_weight")]
    return panels(table, rows, x="samples", hue="seed", xscale="log", line_name="integral", columns=2)


COMMON = {"products": (4,), "phase": PHASES, "output": tuple(range(6)), "samples": tuple(2**i for i in range(6, 13))}

claim = Claim(
    title="More samples choose the richer phase",
    sentence=(
        "A posterior with two phases is in the simpler one at small n and moves to the richer where their sampled free "
        "energies, which are the integrals, cross."
    ),
    conditions=(
        "A gated model of six numbers, n from 64 to 4096, data sets of fresh noise; what n dL + d lambda log n - "
        "dm log log n leaves of the difference may grow by less than one nat."
    ),
    sources=("Watanabe09", "SLT22"),
    quantities=(
        "phase_free_energy",
        "annealing_warnings",
        Quantity("sample_mean", r"\bar y", "mean of the samples"),
        Quantity("phase_gap", r"\Delta F_n", "free energy, rich minus simple", "nats"),
        Quantity("coefficient_gap", r"\Delta\lambda", "difference of learning coefficients"),
        Quantity("multiplicity_gap", r"\Delta m", "difference of multiplicities"),
        Quantity("phase_weight", "p_a", "posterior mass of the rich phase"),
    ),
    static=("products",),
    outputs=("phase", "output"),
    fixed={"barrier": 3.0, "effect": 0.15, "particles": 400, "repeats": 4},
    sizes={
        "smoke": COMMON | {"samples": (64, 1024), "seed": 3},
        "small": COMMON | {"seed": tuple(range(DATA_SETS, DATA_SETS + 32))},
        "medium": COMMON | {"seed": Seeds(DATA_SETS, block=16)},
    },
    precision="float64",
    key=2,  # the bound of the remainder and its number of data sets were set on those of key 1
    controls={
        "regular": Control("each product of two weights is one weight, which counts a half", measure={"linear": True}),
        "no_effect": Control(
            "the data have no effect",
            measure={"effect": 0.0},
            axes={"samples": (64, 4096), "seed": tuple(range(12))},
        ),
        "counted": Control(
            "every parameter of the rich phase counts a half",
            theory={"coefficient": counted},
        ),
        "one_layer": Control("integrals of weights in place of products", theory={"layers": 1}),
    },
)
