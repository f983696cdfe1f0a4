r"""A statistical model with two phases: with few samples its posterior is in the simpler one, with more it moves.

A gate s chooses between two experts. The model of one sample, of :math:`d+2` numbers with unit noise, has the mean

.. math:: \mu(w) = \bigl(B\,s(1-s),\ \delta\,s^2(3-2s),\ s\,u_1v_1,\ \dots,\ s\,u_dv_d\bigr), \qquad w = (s, u, v)

and the truth is :math:`(0, \delta, 0, \dots, 0)`. What is neither expert is wrong by B. At :math:`s = 0` the effect
:math:`\delta` is missed, a loss of :math:`\delta^2/2`; at :math:`s = 1` it is there, and with it come d products of two
weights that the truth does not need. In nats per sample, with the loss of the truth taken off:

- simple, :math:`s < \frac12`: the loss is :math:`\delta^2/2`, at :math:`s = 0`, where only the gate is determined:
  :math:`\lambda = \frac12, m = 1` (the effect must not be linear in s: a slope there would move the minimum to where
  the products count);
- rich, :math:`s > \frac12`: the loss is 0, and :math:`\lambda = \frac12 + \frac d2,\ m = 1 + d`, a half and one for
  each product, where the number of parameters has :math:`\frac12 + d`.

For given data the free energy of either phase is an integral: u is Gaussian given s and v, each v is one-dimensional,
and then s is. Sampled free energies are compared with it, and their difference with
:math:`n\,\Delta L_n(w^*) + \Delta\lambda\log n - \Delta m\log\log n`, whose remainder must not grow with n.
"""

import functools

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.interpolate import PchipInterpolator
from scipy.special import expit

from icllab.claims.singular._phases import between
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.experiments import checks, estimates
from icllab.experiments.checks import Finding
from icllab.experiments.estimates import Estimate
from icllab.experiments.experiment import Control, Experiment
from icllab.experiments.results import fixed_values
from icllab.figures import style
from icllab.figures.labels import named
from icllab.theory import free_energy as expansion
from icllab.theory import learning_coefficients as exact

PHASES = ("simple", "rich")
LARGEST = 0.1  # nats: standard error of a mean free energy
SIGMAS = 3.5  # some thirty numbers are compared
GROWTH = 1.0  # nats by which the mean remainder may differ between the fewest and the most samples


def integral(phase: str, means: np.ndarray, n: float, *, barrier: float, effect: float, layers: int = 2) -> float:
    r"""The free energy of a phase for given data, by quadrature.

    .. math::
        Z = \int_{W}\varphi(s)\,e^{-\frac n2[(Bs(1-s)-\bar y_0)^2 + (\delta s^2(3-2s)-\bar y_1)^2]}
            \prod_j\int\varphi(v)\frac{e^{-\frac n2\bar y_j^2/(1+ns^2v^2)}}{\sqrt{1+ns^2v^2}}\,dv\,ds

    with :math:`\varphi` normal, of s around :math:`\frac12`. With one layer, v = 1.
    """
    s = 0.5 + (1 if phase == "rich" else -1) * np.linspace(0, 2, 2001)
    density = np.exp(-((s - 0.5) ** 2) / 2) / np.sqrt(2 * np.pi)
    taken = effect * s**2 * (3 - 2 * s)
    exponent = n / 2 * ((barrier * s * (1 - s) - means[0]) ** 2 + (taken - means[1]) ** 2)
    if layers == 2:
        x = np.linspace(-16, 2.2, 183)
        v, weight = np.exp(x), 2 * np.exp(x - np.exp(2 * x) / 2) * (x[1] - x[0]) / np.sqrt(2 * np.pi)
    else:
        v, weight = np.ones(1), np.ones(1)
    widened = 1 + n * s[:, None] ** 2 * v**2
    logarithm = -exponent + np.log(density)
    for mean in means[2:]:
        inner = (np.exp(-n / 2 * mean**2 / widened) / np.sqrt(widened)) @ weight
        logarithm += np.log(inner)
    top = logarithm.max()
    return float(-top - np.log(np.trapezoid(np.exp(logarithm - top), dx=0.001)))


def coefficients(products: int) -> tuple[exact.LearningCoefficient, exact.LearningCoefficient]:
    """Of the simple and of the rich phase."""
    gate = exact.regular(1)
    return gate, exact.of_sum(gate, *[exact.normal_crossing((1, 1))] * products)


def counted(products: int) -> tuple[exact.LearningCoefficient, exact.LearningCoefficient]:
    """As if every parameter of the rich phase were determined."""
    return exact.regular(1), exact.regular(1 + 2 * products)


