r"""Change points of a training curve, with intervals and tests against smooth curves.

A curve v over the steps :math:`t_1 < \dots < t_T` is a straight line in :math:`x = \log t` between breaks,

.. math:: v(t) = a_k + b_k\log t + \text{noise}, \qquad \tau_k \le t < \tau_{k+1},

which may jump at a break. Every curve has a best fit of this kind, so that breaks must fit better than smooth curves.
:func:`transitions <icllab.diagnostics.curves.transition_times.transitions>` measures instead when each member crosses a
level between an assumed plateau and end.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.calls import moved
from icllab.core.domains import PROPER_FRACTION, Domain
from icllab.core.errors import expected, require_integer, require_key
from icllab.core.progress import advance, shows, stage
from icllab.diagnostics.curves.curve_fits import CHANCE, PER_BREAK, PER_SEGMENT, SegmentFit, Segments, SmoothCurves, bic
from icllab.diagnostics.curves.transition_times import member_curves

FEWEST = 12  # smallest number of records
RESOLUTION = 0.01  # share of the curve's range that is negligible


@dataclass(frozen=True, kw_only=True)
class BreakRule:
    """Rule by which a break is reported.

    Attributes:
        confidence: Coverage of the intervals.
        widest: Ratio of the ends of an interval at which a break is not reported, and of the ends of the shortest
            smooth fall.

    Raises:
        InputError: A number is out of range.
    """

    confidence: float = 0.95
    widest: float = 10.0

    def __post_init__(self) -> None:
        PROPER_FRACTION.require("confidence", self.confidence)
        Domain(above=1, infinite=True, text="a ratio above 1").require("widest", self.widest)


@moved(
    variable="the curve itself: dataset[variable]",
    along="curve.rename({along: 'step'})",
    confidence="rule=BreakRule(confidence=...)",
    widest="rule=BreakRule(widest=...)",
    resolution="gone: it is a hundredth",
    scale="gone: segments are straight in the logarithm of the step",
)
@shows("change points")
def change_points(
    run_or_curve: Any,
    *,
    key: int | PRNGKeyArray = 0,
    max_breaks: int = 4,
    resamples: int = 300,
    rule: BreakRule | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    r"""Breaks of a training curve, with bootstrap intervals, and whether to report them.

    The curve is the mean over members. The number of breaks K minimises

    .. math:: \mathrm{BIC}_K = T\log\Bigl(\frac{\mathrm{RSS}_K}{T} + \epsilon^2\Bigr) + (3K + 2)\log T,

    with :math:`\epsilon` a hundredth of the curve's range: without it a noiseless curve has a break wherever no
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
        run_or_curve: Run, or curves over ``step`` and at most one other axis, as for
            :func:`~icllab.diagnostics.curves.transition_times.transitions`. Steps without a record of every member are
            left out, as is step 0.
        key: Seed of the resampling, or a key of JAX.
        max_breaks: Largest number of breaks.
        resamples: Number of resamples of each bootstrap, and of reordered curves; at least 100.
        rule: When a break is reported; None: the default :class:`BreakRule`.
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
    seed, rule = _seed(key), BreakRule() if rule is None else rule
    require_integer("max_breaks", max_breaks)
    require_integer("resamples", resamples, least=100)
    t, members = _records(run_or_curve)
    curve, x = members.mean(0), np.log(t)
    floor = max(RESOLUTION * float(np.ptp(curve)), np.finfo(float).tiny ** 0.25)
    segments = Segments(x, min(max_breaks, len(t) // PER_SEGMENT - 1), floor)
    fits = segments.fits(curve)
    bics = np.array([bic(fit.residuals, PER_BREAK * k + 2, floor) for k, fit in enumerate(fits)])
    best = fits[int(np.argmin(bics))]
    smooth_curves = SmoothCurves(x, t, rule.widest, floor)
    smooth = smooth_curves.best(curve)
    rng = np.random.default_rng(seed)
    bootstraps = _bootstraps(best, members, rng, resamples, segments)
    chance = _shuffle_chance(segments, curve, rng, resamples) if best.breaks else 1.0
    count, lead = len(best.breaks), smooth.bic - float(bics.min())
    rho, smooth_chance = smooth_curves.chance(smooth, segments, curve, count, lead, rng, resamples)
    objection = _objection(chance, lead, smooth.name, smooth_chance, rho)
    judgements = [_judge(t, k, best, bootstraps, rule) for k in range(count)]
    reasons = [objection or reason for _, reason in judgements]
    slopes = [after[1] - before[1] for before, after in pairwise(best.lines)]
    approval = "its place is known, and no smooth curve does as well"
    return xr.Dataset(
        {
            "change_point": ("change", np.array([math.sqrt(t[i - 1] * t[i]) for i in best.breaks], float)),
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


def _records(run_or_curve: Any) -> tuple[np.ndarray, np.ndarray]:
    """Positive steps with a record of every member, in order, and the values [member, step]."""
    curves, _ = member_curves(run_or_curve)
    t, values = np.asarray(curves["step"].values, float), np.asarray(curves.values, float)
    usable = np.isfinite(values).all(0) & (t > 0)
    order = np.argsort(t[usable])
    if len(order) < FEWEST:
        raise expected("curve", f"at least {FEWEST} steps that are recorded of all members", len(order))
    return t[usable][order], values[:, usable][:, order]


def _objection(chance: float, lead: float, smooth: str, smooth_chance: float, rho: float) -> str:
    """Reason to report no break at all, or an empty string."""
    if chance > CHANCE:
        return f"of curves of the same values in another order {chance:.0%} gain as much from breaks"
    if lead <= 0:
        return f"{smooth} does as well without a break"
    if smooth_chance > CHANCE:
        noise_model = f"smooth curves with noise of its autocorrelation {rho:.2f}"
        return f"of {noise_model} {smooth_chance:.0%} gain as much from breaks"
    return ""


def _seed(key: Any) -> int | list[int]:
    """Seed for NumPy: an integer as it is, or the numbers of a key of JAX."""
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


def _bootstraps(
    fit: SegmentFit, members: np.ndarray, rng: np.random.Generator, resamples: int, segments: Segments
) -> list[np.ndarray]:
    """Breaks of curves with resampled residuals and, of three members or more, with resampled members."""
    bootstraps = [_block_bootstrap(fit, rng, resamples, segments)]
    if len(members) >= 3 and fit.breaks:
        draws = rng.integers(len(members), size=(resamples, len(members)))
        bootstraps.append(np.array([segments.breaks(members[draw].mean(0), len(fit.breaks)) for draw in draws]))
    return bootstraps


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
    t: np.ndarray, k: int, fit: SegmentFit, bootstraps: list[np.ndarray], rule: BreakRule
) -> tuple[tuple[float, float], str]:
    """Interval of a break, and the objection to it, or an empty string."""
    at = fit.breaks[k]
    tails = [(1 - rule.confidence) / 2, (1 + rule.confidence) / 2]
    low = high = at
    for breaks in bootstraps:
        # The nearest break of each resampled curve: its other breaks may be other changes.
        nearest = breaks[np.arange(len(breaks)), np.argmin(np.abs(np.log(t[breaks] / t[at])), axis=1)]
        ends = np.quantile(nearest, tails, method="inverted_cdf").astype(int)
        low, high = min(low, int(ends[0])), max(high, int(ends[1]))
    interval = (float(t[low - 1]), float(t[high]))
    if interval[1] / interval[0] >= rule.widest:
        return interval, f"its interval, {interval[0]:.3g} to {interval[1]:.3g}, spans a factor of {rule.widest:g}"
    reaches = low <= PER_SEGMENT or high >= len(t) - PER_SEGMENT
    return interval, "its interval reaches an end of the curve" if reaches else ""
