r"""Free energies of regions of parameter space, by annealing, and the coefficient that their slope is.

.. math:: F(n\beta) = -\log\int_W e^{-n\beta L(w)}\varphi(w)\,dw, \qquad
          F(n\beta) - F(0) = \int_0^{n\beta} E_t[L]\,dt

in nats. Of a region it is the free energy of a phase: see :mod:`icllab.diagnostics.singular.phases`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.domains import Domain
from icllab.core.errors import expected
from icllab.core.progress import shows
from icllab.core.result_warnings import warns
from icllab.core.statistics import mean_and_error
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior, of_posterior
from icllab.diagnostics.sampling.sampling_warnings import annealing_warnings, errors_of_few, no_minimum
from icllab.diagnostics.sampling.smc import SMC, Populations
from icllab.diagnostics.singular.phases import require_energies
from icllab.models.pretrained.ignored_fields import names_ignored

MULTIPLICITIES = (1, 2, 3)
DECADES = 3  # of inverse temperature, at most, that a slope is fitted to
POINTS = 13
USUAL = SMC()


@warns("free energy", "free_energy", "free_energy_error")
@names_ignored
@shows("free energy")
@of_posterior("free_energy_of_populations")
def free_energy(
    posterior: LocalPosterior,
    *,
    key: PRNGKeyArray,
    region: Callable[[Any], Any] | None = None,
    observe: Callable[[Any], Any] | None = None,
    sampler: SMC = USUAL,
    progress: bool | None = None,
) -> xr.Dataset:
    r"""The free energy of a region under a Gaussian prior, at several temperatures of one run.

    .. math::
        F(n\beta) = -\log\frac1R\sum_rZ_r, \qquad
        Z_r = P_\varphi(W)\prod_k\frac1N\sum_i e^{-(t_{k+1}-t_k)L(w_i^{(k)})}, \qquad
        \varphi = \mathcal N(w^*, \gamma^{-1}I)

    over the temperatures on the way and the populations r, each with its own particles and its own part of the prior.
    :math:`Z_r` has the right mean: the mean of :math:`-\log Z_r` would be too large by half its variance. The
    second route takes the same populations' mean losses for the integrand and their variances for its slope (the
    trapezoidal rule with its first correction), and their mean likewise. The two share what the moves have not mixed:
    the spread of repeats is the error, and ``correlation`` says whether moves mix.

    Args:
        posterior: Loss near the centre :math:`w^*` of the prior, with a localization :math:`\gamma` and one ``nbeta``
            or several. Where the loss is not finite is outside the region.
        key: Key of the populations.
        region: Function of parameters, true inside; None: everywhere.
        observe: Function of parameters, of one number or several, whose posterior means are returned; None: no means.
        sampler: Number of populations and particles, and their moves.
        progress: Whether what is done, the time left and the present estimate are shown; None: on a terminal and in a
            notebook.

    Returns:
        Over ``nbeta``: ``free_energy`` and ``integrated``, its second route, and ``route_gap``, the second less the
        first; ``mean_loss``, :math:`E[L]`, and ``loss_variance``; ``observed`` (``nbeta``, ``observable``), the last
        three with equal weights of repeats. Each with an ``_error``, the standard error over repeats, of the first
        three by the jackknife. ``repeat_free_energy``, :math:`-\log Z_r`, and ``repeat_mean_loss`` (``repeat``,
        ``nbeta``). ``log_prior_mass`` of the region, with its error (zero without a region), which ``free_energy``
        contains. Over ``rung``, the temperatures on the way: ``rung_nbeta``, ``acceptance``, ``effective_share``,
        ``step_size``, ``moves`` and ``correlation``. ``ancestors`` (``repeat``): particles of the prior with
        descendants at the end. ``least_loss``, of all particles; ``rounding`` (``nbeta``): :math:`n\beta` times the
        precision to which its type holds the loss. The attribute ``warnings`` is a list of sentences.

    Raises:
        InputError: A number is out of its range, there are no floating-point parameters or of several types, the
            region is not a function of one boolean, or too little of the prior lies in it.

    Source: [GelmanMeng98].
    Derived: docs/free-energies.md, Two routes.
    """
    if not isinstance(sampler, SMC):
        raise expected("sampler", "SMC()", sampler, "chains run at one temperature only")
    return free_energy_of_populations(sampler.sample(posterior, key=key, region=region, observe=observe))


@warns("free energy", "free_energy", "free_energy_error")
def free_energy_of_populations(populations: Populations) -> xr.Dataset:
    """Compute what :func:`free_energy` returns from the populations of ``SMC().sample(...)``."""
    sampler = populations.sampler
    dataset = _dataset(populations).assign_attrs(
        parameters=populations.last.shape[-1],
        localization=populations.localization,
        particles=sampler.particles,
        repeats=sampler.repeats,
    )
    return dataset.assign_attrs(warnings=annealing_warnings(dataset, sampler.forgotten))


def annealed_slope(posterior: LocalPosterior, *, key: PRNGKeyArray, sampler: SMC = USUAL) -> xr.Dataset:
    r"""The learning coefficient near a point from the slope of its free energy.

    .. math:: F(t) - tL(w^*) = \lambda\log t - (m-1)\log\log t + c + o(1)

    fitted by least squares between :math:`\sqrt{n\beta}` and :math:`n\beta`, over three decades at most, with the prior
    :math:`\mathcal N(w^*, \gamma^{-1}I)`. The multiplicity is hard to tell from the data. So the slope is given for
    each of several: m = 1 is no assumption but what an estimate by mean losses has, and where m is known, it is that
    m's slope which estimates :math:`\lambda`.

    Args:
        posterior: Loss near the point, with a localization and the largest inverse temperature, at least 10.
        key: Key of the populations.
        sampler: Number of populations and particles, and their moves.

    Returns:
        What :func:`free_energy` and :func:`free_energy_slope` return, and numbers: ``estimate`` and ``mcse``, the
        slope at m = 1 with its error; ``mean_estimate`` and ``mean_estimate_error``,
        :math:`n\beta(E[L]-L(w^*))`; ``slope_change`` and its error, of the upper half of temperatures less the lower.

    Raises:
        InputError: As :func:`free_energy`.

    Source: [Watanabe09].
    Derived: docs/free-energies.md, A coefficient from a slope.
    """
    nbeta = posterior.temperature
    Domain(least=10, text="a finite number of at least 10").require("nbeta", nbeta)
    grid = np.geomspace(max(math.sqrt(nbeta), nbeta / 10**DECADES), nbeta, POINTS)
    energies = free_energy(replace(posterior, nbeta=grid), key=key, sampler=sampler)
    baseline = float(jnp.sum(posterior.whole_loss(posterior.part[1])))
    slopes = free_energy_slope(energies, baseline=baseline)
    upper, lower = (
        _slopes(part["nbeta"].values, part["repeat_free_energy"].values - baseline * part["nbeta"].values)
        for part in (energies.isel(nbeta=slice(POINTS // 2, None)), energies.isel(nbeta=slice(POINTS // 2 + 1)))
    )
    change, change_error = (float(a) for a in mean_and_error(upper - lower))
    above = nbeta * (energies["repeat_mean_loss"].isel(nbeta=-1).values - baseline)
    above, above_error = (float(a) for a in mean_and_error(above))
    single = slopes.sel(multiplicity=1)
    numbers = {"estimate": float(single["slope"]), "mcse": float(single["slope_error"]), "baseline": baseline}
    numbers |= {"mean_estimate": above, "mean_estimate_error": above_error}
    numbers |= {"slope_change": change, "slope_change_error": change_error}
    lower_by = nbeta * (baseline - float(energies["least_loss"]))
    sentences = list(energies.attrs["warnings"])
    if lower_by > max(1.0, abs(above) / 2):
        sentences.append(no_minimum(lower_by))
    if abs(change) > max(errors_of_few(sampler.repeats) * change_error, 0.05 * abs(numbers["estimate"])):
        sentences.append(f"the slope still changes, by {change:+.2g} over the temperatures it is fitted to")
    return energies.merge(slopes).assign(numbers).assign_attrs(warnings=sentences)


def free_energy_slope(
    energies: xr.Dataset, *, baseline: float = 0.0, multiplicities: Sequence[int] = MULTIPLICITIES
) -> xr.Dataset:
    r"""The slope of a free energy on :math:`\log n\beta`, given the multiplicity.

    .. math:: F(t) - tL(w^*) + (m-1)\log\log t \approx \lambda_m\log t + c

    by least squares in each repeat, of :math:`-\log Z_r`: too large by the slope of half the variance of repeats,
    as the free energy of all repeats together is not.

    Args:
        energies: Result of :func:`free_energy`, at two temperatures above 1 at least.
        baseline: :math:`L(w^*)`.
        multiplicities: m.

    Returns:
        Over ``multiplicity``: ``slope``, ``slope_error`` over repeats, and ``residual``, the root mean square in nats
        of what the mean over repeats leaves.

    Raises:
        InputError: There are fewer than two temperatures, or one is not above 1.

    Source: [Watanabe09].
    """
    require_energies(energies, "nbeta", "repeat_free_energy")
    t = energies["nbeta"].values
    if t.size < 2 or t.min() <= 1:
        raise expected("nbeta", "at least two numbers above 1, for a slope on log nbeta", t.tolist())
    above = energies["repeat_free_energy"].transpose("repeat", "nbeta").values - baseline * t
    rows = []
    for m in multiplicities:
        values = above + (m - 1) * np.log(np.log(t))
        mean, error = mean_and_error(_slopes(t, values))
        squares = np.polyfit(np.log(t), values.mean(0), 1, full=True)[1]
        rows.append((float(mean), float(error), math.sqrt(float(squares.sum()) / t.size)))
    columns = np.array(rows).T
    return xr.Dataset(
        {name: ("multiplicity", c) for name, c in zip(("slope", "slope_error", "residual"), columns, strict=True)},
        coords={"multiplicity": list(multiplicities)},
    )


def _dataset(populations: Populations) -> xr.Dataset:
    """Compute all rungs, [rung, repeat], and select those of the stops."""
    rungs, stops = populations.rungs, populations.stops
    t = np.array([rung.temperature for rung in rungs])
    columns = {name: np.stack([getattr(r, name) for r in rungs]) for name in ("increment", "share", "mean", "variance")}
    observable_means = np.stack([rung.observables for rung in rungs])
    outside = -np.log(populations.prior_mass)
    energies = np.cumsum(columns["increment"], axis=0) + outside
    areas = np.zeros_like(energies)
    least = min(rung.least for rung in rungs)
    areas[1:] = np.cumsum(_areas(t, columns["mean"] - least, columns["variance"]), axis=0) + least * t[1:, None]
    at = np.searchsorted(t, stops)
    repeats, particles = populations.last.shape[:2]
    weights = np.sqrt(np.cumsum((1 / columns["share"] - 1).mean(axis=1)) / (repeats * particles))
    by_weights, by_integration = (_pooled(routes[at]) for routes in (energies, areas + outside))
    values = {
        "free_energy": _jackknifed(*by_weights),
        "integrated": _jackknifed(*by_integration),
        "route_gap": _jackknifed(*(b - a for a, b in zip(by_weights, by_integration, strict=True))),
        "mean_loss": mean_and_error(columns["mean"][at]),
        "loss_variance": mean_and_error(columns["variance"][at]),
    }
    if observable_means.shape[-1]:
        values["observed"] = mean_and_error(observable_means[at].swapaxes(1, 2))
    rows: dict[str, Any] = {}
    for name, pair in values.items():
        for end, numbers in zip(("", "_error"), pair, strict=True):
            rows[name + end] = (("nbeta", "observable")[: numbers.ndim], numbers)
    for name in ("acceptance", "step_size", "moves", "correlation"):
        rows[name] = ("rung", np.array([getattr(rung.moves, name) for rung in rungs], dtype=float))
    mass, mass_error = _jackknifed(*_pooled(outside[None]))
    return xr.Dataset(
        rows
        | {
            "weight_error": ("nbeta", weights[at]),
            "rounding": ("nbeta", populations.precision * stops * np.abs(columns["mean"][at]).mean(axis=1)),
            "repeat_free_energy": (("repeat", "nbeta"), energies[at].T),
            "repeat_mean_loss": (("repeat", "nbeta"), columns["mean"][at].T),
            "log_prior_mass": -float(mass[0]),
            "log_prior_mass_error": float(mass_error[0]),
            "least_loss": least,
            "ancestors": ("repeat", populations.ancestors),
            "rung_nbeta": ("rung", t),
            "effective_share": ("rung", columns["share"].min(axis=1)),
        },
        coords={"nbeta": stops},
    )


def _pooled(energies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Minus the logarithm of the mean of exp(-F) over repeats, the last axis; of all, and without each of them."""

    def pooled(values: np.ndarray) -> np.ndarray:
        least = values.min(axis=-1, keepdims=True)
        return least[..., 0] - np.log(np.exp(least - values).mean(axis=-1))

    without = [np.delete(energies, r, axis=-1) for r in range(energies.shape[-1])]
    return pooled(energies), pooled(np.stack(without, axis=-2))


def _jackknifed(whole: np.ndarray, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A number of all repeats and its standard error, from the numbers without each repeat."""
    deviations = without - without.mean(axis=-1, keepdims=True)
    return whole, np.sqrt((1 - 1 / without.shape[-1]) * (deviations**2).sum(axis=-1))


def _areas(t: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The trapezoidal rule with its first correction for every step, from the mean loss and its slope."""
    # Of tE in log t, nearly constant where E, less the least loss, is nearly a power of t; from 0 on of E in t.
    width = t[1]
    first = width * (mean[:1] + mean[1:2]) / 2 + width**2 / 12 * (variance[1:2] - variance[:1])
    x, t = np.diff(np.log(t[1:]))[:, None], t[1:, None]
    values = t * mean[1:]
    slopes = values - t**2 * variance[1:]
    areas = x * (values[1:] + values[:-1]) / 2 - x**2 / 12 * (slopes[1:] - slopes[:-1])
    return np.concatenate([first, areas])


def _slopes(t: np.ndarray, values: np.ndarray) -> np.ndarray:
    """By least squares on log t, of each row."""
    x = np.log(t) - np.log(t).mean()
    return values @ x / (x @ x)