def theory(dataset: xr.Dataset, coefficient=coefficients, layers: int = 2) -> xr.Dataset:
    """The integrals for the same data; and what the expansion has for the difference of the phases."""
    dataset = dataset.isel(products=-1) if "products" in dataset.dims else dataset
    fixed, products = fixed_values(dataset), int(dataset.products)
    barrier, effect = fixed["barrier"], fixed["effect"]
    samples, means = dataset.samples.values.astype(float), dataset["sample_mean"].transpose("seed", "samples", "output")
    values = np.zeros((dataset.sizes["seed"], len(samples), dataset.sizes["phase"]))
    for at in np.ndindex(values.shape):
        i, j, k = at
        how = {"barrier": barrier, "effect": effect, "layers": layers}
        values[at] = integral(str(dataset.phase.values[k]), means.values[i, j], samples[j], **how)
    simple, rich = coefficient(products)
    ends = np.zeros((2, products + 2))
    ends[1, 1] = effect
    accuracy = [((means.values - end) ** 2).sum(-1) / 2 for end in ends]
    spread = rich.value - simple.value, rich.multiplicity - simple.multiplicity
    expanded = samples * (accuracy[1] - accuracy[0]) + spread[0] * np.log(samples)
    expanded = expanded - spread[1] * np.log(np.log(samples))
    return dataset.assign(
        phase_free_energy_theory=(("seed", "samples", "phase"), values),
        phase_gap_theory=(("seed", "samples"), expanded),
        coefficient_gap=spread[0],
        multiplicity_gap=float(spread[1]),
    )


def _gap(dataset: xr.Dataset, name: str) -> Estimate:
    """Rich less simple."""
    return between(dataset, name, "rich", "simple", "seed", "samples")


def crossing(samples: np.ndarray, gaps: np.ndarray) -> float:
    """The logarithm of the n at which a difference of free energies last falls through zero; NaN if it does not."""
    curve = PchipInterpolator(np.log(samples), gaps)
    places = [x for x in curve.roots(extrapolate=False) if curve.derivative()(x) < 0]
    return float(max(places)) if places else np.nan


def check(dataset: xr.Dataset) -> list[Finding]:
    """Free energies against integrals, the remainder of the expansion, and where the posterior moves."""
    sampled = estimates.stored(dataset, "phase_free_energy") - dataset["phase_free_energy_theory"]
    gap = _gap(dataset, "phase_free_energy")
    remainder = gap - dataset["phase_gap_theory"]
    ends = remainder.value.isel(samples=-1, drop=True) - remainder.value.isel(samples=0, drop=True)
    own = remainder.error.isel(samples=[0, -1])
    grown = estimates.mean(ends)
    grown = Estimate(grown.value, np.hypot(grown.error, np.sqrt((own**2).sum()) / dataset.sizes["seed"]))
    rich = xr.apply_ufunc(expit, -gap.value)
    shares = {"simple": 1 - rich.isel(samples=0), "rich": rich.isel(samples=-1)}
    warned = float((dataset["annealing_warnings"] > 0).mean())
    what, n = "sampled free energy - the integral", dataset.samples.values
    words = f"remainder of the expansion, n={n[-1]:g} - n={n[0]:g}"
    findings = checks.covers("energy", what, sampled.average("seed"), 0.0, largest_error=LARGEST, sigmas=SIGMAS)
    findings += checks.near("remainder", words, grown, 0.0, margin=GROWTH)
    for phase, share in shares.items():
        findings += checks.above(
            "share", f"share of the {phase} phase", estimates.mean(share), 0.5, at={"phase": phase}
        )
    findings += _crossings(dataset, gap, float(remainder.value.mean()))
    return [*findings, *checks.complete("warnings", "at most one run in ten warns", warned <= 0.1)]


def _crossings(dataset: xr.Dataset, gap: Estimate, constant: float) -> list[Finding]:
    """Of the same data by samples and by integrals; and of the mean, with the mean remainder for the constant."""
    samples = dataset.samples.values.astype(float)
    fine = len(samples) > 3 and bool((samples[1:] / samples[:-1] < 2.1).all())
    enough = checks.complete("steps", "n in steps of two, for crossings", fine)
    if not fine:
        return enough
    integrals = _gap(dataset, "phase_free_energy_theory").value.values
    gaps, errors = gap.value.values, gap.error.values
    slopes = np.abs(np.gradient(gaps, np.log(samples), axis=1))
    away, own = [], []
    for values, line, error, slope in zip(gaps, integrals, errors, slopes, strict=True):
        sampled, exactly_there = crossing(samples, values), crossing(samples, line)
        if np.isfinite(sampled + exactly_there):
            at = int(np.abs(np.log(samples) - sampled).argmin())
            away.append(sampled - exactly_there)
            own.append(error[at] / slope[at])
    crossed = len(gaps) - len(away) <= len(gaps) / 8
    findings = checks.complete("crossed", "at most one data set in eight has no crossing", crossed)
    if away:
        offset = Estimate(np.mean(away), float(np.sqrt(np.sum(np.square(own)))) / len(own))
        what = "log of the crossing n of one data set, sampled - that of the integrals"
        findings += checks.covers("crossing", what, offset, 0.0, largest_error=0.05)
    predicted = expansion.crossings(*_phases(dataset, constant))
    mean = estimates.mean(gap.value)
    place = crossing(samples, mean.value.values)
    slope = np.interp(place, np.log(samples), np.abs(np.gradient(mean.value.values, np.log(samples))))
    error = float(np.interp(place, np.log(samples), mean.error.values) / slope)
    line = float(np.log(predicted[-1])) if predicted.size else 0.0
    what = "log of the crossing n of the mean over data, the constant as measured"
    whole = checks.covers("mean_crossing", what, Estimate(place, error), line, largest_error=0.2)
    return [*enough, *findings, *whole]


