r"""The remainder K' of a loss near its minimum beside the quadratic part; it is zero at a regular point.

.. math:: K'(v) = \min_yK(w^*+v+y), \qquad v\in\ker H,\quad y\perp\ker H

is K' in the coordinates in which :math:`K = \frac12\sum_ih_iu_i^2 + K'`, to leading order in v. At a regular point,
where the minima are a manifold of the dimension of the kernel of the Hessian H, it is zero.

Derived: docs/free-energies.md, The limit of a curve.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from scipy.optimize import minimize

from icllab.diagnostics.curvature.spectra import ROUNDING, curvatures
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.posteriors import Vector
from icllab.diagnostics.sampling.sampled_losses import at_point

NOISE = 5.0  # times the largest curvature over the root of the number of samples: curvatures that may be those of noise
GAPS = 8  # of the spectrum below that, at most, where what is left out begins
RESOLVED = 0.1  # of the localization, that nbeta times a curvature is where it is seen
DRAWS = 4  # of v
WIDTHS = (0.1, 0.3, 1.0)  # of v, in standard deviations of the prior: the first at which the loss is not rounded
ABOVE_ROUNDING = 1e6
FLATNESS = 0.1  # of nbeta K(w* + v), below which the kernel is flat, if K is rounded there
EVALUATIONS = 1000  # of the loss and its gradient, for a minimum over y
ZERO, NONZERO = 1e-4, 1e-2  # of K(w* + v), below and above which K'(v) is zero and is not
UNSURE = 0.5  # probability that K' is zero where it is not known
SURE = 0.98
WHOLE = 0.4  # of an order of K', that it may be off an even number
BEARABLE = 20.0  # nominal seconds of all these minima


class Geometry(NamedTuple):
    """A hypothesis on a minimum."""

    curvatures: np.ndarray  # positive eigenvalues of the Hessian
    regular: float = UNSURE  # probability that there is no K'
    order: int | None = None  # of K' in v, if it is known


FLAT = Geometry(np.zeros(0))


def geometries(local: LocalLoss, place: Vector, nbeta: float, key: PRNGKeyArray) -> Sequence[Geometry]:
    r"""The geometry at a minimum of all the data, and alternatives without curvatures that need not count.

    Curvatures :math:`h < \gamma/10n\beta` are not resolved. Data perturb a flat direction by a curvature of the order
    of :math:`h_{\max}/\sqrt n`: the alternatives end at the widest gaps of the spectrum below a multiple of that.
    """
    of_spectrum, of_draws = jax.random.split(key)
    h, vectors = curvatures(local.loss, place, key=of_spectrum)
    steepest = max(float(h[0]), 0.0)
    rank = int(np.sum(h > max(len(h), ROUNDING) * float(jnp.finfo(local.centre.dtype).eps) * steepest))
    ends = {int(np.sum(h[:rank] > RESOLVED * local.localization / nbeta))}
    if local.samples:
        first = int(np.sum(h[:rank] > NOISE * steepest / math.sqrt(local.samples)))
        gaps = np.log(h[first - 1 : rank - 1] / h[first:rank]) if 0 < first < rank else np.zeros(0)
        ends |= {first + int(i) for i in np.argsort(gaps)[::-1][:GAPS]}
    whole = Geometry(h[:rank])
    evaluations = EVALUATIONS * (1 + 2 * DRAWS)
    if vectors is not None and rank < len(h) and evaluations * local.seconds <= BEARABLE:
        whole = Geometry(h[:rank], *_rest(local, place, h[:rank], vectors, nbeta, of_draws))
    return [whole, *(Geometry(h[:end]) for end in sorted(ends - {rank}))]


def _rest(
    local: LocalLoss, place: Vector, h: np.ndarray, vectors: np.ndarray, nbeta: float, key: PRNGKeyArray
) -> tuple[float, int | None]:
    """The probability that K' is zero, and its order."""
    normal, kernel = vectors[:, : len(h)] / np.sqrt(h), vectors[:, len(h) :]
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    draws = rng.normal(size=(DRAWS, kernel.shape[1])) @ kernel.T / math.sqrt(local.localization)
    centre = np.asarray(place, np.float64)
    # Of the loss, and of the kernel, whose vectors have parts of the size of rounding in other directions.
    eps = float(jnp.finfo(local.centre.dtype).eps)
    rounding = local.rounding + eps**2 * float(np.max(h, initial=0.0)) * float((draws**2).sum(1).max())

    def loss_and_slope(w: np.ndarray) -> tuple[float, np.ndarray]:
        values = at_point(local.loss, jnp.asarray(w, local.centre.dtype), batch=local.block)
        return float(values.baseline.sum()), np.asarray(values.slope, np.float64)

    def least(v: np.ndarray) -> float:
        if not len(h):
            return loss_and_slope(centre + v)[0]

        def of_y(y: np.ndarray) -> tuple[float, np.ndarray]:
            loss, slope = loss_and_slope(centre + v + normal @ y)
            return loss, normal.T @ slope

        options: Any = {"maxfun": EVALUATIONS, "maxiter": EVALUATIONS, "ftol": 0.0, "gtol": 0.0}
        return float(minimize(of_y, np.zeros(len(h)), jac=True, method="L-BFGS-B", options=options).fun)

    bottom = least(np.zeros_like(centre))
    width, before = WIDTHS[0], np.zeros(DRAWS)
    for width in WIDTHS:
        before = np.array([loss_and_slope(centre + width * v)[0] for v in draws]) - bottom
        if not np.isfinite(before).all():
            return UNSURE, None
        if before.min() > ABOVE_ROUNDING * rounding:
            break
    else:
        return (SURE if nbeta * max(before.max(), ABOVE_ROUNDING * rounding) < FLATNESS else UNSURE), None
    after = np.array([least(width * v) for v in draws]) - bottom
    shares = after / before
    if (np.abs(shares) < ZERO).all():
        return SURE, None
    if not (shares > NONZERO).all():
        return UNSURE, None
    nearer = np.array([least(width / 2 * v) for v in draws]) - bottom
    order = float(np.median(np.log2(after / np.maximum(nearer, 1e-300))))
    even = 2 * round(order / 2)
    return 1 - SURE, even if even >= 4 and abs(order - even) < WHOLE else None
