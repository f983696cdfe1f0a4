r"""Phases from their sampled free energies: which share of the posterior each has, and where two are equal.

A phase is a region of parameter space with a free energy of its own, as
:func:`free_energy <icllab.diagnostics.singular.free_energies.free_energy>` has it with the region as constraint.
What there is asymptotically, :math:`n\,\Delta L + \Delta\lambda\log n`, is in :mod:`icllab.theory.free_energy`. Both
rank phases of the posterior at a sample size; neither says in which order, or whether, training reaches them.

Errors are those of independent free energies: each phase needs a key of its own. With one key for two of them both
start with the same draws, and the error of a difference may be smaller or larger than what is stated.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import xarray as xr
from scipy.interpolate import PchipInterpolator

from icllab.core.errors import expected


def phase_weights(phases: Mapping[str, xr.Dataset]) -> xr.Dataset:
    r"""Posterior weights of several phases, from their free energies with errors.

    .. math:: p_a = \frac{e^{-F_a}}{\sum_be^{-F_b}}, \qquad
              \mathrm{SE}^2(p_a) = p_a^2\Bigl[(1-p_a)^2s_a^2 + \sum_{b\ne a}p_b^2s_b^2\Bigr]

    to first order in the errors s. A ranking of phases at a sample size, not of times of training.

    ``phases`` is name -> ``free_energy`` and ``free_energy_error`` over one ``nbeta``, with different keys.

    Returns:
        ``weight`` and ``weight_error`` (``phase``, ``nbeta``).

    Raises:
        InputError: There are no two phases, or their temperatures differ.

    Derived: docs/free-energies.md, Phases and where they change.
    """
    if not isinstance(phases, Mapping):
        raise expected("phases", "free energies by name", type(phases).__name__)
    if len(phases) < 2:
        raise expected("phases", "at least two", list(phases))
    grid = _shared_grid(phases.values())
    energies, errors = (
        np.stack([phase[name].values for phase in phases.values()]) for name in ("free_energy", "free_energy_error")
    )
    shares = np.exp(energies.min(axis=0) - energies)
    shares = shares / shares.sum(axis=0)
    cross_terms = (shares**2 * errors**2).sum(axis=0) - shares**2 * errors**2
    return xr.Dataset(
        {
            "weight": (("phase", "nbeta"), shares),
            "weight_error": (("phase", "nbeta"), shares * np.sqrt((1 - shares) ** 2 * errors**2 + cross_terms)),
        },
        coords={"phase": list(phases), "nbeta": grid},
    )


def sampled_crossings(first: xr.Dataset, second: xr.Dataset) -> xr.Dataset:
    r"""Sample sizes at which two sampled free energies are equal, with errors.

    .. math:: \Delta F(n) = 0, \qquad
              \mathrm{SE}(\log n) = \mathrm{SE}(\Delta F)\Big/\Bigl|\frac{d\Delta F}{d\log n}\Bigr|

    between temperatures by a monotone cubic in :math:`\log n\beta`, and the error linearly: right where errors of
    neighbouring temperatures go together, as those of one population's integral do (they correlate by 0.8 to 0.9); of
    independent ones it overstates half-way by :math:`\sqrt2`. The exact counterpart is
    :func:`theory.free_energy.crossings <icllab.theory.free_energy.crossings>`.

    ``first`` and ``second`` have ``free_energy`` and ``free_energy_error`` over one ``nbeta``, with different keys.

    Returns:
        Over ``crossing``, ascending, none if there is none: ``crossing_n``, and ``crossing_n_error``.

    Raises:
        InputError: The temperatures differ, or there are fewer than two.

    Derived: docs/free-energies.md, Phases and where they change.
    """
    grid = _shared_grid((first, second))
    if grid.size < 2:
        raise expected("nbeta", "at least two numbers", grid.tolist())
    t = np.log(grid)
    gap = second["free_energy"].values - first["free_energy"].values
    error = np.hypot(first["free_energy_error"].values, second["free_energy_error"].values)
    curve = PchipInterpolator(t, gap)
    places = np.unique(curve.roots(extrapolate=False))
    slopes = np.abs(curve.derivative()(places))
    places, slopes = places[slopes > 0], slopes[slopes > 0]
    return xr.Dataset(
        {
            "crossing_n": ("crossing", np.exp(places)),
            "crossing_n_error": ("crossing", np.exp(places) * np.interp(places, t, error) / slopes),
        }
    )


def require_energies(energies: object, *names: str) -> None:
    """Raise unless ``energies`` is a Dataset with these variables."""
    came = [str(name) for name in energies.variables] if isinstance(energies, xr.Dataset) else type(energies).__name__
    if not set(names) <= set(came):
        raise expected("energies", f"a Dataset of free_energy, with {', '.join(names)}", came)


def _shared_grid(phases: Iterable[xr.Dataset]) -> np.ndarray:
    phases = list(phases)
    for phase in phases:
        require_energies(phase, "nbeta", "free_energy", "free_energy_error")
    first, *cross_terms = (phase["nbeta"].values for phase in phases)
    for grid in cross_terms:
        if first.shape != grid.shape or not np.allclose(first, grid, rtol=1e-9, atol=0):
            raise expected("nbeta", f"the same of all phases, {first.tolist()}", grid.tolist())
    return first
