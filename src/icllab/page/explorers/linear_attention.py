"""Errors of linear attention over tau, alpha, kappa, rho and the ridge."""

# ruff: noqa: RUF001 (Greek letters and minus signs are meant)

from typing import Any

import numpy as np

from icllab.page.explorers.declaration import Choice, Explorer, Slider, axis, curve
from icllab.theory import linear_attention as theory

_AXES = (
    Slider("tau", "τ  pretraining contexts over d²", 0.05, 50, 2, scale="log"),
    Slider("alpha", "α  context length over d", 0.1, 1000, 10, scale="log"),
    Slider("kappa", "κ  pretraining tasks over d", 0.05, 20, 0.5, scale="log"),
    Slider("rho", "ρ  variance of the label noise", 1e-3, 10, 0.01, scale="log", zero=True),
    Slider("ridge", "λ  ridge", 1e-6, 10, 0, scale="log", zero=True),
)
_SLIDERS = {slider.name: slider for slider in _AXES}
_NAMES = {slider.name: slider.label for slider in _AXES}
_ERRORS = {"icl": "ICL error, fresh tasks", "idg": "IDG error, pretraining tasks"}
_FORMULAS = {"icl": theory.icl_error, "idg": theory.idg_error}
_NEAR = np.geomspace(1e-3, 0.1, 12)  # distances from tau = 1, where errors without a ridge diverge


def compute(*, x: str, second: str, error: str, **setting: float) -> dict[str, Any]:
    """Both errors and that of ridge regression along one axis, and one of them over two axes."""
    values = _line(x, 160, _NEAR)
    along = {**setting, x: values}
    ridge = theory.ridge_error(alpha=along["alpha"], rho=along["rho"])
    point = {kind: formula(**setting) for kind, formula in _FORMULAS.items()}
    answer: dict[str, Any] = {
        "curves": [
            *(curve(_ERRORS[kind], values, formula(**along)) for kind, formula in _FORMULAS.items()),
            curve("ridge regression on one context", values, ridge),
        ],
        "axes": {"x": axis(_NAMES[x], "log"), "y": axis("squared error", "log"), "mark": setting[x] or None},
        "numbers": {
            "ICL error": point["icl"],
            "IDG error": point["idg"],
            "ridge regression": theory.ridge_error(alpha=setting["alpha"], rho=setting["rho"]),
            "effective ridge ξ": theory.effective_ridge(**setting),
        },
    }
    if second == x:
        return answer | {"note": "A map needs two different axes."}
    rows, columns = _line(x, 45, _NEAR[[4, 8, 11]]), _line(second, 45, _NEAR[[4, 8, 11]])
    heights = _FORMULAS[error](**{**setting, x: rows[:, None], second: columns})
    axes = {"x": axis(_NAMES[x], "log"), "y": axis(_NAMES[second], "log"), "z": axis(_ERRORS[error], "log")}
    across, up = setting[x], setting[second]
    mark = {"x": across, "y": up, "z": point[error]} if across and up else None
    return answer | {"map": {"x": rows, "y": columns, "z": heights, "axes": axes, "mark": mark}}


def _line(name: str, points: int, near: np.ndarray) -> np.ndarray:
    """Values over the range of a parameter, equidistant in its logarithm; for tau more near 1, but not 1 itself."""
    line = np.geomspace(_SLIDERS[name].low, _SLIDERS[name].high, points)
    return np.unique(np.concatenate([line, 1 - near, 1 + near])) if name == "tau" else line


EXPLORER = Explorer(
    id="linear_attention",
    title="Errors of linear attention",
    about=(
        "The exact error of linear attention pretrained on finitely many contexts, in the limit of large dimension. "
        r"Without a ridge it diverges at $\tau = 1$, as many contexts as parameters. Fresh tasks need $\kappa > 1$, "
        "more pretraining tasks than dimensions; below, longer contexts make the error on them larger."
    ),
    controls=(
        Choice("x", "horizontal axis", _NAMES, "tau"),
        Choice("second", "vertical axis of the map", _NAMES, "alpha"),
        Choice("error", "error of the map", _ERRORS, "icl"),
        *_AXES,
    ),
    view="curves",
    compute=compute,
    theory=(theory.icl_error, theory.idg_error, theory.ridge_error, theory.effective_ridge),
    more="asymptotics",
)
