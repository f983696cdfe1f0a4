r"""How much the loss of single samples fluctuates under the posterior, and the information criterion made of it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

from icllab.core.domains import POSITIVE
from icllab.core.errors import expected
from icllab.diagnostics.sampling.sampled_losses import require_mean, sample_count, vector_loss
from icllab.diagnostics.sampling.samplers import ChainSampler
from icllab.diagnostics.susceptibilities.observed_chains import ObservedChains
from icllab.diagnostics.susceptibilities.quadrature import Quadrature


class _Each(eqx.Module):
    """The losses of all samples, one by one."""

    loss: Any
    data: Any

    def __call__(self, w: Any) -> Array:
        alone = jax.tree.map(lambda leaf: leaf[:, None], self.data)
        return jax.vmap(lambda sample: jnp.sum(self.loss(w, sample)))(alone)


class _Mean(eqx.Module):
    """Their mean."""

    loss: Any
    data: Any

    def __call__(self, w: Any) -> Array:
        return jnp.sum(self.loss(w, self.data))


def singular_fluctuation(
    loss: Callable[[Any, Any], Any],
    at: Any,
    *,
    data: Any,
    localization: float,
    route: Quadrature | ChainSampler,
    key: PRNGKeyArray,
    beta: float = 1.0,
) -> xr.Dataset:
    r"""The singular fluctuation of a loss on data, and the widely applicable information criterion.

    .. math::
        \hat\nu = \frac\beta2\sum_{i=1}^n\operatorname{Var}\ell_i, \qquad
        T_n = -\frac1n\sum_i\log\bigl\langle e^{-\ell_i}\bigr\rangle, \qquad
        \mathrm{WAIC} = T_n + \frac\beta n\sum_i\operatorname{Var}\ell_i

    under :math:`\exp(-\beta\sum_i\ell_i(w) - \frac\gamma2\lVert w-w^*\rVert^2)`, with
    :math:`\ell_i = -\log p(x_i\mid w)`. The mean of :math:`\hat\nu` over data tends to :math:`\nu`, which is d/2 as
    :math:`\lambda` is where the model is regular with d parameters and holds the truth, and another number than
    :math:`\lambda` where it is singular. WAIC estimates the loss of the Bayesian prediction on fresh data.

    Args:
        loss: A function of parameters and samples, the mean over these, in nats: minus a log-probability.
        at: :math:`w^*`, a tree of parameters.
        data: n samples, at least 2: a tree of arrays with a leading axis.
        localization: :math:`\gamma`, positive: one over the variance of the prior around :math:`w^*`.
        route: ``Quadrature()`` of a few parameters, or a sampler of chains with a Metropolis test, ``HMC()``.
        key: Key of the chains.
        beta: :math:`\beta`, positive.

    Returns:
        ``fluctuation``, :math:`\hat\nu`; ``training_loss``, :math:`T_n`; ``waic``; and from the same draws
        ``estimate``, :math:`n\beta\langle L - L(w^*)\rangle` at this temperature. Each with an ``_error``: by
        quadrature the change from the grid of twice the spacing, of chains a Monte Carlo standard error, neither of
        them the scatter over data. ``sample_variance`` over ``sample``. Attributes: ``route``, ``beta``, ``n`` and
        ``warnings``.

    Raises:
        InputError: A number is out of its range, the loss is no mean over samples, or as the route.

    Source: [Watanabe10].
    Derived: docs/routing.md, Fluctuation beside the coefficient.
    """
    for name, value in (("beta", beta), ("localization", localization)):
        POSITIVE.require(name, value)
    count = sample_count(data)
    if count < 2:
        raise expected("data", "at least 2 samples", count)
    require_mean(*vector_loss(loss, at, data))
    by: Any = route if isinstance(route, Quadrature) else ObservedChains(route)
    how: dict[str, Any] = {"nbeta": count * beta, "localization": float(localization), "key": key}
    known = by.expectations(_Mean(loss, data), _Each(loss, data), at, **how)
    above = known.values  # [..., sample], each above its own at the point
    means = np.array([known.mean(above[..., i])[0] for i in range(count)])
    apart = above - means
    squares = apart**2
    variances = np.array([known.mean(squares[..., i])[0] for i in range(count)])
    # Divided by their means: the logarithm's error is that of the ratio.
    likelihoods = np.exp(-above)
    levels = np.array([known.mean(likelihoods[..., i])[0] for i in range(count)])
    total, total_error = known.mean(squares.sum(-1))
    training = float(known.at_point.mean() - np.log(levels).mean())
    ratios = (likelihoods / levels).mean(-1)
    waic_series = beta / count * squares.sum(-1) - ratios
    estimate, estimate_error = known.mean(beta * above.sum(-1))
    rows: dict[str, Any] = {
        "fluctuation": beta / 2 * total,
        "fluctuation_error": beta / 2 * total_error,
        "training_loss": training,
        "training_loss_error": known.mean(ratios)[1],
        "waic": training + beta / count * total,
        "waic_error": known.mean(waic_series)[1],
        "estimate": estimate,
        "estimate_error": estimate_error,
        "sample_variance": ("sample", variances),
    }
    attributes = {"route": type(route).__name__, "beta": float(beta), "n": count, "warnings": list(known.warnings)}
    return xr.Dataset(rows, attrs=attributes)
