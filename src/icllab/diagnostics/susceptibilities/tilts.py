r"""Susceptibilities: how much a tilt of the data moves what is observed of a posterior."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import expected, kind_of, require_key
from icllab.core.progress import shows
from icllab.core.result_warnings import warns
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior, of_posterior
from icllab.diagnostics.sampling.observables import posterior_settings, require_test
from icllab.diagnostics.sampling.samplers import ChainSampler, Draws
from icllab.diagnostics.sampling.sampling_warnings import rounding_warnings
from icllab.diagnostics.susceptibilities.linear_response import LinearResponse
from icllab.diagnostics.susceptibilities.quadrature import Nodes, Quadrature
from icllab.models.pretrained.ignored_fields import names_ignored

Route: TypeAlias = Quadrature | ChainSampler | LinearResponse
Functions: TypeAlias = Mapping[str, Callable[[Any], Any]]


class Stack(eqx.Module):
    """Several functions of parameters as a vector, less a reference if there is one."""

    functions: tuple[Any, ...]
    reference: Any = None

    def __call__(self, w: Any) -> Array:
        """The values."""
        values = jnp.stack([jnp.sum(jnp.asarray(function(w))) for function in self.functions])
        return values if self.reference is None else values - jnp.sum(self.reference(w))


@warns("susceptibility", "susceptibility", "susceptibility_error")
@names_ignored
@shows("susceptibility")
@of_posterior("susceptibility_of_draws")
def susceptibility(
    posterior: LocalPosterior,
    *,
    tilted: Functions,
    observables: Functions,
    route: Route,
    key: PRNGKeyArray,
    progress: bool | None = None,
) -> xr.Dataset:
    r"""The response of posterior means to a tilt of the data.

    The data are drawn from :math:`(1-h)\,q + h\,q'`, so that the loss is :math:`L_h = L + h\,\Delta`,
    :math:`\Delta = L' - L`, and the posterior :math:`\exp(-n\beta L_h - \frac\gamma2\lVert w-w^*\rVert^2)`. Then

    .. math:: \chi = \frac{d\langle\phi\rangle_h}{dh}\Big|_{h=0} = -n\beta\,\operatorname{Cov}(\phi, \Delta)

    at h = 0. The sign is that of the response, and :math:`\chi` has the units of :math:`\phi`, per unit of h, the share
    of the data that is exchanged. The source divides by :math:`n\beta`. An observable is a function of parameters that
    does not depend on h. So the response of the coefficient is that of :math:`\phi = n\beta(L - L(w^*))`, without the
    explicit change of L with h.

    Args:
        posterior: Loss near a point, at one temperature. Where the loss is not finite is outside the region.
        tilted: Name -> :math:`L'`, the loss on other data, as a function of parameters.
        observables: Name -> :math:`\phi`, a number of parameters: a loss of one context, an attention, a weight.
        route: ``Quadrature()`` of a few parameters; a sampler of chains with a Metropolis test, ``HMC()``; or
            ``LinearResponse(curvature=GaussNewton(...))``.
        key: Key of the chains or the probes.
        progress: Whether what is done, the time left and the present estimate are shown; None: on a terminal and in a
            notebook.

    Returns:
        ``susceptibility`` and its ``_error`` (``observable``, ``tilted``): by quadrature the change from the grid of
        twice the spacing, of chains a Monte Carlo standard error, of linear response that of its probes.
        ``correlation``, of :math:`\phi` and :math:`\Delta` under the posterior. By the first two routes also ``mean``,
        :math:`\langle\phi\rangle`, and ``mean_error``; of linear response ``first_order`` and ``second_order``, which
        sum to the susceptibility, and no correlation. Attributes: ``route``, ``nbeta``, ``localization``,
        ``resolution``, :math:`\gamma/n\beta`, and ``warnings``, a list of sentences.

    Raises:
        InputError: The posterior has no temperature; nothing is observed or tilted, or it does not vary under the
            posterior; or as the route.

    Source: [Baker25].
    Derived: docs/routing.md, Susceptibilities.
    """
    _require_functions(observables, tilted)
    require_key(key)
    if isinstance(route, Quadrature | ChainSampler):
        if isinstance(route, ChainSampler):
            require_test(route)
        return susceptibility_of_draws(route.sample(posterior, key=key), tilted=tilted, observables=observables)
    if not isinstance(route, LinearResponse):
        raise expected("route", "Quadrature(), LinearResponse(), or chains with a test: HMC()", route)
    if posterior.prior is not None:
        raise expected("prior", "None with LinearResponse", posterior.prior, "leave it out")
    nbeta = posterior.temperature
    local = posterior.local_loss().localized(nbeta)
    tilts = Stack(tuple(tilted.values()), local.tree_loss)
    response = route.covariances(local, Stack(tuple(observables.values())), tilts, nbeta=nbeta, key=key)
    covariance = response.first + response.second
    _require_effect(np.abs(covariance).sum(1) > 0, np.abs(covariance).sum(0) > 0, observables, tilted)
    axes = ("observable", "tilted")
    rows = {
        "susceptibility": (axes, -nbeta * covariance),
        "susceptibility_error": (axes, nbeta * response.error),
        "first_order": (axes, -nbeta * response.first),
        "second_order": (axes, -nbeta * response.second),
    }
    settings = posterior_settings(route, nbeta, local.localization) | {"warnings": response.warnings}
    return xr.Dataset(rows, coords={"observable": list(observables), "tilted": list(tilted)}, attrs=settings)


@warns("susceptibility", "susceptibility", "susceptibility_error")
@names_ignored
def susceptibility_of_draws(draws: Draws | Nodes, *, tilted: Functions, observables: Functions) -> xr.Dataset:
    """The response of posterior means to a tilt of the data, from draws of chains or the nodes of a quadrature.

    Args:
        draws: Draws, as ``HMC().sample(posterior, key=key)`` or ``Quadrature().sample(...)`` returns them.
        tilted: Name -> loss on other data; see :func:`susceptibility`, which also describes the result.
        observables: Name -> number of parameters.
    """
    _require_functions(observables, tilted)
    if not isinstance(draws, Draws | Nodes):
        raise expected("draws", "draws of a sampler", kind_of(draws), "HMC().sample(posterior, key=key) has them")
    loss = draws.local.tree_loss
    functions = (*observables.values(), *(eqx.Partial(_tilt, function, loss) for function in tilted.values()))
    at_point, values = draws.values(Stack(functions))
    count = len(observables)
    means = [draws.mean(values[..., i]) for i in range(values.shape[-1])]
    deviations = values - np.array([value for value, _ in means])
    spreads = np.array([draws.mean(deviations[..., i] ** 2)[0] for i in range(values.shape[-1])]) ** 0.5
    sizes = _sizes(draws.local, (*observables.values(), *tilted.values()))
    sizes[count:] += abs(float(draws.local.known.baseline.sum()))
    _require_effect(spreads[:count] > 0, spreads[count:] > 0, observables, tilted)
    covariances = np.array(
        [[draws.mean(deviations[..., i] * deviations[..., j]) for j in range(count, len(means))] for i in range(count)]
    )
    axes, first, nbeta = ("observable", "tilted"), np.array(means)[:count], draws.nbeta
    rows = {
        "susceptibility": (axes, -nbeta * covariances[..., 0]),
        "susceptibility_error": (axes, nbeta * covariances[..., 1]),
        "correlation": (axes, covariances[..., 0] / np.outer(spreads[:count], spreads[count:])),
        "mean": ("observable", at_point[:count] + first[:, 0]),
        "mean_error": ("observable", first[:, 1]),
    }
    rounded = rounding_warnings("observables or tilts", sizes, spreads, draws.local.centre.dtype)
    settings = draws.settings | {"warnings": [*draws.warnings(values), *rounded]}
    return xr.Dataset(rows, coords={"observable": list(observables), "tilted": list(tilted)}, attrs=settings)


def _tilt(tilted_loss: Any, loss: Any, w: Any) -> Array:
    """The difference of two losses, each summed over terms."""
    return jnp.sum(tilted_loss(w)) - jnp.sum(loss(w))


def _require_functions(observables: Functions, tilted: Functions) -> None:
    """Raise unless there is at least one observable and one tilt, each a function."""
    for name, functions in (("observables", observables), ("tilted", tilted)):
        if not isinstance(functions, Mapping) or not functions:
            came = functions if isinstance(functions, Mapping) else kind_of(functions)
            raise expected(name, "at least one function of parameters, by name", came)
        for label, function in functions.items():
            if not callable(function) or isinstance(function, type):
                raise expected(name, "functions of parameters", f"{label!r}: {kind_of(function)}")


def _sizes(local: LocalLoss, functions: tuple[Any, ...]) -> np.ndarray:
    """The sums of the absolute terms of functions of the parameters at the point."""
    at = local.tree(local.centre)
    return np.array([float(np.abs(np.asarray(function(at), np.float64)).sum()) for function in functions])


def _require_effect(
    observable_varies: np.ndarray, tilt_varies: np.ndarray, observables: Functions, tilts: Functions
) -> None:
    """Raise if an observable or a tilt is constant under the posterior."""
    for name, functions, varies in (("observables", observables, observable_varies), ("tilted", tilts, tilt_varies)):
        constant = [label for label, moves in zip(functions, varies, strict=True) if not moves]
        if constant:
            kind = "a loss that differs from the loss" if name == "tilted" else "numbers that the parameters change"
            raise expected(name, kind, constant[0])
