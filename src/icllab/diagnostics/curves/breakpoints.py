r"""Change points of a training curve, with intervals and tests against smooth curves.

A curve v over the steps :math:`t_1 < \dots < t_T` is a straight line in :math:`x = \log t` between breaks,

.. math:: v(t) = a_k + b_k\log t + \text{noise}, \qquad \tau_k \le t < \tau_{k+1},

which may jump at a break. Every curve has a best fit of this kind, so that breaks must fit better than smooth curves.
:func:`transitions <icllab.diagnostics.curves.transition_times.transitions>` measures instead when each member crosses a
level between an assumed plateau and end.
"""

import math
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.domains import PROPER_FRACTION, Domain
from icllab.core.errors import expected, require_integer, require_key, require_known
from icllab.core.progress import advance, shows, stage
from icllab.diagnostics.curves.curve_fits import CHANCE, PER_BREAK, PER_SEGMENT, SegmentFit, Segments, SmoothCurves, bic
from icllab.diagnostics.curves.transition_times import SCALES, member_curves

FEWEST = 12  # smallest number of records


@shows("change points")
def change_points(
    run_or_curve: Any,
    *,
    key: int | PRNGKeyArray = 0,
    variable: str | None = None,
    max_breaks: int = 4,
    resamples: int = 300,
    confidence: float = 0.95,
    widest: float = 10.0,
    resolution: float = 0.01,
    scale: str = "log",
    along: str = "step",
    progress: bool | None = None,
) -> xr.Dataset:
    r"""Breaks of a training curve, with bootstrap intervals, and whether to report them.

    The curve is the mean over members. The number of breaks K minimises

    .. math:: \mathrm{BIC}_K = T\log\Bigl(\frac{\mathrm{RSS}_K}{T} + \epsilon^2\Bigr) + (3K + 2)\log T,

    with :math:`\epsilon` a negligible share of the curve's range: without it a noiseless curve has a break wherever no
    smooth formula is exact. The places minimise the residual sum of squares RSS. No break is reported

    - if a smooth curve has a BIC as low: a polynomial in x of degree at most six, or a fall
      :math:`c + a\,f\bigl((t/\tau)^b\bigr)` with :math:`f(s) = (1+s)^{-1}` (a power law) or :math:`e^{-s}`, whose 10 to
      90 per cent take at least a factor of ``widest`` in time if it lies within the curve;
    - if breaks improve more than one per cent of permutations of the curve as much;
    - if breaks beat smooth curves as clearly on more than one per cent of simulations of the best smooth curve. The
      criterion assumes independent residuals, but those of a training run are correlated. The simulated noise is
      :math:`e_{i+1} = \rho e_i + \text{noise}` over the records, with estimated :math:`\rho`. At :math:`\rho = 0.7`
      one curve in forty passes this test.

    The interval takes the wider end, on each side, of two bootstraps: residuals resampled in circular blocks of about
    :math:`T^{1/3}` records, and whole members, if there are at least three. A break lies anywhere between its two
    records. It is not reported if its interval spans ``widest`` or reaches an end of the curve.

    Args:
        run_or_curve: Run, or curves over ``along`` and at most one other axis, as for
            :func:`~icllab.diagnostics.curves.transition_times.transitions`. Steps without a record of every member are
            left out, as is step 0 on a logarithmic scale.
        key: Seed of the resampling, or a key of JAX.
        variable: Name of the curve in a Dataset or a run; None: as of :func:`transitions`.
        max_breaks: Largest number of breaks.
        resamples: Number of resamples of each bootstrap, and of reordered curves; at least 100.
        confidence: Coverage of the intervals.
        widest: Ratio of the ends of an interval at which a break is not reported.
        resolution: Ratio of :math:`\epsilon` to the curve's range.
        scale: Scale of the steps on which segments are straight, ``"log"`` or ``"linear"``.
        along: Name of the time axis.
        progress: Whether what is done, the time left and the present estimate are shown; None: on a terminal and in a
            notebook.

    Returns:
        Over ``change``, ascending: ``change_point`` (the geometric mean of the records around it), ``change_interval``
        (``bound``); ``jump``, the line after minus the line before; ``slope_change``; ``reported``, and ``reason``, a
        sentence. ``bic`` over ``changes``, 0 to ``max_breaks``, and ``smooth_bic``. Attributes: ``smooth``, the best
        smooth curve; ``chance``, the share of permuted curves; ``smooth_chance``, the share of simulated smooth curves,
        or 1 if breaks do not beat smooth curves; ``autocorrelation``, :math:`\rho`; ``noise``, the residual standard
        deviation; ``members``; ``records``.

    Raises:
        InputError: There are fewer than twelve records, or an argument is out of its range.

    Derived: docs/singular-training.md, Change points.
    """
    seed = _seed(key)
    require_known("scale", scale, SCALES)
    require_integer("max_breaks", max_breaks)
    require_integer("resamples", resamples, least=100)
    PROPER_FRACTION.require("confidence", confidence)
    Domain(least=0, infinite=True).require("resolution", resolution)
    Domain(above=1, infinite=True, text="a ratio above 1").require("widest", widest)
    values, axis = member_curves(run_or_curve, variable, along)
    t, members = np.asarray(values[along].values, float), np.asarray(values.transpose(axis, along).values, float)
    usable = np.isfinite(members).all(0) & ((t > 0) | (scale == "linear"))
    order = np.argsort(t[usable])
    t, members = t[usable][order], members[:, usable][:, order]
    if len(t) < FEWEST:
        raise expected("curve", f"at least {FEWEST} steps that are recorded of all members", len(t))
    x = np.log(t) if scale == "log" else t
    max_breaks = min(max_breaks, len(t) // PER_SEGMENT - 1)
    curve = members.mean(0)
    floor = max(resolution * float(np.ptp(curve)), np.finfo(float).tiny ** 0.25)
    segments = Segments(x, max_breaks, floor)
    fits = segments.fits(curve)
    bics = np.array([bic(fit.residuals, PER_BREAK * k + 2, floor) for k, fit in enumerate(fits)])
    best = fits[int(np.argmin(bics))]
    smooth_curves = SmoothCurves(x, t, widest, floor)
    smooth = smooth_curves.best(curve)
    rng = np.random.default_rng(seed)
    bootstraps = [_block_bootstrap(best, rng, resamples, segments)]
    if len(members) >= 3 and best.breaks:
        draws = rng.integers(len(members), size=(resamples, len(members)))
        bootstraps.append(np.array([segments.breaks(members[draw].mean(0), len(best.breaks)) for draw in draws]))
    chance = _shuffle_chance(segments, curve, rng, resamples) if best.breaks else 1.0
    count, lead = len(best.breaks), smooth.bic - float(bics.min())
    rho, smooth_chance = smooth_curves.chance(smooth, segments, curve, count, lead, rng, resamples)
    objection = ""
    if chance > CHANCE:
        objection = f"of curves of the same values in another order {chance:.0%} gain as much from breaks"
    elif lead <= 0:
        objection = f"{smooth.name} does as well without a break"
    elif smooth_chance > CHANCE:
        noise_model = f"smooth curves with noise of its autocorrelation {rho:.2f}"
        objection = f"of {noise_model} {smooth_chance:.0%} gain as much from breaks"
    judgements = [_judge(t, k, best, bootstraps, confidence, widest) for k in range(count)]
    reasons = [objection or reason for _, reason in judgements]
    points = [math.sqrt(t[i - 1] * t[i]) if scale == "log" else (t[i - 1] + t[i]) / 2 for i in best.breaks]
    slopes = [after[1] - before[1] for before, after in pairwise(best.lines)]
    approval = "its place is known, and no smooth curve does as well"
    return xr.Dataset(
        {
            "change_point": ("change", np.array(points, float)),
            "jump": ("change", np.array([best.jump(x, k) for k in range(count)], float)),
            "slope_change": ("change", np.array(slopes, float)),
            "reported": ("change", np.array([not reason for reason in reasons], bool)),
            "reason": ("change", np.array([reason or approval for reason in reasons], str)),
            "change_interval": (("change", "bound"), np.array([interval for interval, _ in judgements]).reshape(-1, 2)),
            "bic": ("changes", bics),
            "smooth_bic": smooth.bic,
        },
        coords={"change": np.arange(count), "bound": ["low", "high"], "changes": np.arange(len(bics))},
        attrs={
            "smooth": smooth.name,
            "autocorrelation": rho,
            "chance": chance,
            "smooth_chance": smooth_chance,
            "noise": float(best.residuals.std()),
            "members": len(members),
            "records": len(t),
        },
    )


def _seed(key: Any) -> int | list[int]:
    """Numbers of a key of JAX, or the seed itself."""
    if isinstance(key, jax.Array) and jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key):
        require_key(key)
        return np.asarray(jax.random.key_data(key)).ravel().tolist()
    require_integer("key", key, least=0)
    return int(key)


