"""The best preconditioner of one layer of linear attention, against the spectrum of the inputs."""

# ruff: noqa: RUF001 (Greek letters and minus signs are meant)

from typing import Any

import numpy as np

from icllab.page.explorers.declaration import Explorer, Slider, axis, even, log, swept, whole
from icllab.theory import preconditioners as theory

_SLIDERS = (
    Slider("length", "n  examples in the context", whole(1, 1000), 20),
    Slider("dim", "d  dimensions", whole(2, 32), 16),
    Slider("exponent", "a  eigenvalue i of Σ is proportional to i to the minus a", even(0, 3), 1),
    Slider("power", "p  the covariance of the tasks is Σ to the p", even(-1, 1, 41), 0),
    Slider("noise", "ρ  variance of the label noise", log(1e-3, 100, zero=True), 0),
)


def _distribution(dim: int, exponent: float, power: float, noise: float) -> tuple[np.ndarray, float, dict[str, Any]]:
    """Eigenvalues in decreasing order with mean 1, the error of the zero matrix, and tasks and noise."""
    values = np.arange(1, dim + 1) ** -float(exponent)
    values /= values.mean()
    return values, float(np.sum(values ** (1 + power))), {"task_covariance": values**power, "noise_variance": noise}


def curves(*, length: int, **spectrum: Any) -> dict[str, float]:
    """Errors of the best preconditioner and of multiples of two matrices, over the error of zero."""
    values, zero, distribution = _distribution(**spectrum)
    best = theory.optimal(values, length=length, **distribution).loss
    shapes = {"best multiple of the identity": np.ones_like(values), "best multiple of Σ⁻¹": values[-1] / values}
    errors = {name: _scaled(np.diag(shape / values[0]), values, length, distribution) for name, shape in shapes.items()}
    return {name: error / zero for name, error in ({"best preconditioner A*": best} | errors).items()}


def _scaled(matrix: np.ndarray, values: np.ndarray, length: int, distribution: dict[str, Any]) -> float:
    """The error of the best multiple of a matrix; the error is quadratic in the factor."""
    before, zero, after = (theory.loss(f * matrix, values, length=length, **distribution) for f in (-1.0, 0.0, 1.0))
    factor = (before - after) / (2 * (before - 2 * zero + after))
    return theory.loss(factor * matrix, values, length=length, **distribution)


def inverted(*, length: int, **spectrum: Any) -> dict[str, float]:
    """Product of the best preconditioner and the covariance along the first and the last direction."""
    values, _, distribution = _distribution(**spectrum)
    products = np.diagonal(theory.optimal(values, length=length, **distribution).matrix) * values
    return {
        "A*Σ along the largest eigenvalue, 1 if inverted": products[0],
        "A*Σ along the smallest eigenvalue": products[-1],
        "condition number of Σ": values[0] / values[-1],
    }


EXPLORER = Explorer(
    id="preconditioner",
    title="The optimal preconditioner",
    about=(
        "One layer of linear attention takes one preconditioned step of gradient descent. The best preconditioner "
        r"inverts the covariance $\Sigma$ of the inputs along directions that the context determines, and is nearly "
        r"flat along those where it is too short: longer contexts bring it nearer to $\Sigma^{-1}$."
    ),
    **swept(_SLIDERS, curves, x="length", y=axis("relative error", "log"), extra=inverted),
    theory=(theory.optimal, theory.loss),
    more="constructions",
)
