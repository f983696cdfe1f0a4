"""The staircase of linear attention that learns one principal component after another."""

# ruff: noqa: RUF001 (Greek letters are meant)

from typing import Any

import numpy as np

from icllab.page.explorers.declaration import Choice, Explorer, Slider, axis, curve
from icllab.theory import saddles as theory

_AGAINST = {"time": "time of gradient flow", "length": "the length of the context"}
_LENGTHS = np.unique(np.round(np.geomspace(1, 1000, 31)).astype(int))
_FRACTIONS = 1 / (1 + np.exp(-np.linspace(-12, 12, 49)))
_IN_TIME = {"against": ("time",)}


def compute(*, against: str, dim: int, exponent: float, length: int, noise: float, start: float) -> dict[str, Any]:
    """The loss of aligned heads against time with the levels of its plateaus, or all levels against the length."""
    values = np.arange(1, dim + 1) ** -exponent
    values /= values.sum()
    law = {"noise_variance": noise}
    levels = theory.plateau_losses(values, length=length, **law)
    numbers = {f"loss after {m} components": level for m, level in enumerate(levels)}
    if against == "length":
        rows = np.array([theory.plateau_losses(values, length=int(n), **law) for n in _LENGTHS])
        curves = [curve(f"{m} components", _LENGTHS, row) for m, row in enumerate(rows.T)]
        axes = {"x": axis("N  examples in the context", "log"), "y": axis("loss over that of zero"), "mark": length}
        return {"curves": curves, "axes": axes, "numbers": numbers}
    times = theory.drop_times(values, length=length, start=start, **law)
    numbers |= {f"time of drop {d}": drop for d, drop in enumerate(times, 1)}
    time = np.geomspace(times[0] / 10, 3 * times[-1], 240)
    weights = theory.component_weights(values, length=length, **law)
    curves = [
        curve("loss", time, 1 - values**2 @ (weights[:, None] * _gained(values, time, length, start, law))),
        curve("level of the plateau", time, levels[np.searchsorted(times, time)]),
    ]
    axes = {"x": axis("t  time of gradient flow", "log"), "y": axis("loss over that of zero"), "mark": None}
    return {"curves": curves, "axes": axes, "numbers": numbers}


def _gained(values: np.ndarray, time: np.ndarray, length: int, start: float, noise: dict[str, float]) -> np.ndarray:
    r"""What each component has gained at each time, [component, time], of its last: :math:`2f - f^2` at part f."""
    grid = np.array([theory.drop_times(values, length=length, start=start, fraction=f, **noise) for f in _FRACTIONS])
    logits = np.log(_FRACTIONS) - np.log1p(-_FRACTIONS)
    parts = [1 / (1 + np.exp(-np.interp(time, row, logits))) for row in grid.T]
    return np.array([part * (2 - part) for part in parts])


EXPLORER = Explorer(
    id="saddles",
    title="The staircase of linear attention",
    about=(
        "Heads of linear attention with keys and queries of rank one learn the principal components of the inputs one "
        "after another. Each plateau has an exact loss, which the number of examples in the context sets. The heads "
        "shown start along the components, so that the times of the drops are exact too."
    ),
    controls=(
        Choice("against", "against", _AGAINST, "time"),
        Slider("dim", "D  dimensions", 2, 8, 4, scale="integer"),
        Slider("exponent", "a  eigenvalue d is d to the minus a", 0, 2, 1),
        Slider("length", "N  examples in the context", 1, 1000, 31, scale="log integer"),
        Slider("noise", "ρ  variance of the label noise", 1e-3, 10, 0, scale="log", zero=True),
        Slider("start", "u  size of the heads at the start", 1e-4, 0.1, 0.01, scale="log", when=_IN_TIME),
    ),
    view="curves",
    compute=compute,
    theory=(theory.plateau_losses, theory.drop_times),
    more="saddles",
)
