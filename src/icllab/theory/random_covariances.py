r"""The best preconditioner of one layer of linear attention if each prompt has its own input covariance.

A prompt draws :math:`\Lambda = \mathrm{diag}(\lambda_1, \dots, \lambda_d)` with independent :math:`\lambda_i\ge0`, then
inputs :math:`x\sim\mathcal N(0, \Lambda)` of its examples and its query, a task :math:`w\sim\mathcal N(0, I)` and n
labels :math:`y_i = w^\top x_i + \varepsilon_i` with noise of variance :math:`\rho`. The answer is

.. math:: \hat y = x_q^\top A\,\frac1n\sum_{i\le n}y_ix_i .

One matrix A serves all covariances, so that its error stays above zero as contexts grow, unless the
:math:`\lambda_i` are constants. Errors are those of the noiseless answer :math:`w^\top x_q`.
"""

import numpy as np
import numpy.typing as npt

from icllab.core.domains import NON_NEGATIVE, POSITIVE
from icllab.core.errors import expected, require_integer
from icllab.theory.parameters import read
from icllab.theory.preconditioners import Optimum


def optimal(
    first: npt.ArrayLike, second: npt.ArrayLike, third: npt.ArrayLike, *, length: int, noise_variance: float = 0.0
) -> Optimum:
    r"""The preconditioner with the smallest error, and that error, from the moments of the eigenvalues.

    .. math::
        A^* = \mathrm{diag}\Bigl(\frac{m_{2i}}{c_i}\Bigr), \qquad
        \mathbb E(w^\top x_q - \hat y)^2 = \sum_i\Bigl(m_{1i} - \frac{m_{2i}^2}{c_i}\Bigr)
        \xrightarrow{n\to\infty} \sum_i\Bigl(m_{1i} - \frac{m_{2i}^2}{m_{3i}}\Bigr), \qquad
        c_i = \frac{(n+2)\,m_{3i} + \bigl(\sum_{k\ne i}m_{1k} + \rho\bigr)m_{2i}}n

    Moments that no distribution has raise an ``InputError``: :math:`m_2\ge m_1^2` and :math:`m_1m_3\ge m_2^2`.

    Args:
        first: :math:`m_1 = E\lambda > 0`, a mean for each dimension [d].
        second: :math:`m_2 = E\lambda^2 > 0` [d].
        third: :math:`m_3 = E\lambda^3 > 0` [d].
        length: :math:`n`, the number of examples in a context; an integer of at least 1.
        noise_variance: :math:`\rho\ge 0`, variance of the noise of the examples' labels.

    Source: the optimum without noise [ZhangFrei24].
    Derived: docs/gradient-descent.md, Covariances that differ from prompt to prompt.
    """
    require_integer("length", length)
    (noise,) = read(noise_variance=(noise_variance, NON_NEGATIVE))
    m1, m2, m3 = read(first=(first, POSITIVE), second=(second, POSITIVE), third=(third, POSITIVE))
    if m1.ndim != 1 or not m1.size:
        raise expected("first", "a vector with a number for each dimension", f"shape {m1.shape}")
    for name, moment, least in (("second", m2, m1**2), ("third", m3, m2**2 / m1)):
        if np.any(moment < least * (1 - 1e-12)):
            raise expected(name, f"moments of at least {least.tolist()}, by the lower moments", moment.tolist())
    curvature = ((length + 2) * m3 + (m1.sum() - m1 + noise) * m2) / length
    return Optimum(np.diag(m2 / curvature), float(np.sum(m1 - m2**2 / curvature)))


def exponential(means: npt.ArrayLike, *, length: int, noise_variance: float = 0.0) -> Optimum:
    r"""The preconditioner with the smallest error and that error, for exponential eigenvalues: :math:`m_k = k!\,\mu^k`.

    .. math::
        A^* = \frac n{3n + d + 5 + \rho}I, \qquad
        \mathbb E(w^\top x_q - \hat y)^2 = d\,\frac{n + d + 5 + \rho}{3n + d + 5 + \rho} \to \frac d3
        \qquad\text{if all means are 1}

    Args:
        means: :math:`\mu_i > 0`, a mean for each dimension [d].
        length: :math:`n`, the number of examples in a context; an integer of at least 1.
        noise_variance: :math:`\rho\ge 0`, variance of the noise of the examples' labels.

    Source: the distribution [ZhangFrei24].
    Derived: docs/gradient-descent.md, Covariances that differ from prompt to prompt.
    """
    (mu,) = read(means=(means, POSITIVE))
    return optimal(mu, 2 * mu**2, 6 * mu**3, length=length, noise_variance=noise_variance)
