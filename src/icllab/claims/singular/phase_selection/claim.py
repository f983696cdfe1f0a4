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

from icllab.core.axes import axis, quantity
from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, apart, exactly, exceeds, within
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures import style
from icllab.theory import free_energy as expansion
from icllab.theory import learning_coefficients as exact

PHASES = ("simple", "rich")
DRAWN = 4096  # samples of a data set, of which the first n are used
LARGEST = 0.1  # nats: standard error of a mean free energy
SIGMAS = 3.5  # some thirty numbers are compared
GROWTH = 1.0  # nats by which the mean remainder may differ between the fewest and the most samples


def measure(point, *, key):
    """One cell: of every data set the means of its first n samples, and the free energies of both phases there."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from icllab.diagnostics import SMC, free_energy

    products = point.products
    truth = np.zeros(products + 2)
    truth[1] = point.effect

    class Misfit(eqx.Module):
        means: jax.Array

        def __call__(self, w):
            s, u, v = w
            gate = jnp.stack([point.barrier * s * (1 - s), point.effect * s**2 * (3 - 2 * s)])
            answer = jnp.concatenate([gate, s * u * v])
            return jnp.sum((answer - self.means) ** 2) / 2

    class Side(eqx.Module):
        sign: jax.Array

        def __call__(self, w):
            return self.sign * (w[0] - 0.5) > 0

    shape = (len(point.seed), len(point.samples))
    means = np.zeros((*shape, len(truth)))
    found, error, warned = (np.zeros((*shape, len(point.phase))) for _ in range(3))
    centre = (jnp.asarray(0.5), jnp.zeros(products), jnp.zeros(products))
    for i, seed in enumerate(point.seed):
        own = jax.random.fold_in(key, seed)
        data = truth + np.asarray(jax.random.normal(own, (DRAWN, len(truth))))
        for j, n in enumerate(point.samples):
            means[i, j] = data[:n].mean(axis=0)
            for k, phase in enumerate(point.phase):
                one = free_energy(
                    Misfit(jnp.asarray(means[i, j])),
                    centre,
                    nbeta=[float(n)],
                    key=jax.random.fold_in(jax.random.fold_in(own, n), PHASES.index(phase)),
                    region=Side(jnp.asarray(2.0 * PHASES.index(phase) - 1)),
                    sampler=SMC(particles=point.particles, repeats=point.repeats, moves=(2, 20)),
                )
                found[i, j, k], error[i, j, k] = float(one["free_energy"][0]), float(one["free_energy_error"][0])
                warned[i, j, k] = len(one.attrs["warnings"])
    dims = ("seed", "samples", "phase")
    return {
        "sample_mean": ((*dims[:2], "output"), means),
        "phase_free_energy": (dims, found),
        "phase_free_energy_error": (dims, error),
        "annealing_warnings": (dims, warned),
    }


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


def _between(dataset: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rich less simple and its standard error, [seed, samples]; the error of an integral is zero."""
    return apart(dataset, name, "rich", "simple", dims=("seed", "samples"))


def crossing(samples: np.ndarray, gaps: np.ndarray) -> float:
    """The logarithm of the n at which a difference of free energies last falls through zero; NaN if it does not."""
    curve = PchipInterpolator(np.log(samples), gaps)
    places = [x for x in curve.roots(extrapolate=False) if curve.derivative()(x) < 0]
    return float(max(places)) if places else np.nan


def check(dataset: xr.Dataset) -> list[Finding]:
    """Free energies against integrals, the remainder of the expansion, and where the posterior moves."""
    findings, samples = [], dataset.samples.values.astype(float)
    for phase in dataset.phase.values:
        part = dataset.sel(phase=phase).transpose("samples", "seed", "output")
        away = (part["phase_free_energy"] - part["phase_free_energy_theory"]).values
        error = np.sqrt((part["phase_free_energy_error"].values ** 2).sum(-1)) / away.shape[1]
        for n, mean, spread in zip(samples, away.mean(-1), error, strict=True):
            what = f"sampled free energy less the integral, {phase}, n={n:g}"
            findings.append(agreement(what, 0.0, mean, spread, largest_error=LARGEST, sigmas=SIGMAS))
    gaps, errors = _between(dataset, "phase_free_energy")
    remainder = gaps - dataset["phase_gap_theory"].transpose("seed", "samples").values
    findings += [_grown(remainder, errors, samples), *_moved(dataset, gaps)]
    findings += _crossings(dataset, gaps, errors, float(remainder.mean()))
    warned = float((dataset["annealing_warnings"] > 0).mean())
    findings.append(
        exactly("share of runs that warn, at most one in ten", 1, warned <= 0.1, otherwise=Outcome.UNDECIDED)
    )
    return findings


def _grown(remainder: np.ndarray, errors: np.ndarray, samples: np.ndarray) -> Finding:
    """Between the fewest and the most samples, where the terms themselves change by many nats."""
    mean, error = mean_and_error(remainder[:, -1] - remainder[:, 0])
    error = float(np.hypot(error, np.sqrt((errors[:, [0, -1]] ** 2).sum()) / len(remainder)))
    what = f"remainder of the expansion, n={samples[-1]:g} less n={samples[0]:g}"
    return within(what, 0.0, float(mean), error, margin=GROWTH)


