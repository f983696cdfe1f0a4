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
    beta: float,
    alpha: float,
    xi: float,
    time: float,
    moment: float,
    against: str,
) -> dict[str, Any]:
    """The loss over two parameters, and along the flow."""
    if labels < pairs:
        raise expected("labels", f"at least {pairs}, one for each pair", labels)
    flow = _flow((beta, alpha, xi), pairs, labels, time)
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
        "curves": _curves(flow, pairs) if against == "loss" else _parameters(flow),
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
def _flow(start: tuple[float, float, float], pairs: int, labels: int, time: float) -> theory.Flow:
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


def _curves(flow: theory.Flow, pairs: int) -> list[dict[str, Any]]:
    return [
        curve("loss along the flow", flow.time, flow.loss),
        curve("ln N, a guess among the context's labels", flow.time, np.log(pairs)),
    ]


def _parameters(flow: theory.Flow) -> list[dict[str, Any]]:
    labels = _SYMBOLS.values()
    return [curve(label, flow.time, values) for label, values in zip(labels, flow.parameters.T, strict=True)]


EXPLORER = Explorer(
    id="induction_landscape",
    title="The landscape of an induction head",
    about=(
        "The loss of an induction head with three strengths: β attends to the previous token, α to the label whose "
        "item matches, ξ reads that label out. Gradient flow from near zero lingers on a plateau, where ξ grows alone, "
        "until all three are large enough to help each other, and then falls off the cliff."
    ),
    sliders=(
        Choice(name="surface", label="surface over", options=_SURFACES, start="beta_alpha"),
        Choice(
            name="third",
            label="the third parameter",
            options={
                "flow": "follows the flow along the first axis",
                "moment": "is the flow's at the moment",
                "fixed": "is fixed",
            },
            start="flow",
        ),
        Slider(name="level", label="its fixed value", low=-2, high=20, start=4, when={"third": ("fixed",)}),
        Slider(name="moment", label="moment, as a fraction of the time", low=0, high=1, start=0.5),
        Slider(name="pairs", label="N  pairs in the context", low=2, high=64, start=8, scale="log integer"),
        Slider(name="labels", label="L  labels, at least N", low=2, high=512, start=32, scale="log integer"),
        Slider(name="beta", label="β  at the start", low=-1, high=5, start=0),
        Slider(name="alpha", label="α  at the start", low=-1, high=5, start=0),
        Slider(name="xi", label="ξ  at the start", low=-1, high=5, start=0),
        Slider(name="time", label="time of the flow", low=10, high=1e5, start=200, scale="log"),
        Choice(
            name="against",
            label="against time",
            options={"loss": "the loss", "parameters": "the parameters"},
            start="loss",
        ),
    ),
    view="surface",
    compute=compute,
    more="abrupt-learning",
)
