r"""Susceptibilities: how much a tilt of the data moves what is observed of a posterior."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

from icllab.core.domains import POSITIVE
from icllab.core.errors import expected
from icllab.diagnostics.sampling.samplers import ChainSampler
from icllab.diagnostics.susceptibilities.expectations import Expectations
from icllab.diagnostics.susceptibilities.linear_response import LinearResponse
from icllab.diagnostics.susceptibilities.observed_chains import ObservedChains
from icllab.diagnostics.susceptibilities.quadrature import Quadrature

Route: TypeAlias = Quadrature | ChainSampler | LinearResponse
Named: TypeAlias = Mapping[str, Callable[[Any], Any]]


class Listed(eqx.Module):
    """Several functions of parameters as one, less another if there is one."""

    functions: tuple[Any, ...]
    less: Any = None

    def __call__(self, w: Any) -> Array:
        """Their values."""
        values = jnp.stack([jnp.sum(jnp.asarray(function(w))) for function in self.functions])
        return values if self.less is None else values - jnp.sum(self.less(w))


def susceptibility(
    loss: Callable[[Any], Any],
    at: Any,
    *,
    tilted: Named,
    observables: Named,
    nbeta: float,
    localization: float,
    route: Route,
    key: PRNGKeyArray,
) -> xr.Dataset:
    r"""The response of posterior means to a tilt of the data.

    The data are drawn from :math:`(1-h)\,q + h\,q'`, so that the loss is :math:`L_h = L + h\,\Delta`,
    :math:`\Delta = L' - L`, and the posterior :math:`\exp(-n\beta L_h - \frac\gamma2\lVert w-w^*\rVert^2)`. Then

    .. math:: \chi = \frac{d\langle\phi\rangle_h}{dh}\Big|_{h=0} = -n\beta\,\operatorname{Cov}(\phi, \Delta)

    at h = 0. The sign is that of the response, and :math:`\chi` has the units of :math:`\phi`, per unit of h, the share
    of the data that is exchanged. The source divides by :math:`n\beta`. An observable is a function of parameters that
    does not know h. So the response of the coefficient is that of :math:`\phi = n\beta(L - L(w^*))`, and the explicit
    change of L with h is not in it.

    Args:
        loss: A function of parameters, in nats per sample; terms are summed. What is not finite is outside the region.
        at: :math:`w^*`, a tree with arrays of one floating-point type; what else is in it stays as it is.
        tilted: Name -> :math:`L'`, the loss on other data, as a function of parameters.
        observables: Name -> :math:`\phi`, a number of parameters: a loss of one context, an attention, a weight.
        nbeta: :math:`n\beta`, positive.
        localization: :math:`\gamma`, positive.
        route: ``Quadrature()`` of a few parameters; a sampler of chains with a Metropolis test, ``HMC()``; or
            ``LinearResponse(curvature=GaussNewton(...))``.
        key: Key of what is drawn.

    Returns:
        ``susceptibility`` and its ``_error`` (``observable``, ``tilted``): by quadrature the change from the grid of
        twice the spacing, of chains a Monte Carlo standard error, of linear response that of its probes.
        ``correlation``, of :math:`\phi` and :math:`\Delta` under the posterior. By the first two routes also ``mean``,
        :math:`\langle\phi\rangle`, and ``mean_error``; of linear response ``first_order`` and ``second_order``, which
        sum to the susceptibility, and no correlation. Attributes: ``route``, ``nbeta``, ``localization``,
        ``resolution``, :math:`\gamma/n\beta`, and ``warnings``, a list of sentences.

    Raises:
        InputError: A number is out of its range; nothing is observed or tilted, or it does not vary under the
            posterior; or as the route.

    Source: [Baker25].
    Derived: docs/routing.md, Susceptibilities.
    """
    for name, value in (("nbeta", nbeta), ("localization", localization)):
        POSITIVE.require(name, value)
    for name, some in (("observables", observables), ("tilted", tilted)):
        if not some:
            raise expected(name, "at least one function of parameters", dict(some))
    how: dict[str, Any] = {"nbeta": float(nbeta), "localization": float(localization), "key": key}
    if isinstance(route, LinearResponse):
        seen, others = Listed(tuple(observables.values())), Listed(tuple(tilted.values()), loss)
        found = route.covariances(loss, seen, others, at, **how)
        whole = found.first + found.second
        _require_effect(np.abs(whole).sum(1) > 0, np.abs(whole).sum(0) > 0, observables, tilted)
        columns = {"susceptibility": whole, "susceptibility_error": found.error}
        columns |= {"first_order": found.first, "second_order": found.second}
        signs = {name: 1.0 if name.endswith("_error") else -1.0 for name in columns}
        rows: dict[str, Any] = {
            name: (("observable", "tilted"), signs[name] * nbeta * values) for name, values in columns.items()
        }
        said = found.warnings
    else:
        by: Any = route if isinstance(route, Quadrature) else ObservedChains(route)
        both = Listed((*observables.values(), *(eqx.Partial(_less, one, loss) for one in tilted.values())))
        known = by.expectations(loss, both, at, **how)
        rows, said = _covariances(known, observables, tilted, float(nbeta)), known.warnings
    attributes: dict[str, Any] = {"route": type(route).__name__, "settings": repr(route), "nbeta": float(nbeta)}
    attributes |= {"localization": float(localization), "resolution": localization / nbeta, "warnings": list(said)}
    return xr.Dataset(rows, coords={"observable": list(observables), "tilted": list(tilted)}, attrs=attributes)


def _less(one: Any, other: Any, w: Any) -> Array:
    return jnp.sum(one(w)) - jnp.sum(other(w))


def _covariances(known: Expectations, observables: Named, tilted: Named, nbeta: float) -> dict[str, Any]:
    """Means and covariances with their errors, from values at nodes or draws."""
    count, values = len(observables), known.values
    means = [known.mean(values[..., i]) for i in range(values.shape[-1])]
    apart = values - np.array([value for value, _ in means])
    spreads = np.array([known.mean(apart[..., i] ** 2)[0] for i in range(values.shape[-1])]) ** 0.5
    _require_effect(spreads[:count] > 0, spreads[count:] > 0, observables, tilted)
    found = np.array(
        [[known.mean(apart[..., i] * apart[..., j]) for j in range(count, len(means))] for i in range(count)]
    )
    both, one = ("observable", "tilted"), np.array(means)[:count]
    return {
        "susceptibility": (both, -nbeta * found[..., 0]),
        "susceptibility_error": (both, nbeta * found[..., 1]),
        "correlation": (both, found[..., 0] / np.outer(spreads[:count], spreads[count:])),
        "mean": ("observable", known.at_point[:count] + one[:, 0]),
        "mean_error": ("observable", one[:, 1]),
    }


def _require_effect(observed: np.ndarray, tilts: np.ndarray, observables: Named, tilted: Named) -> None:
    for name, some, moves in (("observables", observables, observed), ("tilted", tilted, tilts)):
        still = [label for label, moved in zip(some, moves, strict=True) if not moved]
        if still:
            what = "a loss that differs from the loss" if name == "tilted" else "numbers that the parameters change"
            raise expected(name, what, still[0])
