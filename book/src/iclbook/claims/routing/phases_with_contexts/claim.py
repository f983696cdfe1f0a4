r"""The posterior over a model of two contexts as samples grow: recognition, and daughters that move alone or together.

The model is that of :mod:`icllab.theory.context_phases`: the context selects zero-shot weights
:math:`f_c(w) = (r, \pm\alpha\rho(r), s_c, u^{(c)}, v^{(c)})`. There are :math:`n_1` samples of one context and
:math:`n_2` of the other, of which a ``share`` of n; the phases are regions of the gates. Three types of transition,
where two free energies cross: A, the contexts are told apart (r); B, the daughter of one context becomes the rich one;
C, both do at once, since they have the same products. Of each the correlation of :math:`n_1K_1` with :math:`n_2K_2`
under the posterior, all phases together: their covariance is the cross-susceptibility.
"""

import functools

import numpy as np
import xarray as xr
from scipy.interpolate import PchipInterpolator

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds, tabulated
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory.context_phases import PHASES as SIDES
from icllab.theory.context_phases import context_phase

CONTEXTS = 2
MODELS = ("private", "shared")
MOMENTS = ("first", "second", "first_squared", "second_squared", "product")
TRANSITIONS = {
    "private": {"A": ("ignored", "00"), "B1": ("00", "10"), "B2": ("10", "11")},
    "shared": {"A": ("ignored", "00"), "C": ("00", "11")},
}
SETTLED = 60  # n from which on the expansion is judged
GROWTH = 1.0  # nats by which its remainder may change from there on
SIGMAS = 3.5  # some eighty numbers are compared
COUPLED, FREE = 0.25, 0.15  # least correlation of losses at A and C, and largest at B
SOONER = 0.5  # largest ratio of the second context's samples at C to those at B

integrals = functools.cache(context_phase)


def theory(dataset: xr.Dataset, half: bool = False) -> xr.Dataset:
    """Integrals for every phase, and their expansion; ``half``: every weight counts as a half."""
    fixed = fixed_values(dataset)
    numbers = {name: fixed[name] for name in ("barrier", "sign", "effect", "products")}
    log, unit = np.log, (2 if half else 1) * 0.5

    def exact(context_model: str, share: float, samples: float, phase: str) -> dict[str, object]:
        n = (samples * (1 - share), samples * share)
        shared = context_model == "shared"
        known = integrals(phase, *n, shared=shared, **numbers)
        first, second = known.means
        squares = (known.variances[0] + first**2, known.variances[1] + second**2)
        moments: dict[str, float] = dict(
            zip(MOMENTS, (first, second, *squares, known.covariance + first * second), strict=True)
        )
        rich = [size for size, side in zip(n, SIDES[phase][1:], strict=True) if side > 0]
        sizes = [sum(rich)] if shared and rich else rich
        missed = samples - sum(rich)
        prediction = missed * numbers["effect"] ** 2 / 2 + (0.5 if phase == "ignored" else 1.5) * log(samples)
        prediction += samples * numbers["sign"] ** 2 / 2 if phase == "ignored" else 0.0
        logarithms = [unit * log(size) - (0 if half else log(log(8 * size) - np.euler_gamma)) for size in sizes]
        return {
            "phase_free_energy_theory": known.free_energy,
            "loss_moment_theory": (("moment",), np.array([moments[str(name)] for name in dataset["moment"].values])),
            "expansion": prediction + numbers["products"] * sum(logarithms),
        }

    names = ("context_model", "share", "samples", "phase")
    return dataset.assign(tabulated(exact, **{name: dataset[name].values.tolist() for name in names}))


def mixture(energies: xr.DataArray, moments: xr.DataArray) -> xr.Dataset:
    """Weights of the phases, and the covariance and correlation of both losses over all of them."""
    weights: xr.DataArray = xr.DataArray(np.exp(energies.min("phase") - energies))
    weights = weights / weights.sum("phase")
    whole = (weights * moments).sum("phase")
    first, second, first_squared, second_squared, product = (whole.sel(moment=name, drop=True) for name in MOMENTS)
    covariance = product - first * second
    spread = np.sqrt((first_squared - first**2) * (second_squared - second**2))
    return xr.Dataset(
        {"phase_weight": weights, "cross_susceptibility": covariance, "loss_correlation": covariance / spread}
    )