def _shuffle_chance(segments: Segments, curve: np.ndarray, rng: np.random.Generator, resamples: int) -> float:
    """Share of permutations of the curve that breaks improve as much."""
    gain = segments.gain(curve)
    stage("permutations", resamples)
    exceedances = 0
    for _ in range(resamples):
        exceedances += segments.gain(rng.permutation(curve)) >= gain
        advance()
    return (1 + exceedances) / (1 + resamples)


def _block_bootstrap(fit: SegmentFit, rng: np.random.Generator, resamples: int, segments: Segments) -> np.ndarray:
    """Breaks of curves with resampled residuals, [resample, change]."""
    count, k = len(fit.values), len(fit.breaks)
    if not k:
        return np.empty((resamples, 0), int)
    length = max(round(count ** (1 / 3)), 1)
    # Correct residuals for the degrees of freedom of the lines.
    residuals = fit.residuals * math.sqrt(count / max(count - PER_BREAK * k - 2, 1))
    starts = rng.integers(count, size=(resamples, -(-count // length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :count] % count
    extra_noise = segments.floor * rng.normal(size=places.shape)
    curves = fit.values + residuals[places] + extra_noise
    stage("bootstrap", resamples)
    rows = []
    for curve in curves:
        rows.append(segments.breaks(curve, k))
        advance()
    return np.array(rows)


def _judge(
    t: np.ndarray, k: int, fit: SegmentFit, bootstraps: list[np.ndarray], confidence: float, widest: float
) -> tuple[tuple[float, float], str]:
    """Interval of a break, and the objection to it, or an empty string."""
    at = fit.breaks[k]
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    low = high = at
    for breaks in bootstraps:
        nearest = breaks[:, k]
        if t[0] > 0:
            # The nearest break of each resampled curve: its other breaks may be other changes.
            nearest = breaks[np.arange(len(breaks)), np.argmin(np.abs(np.log(t[breaks] / t[at])), axis=1)]
        ends = np.quantile(nearest, tails, method="inverted_cdf").astype(int)
        low, high = min(low, int(ends[0])), max(high, int(ends[1]))
    interval = (float(t[low - 1]), float(t[high]))
    ratio = interval[1] / interval[0] if interval[0] > 0 else math.inf
    if ratio >= widest:
        return interval, f"its interval, {interval[0]:.3g} to {interval[1]:.3g}, spans a factor of {widest:g}"
    reaches = low <= PER_SEGMENT or high >= len(t) - PER_SEGMENT
    return interval, "its interval reaches an end of the curve" if reaches else ""
