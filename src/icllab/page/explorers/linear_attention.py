"""Errors of linear attention over tau, alpha, kappa, rho and the ridge, with stored results laid over."""

# ruff: noqa: RUF001 (Greek letters and minus signs are meant)

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from icllab.page.explorers.declaration import Choice, Explorer, Slider, axis, curve
from icllab.theory import linear_attention as theory

if TYPE_CHECKING:
    import xarray as xr

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
_CLAIMS = {
    "asymptotics/double_descent": {},
    "asymptotics/context_length": {},
    "asymptotics/ridge_tames_the_peak": {},
    "asymptotics/task_diversity": {"tau": "alpha"},  # which has as many contexts over d^2 as pairs over d
}
_SAME = 1e-3  # of two values' logarithms, that they count as one


def compute(*, x: str, second: str, error: str, **setting: float) -> dict[str, Any]:
    """Both errors and ridge regression's along one axis, and one of the errors over two."""
    at = _line(x, 160, _NEAR)
    along = {**setting, x: at}
    ridge = theory.ridge_error(alpha=along["alpha"], rho=along["rho"])
    here = {kind: formula(**setting) for kind, formula in _FORMULAS.items()}
    answer: dict[str, Any] = {
        "curves": [
            *(curve(_ERRORS[kind], at, formula(**along)) for kind, formula in _FORMULAS.items()),
            curve("ridge regression on one context", at, ridge),
        ],
        "axes": {"x": axis(_NAMES[x], "log"), "y": axis("squared error", "log"), "mark": setting[x] or None},
        "numbers": {
            "ICL error": here["icl"],
            "IDG error": here["idg"],
            "ridge regression": theory.ridge_error(alpha=setting["alpha"], rho=setting["rho"]),
            "effective ridge ξ": theory.effective_ridge(**setting),
        },
    }
    if second == x:
        return answer | {"note": "A surface needs a second axis that is not the first."}
    rows, columns = _line(x, 45, _NEAR[[4, 8, 11]]), _line(second, 45, _NEAR[[4, 8, 11]])
    heights = _FORMULAS[error](**{**setting, x: rows[:, None], second: columns})
    axes = {"x": axis(_NAMES[x], "log"), "y": axis(_NAMES[second], "log"), "z": axis(_ERRORS[error], "log")}
    across, up = setting[x], setting[second]
    mark = {"x": across, "y": up, "z": here[error]} if across and up else None
    return answer | {"surface": {"x": rows, "y": columns, "z": heights, "axes": axes, "mark": mark}}


def place(dataset: "xr.Dataset", *, x: str, second: str, error: str, **setting: float) -> dict[str, Any]:
    """Geometric means over the seeds of a stored result, with standard errors, measured at ``setting``."""
    found = _measured(dataset)
    settings: list[dict[str, float]] = []
    curves: dict[str, dict[str, Any]] = {}
    surface: dict[str, list[float]] = {"x": [], "y": [], "z": []}
    for point in found:
        others = {name: point[name] for name in _SLIDERS if name != x}
        if others not in settings:
            settings.append(others)
        if _apart(point, setting) <= {x}:
            for kind, label in _ERRORS.items():
                line = curves.setdefault(f"{label}, d = {point['dim']:g}", {"x": [], "y": [], "error": []})
                for name, value in (("x", point[x]), ("y", point[kind]), ("error", point[f"{kind}_error"])):
                    line[name].append(value)
        if second != x and _apart(point, setting) <= {x, second} and point["dim"] == max(p["dim"] for p in found):
            for name, value in (("x", point[x]), ("y", point[second]), ("z", point[error])):
                surface[name].append(value)
    return {"curves": [{"label": k, **v} for k, v in curves.items()], "surface": surface, "settings": settings}


def _measured(dataset: "xr.Dataset") -> list[dict[str, float]]:
    """The points of a stored result: their parameters, dimension, means over the seeds and standard errors."""
    from icllab.lab.results import fixed_values

    renamed, fixed = _CLAIMS[dataset.attrs["claim"]], {"ridge": 0.0, **fixed_values(dataset)}
    table = {}
    for kind in (kind for kind in _ERRORS if f"{kind}_error" in dataset):
        solved = dataset[f"{kind}_error"].where(dataset["converged"] == 1)
        logs = solved.copy(data=np.log(solved.values))
        table[kind] = np.exp(logs.mean("seed"))
        table[f"{kind}_error"] = table[kind] * logs.std("seed", ddof=1) / np.sqrt(logs.count("seed"))
    points = []
    for indices in np.ndindex(table["icl"].shape):
        one = {name: float(values.values[indices]) for name, values in table.items()}
        at = {str(name): float(table["icl"][name][i]) for name, i in zip(table["icl"].dims, indices, strict=True)}
        setting = {name: at.get(renamed.get(name, name), fixed.get(name)) for name in _SLIDERS}
        if math.isfinite(one["icl"]):
            points.append({"idg": math.nan, "idg_error": math.nan, **one, **setting, "dim": at["dim"]})
    return points


def _apart(point: dict[str, float], setting: dict[str, float]) -> set[str]:
    """The parameters in which a point is elsewhere than the controls."""
    return {name for name in _SLIDERS if not math.isclose(point[name], setting[name], rel_tol=_SAME)}


def _line(name: str, points: int, near: np.ndarray) -> np.ndarray:
    """The range of a parameter, evenly in its logarithm; of tau more points about 1, and not 1 itself."""
    line = np.geomspace(_SLIDERS[name].low, _SLIDERS[name].high, points)
    return np.unique(np.concatenate([line, 1 - near, 1 + near])) if name == "tau" else line


EXPLORER = Explorer(
    id="linear_attention",
    title="Errors of linear attention",
    about=(
        "The exact error of linear attention pretrained on finitely many contexts, in the limit of large dimension. "
        "Without a ridge it diverges at τ = 1, as many contexts as parameters. Fresh tasks need κ > 1, more "
        "pretraining tasks than dimensions; below, longer contexts make the error on them larger."
    ),
    sliders=(
        Choice("x", "horizontal axis", _NAMES, "tau"),
        Choice("second", "second axis of the surface", _NAMES, "alpha"),
        Choice("error", "height of the surface", _ERRORS, "icl"),
        *_AXES,
    ),
    view="curves",
    compute=compute,
    overlay=tuple(_CLAIMS),
    place=place,
    placed="Geometric means over seeds with their standard errors, at finite d; the curves are of infinite d.",
    more="asymptotics",
)
