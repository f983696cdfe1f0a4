"""The landscape of an induction head with three parameters: a map of the loss, and gradient flow in it."""

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
_PLANES = {
    "beta_alpha": "β and α; ξ is the third",
    "beta_xi": "β and ξ; α is the third",
    "alpha_xi": "α and ξ; β is the third",
}
_THIRD_OPTIONS = {
    "flow": "follows the flow along the first axis",
    "moment": "is the flow's at the moment",
    "fixed": "is fixed",
}
_HALF = 0.5  # level of the loss on the cliff, in units of ln N
_POINTS = 61
_LOW, _HIGH = -1.0, 8.0  # ends of an axis, unless the flow goes farther


def compute(
    *,
    plane: str,
    third: str,
    level: float,
    pairs: int,
    labels: int,
    time: float,
    moment: float,
    against: str,
    beta: float,
    alpha: float,
    xi: float,
) -> dict[str, Any]:
    """The loss over two parameters, and along the flow."""
    if labels < pairs:
        raise expected("labels", f"at least {pairs}, one for each pair", labels)
    flow = _flow((beta, alpha, xi), pairs, labels, time)
    sizes = {"pairs": pairs, "labels": labels}
    now = np.array([np.interp(moment * time, flow.time, values) for values in flow.parameters.T])
    height = theory.loss(*now, **sizes)
    first, second = (_ORDER.index(name) for name in plane.split("_"))
    remaining = 3 - first - second
    x, y = (_range(flow.parameters[:, i]) for i in (first, second))
    point: list[Any] = [level if third == "fixed" else value for value in now]
    if third == "flow":
        point[remaining] = _along(flow.parameters[:, first], flow.parameters[:, remaining], x)[:, None]
    point[first], point[second] = x[:, None], y
    path = {"label": "gradient flow", "x": flow.parameters[:, first], "y": flow.parameters[:, second], "z": flow.loss}
    axes = {"x": axis(_SYMBOLS[_ORDER[first]]), "y": axis(_SYMBOLS[_ORDER[second]]), "z": axis("loss in nats")}
    mark = {"x": now[first], "y": now[second], "z": height}
    cliff = flow.crossings[_HALF]
    return {
        "map": {"x": x, "y": y, "z": theory.loss(*point, **sizes), "axes": axes, "path": path, "mark": mark},
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
    """Values of an axis that contains the path, with integers at its ends."""
    return np.linspace(min(_LOW, np.floor(path.min())), max(_HIGH, np.ceil(path.max())), _POINTS)


def _along(leader: np.ndarray, follower: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The third parameter on the flow where the first is x; constant beyond the ends of the flow.

    If the first parameter turns back, its longest monotone stretch counts.
    """
    turns = np.flatnonzero(np.diff(np.sign(np.diff(leader)))) + 1
    ends = [0, *turns.tolist(), len(leader) - 1]
    _, start, stop = max((abs(leader[b] - leader[a]), a, b) for a, b in itertools.pairwise(ends))
    order = np.argsort(leader[start : stop + 1], kind="stable") + start
    return np.interp(x, leader[order], follower[order])


def _curves(flow: theory.Flow, against: str, pairs: int) -> list[dict[str, Any]]:
    lines = dict(zip(_SYMBOLS.values(), flow.parameters.T, strict=True))
    if against == "loss":
        lines = {"loss along the flow": flow.loss, "ln N, a guess among the context's labels": np.log(pairs)}
    return [curve(label, flow.time, values) for label, values in lines.items()]


EXPLORER = Explorer(
    id="induction_landscape",
    title="The landscape of an induction head",
    about=(
        r"The loss of an induction head with three strengths: $\beta$ attends to the previous token, $\alpha$ to the "
        r"label whose item matches, $\xi$ reads that label out. Gradient flow from near zero lingers on a plateau, "
        r"where $\xi$ grows alone, until all three are large enough to help each other, and then falls off the cliff."
    ),
    controls=(
        Choice("plane", "map over", _PLANES, "beta_alpha"),
        Choice("third", "the third parameter", _THIRD_OPTIONS, "flow"),
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
    view="map",
    compute=compute,
    theory=(theory.loss, theory.flow),
    more="abrupt-learning",
)
