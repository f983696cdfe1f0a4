r"""Fluctuation of the losses of single samples under the posterior, and the information criterion made of it."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from icllab.core.errors import expected, kind_of
from icllab.core.result_warnings import warns
from icllab.diagnostics.sampling.sampled_losses import VectorLoss
from icllab.diagnostics.sampling.samplers import Draws
from icllab.diagnostics.sampling.sampling_warnings import rounding_warnings
from icllab.diagnostics.susceptibilities.quadrature import Nodes


class _SampleLosses(eqx.Module):
    """The losses of all samples, one by one."""

    loss: Any
    data: Any

    def __call__(self, w: Any) -> Array:
        samples = jax.tree.map(lambda leaf: leaf[:, None], self.data)
        return jax.vmap(lambda sample: jnp.sum(self.loss(w, sample)))(samples)


@warns("singular fluctuation", "fluctuation", "fluctuation_error")
def singular_fluctuation(draws: Draws | Nodes) -> xr.Dataset:
    r"""The singular fluctuation of a loss on data, and the widely applicable information criterion.

    .. math::
        \hat\nu = \frac\beta2\sum_{i=1}^n\operatorname{Var}\ell_i, \qquad
        T_n = -\frac1n\sum_i\log\bigl\langle e^{-\ell_i}\bigr\rangle, \qquad
        \mathrm{WAIC} = T_n + \frac\beta n\sum_i\operatorname{Var}\ell_i

    under :math:`\exp(-\beta\sum_i\ell_i(w) - \frac\gamma2\lVert w-w^*\rVert^2)`, with
    :math:`\ell_i = -\log p(x_i\mid w)`. The mean of :math:`\hat\nu` over data tends to :math:`\nu`, which is d/2 as
    :math:`\lambda` is if the model is regular with d parameters and realises the truth, and another number than
    :math:`\lambda` if it is singular. WAIC estimates the loss of the Bayesian prediction on fresh data.

    Args:
        draws: Draws of a loss on n samples, at least 2, a log-probability with the opposite sign, at
            :math:`n\beta` with :math:`\beta = 1` for the posterior: ``HMC().sample(posterior, key=key)`` of chains with
            a Metropolis test, or ``Quadrature().sample(...)`` of a few parameters.

    Returns:
        ``fluctuation``, :math:`\hat\nu`; ``training_loss``, :math:`T_n`; ``waic``; and from the same draws
        ``estimate``, :math:`n\beta\langle L - L(w^*)\rangle` at this temperature. Each with an ``_error``: by
        quadrature the change from the grid of twice the spacing, of chains a Monte Carlo standard error, neither of
        them the scatter over data. ``sample_variance`` over ``sample``. Attributes: ``route``, ``beta``, ``n`` and
        ``warnings``.

    Raises:
        InputError: The draws are of a loss without data, or of fewer than two samples.

    Source: [Watanabe10].
    Derived: docs/routing.md, Fluctuation beside the coefficient.
    """
    if not isinstance(draws, Draws | Nodes):
        raise expected("draws", "draws of a sampler", kind_of(draws), "HMC().sample(posterior, key=key) has them")
    loss, count = draws.local.loss, draws.local.samples
    if count < 2:
        raise expected("data", "at least 2 samples", count)
    beta = draws.nbeta / count
    at_point, above = draws.values(_SampleLosses(cast(VectorLoss, loss).loss, loss.data))  # [..., sample]
    means = np.array([draws.mean(above[..., i])[0] for i in range(count)])
    squares = (above - means) ** 2
    variances = np.array([draws.mean(squares[..., i])[0] for i in range(count)])
    # Divided by their means: the logarithm's error is that of the ratio.
    likelihoods = np.exp(-above)
    levels = np.array([draws.mean(likelihoods[..., i])[0] for i in range(count)])
    total, total_error = draws.mean(squares.sum(-1))
    training = float(at_point.mean() - np.log(levels).mean())
    ratios = (likelihoods / levels).mean(-1)
    waic_series = beta / count * squares.sum(-1) - ratios
    estimate, estimate_error = draws.mean(beta * above.sum(-1))
    rows: dict[str, Any] = {
        "fluctuation": beta / 2 * total,
        "fluctuation_error": beta / 2 * total_error,
        "training_loss": training,
        "training_loss_error": draws.mean(ratios)[1],
        "waic": training + beta / count * total,
        "waic_error": draws.mean(waic_series)[1],
        "estimate": estimate,
        "estimate_error": estimate_error,
        "sample_variance": ("sample", variances),
    }
    # The variances of roundings add up as those of the losses do.
    sizes, spreads = (np.sqrt(np.mean(squared, keepdims=True)) for squared in (at_point**2, variances))
    rounded = rounding_warnings("losses of samples", sizes, spreads, draws.local.centre.dtype)
    attributes = {"beta": beta, "n": count, "warnings": [*draws.warnings(above), *rounded]}
    return xr.Dataset(rows, attrs=draws.settings | attributes)
