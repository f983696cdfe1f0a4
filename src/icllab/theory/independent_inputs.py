r"""One step of gradient descent on inputs with independent, not necessarily normal components of any fourth moment.

Inputs :math:`x = \Sigma^{1/2}z` with independent :math:`z_i` of mean 0, variance 1, symmetric about zero, and the
kurtosis :math:`\kappa = E z_i^4`: 3 of normal ones, 9/5 of uniform ones, 1 of signs. Tasks
:math:`w\sim\mathcal N(0, W)`, labels :math:`y_i = w^\top x_i + \varepsilon_i` with noise of variance :math:`\rho` on
the n examples. One preconditioned step from zero answers a query, whose input has the same distribution, with

.. math:: \hat y = x_q^\top A\,\frac1n\sum_{i\le n}y_ix_i .

The error knows no more of the inputs than their fourth moments. For :math:`\kappa = 3` it is that of
:mod:`icllab.theory.preconditioners`. Errors are those of the noiseless answer.
"""

import numpy as np
import numpy.typing as npt

from icllab.core.covariances import require_covariance
from icllab.core.domains import FINITE, NON_NEGATIVE, POSITIVE, Domain
from icllab.core.errors import expected, require_integer
from icllab.theory.parameters import Array, read
from icllab.theory.preconditioners import Covariance, Optimum

UNIFORM, SIGNS, NORMAL = 9 / 5, 1.0, 3.0
"""Kurtosis of a uniform variable, of a random sign and of a normal variable."""

_FROM_ONE = Domain(least=1, hint="a random sign has the smallest kurtosis, 1")


def optimal(
    variances: npt.ArrayLike,
    *,
    kurtosis: float,
    length: int,
    task_covariance: Covariance = None,
    noise_variance: float = 0.0,
) -> Optimum:
    r"""The preconditioner with the smallest error, and that error.

    .. math::
        A^* = W\Sigma M^{-1}, \qquad
        \mathbb E(w^\top x_q - \hat y)^2 = \mathrm{tr}\,\Sigma W - \mathrm{tr}\,\Sigma W\Sigma M^{-1}\Sigma W

    with M of :func:`loss`. For :math:`\Sigma = \sigma^2I` and :math:`W = I`

    .. math::
        A^* = \frac{n}{n+d+\kappa-2+\rho/\sigma^2}\,\frac1{\sigma^2}I, \qquad
        \mathbb E(w^\top x_q - \hat y)^2 = d\sigma^2\,\frac{d+\kappa-2+\rho/\sigma^2}{n+d+\kappa-2+\rho/\sigma^2} .

    Args:
        variances: :math:`\sigma_i^2`, variances of the components, the diagonal of :math:`\Sigma` [d], :math:`> 0`.
        kurtosis: :math:`\kappa = E[z^4]\ge 1` of a standardised component: 3 for normal inputs.
        length: :math:`n`, the number of examples in a context; an integer of at least 1.
        task_covariance: :math:`W`, covariance of the tasks: a vector (diagonal) or a matrix without negative
            eigenvalues; None for the identity.
        noise_variance: :math:`\rho\ge 0`, variance of the noise of the examples' labels.

    Derived: docs/constructions.md, Inputs that are not normal.
    """
    sigma, tasks, moment = _moments(variances, kurtosis, length, task_covariance, noise_variance)
    correlation = sigma[:, None] * tasks
    matrix = correlation.T @ np.linalg.pinv(moment, hermitian=True)
    return Optimum(matrix, float(np.trace(correlation) - np.sum(sigma[:, None] * correlation.T * matrix)))


def loss(
    preconditioner: npt.ArrayLike,
    variances: npt.ArrayLike,
    *,
    kurtosis: float,
    length: int,
    task_covariance: Covariance = None,
    noise_variance: float = 0.0,
) -> float:
    r"""The error of one step with any preconditioner.

    .. math::
        \mathrm{tr}\,\Sigma W - 2\,\mathrm{tr}\,\Sigma A\Sigma W + \mathrm{tr}\,\Sigma AMA^\top, \qquad
        M = \tfrac{n+1}n\Sigma W\Sigma + \tfrac{\mathrm{tr}\,\Sigma W+\rho}n\Sigma
        + \tfrac{\kappa-3}n\,\mathrm{diag}\bigl(\Sigma_{ii}^2W_{ii}\bigr)

    ``preconditioner`` is A [d, d]; the other arguments are those of :func:`optimal`.

    Derived: docs/constructions.md, Inputs that are not normal.
    """
    sigma, tasks, moment = _moments(variances, kurtosis, length, task_covariance, noise_variance)
    (matrix,) = read(preconditioner=(preconditioner, FINITE))
    if matrix.shape != moment.shape:
        raise expected(
            "preconditioner", f"a matrix {list(moment.shape)}, to match the variances", f"shape {matrix.shape}"
        )
    correlation = sigma[:, None] * tasks
    overlap = np.sum(sigma[:, None] * matrix * correlation.T)
    return float(np.trace(correlation) - 2 * overlap + np.sum(sigma[:, None] * (matrix @ moment) * matrix))


def _moments(
    variances: object, kurtosis: object, length: int, task_covariance: object, noise_variance: object
) -> tuple[Array, Array, Array]:
    """The variances, the task covariance W, and the covariance M of the mean of inputs times labels."""
    require_integer("length", length)
    sigma, fourth, noise = read(
        variances=(variances, POSITIVE), kurtosis=(kurtosis, _FROM_ONE), noise_variance=(noise_variance, NON_NEGATIVE)
    )
    if sigma.ndim != 1 or not sigma.size:
        raise expected("variances", "a vector with a number for each component", f"shape {sigma.shape}")
    tasks = np.eye(len(sigma))
    if task_covariance is not None:
        (covariance,) = read(task_covariance=(task_covariance, FINITE))
        tasks = np.diag(covariance) if covariance.ndim == 1 else covariance
        if tasks.shape != (len(sigma), len(sigma)):
            raise expected(
                "task_covariance", f"dimension {len(sigma)}, to match the variances", f"shape {covariance.shape}"
            )
        require_covariance("task_covariance", tasks)
    twice = sigma[:, None] * tasks * sigma
    excess = np.sum(sigma * np.diag(tasks)) + noise
    moment = (length + 1) * twice + np.diag(excess * sigma + (fourth - 3) * np.diag(twice))
    return sigma, tasks, moment / length