def _moved(dataset: xr.Dataset, gaps: np.ndarray) -> list[Finding]:
    """Mean shares of the phases at both ends."""
    findings = []
    for end, phase, sign in ((0, "simple", 1), (-1, "rich", -1)):
        share, error = mean_and_error(1 / (1 + np.exp(-sign * gaps[:, end])))
        what = f"share of the {phase} phase, n={dataset.samples.values[end]:g}"
        findings.append(exceeds(what, float(share), float(error), bound=0.5))
    return findings


def _crossings(dataset: xr.Dataset, gaps: np.ndarray, errors: np.ndarray, constant: float) -> list[Finding]:
    """Of the same data by samples and by integrals; and of the mean, with the mean remainder for the constant."""
    samples = dataset.samples.values.astype(float)
    fine = len(samples) > 3 and bool((samples[1:] / samples[:-1] < 2.1).all())
    enough = exactly("n in steps of two, for crossings", 1, fine, otherwise=Outcome.UNDECIDED)
    if not fine:
        return [enough]
    integrals, _ = _between(dataset, "phase_free_energy_theory")
    slopes = np.abs(np.gradient(gaps, np.log(samples), axis=1))
    away, own = [], []
    for gap, line, error, slope in zip(gaps, integrals, errors, slopes, strict=True):
        sampled, exactly_there = crossing(samples, gap), crossing(samples, line)
        if np.isfinite(sampled + exactly_there):
            at = int(np.abs(np.log(samples) - sampled).argmin())
            away.append(sampled - exactly_there)
            own.append(error[at] / slope[at])
    missing = len(gaps) - len(away)
    what = "log of the crossing n of one data set, sampled less that of the integrals"
    error = float(np.sqrt(np.sum(np.square(own)))) / max(len(own), 1)
    findings = [agreement(what, 0.0, float(np.mean(away)), error, largest_error=0.05)] if away else []
    what = "data sets without a crossing, at most one in eight"
    findings.append(exactly(what, 1, missing <= len(gaps) / 8, otherwise=Outcome.UNDECIDED))

    simple, rich = _phases(dataset, constant)
    predicted = expansion.crossings(simple, rich)
    mean, spread = mean_and_error(gaps.T)
    sampled = crossing(samples, mean)
    slope = np.interp(sampled, np.log(samples), np.abs(np.gradient(mean, np.log(samples))))
    error = float(np.interp(sampled, np.log(samples), spread) / slope)
    line = float(np.log(predicted[-1])) if predicted.size else 0.0
    what = "log of the crossing n of the mean over data, the constant as measured"
    return [enough, *findings, agreement(what, line, sampled, error, largest_error=0.2)]


def _phases(dataset: xr.Dataset, constant: float) -> tuple[expansion.Phase, expansion.Phase]:
    """The two phases in the mean over data; the constant is that of their difference."""
    loss = fixed_values(dataset)["effect"] ** 2 / 2
    slope, folds = float(dataset["coefficient_gap"]), int(dataset["multiplicity_gap"])
    simple = expansion.Phase(loss, exact.LearningCoefficient(0.0))
    return simple, expansion.Phase(0.0, exact.LearningCoefficient(slope, folds + 1), constant)


def figure(dataset: xr.Dataset):
    """The difference of free energies for every data set, and the share of the rich phase."""
    samples = dataset.samples.values.astype(float)
    gaps, errors = _between(dataset, "phase_free_energy")
    lines, expanded = _between(dataset, "phase_free_energy_theory")[0], dataset["phase_gap_theory"]
    constant = float((gaps - expanded.transpose("seed", "samples").values).mean())
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
        right.set_ylabel(f"{quantity('phase_weight').meaning}\nof the rich phase")
        for axes in (left, right):
            axes.set(xscale="log", xlabel=axis("samples").label)
        drawn.legend(loc="outside upper left", ncols=3)
    return drawn


SMALL = tuple(2**i for i in range(6, 13))

experiment = Experiment(
    claim=(
        "In a gated model whose richer phase has less loss and a larger learning coefficient, the posterior is in the "
        "simpler phase at small n and moves to the richer; sampled free energies of both phases are the integrals, the "
        "n of the crossing too, and what n dL + d lambda log n - dm log log n leaves does not grow with n."
    ),
    sources=("Watanabe09", "SLT22"),
    static=("products",),
    fixed={"barrier": 3.0, "effect": 0.15, "particles": 400, "repeats": 4},
    sizes={
        "smoke": {"products": (4,), "samples": (64, 1024), "phase": PHASES, "seed": 3, "output": tuple(range(6))},
        "small": {"products": (4,), "samples": SMALL, "phase": PHASES, "seed": 16, "output": tuple(range(6))},
        "medium": {"products": (4,), "samples": SMALL, "phase": PHASES, "seed": 64, "output": tuple(range(6))},
    },
    precision="float64",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "counted": World(
            "every parameter of the rich phase counts a half", theory=functools.partial(theory, coefficient=counted)
        ),
        "one_layer": World("integrals of weights in place of products", theory=functools.partial(theory, layers=1)),
    },
)
