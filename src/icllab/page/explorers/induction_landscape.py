"""The landscape of an induction head with three parameters: a map of the loss, and gradient flow in it."""

# ruff: noqa: RUF001 (Greek letters are meant)

import functools
from typing import Any

import numpy as np

from icllab.core.errors import expected
from icllab.page.explorers.declaration import Choice, Explorer, Slider, axis, curve, even, log, whole
from icllab.theory import induction_landscape as theory

_SYMBOLS = {
    "beta": "β  to the previous token",
    "alpha": "α  to the matching item's label",
    "xi": "ξ  readout",
}
_ORDER = tuple(_SYMBOLS)
_PLANES = {"beta_alpha": "β and α", "beta_xi": "β and ξ", "alpha_xi": "α and ξ"}
_HALF = 0.5  # level of the loss on the cliff, in units of ln N
_POINTS = 61
_LOW, _HIGH = -1.0, 8.0  # ends of an axis, unless the flow goes farther


def compute(
    *,
    plane: str,
    against: str,
    moment: float,
    pairs: int,
    labels: int,
    time: float,
    beta: float,
    alpha: float,
    xi: float,
) -> dict[str, Any]:
    """The loss over two parameters with the third of the moment, and along the flow."""
    if labels < pairs:
        raise expected("labels", f"at least {pairs}, one for each pair", labels)
    flow = _flow((beta, alpha, xi), pairs, labels, time)
    now = [np.interp(moment * time, flow.time, values) for values in flow.parameters.T]
    height = theory.loss(*now, pairs=pairs, labels=labels)
    first, second = (_ORDER.index(name) for name in plane.split("_"))
    across, up = flow.parameters[:, first], flow.parameters[:, second]
    x, y = _range(across), _range(up)
    point: list[Any] = list(now)
    point[first], point[second] = x[:, None], y
    cliff = flow.crossings[_HALF]
    lines = {"loss along the flow": flow.loss, "ln N, a guess among the context's labels": np.log(pairs)}
    if against == "parameters":
        lines = dict(zip(_SYMBOLS.values(), flow.parameters.T, strict=True))
    label = axis("loss in nats")
    return {
        "map": {
            "x": x,
            "y": y,
            "z": theory.loss(*point, pairs=pairs, labels=labels),
            "axes": {"x": axis(_SYMBOLS[_ORDER[first]]), "y": axis(_SYMBOLS[_ORDER[second]]), "z": label},
            "path": {"label": "gradient flow", "x": across, "y": up, "z": flow.loss},
            "mark": {"x": now[first], "y": now[second], "z": height},
        },
        "curves": [curve(name, flow.time, values) for name, values in lines.items()],
        "axes": {"x": axis("time"), "y": label if against == "loss" else axis("strength"), "mark": moment * time},
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


EXPLORER = Explorer(
    id="induction_landscape",
    title="The landscape of an induction head",
    about=(
        r"The loss of an induction head with three strengths: $\beta$ attends to the previous token, $\alpha$ to the "
        r"label whose item matches, $\xi$ reads that label out. Gradient flow from near zero lingers on a plateau, "
        r"where $\xi$ grows alone, until all three are large enough to help each other, and then falls off the cliff. "
        "The map is that at the moment of the mark: the third strength has its value there."
    ),
    controls=(
        Choice("plane", "map over", _PLANES, "beta_alpha"),
        Choice("against", "against time", {"loss": "the loss", "parameters": "the parameters"}, "loss"),
        Slider("moment", "moment, as a fraction of the time", even(0, 1, 101), 0.5),
        Slider("pairs", "N  pairs in the context", whole(2, 64), 8),
        Slider("labels", "L  labels, at least N", whole(2, 512), 32),
        *(Slider(name, f"{_SYMBOLS[name][0]}  at the start", even(-1, 5), 0) for name in _ORDER),
        Slider("time", "time of the flow", log(10, 1e5), 200),
    ),
    view="map",
    compute=compute,
    theory=(theory.loss, theory.flow),
    more="abrupt-learning",
)
