r"""The posterior of a quadratic loss, exactly: what an estimator of a learning coefficient must give there.

The target is :math:`\exp(-n\beta K(w) - \frac\gamma2|w|^2)` with :math:`K = \frac12\sum_ih_iw_i^2`, in coordinates
around :math:`w^*` along the Hessian's eigenvectors: a Gaussian. Where a model is regular at the resolution
:math:`n\beta`, this is all there is to see.
"""

from collections.abc import Sequence

import numpy as np

from icllab.core.errors import expected
from icllab.theory.parameters import NON_NEGATIVE, POSITIVE, read


def learning_coefficient(
    eigenvalues: Sequence[float] | np.ndarray, *, nbeta: float, localization: float = 0.0, step_size: float = 0.0
) -> float:
    r"""The estimate of a learning coefficient, exactly or as Langevin dynamics of a finite step has it.

    .. math::
        n\beta\,E[K] = \frac12\sum_i \frac{n\beta\,h_i}{n\beta\,h_i+\gamma}\cdot
                       \frac1{1-\frac\epsilon4(n\beta\,h_i+\gamma)}

    The first factor is the posterior's: directions with :math:`h_i\gg\gamma/n\beta` count a half each, and half the
    rank is the limit. The second is the bias of :math:`w \leftarrow w - \frac\epsilon2\nabla U + \sqrt\epsilon\,\xi`
    without a correction, whose stationary law has the variance of the posterior times it.

    Args:
        eigenvalues: :math:`h_i\ge0` of the Hessian.
        nbeta: The inverse temperature :math:`n\beta`.
        localization: :math:`\gamma`.
        step_size: :math:`\epsilon`; 0 for the posterior itself.

    Raises:
        InputError: A number is negative, ``nbeta`` is zero, or the step is so large that the chain diverges,
            :math:`\epsilon(n\beta\,h_i+\gamma) \ge 4`.

    Derived: docs/singular-learning.md, What an estimate estimates.
    """
    (h,) = read(eigenvalues=(eigenvalues, NON_NEGATIVE))
    beta, gamma = read(nbeta=(nbeta, POSITIVE), localization=(localization, NON_NEGATIVE))
    (step,) = read(step_size=(step_size, NON_NEGATIVE))
    pull = np.atleast_1d(beta * h)
    steepest = float(np.max(pull, initial=0.0) + gamma)
    if step * steepest >= 4:
        raise expected("step_size", f"below {4 / steepest:.3g}, where the chain diverges", float(step))
    share = np.divide(pull, pull + gamma, out=np.zeros_like(pull), where=pull > 0)
    return float(np.sum(share / (1 - step * (pull + gamma) / 4)) / 2)
