"""The best preconditioner of one layer of linear attention, against the spectrum of the inputs."""

# ruff: noqa: RUF001 (Greek letters and minus signs are meant)

from typing import Any

import numpy as np

from icllab.core.errors import expected
from icllab.page.explorers.declaration import Choice, Explorer, Slider, axis, curve
from icllab.theory import preconditioners as theory

_AGAINST = {"spectrum": "the eigenvalues of Σ", "length": "the length of the context"}
_SPECTRA = {"power": "power law, i to the minus a", "levels": "two levels, k of them raised"}
_TASKS = {"identity": "identity", "inverse": "Σ⁻¹", "same": "Σ"}
_BEST, _STEP, _INVERSE = "best preconditioner A*", "best multiple of the identity", "best multiple of Σ⁻¹"
_LENGTHS = np.unique(np.round(np.geomspace(1, 1000, 19)).astype(int))


def compute(*, against: str, tasks: str, length: int, noise: float, **shape: Any) -> dict[str, Any]:
    """The eigenvalues of three preconditioners, or their errors against the length of the context."""
    sigma = _spectrum(**shape)
    of_tasks = {"identity": None, "inverse": 1 / sigma, "same": sigma}[tasks]
    distribution = {"task_covariance": of_tasks, "noise_variance": noise}
    total = float(np.sum(sigma * (1.0 if of_tasks is None else of_tasks)))
    errors, scales, matrix = _errors(sigma, length, distribution)
    numbers = {f"error of the {name}, relative": value / total for name, value in errors.items()}
    numbers |= {"condition number of Σ": sigma[0] / sigma[-1], "error of zero, tr ΣW": total}
    if against == "spectrum":
        x = sigma[::-1]
        curves = [
            curve(_BEST, x, np.diagonal(matrix)[::-1]),
            curve(_STEP, x, scales[_STEP]),
            curve(_INVERSE, x, scales[_INVERSE] / x),
        ]
        axes = {"x": axis("eigenvalue of Σ", "log"), "y": axis("eigenvalue of the preconditioner", "log")}
        return {"curves": curves, "axes": {**axes, "mark": None}, "numbers": numbers}
    rows = [_errors(sigma, int(n), distribution)[0] for n in _LENGTHS]
    curves = [curve(name, _LENGTHS, np.array([row[name] for row in rows]) / total) for name in errors]
    axes = {"x": axis("n  examples in the context", "log"), "y": axis("error relative to that of zero", "log")}
    return {"curves": curves, "axes": {**axes, "mark": length}, "numbers": numbers}


def _errors(
    sigma: np.ndarray, length: int, distribution: dict[str, Any]
) -> tuple[dict[str, float], dict[str, float], Any]:
    """Error of each preconditioner, factors of the multiples, and the best matrix."""
    best = theory.optimal(sigma, length=length, **distribution)
    errors, scales = {_BEST: best.loss}, {}
    for name, shape in ((_STEP, np.ones_like(sigma)), (_INVERSE, 1 / sigma)):
        errors[name], scales[name] = _scaled(np.diag(shape / shape.max() / sigma.max()), sigma, length, distribution)
        scales[name] /= shape.max() * sigma.max()
    return errors, scales, best.matrix


def _scaled(shape: np.ndarray, sigma: np.ndarray, length: int, distribution: dict[str, Any]) -> tuple[float, float]:
    """The error of the best multiple of a matrix, and the factor, in which the error is quadratic."""
    before, zero, after = (
        theory.loss(factor * shape, sigma, length=length, **distribution) for factor in (-1.0, 0.0, 1.0)
    )
    factor = (before - after) / (2 * (before - 2 * zero + after))
    return theory.loss(factor * shape, sigma, length=length, **distribution), factor


def _spectrum(*, spectrum: str, dim: int, exponent: float, raised: int, ratio: float) -> np.ndarray:
    """Eigenvalues in decreasing order, with mean 1."""
    if spectrum == "levels" and raised >= dim:
        raise expected("raised", f"fewer than the {dim} dimensions", raised)
    order = np.arange(1, dim + 1)
    values = order**-exponent if spectrum == "power" else np.where(order <= raised, ratio, 1.0)
    return values / values.mean()


EXPLORER = Explorer(
    id="preconditioner",
    title="The optimal preconditioner",
    about=(
        "One layer of linear attention takes one preconditioned step of gradient descent. The best preconditioner "
        r"inverts the covariance $\Sigma$ of the inputs along directions that the context determines, and is nearly "
        r"flat along those where it is too short: longer contexts bring it nearer to $\Sigma^{-1}$."
    ),
    controls=(
        Choice("against", "against", _AGAINST, "spectrum"),
        Choice("spectrum", "spectrum of Σ", _SPECTRA, "power"),
        Slider("dim", "d  dimensions", 2, 32, 16, scale="integer"),
        Slider("exponent", "a  exponent", 0, 3, 1, when={"spectrum": ("power",)}),
        Slider("raised", "k  raised eigenvalues", 1, 31, 2, scale="integer", when={"spectrum": ("levels",)}),
        Slider("ratio", "ratio of the two levels", 1, 1000, 20, scale="log", when={"spectrum": ("levels",)}),
        Choice("tasks", "covariance of the tasks", _TASKS, "identity"),
        Slider("length", "n  examples in the context", 1, 1000, 20, scale="log integer"),
        Slider("noise", "ρ  variance of the label noise", 1e-3, 100, 0, scale="log", zero=True),
    ),
    view="curves",
    compute=compute,
    theory=(theory.optimal, theory.loss),
    more="constructions",
)
