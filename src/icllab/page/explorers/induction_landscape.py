"""The landscape of an induction head with three parameters: a surface, the flow's path on it, and its loss in time."""

# ruff: noqa: RUF001 (Greek letters and minus signs are meant)

import functools
import itertools
from typing import Any

import numpy as np

from icllab.core.errors import expected
from icllab.page.explorers.declaration import Choice, Explorer, Slider, axis, curve
from icllab.theory import induction_landscape as theory

_SYMBOLS = {
    "beta": "β  to the previous token",
    "alpha": "α  to the matching item's label",
    "xi": "ξ  readout",
}
_ORDER = tuple(_SYMBOLS)
_SURFACES = {
    "beta_alpha": "β and α; ξ is the third",
    "beta_xi": "β and ξ; α is the third",
    "alpha_xi": "α and ξ; β is the third",
}
_THIRD = {
    "flow": "follows the flow along the first axis",
    "moment": "is the flow's at the moment",
    "fixed": "is fixed",
}
_HALF = 0.5  # of ln N, on the cliff: each level that is timed makes the flow slower by a third
_POINTS = 61
_LEAST, _MOST = -1.0, 8.0  # of an axis, unless the flow goes farther


def compute(
    *,
    surface: str,
    third: str,
    level: float,
    pairs: int,
    labels: int,
    time: float,
    moment: float,
    against: str,
    **start: float,
) -> dict[str, Any]:
    """The loss over two parameters, and along the flow."""
    if labels < pairs:
        raise expected("labels", f"at least {pairs}, one for each pair", labels)
    flow = _flow(tuple(start[name] for name in _ORDER), pairs, labels, time)
    sizes = {"pairs": pairs, "labels": labels}
    now = np.array([np.interp(moment * time, flow.time, values) for values in flow.parameters.T])
    height = theory.loss(*now, **sizes)
    first, other = (_ORDER.index(name) for name in surface.split("_"))
    left = 3 - first - other
    x, y = (_range(flow.parameters[:, i]) for i in (first, other))
    at: list[Any] = [level if third == "fixed" else value for value in now]
    if third == "flow":
        at[left] = _along(flow.parameters[:, first], flow.parameters[:, left], x)[:, None]
    at[first], at[other] = x[:, None], y
    path = {"label": "gradient flow", "x": flow.parameters[:, first], "y": flow.parameters[:, other], "z": flow.loss}
    axes = {"x": axis(_SYMBOLS[_ORDER[first]]), "y": axis(_SYMBOLS[_ORDER[other]]), "z": axis("loss in nats")}
    mark = {"x": now[first], "y": now[other], "z": height}
    cliff = flow.crossings[_HALF]
    return {
        "surface": {"x": x, "y": y, "z": theory.loss(*at, **sizes), "axes": axes, "path": path, "mark": mark},
        "curves": _curves(flow, against, pairs),
        "axes": {
            "x": axis("time"),
            "y": axis("loss in nats" if against == "loss" else "strength"),
            "mark": moment * time,
        },
        "numbers": {
            "loss at the moment": height,
            **{f"{_SYMBOLS[name][0]} at the moment": value for name, value in zip(_ORDER, now, strict=True)},
            "time of the cliff, at ln N / 2": "not in this time" if np.isnan(cliff) else cliff,
            "ln N": np.log(pairs),
            "ln L": np.log(labels),
        },
    }


@functools.lru_cache(maxsize=64)
def _flow(start: tuple[float, ...], pairs: int, labels: int, time: float) -> theory.Flow:
    return theory.flow(start, pairs=pairs, labels=labels, time=time, levels=[_HALF])


def _range(path: np.ndarray) -> np.ndarray:
    """An axis of the surface, of whole numbers at its ends, that has the path inside."""
    return np.linspace(min(_LEAST, np.floor(path.min())), max(_MOST, np.ceil(path.max())), _POINTS)


def _along(leader: np.ndarray, follower: np.ndarray, x: np.ndarray) -> np.ndarray:
    """What the third parameter is on the flow where the first is x; beyond the ends, what it is there.

    Where the first turns back, it is that of the longest way which it goes in one direction.
    """
    turns = np.flatnonzero(np.diff(np.sign(np.diff(leader)))) + 1
    ends = [0, *turns.tolist(), len(leader) - 1]
    _, start, stop = max((abs(leader[b] - leader[a]), a, b) for a, b in itertools.pairwise(ends))
    order = np.argsort(leader[start : stop + 1], kind="stable") + start
    return np.interp(x, leader[order], follower[order])


def _curves(flow: theory.Flow, against: str, pairs: int) -> list[dict[str, Any]]:
    drawn = dict(zip(_SYMBOLS.values(), flow.parameters.T, strict=True))
    if against == "loss":
        drawn = {"loss along the flow": flow.loss, "ln N, a guess among the context's labels": np.log(pairs)}
    return [curve(label, flow.time, values) for label, values in drawn.items()]


EXPLORER = Explorer(
    id="induction_landscape",
    title="The landscape of an induction head",
    about=(
        "The loss of an induction head with three strengths: β attends to the previous token, α to the label whose "
        "item matches, ξ reads that label out. Gradient flow from near zero lingers on a plateau, where ξ grows alone, "
        "until all three are large enough to help each other, and then falls off the cliff."
    ),
    sliders=(
        Choice("surface", "surface over", _SURFACES, "beta_alpha"),
        Choice("third", "the third parameter", _THIRD, "flow"),
        Slider("level", "its fixed value", -2, 20, 4, when={"third": ("fixed",)}),
        Slider("moment", "moment, as a fraction of the time", 0, 1, 0.5),
        Slider("pairs", "N  pairs in the context", 2, 64, 8, scale="log integer"),
        Slider("labels", "L  labels, at least N", 2, 512, 32, scale="log integer"),
        Slider("beta", "β  at the start", -1, 5, 0),
        Slider("alpha", "α  at the start", -1, 5, 0),
        Slider("xi", "ξ  at the start", -1, 5, 0),
        Slider("time", "time of the flow", 10, 1e5, 200, scale="log"),
        Choice("against", "against time", {"loss": "the loss", "parameters": "the parameters"}, "loss"),
    ),
    view="surface",
    compute=compute,
    more="abrupt-learning",
)