def _phases(dataset: xr.Dataset, constant: float) -> tuple[expansion.Phase, expansion.Phase]:
    """The two phases in the mean over data; the constant is that of their difference."""
    loss = fixed_values(dataset)["effect"] ** 2 / 2
    slope, folds = float(dataset["coefficient_gap"]), int(dataset["multiplicity_gap"])
    simple = expansion.Phase(loss, exact.LearningCoefficient(0.0))
    return simple, expansion.Phase(0.0, exact.LearningCoefficient(slope, folds + 1), constant)


def figure(dataset: xr.Dataset):
    """The difference of free energies for every data set, and the share of the rich phase."""
    samples = dataset.samples.values.astype(float)
    gap = _gap(dataset, "phase_free_energy")
    gaps, errors = gap.value.values, gap.error.values
    lines = _gap(dataset, "phase_free_energy_theory").value.values
    constant = float((gap.value - dataset["phase_gap_theory"]).mean())
    n = np.geomspace(samples[0], samples[-1], 200)
    simple, rich = (np.asarray(expansion.asymptotic(phase, n)) for phase in _phases(dataset, constant))
    mean = rich - simple
    with style.context():
        drawn = Figure(figsize=(2 * style.COLUMN, 2.7), layout="constrained")
        FigureCanvasAgg(drawn)
        left, right = drawn.subplots(1, 2)
        color = style.CATEGORIES[0]
        for gap, line, error in zip(gaps, lines, errors, strict=True):
            left.plot(samples, line, color=color, linewidth=0.6, alpha=0.5, zorder=2)
            left.errorbar(samples, gap, 3 * error, color=color, linestyle="none", marker="o", markersize=2.5)
            right.plot(samples, 1 / (1 + np.exp(line)), color=color, linewidth=0.6, alpha=0.5, zorder=2)
            right.plot(samples, 1 / (1 + np.exp(gap)), color=color, linestyle="none", marker="o", markersize=2.5)
        left.plot(n, mean, color=style.INK, linewidth=1.4, label="expansion, mean over data", zorder=3)
        left.plot([], [], color=color, linewidth=0.8, alpha=0.5, label="integral, one data set")
        left.plot([], [], color=color, linestyle="none", marker="o", markersize=2.5, label="sampled")
        left.axhline(0, color=style.FAINT, linewidth=0.7, zorder=1)
        right.plot(n, 1 / (1 + np.exp(mean)), color=style.INK, linewidth=1.4, zorder=3)
        left.set_ylabel("free energy of the rich phase\nabove that of the simple one [nats]")
        right.set_ylabel(f"{named(dataset, 'phase_weight').meaning}\nof the rich phase")
        for axes in (left, right):
            axes.set(xscale="log", xlabel=named(dataset, "samples").label)
        drawn.legend(loc="outside upper left", ncols=3)
    return drawn


SMALL = tuple(2**i for i in range(6, 13))

COMMON = {"products": (4,), "phase": PHASES, "output": tuple(range(6))}
experiment = Experiment(
    claim=(
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
        Quantity("phase_gap", r"\Delta F_n", "difference of free energies, expansion", "nats"),
        Quantity("coefficient_gap", r"\Delta\lambda", "difference of learning coefficients"),
        Quantity("multiplicity_gap", r"\Delta m", "difference of multiplicities"),
        Quantity("phase_weight", "p_a", "share of the posterior"),
    ),
    static=("products",),
    outputs=("phase", "output"),
    fixed={"barrier": 3.0, "effect": 0.15, "particles": 400, "repeats": 4},
    sizes={
        "smoke": COMMON | {"samples": (64, 1024), "seed": 3},
        "small": COMMON | {"samples": SMALL, "seed": 16},
        "medium": COMMON | {"samples": SMALL, "seed": Seeds(64, block=8)},
    },
    precision="float64",
    theory=theory,
    check=check,
    figure=figure,
    controls={
        "regular": Control("each product of two weights is one weight, which counts a half", measure={"linear": True}),
        "counted": Control(
            "every parameter of the rich phase counts a half", theory=functools.partial(theory, coefficient=counted)
        ),
        "one_layer": Control("integrals of weights in place of products", theory=functools.partial(theory, layers=1)),
    },
)
