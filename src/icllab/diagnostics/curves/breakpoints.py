r"""Where a curve of training changes its course, how well that is known, and when nothing is to be reported.

A curve v over the steps :math:`t_1 < \dots < t_T` is a straight line in :math:`x = \log t` between breaks,

.. math:: v(t) = a_k + b_k\log t + \text{noise}, \qquad \tau_k \le t < \tau_{k+1},

which may jump at a break. Any curve has a best fit of that kind, so that a break has to be better than smooth curves.
:func:`transitions <icllab.diagnostics.curves.transition_times.transitions>` asks another question: when each member
crosses a level between a plateau and an end that are there by assumption.
"""

import math
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, require_integer, require_key, require_known, require_number
from icllab.diagnostics.curves.segments import PER_BREAK, PER_SEGMENT, Fit, Segments, bic
from icllab.diagnostics.curves.smooth_rivals import CHANCE, Rivals
from icllab.diagnostics.curves.transition_times import SCALES, member_curves

FEWEST = 12  # records of a curve in which a break is looked for


def change_points(
    run_or_curve: Any,
    *,
    key: int | PRNGKeyArray = 0,
    variable: str | None = None,
    most: int = 4,
    resamples: int = 300,
    confidence: float = 0.95,
    widest: float = 10.0,
    resolution: float = 0.01,
    scale: str = "log",
    along: str = "step",
) -> xr.Dataset:
    r"""The breaks of a training curve, with bootstrap intervals, and which of them are to be reported.

    Of the mean over members. The number of breaks K has the least

    .. math:: \mathrm{BIC}_K = T\log\Bigl(\frac{\mathrm{RSS}_K}{T} + \epsilon^2\Bigr) + (3K + 2)\log T,

    with :math:`\epsilon` a share of the curve's range that nobody would look at: without it a curve without noise has a
    break wherever no smooth formula is exact. Their places have the least residual sum of squares RSS. None is reported

    - if a smooth curve has a BIC as low: a polynomial in x of a degree up to six, or a fall
      :math:`c + a\,f\bigl((t/\tau)^b\bigr)`, :math:`f(s) = (1+s)^{-1}` (a power law) or :math:`e^{-s}`, of which 10
      to 90 per cent take a factor of ``widest`` in time or more, if it lies within the curve;
    - if more than one in a hundred curves of the same values in another order gain as much from breaks: the
      order of the steps says nothing then;
    - if over more than one in a hundred curves that are that smooth curve with noise of its own, breaks lead a smooth
      curve as far. The criterion takes residuals for independent, and those of a training run are not: the noise is
      :math:`e_{i+1} = \rho e_i + \text{noise}` over the records, with :math:`\rho` estimated. At
      :math:`\rho = 0.7` one curve in forty is let through.

    The interval is the wider end, on each side, of two bootstraps: residuals resampled in circular blocks of about
    :math:`T^{1/3}` records, and whole members, if there are at least three. A break between two records lies
    anywhere between them. It is not reported where its interval spans ``widest``, or reaches an end of the curve.

    Args:
        run_or_curve: A run, or curves, as :func:`~icllab.diagnostics.curves.transition_times.transitions` takes it:
            over ``along`` and at most one other axis. Steps that are not recorded of all members are left out, and so
            is step 0 on a logarithmic scale.
        key: Seed of the resampling, or a key of JAX.
        variable: Name of the curve in a Dataset or a run.
        most: Breaks, at most.
        resamples: Number of resamples of each bootstrap, and of reordered curves; at least 100.
        confidence: Coverage of the intervals.
        widest: The ratio of the ends of an interval from which on a break is not reported.
        resolution: :math:`\epsilon`, over the difference of the curve's largest and least value.
        scale: ``"log"``, or ``"linear"``: of the steps that segments are straight in.
        along: The axis of time.

    Returns:
        Over ``change``, ascending: ``change_point`` (the geometric middle of the two records it lies between),
        ``change_interval`` (``bound``); ``jump``, the line after less the line before, there; ``slope_change``;
        ``reported``, and ``reason``, a sentence. ``bic`` over ``changes``, 0 to ``most``, and ``smooth_bic``. The
        attributes ``smooth``, the best smooth rival; ``chance``, the share of reordered curves; ``smooth_chance``, that
        of smooth ones with noise, or 1 where breaks do not lead; ``autocorrelation``, :math:`\rho`; ``noise``, the
        residual standard deviation; ``members``; ``records``.

    Raises:
        InputError: There are fewer than twelve records, or an argument is out of its range.

    Derived: docs/singular-training.md, Change points.
    """
    seed = _seed(key)
    require_known("scale", scale, SCALES)
    require_integer("most", most)
    require_integer("resamples", resamples, least=100)
    require_number("confidence", confidence, "a number between 0 and 1", lambda x: 0 < x < 1)
    require_number("resolution", resolution, "a share of at least 0", lambda x: x >= 0)
    require_number("widest", widest, "a ratio above 1", lambda x: x > 1)
    values, over = member_curves(run_or_curve, variable, along)
    t, members = np.asarray(values[along].values, float), np.asarray(values.transpose(over, along).values, float)
    kept = np.isfinite(members).all(0) & ((t > 0) | (scale == "linear"))
    order = np.argsort(t[kept])
    t, members = t[kept][order], members[:, kept][:, order]
    if len(t) < FEWEST:
        raise expected("curve", f"at least {FEWEST} steps that are recorded of all members", len(t))
    x = np.log(t) if scale == "log" else t
    most = min(most, len(t) // PER_SEGMENT - 1)
    curve = members.mean(0)
    floor = max(resolution * float(np.ptp(curve)), np.finfo(float).tiny ** 0.25)
    segments = Segments(x, most, floor)
    fits = segments.fits(curve)
    bics = np.array([bic(fit.residuals, PER_BREAK * k + 2, floor) for k, fit in enumerate(fits)])
    best = fits[int(np.argmin(bics))]
    rivals = Rivals(x, t, widest, floor)
    smooth = rivals.best(curve)
    rng = np.random.default_rng(seed)
    again = [_blocks(best, rng, resamples, segments)]
    if len(members) >= 3 and best.breaks:
        draws = rng.integers(len(members), size=(resamples, len(members)))
        again.append(np.array([segments.breaks(members[some].mean(0), len(best.breaks)) for some in draws]))
    chance = _chance(segments, curve, rng, resamples) if best.breaks else 1.0
    count, lead = len(best.breaks), smooth.bic - float(bics.min())
    rho, smooth_chance = rivals.chance(smooth, segments, curve, count, lead, rng, resamples)
    none = ""
    if chance > CHANCE:
        none = f"of curves of the same values in another order {chance:.0%} gain as much from breaks"
    elif lead <= 0:
        none = f"{smooth.name} does as well without a break"
    elif smooth_chance > CHANCE:
        noisy = f"smooth curves with noise of its autocorrelation {rho:.2f}"
        none = f"of {noisy} {smooth_chance:.0%} gain as much from breaks"
    rows = [_judged(t, k, best, again, confidence, widest) for k in range(count)]
    reasons = [none or reason for _, reason in rows]
    points = [math.sqrt(t[i - 1] * t[i]) if scale == "log" else (t[i - 1] + t[i]) / 2 for i in best.breaks]
    slopes = [after[1] - before[1] for before, after in pairwise(best.lines)]
    known = "its place is known, and no smooth curve does as well"
    return xr.Dataset(
        {
            "change_point": ("change", np.array(points, float)),
            "jump": ("change", np.array([best.jump(x, k) for k in range(count)], float)),
            "slope_change": ("change", np.array(slopes, float)),
            "reported": ("change", np.array([not reason for reason in reasons], bool)),
            "reason": ("change", np.array([reason or known for reason in reasons], str)),
            "change_interval": (("change", "bound"), np.array([interval for interval, _ in rows]).reshape(-1, 2)),
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
    """The numbers of a key of JAX, or a seed as it is."""
    if isinstance(key, jax.Array) and jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key):
        require_key(key)
        return np.asarray(jax.random.key_data(key)).ravel().tolist()
    require_integer("key", key, least=0)
    return int(key)


def _chance(segments: Segments, curve: np.ndarray, rng: np.random.Generator, resamples: int) -> float:
    """How often a curve of the same values in another order gains as much from breaks."""
    gain = segments.gain(curve)
    as_much = sum(segments.gain(rng.permutation(curve)) >= gain for _ in range(resamples))
    return (1 + as_much) / (1 + resamples)


def _blocks(fit: Fit, rng: np.random.Generator, resamples: int, segments: Segments) -> np.ndarray:
    """Breaks of curves with resampled residuals, [resample, change]."""
    count, k = len(fit.fitted), len(fit.breaks)
    if not k:
        return np.empty((resamples, 0), int)
    length = max(round(count ** (1 / 3)), 1)
    # Lines take a part of the noise with them.
    left = fit.residuals * math.sqrt(count / max(count - PER_BREAK * k - 2, 1))
    starts = rng.integers(count, size=(resamples, -(-count // length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :count] % count
    more = segments.floor * rng.normal(size=places.shape)
    return np.array([segments.breaks(fit.fitted + left[row] + some, k) for row, some in zip(places, more, strict=True)])


def _judged(
    t: np.ndarray, k: int, fit: Fit, again: list[np.ndarray], confidence: float, widest: float
) -> tuple[tuple[float, float], str]:
    """The interval of a break, and why that keeps it from being reported; empty if it does not."""
    at = fit.breaks[k]
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    low = high = at
    for breaks in again:
        nearest = breaks[:, k]
        if t[0] > 0:
            # Of each resampled curve the break that is nearest: another one of its breaks may be another change.
            nearest = breaks[np.arange(len(breaks)), np.argmin(np.abs(np.log(t[breaks] / t[at])), axis=1)]
        ends = np.quantile(nearest, tails, method="inverted_cdf").astype(int)
        low, high = min(low, int(ends[0])), max(high, int(ends[1]))
    interval = (float(t[low - 1]), float(t[high]))
    ratio = interval[1] / interval[0] if interval[0] > 0 else math.inf
    if ratio >= widest:
        return interval, f"its interval, {interval[0]:.3g} to {interval[1]:.3g}, spans a factor of {widest:g}"
    reaches = low <= PER_SEGMENT or high >= len(t) - PER_SEGMENT
    return interval, "its interval reaches an end of the curve" if reaches else ""
