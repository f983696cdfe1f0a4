r"""The posterior mean over a pool of tasks (dMMSE) on the tasks of the pool and on fresh ones, by Monte Carlo.

The setting is that of :mod:`icllab.theory.linear_attention`: contexts of :math:`\ell = \alpha d` pairs
:math:`y_i = \langle x_i, w\rangle + \epsilon_i` with :math:`x_i\sim\mathcal N(0, I_d/d)` and noise of variance
:math:`\rho`, a pool of :math:`k = \kappa d` tasks :math:`w_j\sim\mathcal N(0, I_d)`. There is no pretraining to
wait for: the predictor knows the pool.

There is no closed form at finite d. Each draw is a pool, a task and a context of its own, and given these the
error is exact, so no test noise is added. In the limit of large d at fixed :math:`\alpha` and :math:`\kappa` the
posterior sits on one task of the pool, by a heuristic argument: :math:`e_{\mathrm{IDG}} \to \rho`, and
:math:`e_{\mathrm{ICL}} \to 2 + \rho`, the error of an unrelated task, only logarithmically in d.
"""

from typing import NamedTuple

import numpy as np

from icllab.core.domains import FINITE, NON_NEGATIVE, POSITIVE
from icllab.core.errors import expected, require_integer
from icllab.core.views import fields_html, fields_repr
from icllab.theory.parameters import Array, plain, read


class Estimate(NamedTuple):
    """A Monte Carlo mean over the draws, and its standard error."""

    mean: float
    standard_error: float

    __repr__ = fields_repr
    _repr_html_ = fields_html


def icl_error(*, dim: int, alpha: float, kappa: float, rho: float, draws: int, seed: int = 0) -> Estimate:
    r"""Error on fresh Gaussian tasks.

    .. math:: e_{\mathrm{ICL}} = \rho + \frac1d\, E\, \lVert w - \hat w \rVert^2, \qquad
              \hat w = \sum_{j \le k} p_j w_j, \qquad
              p_j \propto \exp\Bigl(-\frac{\lVert y - X w_j \rVert^2}{2\rho}\Bigr)

    with :math:`w\sim\mathcal N(0, I_d)` independent of the pool.

    Args:
        dim: :math:`d`, the dimension of inputs and tasks; an integer of at least 1.
        alpha: Context length over dimension, :math:`\alpha = \ell/d > 0`; the length is rounded, at least 1.
        kappa: Tasks of the pool over dimension, :math:`\kappa = k/d > 0`; their number is rounded, at least 1.
        rho: Variance of the label noise, :math:`\rho\ge 0`. At 0 the posterior is even over the tasks of least
            residual.
        draws: Number of independent pools, tasks and contexts; an integer of at least 2.
        seed: Seed of NumPy's generator, an integer of at least 0. The draws of a smaller number begin those of a larger
            one.

    Derived: docs/rivals.md, The error of a pool's posterior mean.
    """
    return _estimate(_errors(dim, alpha, kappa, rho, draws, seed)[:, 0])


def idg_error(*, dim: int, alpha: float, kappa: float, rho: float, draws: int, seed: int = 0) -> Estimate:
    r"""Error on new contexts of the pool's tasks; no predictor has a smaller error on them.

    .. math:: e_{\mathrm{IDG}} = \rho + \frac1d\, E\, \lVert w_J - \hat w \rVert^2

    with J uniform on the pool. Arguments, pools and inputs are those of :func:`icl_error`.

    Derived: docs/rivals.md, The error of a pool's posterior mean.
    """
    return _estimate(_errors(dim, alpha, kappa, rho, draws, seed)[:, 1])


def task_gap(*, dim: int, alpha: float, kappa: float, rho: float, draws: int, seed: int = 0) -> Estimate:
    r"""Error on fresh tasks minus error on the pool's tasks.

    .. math:: e_{\mathrm{ICL}} - e_{\mathrm{IDG}}

    The mean of differences on the same pool and inputs, so its standard error is its own. Arguments are those of
    :func:`icl_error`.

    Derived: docs/rivals.md, The error of a pool's posterior mean.
    """
    errors = _errors(dim, alpha, kappa, rho, draws, seed)
    return _estimate(errors[:, 0] - errors[:, 1])


def posterior_mean(x: Array, y: Array, pool: Array, noise_variance: float) -> Array:
    r""":math:`\hat w = \sum_j p_j w_j`, from explicit examples and tasks.

    Exponentials are relative to the task of least residual, so that none overflows and at least one is 1.

    Derived: docs/rivals.md, The error of a pool's posterior mean.
    """
    x, y, pool = (FINITE.read(name, values) for name, values in (("x", x), ("y", y), ("pool", pool)))
    if (x.ndim, y.shape) != (2, x.shape[:1]) or (pool.ndim, pool.shape[-1:]) != (2, x.shape[1:]):
        shapes = [x.shape, y.shape, pool.shape]
        raise expected("x, y, pool", "inputs [example, dim], targets [example] and tasks [task, dim]", shapes)
    NON_NEGATIVE.require("noise_variance", noise_variance)
    residuals = np.sum((y - pool @ x.T) ** 2, axis=1)
    excess = residuals - residuals.min()
    with np.errstate(over="ignore"):
        noisy = noise_variance > 0
        likelihood = np.exp(-excess / (2 * noise_variance)) if noisy else (excess == 0).astype(float)
    return likelihood @ pool / likelihood.sum()


def _errors(dim: int, alpha: float, kappa: float, rho: float, draws: int, seed: int) -> Array:
    """Columns ICL and IDG, one row for each draw."""
    scalings = read(alpha=(alpha, POSITIVE), kappa=(kappa, POSITIVE), rho=(rho, NON_NEGATIVE))
    alpha, kappa, rho = (float(plain(value)) for value in scalings)
    for name, value, least in (("dim", dim, 1), ("draws", draws, 2), ("seed", seed, 0)):
        require_integer(name, value, least=least)
    length, tasks = max(1, round(alpha * dim)), max(1, round(kappa * dim))
    rows = np.empty((draws, 2))
    for draw, generator in enumerate(np.random.default_rng(seed).spawn(draws)):
        pool = generator.normal(size=(tasks, dim))
        x = generator.normal(size=(length, dim)) / np.sqrt(dim)
        for column, w in enumerate((generator.normal(size=dim), pool[generator.integers(tasks)])):
            y = x @ w + np.sqrt(rho) * generator.normal(size=length)
            rows[draw, column] = rho + np.sum((w - posterior_mean(x, y, pool, rho)) ** 2) / dim
    return rows


def _estimate(samples: Array) -> Estimate:
    return Estimate(float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(len(samples))))
