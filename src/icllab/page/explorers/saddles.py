"""The staircase of linear attention that learns one principal component after another."""

# ruff: noqa: RUF001 (Greek letters are meant)

import functools
from typing import Any

import numpy as np

from icllab.page.explorers.declaration import Explorer, Slider, axis, even, log, swept, whole
from icllab.theory import saddles as theory

_LOGITS = np.linspace(-12, 12, 25)
_FRACTIONS = 1 / (1 + np.exp(-_LOGITS))
_SLIDERS = (
    Slider("time", "t  time of gradient flow", log(1, 1e4, 161), 100),
    Slider("dim", "D  dimensions", whole(2, 8), 4),
    Slider("exponent", "a  eigenvalue d is proportional to d to the minus a", even(0, 2), 1),
    Slider("length", "N  examples in the context", whole(1, 1000), 31),
    Slider("noise", "ρ  variance of the label noise", log(1e-3, 10, zero=True), 0),
    Slider("start", "u  size of the heads at the start", log(1e-4, 0.1), 0.01),
)


def _spectrum(dim: int, exponent: float) -> np.ndarray:
    values = np.arange(1, dim + 1) ** -float(exponent)
    return values / values.sum()


@functools.lru_cache(maxsize=256)
def _learned(dim: int, exponent: float, length: int, noise: float, start: float) -> tuple[np.ndarray, ...]:
    """Times [fraction, component] at which a fraction of each component is learned, its gain, and the levels."""
    values, options = _spectrum(dim, exponent), {"length": length, "noise_variance": noise}
    times = np.array([theory.drop_times(values, start=start, fraction=f, **options) for f in _FRACTIONS])
    levels = np.asarray(theory.plateau_losses(values, **options))
    return times, values**2 * theory.component_weights(values, **options), levels


def curves(*, time: float, **setting: Any) -> dict[str, float]:
    """The loss of aligned heads at a time, and the levels of the plateaus."""
    times, gains, levels = _learned(**setting)
    parts = np.array([1 / (1 + np.exp(-np.interp(time, row, _LOGITS))) for row in times.T])
    loss = 1 - float(gains @ (parts * (2 - parts)))
    return {"loss at the time": loss, **{f"{m} components learned": level for m, level in enumerate(levels)}}


def drops(*, time: float, **setting: Any) -> dict[str, float]:
    """The times of the drops."""
    times, _, _ = _learned(**setting)
    return {f"time of drop {d}": drop for d, drop in enumerate(times[len(times) // 2], 1)}


EXPLORER = Explorer(
    id="saddles",
    title="The staircase of linear attention",
    about=(
        "Heads of linear attention with keys and queries of rank one learn the principal components of the inputs one "
        "after another. Each plateau has an exact loss, which the number of examples in the context sets. The heads "
        "shown start along the components, so that the times of the drops are exact too."
    ),
    **swept(_SLIDERS, curves, x="time", y=axis("relative loss"), extra=drops, across=("time", "length")),
    theory=(theory.plateau_losses, theory.drop_times),
    more="saddles",
)
