"""Two phases that compete for the posterior: free energies against the number of samples."""

import functools
from typing import Any

import numpy as np
from scipy.special import expit

from icllab.core.errors import InputError
from icllab.page.explorers.declaration import Choice, Explorer, Slider, axis, curve
from icllab.theory import free_energy, posterior_integrals
from icllab.theory.free_energy import Phase
from icllab.theory.learning_coefficients import LearningCoefficient

_SMALLEST_N = 3.0
_CUSP_N = np.geomspace(_SMALLEST_N, 1e4, 70)  # the quadrature's step resolves the wells up to here
_MODELS = {"expansion": "the expansion, two phases", "cusp": "a tilted cusp, exact integrals"}
_QUANTITIES = {"energies": "both free energies", "difference": "their difference", "weights": "shares of the posterior"}
_EXPANSION, _CUSP = {"model": ("expansion",)}, {"model": ("cusp",)}


def compute(
    *,
    model: str,
    quantity: str,
    largest_n: float,
    gap: float,
    simple: float,
    simple_m: int,
    rich: float,
    rich_m: int,
    constant: float,
    split: float,
    tilt: float,
    free: int,
) -> dict[str, Any]:
    """Free energies, their difference or the phases' shares, by the expansion or by integrals."""
    if model == "cusp":
        return _cusp(quantity, split=split, tilt=tilt, free=free)
    phases = {
        "simple phase": Phase(gap, LearningCoefficient(simple, simple_m)),
        "rich phase": Phase(0.0, LearningCoefficient(rich, rich_m), constant),
    }
    n = np.geomspace(_SMALLEST_N, largest_n, 140)
    energies = {name: np.asarray(free_energy.asymptotic(phase, n)) for name, phase in phases.items()}
    shares = free_energy.posterior_weights(list(phases.values()), n)
    try:
        crossings = free_energy.crossings(*phases.values()).tolist()
    except InputError:  # both phases are equal
        crossings = []
    numbers = {f"crossing {i} at n": crossing for i, crossing in enumerate(crossings, 1)} or {"crossing": "at no n"}
    inside = [crossing for crossing in crossings if _SMALLEST_N <= crossing <= largest_n]
    return _figure(quantity, n, energies, shares, inside[-1] if inside else None) | {"numbers": numbers}


def _cusp(quantity: str, *, split: float, tilt: float, free: int) -> dict[str, Any]:
    halves = {
        f"{side} well": np.array(
            [posterior_integrals.cusp(side, n, split=split, tilt=tilt, free=free).free_energy for n in _CUSP_N]
        )
        for side in ("left", "right")
    }
    left, right = halves.values()
    share = expit(right - left)
    numbers = {f"tilt of equal shares at n = {n:g}": _line(n, split, free) for n in (100.0, 1000.0)}
    return _figure(quantity, _CUSP_N, halves, np.stack([share, 1 - share]), None) | {"numbers": numbers}


@functools.lru_cache(maxsize=256)
def _line(n: float, split: float, free: int) -> float | str:
    try:
        return posterior_integrals.cusp_line(n, split=split, free=free)
    except InputError:
        return "beyond -2 to 3"


def _figure(
    quantity: str, n: np.ndarray, energies: dict[str, np.ndarray], shares: np.ndarray, mark: float | None
) -> dict[str, Any]:
    (first, second), (first_energy, second_energy) = energies, energies.values()
    label, lines = {
        "energies": ("free energy in nats", energies),
        "difference": ("difference in nats", {f"{second} minus {first}": second_energy - first_energy, "equal": 0.0}),
        "weights": ("share of the posterior", dict(zip(energies, shares, strict=True))),
    }[quantity]
    axes = {"x": axis("n  samples", "log"), "y": axis(label), "mark": mark}
    return {"curves": [curve(name, n, values) for name, values in lines.items()], "axes": axes}


EXPLORER = Explorer(
    id="free_energies",
    title="Two phases against n",
    about=(
        r"The posterior prefers the phase of less free energy, $F = nL + \lambda\ln n - (m-1)\ln\ln n + c$: with few "
        "samples the simpler one, with many the one that fits better. The expansion, or the exact integrals of a "
        "tilted cusp of which one well determines more directions than the other."
    ),
    controls=(
        Choice("model", "model", _MODELS, "expansion"),
        Choice("quantity", "quantity", _QUANTITIES, "difference"),
        Slider("largest_n", "n  largest", 100, 1e8, 3000, scale="log", when=_EXPANSION),
        Slider(
            "gap",
            "loss of the simple phase above the rich one",
            1e-6,
            1,
            0.01125,
            scale="log",
            zero=True,
            when=_EXPANSION,
        ),
        Slider("simple", "λ of the simple phase", 0, 20, 0.5, when=_EXPANSION),
        Slider("simple_m", "m of the simple phase", 1, 10, 1, scale="integer", when=_EXPANSION),
        Slider("rich", "λ of the rich phase", 0, 20, 2.5, when=_EXPANSION),
        Slider("rich_m", "m of the rich phase", 1, 10, 5, scale="integer", when=_EXPANSION),
        Slider("constant", "c  constant of the rich phase less the simple one's", -10, 10, 0, when=_EXPANSION),
        Slider("split", "p  split of the wells", -1, 2, 1, when=_CUSP),
        Slider("tilt", "q  tilt to the right", -0.5, 0.5, 0.03, when=_CUSP),
        Slider("free", "directions that only the right well determines", 0, 8, 4, scale="integer", when=_CUSP),
    ),
    view="curves",
    compute=compute,
    theory=(free_energy.asymptotic, free_energy.posterior_weights, posterior_integrals.cusp),
    more="free-energies",
)
