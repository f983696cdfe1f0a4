r"""Does the density of the pushed-forward prior diverge at a point? Counted in draws of the prior."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray

from icllab.core.domains import POSITIVE, PROPER_FRACTION
from icllab.core.errors import expected, require_integer, require_key
from icllab.core.statistics import mean_and_error
from icllab.diagnostics.sampling.sampling_warnings import errors_of_few
from icllab.diagnostics.singular.free_energies import MULTIPLICITIES

SHIFTS = (0.0, 2.0)  # of log(median / radius): between them the prior's scale puts a constant there
INNER = 8  # how many times fewer draws the inner ball has
FEWEST = 40  # draws of a group in the inner ball
DENSITIES = ("vanishes", "tie", "diverges")


def pushed_density(
    context_map: Callable[[Any], Any],
    at: Any,
    *,
    localization: float,
    key: PRNGKeyArray,
    draws: int = 2**19,
    groups: int = 16,
    tail: float = 1e-3,
) -> xr.Dataset:
    r"""The exponent of the density of :math:`f_c(w)` at :math:`f_c(w^*)`, from draws of the prior.

    The distances :math:`\lVert f_c(w)-f_c(w^*)\rVert` of draws of :math:`\mathcal N(w^*, \gamma^{-1}I)`, as
    :func:`density_exponent` takes them; no loss is asked.

    Args:
        context_map: :math:`f_c`, parameters -> parameters.
        at: :math:`w^*`, a tree with arrays.
        localization: :math:`\gamma`.
        key: Key of the draws.
        draws: Draws of each group.
        groups: Number of groups, at least 4.
        tail: Share of all draws in the outer ball.

    Returns:
        As :func:`density_exponent`, with multiplicities of at most the number of parameters.

    Raises:
        InputError: As :func:`density_exponent`, or the localization is not positive.

    Derived: docs/routing.md, Few-shot and zero-shot.
    """
    POSITIVE.require("localization", localization)
    require_integer("groups", groups, least=4)
    require_integer("draws", draws)
    require_key(key)
    point, unravel = ravel_pytree(at)
    centre = ravel_pytree(context_map(at))[0]
    radii = _radii(eqx.Partial(_distance, context_map, unravel, point, centre, localization**-0.5), key, groups, draws)
    allowed = tuple(m for m in MULTIPLICITIES if m <= point.size)
    return density_exponent(np.asarray(radii), dimension=centre.size, multiplicities=allowed, tail=tail)


def density_exponent(
    radii: np.ndarray, *, dimension: int, multiplicities: Sequence[int] = MULTIPLICITIES, tail: float = 1e-3
) -> xr.Dataset:
    r"""The exponent of a density at a point, from distances of draws.

    .. math:: p(u) \sim |u|^a\,(-\log|u|)^{m-1} \iff P(|u|<\epsilon) \sim \epsilon^{d+a}\,(c-\log\epsilon)^{m-1}

    By maximum likelihood of the distances below :math:`\epsilon_0`, the quantile ``tail``; for m = 1 that is the
    inverse mean of :math:`\log\epsilon_0/|u|`. A multiplicity is allowed if the exponent of the inner ball, with an
    eighth of these draws, is that of the whole to three standard errors; if several are, the sign must be the same for
    all. With m > 1 distances are over their median, and c is 1, with a number anywhere between 0 and 2 as a further
    error.

    Args:
        radii: Distances, [group, draw].
        dimension: d.
        multiplicities: Values of m that are considered.
        tail: Share of all draws within :math:`\epsilon_0`.

    Returns:
        Over ``multiplicity``: ``exponent``, a, and its ``exponent_error`` over groups; ``change``, of the inner ball
        less the whole, with its error; ``allowed``. ``radius``, :math:`\epsilon_0`. The attribute ``density``:
        ``"diverges"``, ``"vanishes"``, or ``"tie"``: no sign can be told, as where the singularity is logarithmic.

    Raises:
        InputError: There are fewer than four groups, too few draws for the inner ball, or no multiplicity.

    Derived: docs/routing.md, Few-shot and zero-shot.
    """
    require_integer("dimension", dimension)
    PROPER_FRACTION.require("tail", tail)
    if not multiplicities or min(multiplicities) < 1:
        raise expected("multiplicities", "integers of at least 1", tuple(multiplicities))
    if radii.ndim != 2 or len(radii) < 4 or radii.shape[1] * tail < FEWEST * INNER:
        shape = f"[group, draw], at least 4 groups with {FEWEST * INNER} draws in the outer ball"
        raise expected("radii", shape, radii.shape, "take more draws or a larger tail")
    t = np.log(np.maximum(radii, np.finfo(float).tiny) / np.median(radii))
    ends = np.quantile(t, (tail, tail / INNER))
    bound, rows = errors_of_few(len(t)), []
    for m in multiplicities:
        shifts = (0.0,) if m == 1 else SHIFTS
        by_shift = np.array([[[_fitted(row[row < end], end, m, c) for row in t] for end in ends] for c in shifts])
        whole, inner = by_shift.mean(axis=0)
        spread = by_shift.mean(axis=-1)
        rows.append((*_stated(whole, spread[:, 0]), *_stated(inner - whole, spread[:, 1] - spread[:, 0])))
    value, error, change, of_change = np.array(rows).T
    value = value - dimension
    admissible = abs(change) <= bound * of_change
    admissible[np.argmin(abs(change) / of_change)] = True
    signs = {
        int(np.sign(a)) if abs(a) > bound * s else 0 for a, s in zip(value[admissible], error[admissible], strict=True)
    }
    columns = {"exponent": value, "exponent_error": error, "change": change, "change_error": of_change}
    return xr.Dataset(
        {name: ("multiplicity", column) for name, column in (columns | {"allowed": admissible}).items()}
        | {"radius": float(np.quantile(radii, tail))},
        coords={"multiplicity": list(multiplicities)},
        attrs={"density": DENSITIES[1 - (min(signs) if len(signs) == 1 else 0)]},
    )


def _fitted(t: np.ndarray, end: float, m: int, shift: float) -> float:
    """The exponent that is likeliest for log distances below ``end``."""
    inside, depth = end - t, shift - t
    if m == 1:
        return len(t) / float(inside.sum())
    least = (m - 1) / float(depth.min())  # below it the density is not positive
    low, high = least, least + 2 * len(t) / float(inside.sum()) + 1
    for _ in range(60):
        middle = (low + high) / 2
        rising = float((depth / (middle * depth - (m - 1))).sum() - inside.sum()) > 0
        low, high = (middle, high) if rising else (low, middle)
    return (low + high) / 2


def _stated(values: np.ndarray, of_shifts: np.ndarray) -> tuple[float, float]:
    """Mean over groups, and its error, which includes the error of the unknown shift."""
    value, error = mean_and_error(values)
    return float(value), float(np.hypot(error, np.ptp(of_shifts) / 12**0.5))


def _distance(context_map: Any, unravel: Any, point: Array, centre: Array, scale: float, noise: Array) -> Array:
    return jnp.linalg.norm(ravel_pytree(context_map(unravel(point + scale * noise)))[0] - centre)


@eqx.filter_jit
def _radii(distance: Any, key: PRNGKeyArray, groups: int, draws: int) -> Array:
    def of_group(group: Array) -> Array:
        noise = jax.random.normal(
            jax.random.fold_in(key, group), (draws, distance.args[2].size), distance.args[2].dtype
        )
        return jax.vmap(distance)(noise)

    return jax.lax.map(of_group, jnp.arange(groups))