def crossing(energies: xr.DataArray, left: str, right: str) -> xr.DataArray:
    """Logarithm of the n at which the free energy of ``right`` last falls below that of ``left``, or NaN."""
    log_n = np.log(energies["samples"].values)

    def place(gaps: np.ndarray) -> float:
        curve = PchipInterpolator(log_n, gaps)
        roots = [x for x in curve.roots(extrapolate=False) if curve.derivative()(x) < 0]
        return float(max(roots)) if roots else np.nan

    gap = energies.sel(phase=right, drop=True) - energies.sel(phase=left, drop=True)
    return xr.apply_ufunc(place, gap, input_core_dims=[["samples"]], vectorize=True)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Free energies, their expansion, the order of phases, and the crossings with the correlation at each."""
    findings: list[Finding] = []
    places: dict[tuple[str, float], xr.DataArray] = {}
    for model in dataset["context_model"].values:
        for share in dataset["share"].values.tolist():
            part, at = dataset.sel(context_model=model, share=share, drop=True), {"model": str(model), "share": share}
            findings += _energies(part, at)
            if part.sizes["samples"] > 3:
                findings += _transitions(part, at, places)
    quiet = float((dataset["annealing_warnings"] > 0).mean()) <= 0.1
    findings += checks.complete("quiet", "at most one run in ten warns", quiet)
    for share in dataset["share"].values.tolist():
        if {(model, share) for model in MODELS} <= set(places) and share < 0.5:
            ratio = estimates.mean(places["shared", share]) - estimates.mean(places["private", share])
            quantity = "log of the second context's samples at C less that at B"
            findings += checks.below("sooner", quantity, ratio, float(np.log(SOONER)), at={"share": share})
    return findings + checks.complete("models", "both models", set(dataset["context_model"].values) == set(MODELS))


def _energies(part: xr.Dataset, at: checks.At) -> list[Finding]:
    """Sampled free energies equal the integrals, and the integrals follow the expansion."""
    offset = estimates.mean((part["phase_free_energy"] - part["phase_free_energy_theory"]).mean("samples"))
    quantity = "sampled free energy - the integral, mean over n"
    findings = checks.agrees("energy", quantity, offset, 0.0, largest_error=0.05, sigmas=SIGMAS, at=at)
    remainder = (part["phase_free_energy"] - part["expansion"]).sel(samples=part["samples"] > SETTLED)
    if remainder.sizes["samples"] < 2:
        return findings
    change = remainder.isel(samples=-1, drop=True) - remainder.isel(samples=0, drop=True)
    change = change.sel(phase=[name for name in SIDES if name != "00"]) - change.sel(phase="00", drop=True)
    words = "free energy less that of 00, less the expansion: change over n"
    return findings + checks.near("remainder", words, estimates.mean(change), 0.0, margin=GROWTH, at=at)


def _transitions(part: xr.Dataset, at: checks.At, places: dict[tuple[str, float], xr.DataArray]) -> list[Finding]:
    """The phases with most of the posterior, their crossings, and the joint movement of losses at them."""
    model, share = str(at["model"]), float(at["share"])
    energies, exact = part["phase_free_energy"], part["phase_free_energy_theory"]
    sampled = mixture(energies, part["loss_moment"])
    known = mixture(exact, part["loss_moment_theory"])
    leading = [str(part["phase"].values[i]) for i in sampled["phase_weight"].mean("seed").argmax("phase").values]
    path = [name for i, name in enumerate(leading) if i == 0 or name != leading[i - 1]]
    alone = model == "private" and share < 0.5
    expected = ["ignored", "00", "10", "11"] if alone else ["ignored", "00", "11"]
    findings = checks.equal("path", f"phases in the order {', '.join(expected)}", float(path == expected), 1.0, at=at)
    for name, (left, right) in TRANSITIONS[model].items():
        here = {**at, "transition": name}
        place, line = crossing(energies, left, right), float(crossing(exact, left, right))
        quantity = "log of the n at which both phases have as much, sampled - by integrals"
        offset = estimates.mean(place - line)
        findings += checks.agrees("crossing", quantity, offset, 0.0, largest_error=0.05, sigmas=SIGMAS, at=here)
        n = part["samples"].values[int(np.abs(np.log(part["samples"].values) - line).argmin())]
        correlation = estimates.mean(sampled["loss_correlation"].sel(samples=n, drop=True))
        formula = float(known["loss_correlation"].sel(samples=n))
        words = "correlation of both contexts' losses"
        findings += checks.agrees(
            "correlation", words, correlation, formula, largest_error=0.05, sigmas=SIGMAS, at=here
        )
        if name in ("A", "C"):
            findings += checks.above("together", words, correlation, COUPLED, at=here)
        else:
            findings += checks.below("superposed", words, correlation, FREE, at=here)
        if name in ("B2", "C"):
            places[model, share] = place
    return findings


def figure(dataset: xr.Dataset):
    """Draw weights of phases against n, and the correlation of losses, with lines from integrals."""
    sampled = mixture(dataset["phase_free_energy"], dataset["loss_moment"])
    lines = mixture(dataset["phase_free_energy_theory"], dataset["loss_moment_theory"])
    means = {name: estimates.mean(sampled[name]) for name in ("phase_weight", "loss_correlation")}
    table = xr.Dataset(attrs=dataset.attrs)
    for name, mean in means.items():
        table = table.assign({name: mean.value, f"{name}_error": mean.error, f"{name}_line": lines[name]})
    cells = [(str(model), float(share)) for model in table["context_model"].values for share in table["share"].values]
    rows = [
        Panel(
            name, f"{name}_line", hue="phase" if name == "phase_weight" else None, at={"context_model": m, "share": s}
        )
        for name in means
        for m, s in cells
    ]
    return panels(table, rows, x="samples", xscale="log", line_name="integral", columns=len(cells))


COMMON = {"phase": tuple(SIDES), "moment": MOMENTS}
SMALL = COMMON | {
    "context_model": MODELS,
    "share": (0.2, 0.5),
    "samples": (8, 16, 32, 45, *(2**i for i in range(6, 13))),
}

claim = Claim(
    title="Contexts make phases of a posterior",
    sentence=(
        "As samples grow, a posterior tells two contexts apart; then daughters become rich, each on its own if weights "
        "are private, together and with correlated losses if shared."
    ),
    conditions=(
        "Gates and six products, 15 or 27 weights; n from 8 to 4096, of which a fifth or a half belongs to the second "
        "context; the samples have their expected mean. A correlation is that of n K of both contexts at the grid's n "
        "nearest to the crossing, above 0.25 for types A and C and below 0.15 for B."
    ),
    sources=("SLT22", "Watanabe09"),
    axes=(
        Axis("context_model", "M", "model of two contexts"),
        Axis("share", r"n_2/n", "share of the second context", above=0),
        Axis("moment", "m", "moment of both losses"),
    ),
    quantities=(
        "phase_free_energy",
        "annealing_warnings",
        Quantity("loss_moment", "E[n_cK_c]", "means, mean squares and mean product of both losses times n"),
        Quantity("expansion", r"nL+\lambda\log n", "free energy up to a constant", "nats"),
        Quantity("phase_weight", "p_a", "posterior mass"),
        Quantity("loss_correlation", r"\mathrm{corr}(n_1K_1, n_2K_2)", "correlation of both losses"),
    ),
    static=("context_model",),
    outputs=("moment", "samples"),
    fixed={"barrier": 3.0, "sign": 0.5, "effect": 0.3, "products": 6, "particles": 400, "repeats": 4},
    sizes={
        "smoke": COMMON
        | {"context_model": ("shared",), "share": (0.2,), "samples": (8, 64), "phase": ("ignored", "00", "11")}
        | {"seed": 2, "particles": 100, "repeats": 2},
        "small": SMALL | {"seed": 10},
        "medium": SMALL | {"seed": Seeds(32, block=8)},
    },
    precision="float64",
    key=3,  # key 1 had no n near the crossing of type A, and of key 2 a phase warned that it moved too little
    controls={
        "split": Control("each context is recognised by a gate of its own", measure={"split": True}),
        "swapped": Control("daughters have the products of the other model", measure={"swapped": True}),
        "one_phase": Control(
            "contexts do not differ, and no daughter misses an effect", measure={"sign": 0.0, "effect": 0.0}
        ),
        "counted": Control("every weight counts a half", theory={"half": True}),
    },
)
