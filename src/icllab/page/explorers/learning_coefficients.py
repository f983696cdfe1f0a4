"""Exact learning coefficients of normal crossings and of two linear layers."""

# ruff: noqa: RUF001 (Greek letters and minus signs are meant)

from typing import Any

import numpy as np

from icllab.core.errors import expected
from icllab.page.explorers.declaration import Choice, Explorer, Slider, axis, curve
from icllab.theory import learning_coefficients as theory
from icllab.theory.learning_coefficients import LearningCoefficient

_LARGEST = 16
_SIZES = {"hidden": "H  hidden units", "inputs": "M  inputs", "outputs": "N  outputs", "rank": "r  rank of the truth"}
_LAYERS, _CROSSING = {"model": ("layers",)}, {"model": ("crossing",)}
_N = np.geomspace(10, 1e8, 120)


def compute(*, model: str, against: str, crossing_against: str, **values: Any) -> dict[str, Any]:
    """The coefficient against a size or a power, or the target of an estimate at a finite temperature."""
    powers, weights = [values[f"k{i}"] for i in (1, 2, 3)], [values[f"h{i}"] for i in (1, 2, 3)]
    if model == "layers":
        sizes = {name: values[name] for name in _SIZES}
        exact, half = _layers(**sizes), (sizes["inputs"] + sizes["outputs"]) * sizes["hidden"] / 2
        numbers = {"λ": exact.value, "m": exact.multiplicity, "half the number of parameters": half}
        if against != "n":
            return _against_size(sizes, against) | {"numbers": numbers}
    else:
        exact = _crossing(powers, weights)
        numbers = {"λ": exact.value, "m": exact.multiplicity, "half the number of parameters": 1.5}
        if crossing_against != "n":
            first = np.arange(0 if powers[1] or powers[2] else 1, 13)
            coefficients = [_crossing([int(k), *powers[1:]], weights) for k in first]
            axes = {"x": axis("k₁  power of w₁"), "y": axis("learning coefficient"), "mark": powers[0]}
            return {"curves": _both(first, coefficients), "axes": axes, "numbers": numbers}
    curves = [
        curve("target of an estimate, λ − (m − 1) / ln nβ", _N, exact.at(_N)),
        curve("λ", _N, exact.value),
    ]
    axes = {"x": axis("nβ  inverse temperature", "log"), "y": axis("learning coefficient"), "mark": None}
    return {"curves": curves, "axes": axes, "numbers": numbers}


def _against_size(sizes: dict[str, int], against: str) -> dict[str, Any]:
    """The coefficients at all sizes that admit the rank."""
    fixed_sizes = [value for name, value in sizes.items() if name not in (against, "rank")]
    low, high = (0, min(fixed_sizes)) if against == "rank" else (max(1, sizes["rank"]), _LARGEST)
    x = np.arange(low, high + 1)
    coefficients = [_layers(**{**sizes, against: int(value)}) for value in x]
    swept = {**sizes, against: x}
    half = (swept["inputs"] + swept["outputs"]) * swept["hidden"] / 2
    axes = {"x": axis(_SIZES[against]), "y": axis("learning coefficient"), "mark": sizes[against]}
    return {"curves": [*_both(x, coefficients), curve("half the number of parameters", x, half)], "axes": axes}


def _both(x: np.ndarray, coefficients: list[LearningCoefficient]) -> list[dict[str, Any]]:
    names = (("λ  learning coefficient", "value"), ("m  multiplicity", "multiplicity"))
    return [curve(label, x, np.array([float(getattr(exact, name)) for exact in coefficients])) for label, name in names]


def _layers(*, hidden: int, inputs: int, outputs: int, rank: int) -> LearningCoefficient:
    if rank > min(hidden, inputs, outputs):
        raise expected("rank", f"at most {min(hidden, inputs, outputs)}, the smallest size", rank)
    return theory.reduced_rank_regression(inputs, hidden, outputs, rank)


def _crossing(powers: list[int], weights: list[float]) -> LearningCoefficient:
    if not any(powers):
        raise expected("k1", "one power above 0; otherwise K is constant", powers[0])
    return theory.normal_crossing(powers, weights)


EXPLORER = Explorer(
    id="learning_coefficients",
    title="Exact learning coefficients",
    about=(
        r"What a singular model counts in the place of half the number of its parameters: the learning coefficient "
        r"$\lambda$ and its multiplicity $m$, of two linear layers $y = BAx$ over all parameters, and of a normal "
        r"crossing $K = \prod w_i^{2k_i}$ under the prior $\prod |w_i|^{h_i}$."
    ),
    controls=(
        Choice("model", "model", {"layers": "two linear layers", "crossing": "normal crossing"}, "layers"),
        Choice("against", "against", {**_SIZES, "n": "nβ  inverse temperature"}, "hidden", when=_LAYERS),
        Slider("inputs", _SIZES["inputs"], 1, _LARGEST, 6, scale="integer", when=_LAYERS),
        Slider("hidden", _SIZES["hidden"], 1, _LARGEST, 4, scale="integer", when=_LAYERS),
        Slider("outputs", _SIZES["outputs"], 1, _LARGEST, 5, scale="integer", when=_LAYERS),
        Slider("rank", _SIZES["rank"], 0, _LARGEST, 1, scale="integer", when=_LAYERS),
        Choice("crossing_against", "against", {"k1": "k₁", "n": "nβ  inverse temperature"}, "k1", when=_CROSSING),
        *(
            Slider(f"k{i}", f"k{'₁₂₃'[i - 1]}  power of w{'₁₂₃'[i - 1]}", 0, 12, k, scale="integer", when=_CROSSING)
            for i, k in ((1, 2), (2, 1), (3, 1))
        ),
        *(
            Slider(f"h{i}", f"h{'₁₂₃'[i - 1]}  power of w{'₁₂₃'[i - 1]} in the prior", 0, 6, 0, when=_CROSSING)
            for i in (1, 2, 3)
        ),
    ),
    view="curves",
    compute=compute,
    theory=(theory.reduced_rank_regression, theory.normal_crossing),
    more="singular-learning",
)
