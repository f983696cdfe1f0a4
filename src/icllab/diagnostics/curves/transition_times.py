r"""Times and widths of transitions in training curves, with censoring.

A curve v(t) goes from a plateau p to an end e. On the scale of the two it is

.. math:: u(t) = \frac{v(t) - p}{e - p}

and the *transition time* T is the first t at which u is ``level``, 1/2 by default. The *width* is the time from the
last t before T at which u is 0.1 to the first t after T at which u is 0.9. Between recorded steps v is interpolated
linearly in the step, or in its logarithm. A run that never crosses the level is censored at its last step, and a
survival function summarises the times of all runs.

Every curve that reaches e from p crosses the level, including a power law. An abrupt transition waits first: from
t = T/5 to T the curve lies on the plateau's side of its chord s(t), by the *concavity*

.. math:: A = \frac{1}{T - T/5}\int_{T/5}^T \frac{v(t) - s(t)}{v(T/5) - v(T)}\,dt,

which is 1/2 for a jump and at most 0 for every convex fall: power laws, exponentials and their sums. The chord ends in
means over records around T/5 and around T: the first record beyond the level is there by its noise.
:func:`change_points <icllab.diagnostics.curves.breakpoints.change_points>` compares breaks with smooth curves.
"""

from numbers import Integral
from typing import Any, NamedTuple, cast

import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray
from scipy.stats import t as student

from icllab.core.calls import moved
from icllab.core.domains import FRACTION, PROPER_FRACTION
from icllab.core.errors import expected, require_known
from icllab.core.result_warnings import warns
from icllab.core.statistics import mean_and_error
from icllab.diagnostics.curves.survival import kaplan_meier

EARLY, AROUND = 0.2, 0.25  # start of the chord over the transition time; half-width of its ends over their times
ABRUPT = 0.1  # smallest concavity of an abrupt curve; an exponential with 10 to 90 % in a factor of ten has .04
CLEAR = 2.0  # smallest concavity of an abrupt curve in standard errors
NOISE = 5.0  # smallest change that counts as a transition, in standard deviations of the noise between steps
WINDOW, CONFIDENCE = (0.5, 0.8), 0.95  # shares of the time between which a plateau is averaged; of all intervals
SCALES = ("linear", "log")


@moved(
    variable="the curve itself: dataset[variable]",
    along="curve.rename({along: 'step'})",
    window="gone: the plateau is averaged from half to 0.8 of the transition time",
    confidence="gone: intervals cover 95 %; kaplan_meier(result.observed_time, result.crossed, confidence=) has others",
)
@warns("transition time", "transition_time", "")
def transitions(
    run_or_curve: Any,
    task: Any = None,
    *,
    key: PRNGKeyArray | None = None,
    plateau: float | None = None,
    end: float | None = None,
    level: float = 0.5,
    edges: tuple[float, float] = (0.1, 0.9),
    scale: str = "linear",
) -> xr.Dataset:
    r"""Time, width and plateau of the transition of every member, and the survival function of all members.

    Give the levels if they are known: 1/N and 1 for the accuracy of an induction head with N pairs. Levels that are
    None are estimated, and are the same for all members. A first estimate takes the mean of the curves' first values as
    the plateau; the second takes the medians of plateau and end over the members that cross. There is no transition if
    no curve ends further from its start than five standard deviations of its noise.

    Args:
        run_or_curve: Curves over ``step`` and at most one other axis: members, seeds. NaN means not recorded; a curve
            ends with its last recorded value. Of a :class:`Run <icllab.training.runs.Run>`, its ``held_out_loss`` if it
            is recorded, else its ``training_loss``, averaged over positions. Of checkpoints, a mapping step -> network
            or pairs of these, the loss on the same 1024 prompts of ``task``, averaged over positions.
        task: Task of the checkpoints, which owns the loss; None for curves.
        key: Key of their prompts; None for curves.
        plateau: p, in the unit of the curve, or None.
        end: e, or None.
        level: Level of u at the transition time, between the edges.
        edges: Levels of u between which the width is measured.
        scale: Interpolation of v, ``"linear"`` in the step or in its logarithm, ``"log"``.

    Returns:
        Over members: ``crossed``, whether the curve reaches the level; ``transition_time``, ``transition_width``,
        ``relative_width`` (width over time), NaN if censored; ``observed_time``, the time or the last step;
        ``time_resolution``, the distance of the recorded steps around T; ``plateau_level``, the mean from T/2 to 0.8 T,
        or from half of a curve that does not cross to its end; ``end_level``, the mean of the last tenth of the
        records; ``concavity``, its ``concavity_error`` from noise that is independent between records, and ``abrupt``,
        whether it exceeds 0.1 and two errors. ``plateau_mean`` with ``plateau_interval``, Student's over members, and
        the survival function of :func:`kaplan_meier <icllab.diagnostics.curves.survival.kaplan_meier>` with its median
        and restricted mean; intervals cover 95 %. Attributes: ``plateau`` and ``end``, the levels, and
        ``warnings``, the number of curves that cross without being abrupt.

    Raises:
        InputError: The curve has further axes or no values, or levels and edges are out of order.

    Derived: docs/transitions.md, Time and width.
    """
    _require(level, edges, scale)
    values, axis = member_curves(run_or_curve if task is None else checkpoint_losses(run_or_curve, task, key=key))
    curves = [
        _Curve.from_records(values[axis].values[i], values["step"].values, row) for i, row in enumerate(values.values)
    ]
    ends = np.array([curve.end for curve in curves])
    levels = _estimate_levels(curves, ends, (plateau, end), level)
    crossings = [curve.crossing(levels, level, edges, scale) for curve in curves]
    times = np.array([crossing.time for crossing in crossings])
    has_time = ~np.isnan(times)
    plateaus = np.array([curve.plateau(time) for curve, time in zip(curves, times, strict=True)])
    widths = np.array([crossing.width for crossing in crossings])
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = widths / times
    end_times = np.where(has_time, times, [curve.t[-1] for curve in curves])
    concavities, concavity_errors = np.array(
        [curve.concavity(time, levels, level) for curve, time in zip(curves, times, strict=True)]
    ).T
    abrupt = (concavities > ABRUPT) & (concavities > CLEAR * concavity_errors)
    variables = {
        "crossed": has_time,
        "transition_time": times,
        "observed_time": end_times,
        "transition_width": widths,
        "relative_width": relative,
        "time_resolution": np.array([crossing.resolution for crossing in crossings]),
        "plateau_level": plateaus,
        "end_level": ends,
        "concavity": concavities,
        "concavity_error": concavity_errors,
        "abrupt": abrupt,
    }
    dataset = xr.Dataset(
        {name: (axis, values) for name, values in variables.items()} | _plateau_mean(plateaus),
        coords={axis: values[axis], "bound": ["low", "high"]},
        attrs={"plateau": levels[0], "end": levels[1], "level": level, "scale": scale, "confidence": CONFIDENCE}
        | {"warnings": _warnings(has_time, abrupt)},
    )
    # A curve that starts beyond the level has crossed at its first step; a survival time must be positive.
    survival = kaplan_meier(np.maximum(end_times, np.finfo(float).tiny), has_time, confidence=CONFIDENCE)
    return dataset.merge(survival, combine_attrs="drop_conflicts")


def checkpoint_losses(checkpoints: Any, task: Any, *, key: Any) -> xr.DataArray:
    """Losses [step, position] of networks by step, on the same prompts.

    Raises:
        InputError: Steps are not integers, or two of them have the same network.
    """
    from icllab.diagnostics.behaviour.lengths import per_length  # which loads JAX

    try:
        networks = dict(checkpoints)
    except (TypeError, ValueError):
        raise expected("checkpoints", "a mapping of steps to networks", type(checkpoints).__name__) from None
    if not networks or not all(isinstance(step, Integral) and not isinstance(step, bool) for step in networks):
        raise expected("checkpoints", "integers, the steps, with a network each", list(networks)[:4])
    steps = sorted(networks)
    if len({id(getattr(network, "module", network)) for network in networks.values()}) < len(steps):
        hint = "a PyTorch module that loads several states is the same module: copy it, or make one for each"
        raise expected("checkpoints", "a network for each step", "one network at several steps", hint)
    losses = per_length({f"step {step}": networks[step] for step in steps}, task, key=key)["loss"]
    return losses.rename(predictor="step").assign_coords(step=[int(step) for step in steps])


def _require(level: Any, edges: Any, scale: Any) -> None:
    require_known("scale", scale, SCALES)
    PROPER_FRACTION.require("level", level)
    if FRACTION.read("edges", edges).shape != (2,):
        raise expected("edges", "two numbers from 0 to 1", edges)
    if not 0 <= edges[0] < level < edges[1] <= 1:
        raise expected("edges", f"two numbers from 0 to 1 around the level {level:g}", list(edges))


def _plateau_mean(plateaus: np.ndarray) -> dict[str, Any]:
    """Mean of the plateaus over members, and its interval by Student's distribution."""
    mean, error = mean_and_error(plateaus)
    freedom = max(int(np.isfinite(plateaus).sum()) - 1, 1)
    reach = float(student.ppf(0.5 + CONFIDENCE / 2, freedom) * error)
    return {"plateau_mean": float(mean), "plateau_interval": ("bound", [float(mean) - reach, float(mean) + reach])}


def _warnings(has_time: np.ndarray, abrupt: np.ndarray) -> str:
    smooth = int((has_time & ~abrupt).sum())
    if not smooth:
        return ""
    return f"{smooth} of {has_time.sum()} curves with a time do not wait before it: a smooth fall has one too"


class _Crossing(NamedTuple):
    time: float
    width: float
    resolution: float


class _Curve(NamedTuple):
    """Recorded steps and values of one member."""

    t: np.ndarray
    v: np.ndarray

    @classmethod
    def from_records(cls, name: Any, t: np.ndarray, v: np.ndarray) -> "_Curve":
        finite = np.isfinite(v)
        if not finite.any():
            raise expected("curve", "at least one recorded value of every member", f"none of {name}")
        order = np.argsort(t[finite])
        return cls(np.asarray(t, float)[finite][order], np.asarray(v, float)[finite][order])

    @property
    def end(self) -> float:
        """Mean of the last tenth of the records."""
        return float(self.v[-max(len(self.v) // 10, 1) :].mean())

    @property
    def noise(self) -> float:
        """Standard deviation of the noise, from the difference of each value to the mean of its neighbours."""
        if len(self.v) < 3:
            return 0.0
        return float(np.median(np.abs(self.v[1:-1] - (self.v[2:] + self.v[:-2]) / 2)) / (0.6745 * np.sqrt(1.5)))

    def crossing(self, levels: tuple[float, float], level: float, edges: tuple[float, float], scale: str) -> _Crossing:
        plateau, end = levels
        missing = _Crossing(np.nan, np.nan, np.nan)
        if not np.isfinite(levels).all() or plateau == end:
            return missing
        u = (self.v - plateau) / (end - plateau)
        after = np.flatnonzero(u >= level)
        if not after.size:
            return missing
        i = int(after[0])
        if i == 0:
            return _Crossing(float(self.t[0]), np.nan, np.nan)
        time = self._between(i, u, level, scale)
        below = np.flatnonzero(u[:i] < edges[0])
        begin_time = self._between(int(below[-1]) + 1, u, edges[0], scale) if below.size else np.nan
        above = i + np.flatnonzero(u[i:] >= edges[1])
        end_time = self._between(int(above[0]), u, edges[1], scale) if above.size else np.nan
        return _Crossing(time, end_time - begin_time, float(self.t[i] - self.t[i - 1]))

    def _between(self, i: int, u: np.ndarray, level: float, scale: str) -> float:
        """Time at which u passes the level between the records i - 1 and i."""
        share = (level - u[i - 1]) / (u[i] - u[i - 1])
        a, b = self.t[i - 1], self.t[i]
        if scale == "log" and a > 0:
            return float(np.exp((1 - share) * np.log(a) + share * np.log(b)))
        return float((1 - share) * a + share * b)

    def concavity(self, time: float, levels: tuple[float, float], level: float) -> tuple[float, float]:
        """Mean distance of the curve from its chord, on the plateau's side, with error; NaN with too few records."""
        start, at_level = EARLY * time, levels[0] + level * (levels[1] - levels[0])
        inside = (self.t > start) & (self.t < time)
        if np.isnan(time) or inside.sum() < 3 or not self.t[0] <= start:
            return np.nan, np.nan
        near_start = np.abs(self.t - start) <= AROUND * start
        near_time = np.abs(self.t - time) <= min(AROUND * time, self.t[-1] - time)
        around = (near_time & (self.t <= time)).any() and (near_time & (self.t >= time)).any()
        first = float(self.v[near_start].mean()) if near_start.any() else float(np.interp(start, self.t, self.v))
        last = float(self.v[near_time].mean()) if around else at_level
        if (first - last) * (levels[0] - levels[1]) <= 0:
            return np.nan, np.nan
        t = np.concatenate([[start], self.t[inside], [time]])
        v = np.concatenate([[first], self.v[inside], [last]])
        weights = np.convolve(np.diff(t), [0.5, 0.5]) / (time - start)  # of trapezoids
        value = float(weights @ v - (first + last) / 2) / (first - last)
        ends = (0.5 + value) ** 2 / max(near_start.sum(), 1) + (0.5 - value) ** 2 / near_time.sum() * around
        return value, float(np.sqrt((weights[1:-1] ** 2).sum() + ends) * self.noise / abs(first - last))

    def plateau(self, time: float) -> float:
        """Mean from half to 0.8 of the time, by trapezoids; NaN if the records do not reach back to it.

        For a curve that does not cross, from half of its length to its end.
        """
        low, high = (WINDOW[0] * self.t[-1], self.t[-1]) if np.isnan(time) else (WINDOW[0] * time, WINDOW[1] * time)
        if low < self.t[0] or high <= low:
            return float(self.v[0]) if high <= low else np.nan
        inside = (self.t > low) & (self.t < high)
        t = np.concatenate([[low], self.t[inside], [high]])
        return float(np.trapezoid(np.interp(t, self.t, self.v), t) / (high - low))


def _estimate_levels(
    curves: list[_Curve], ends: np.ndarray, known_levels: tuple[Any, Any], level: float
) -> tuple[float, float]:
    """Plateau and end for all curves; the end is NaN if no curve moves beyond its noise."""
    plateau, end = known_levels
    if plateau is not None and end is not None:
        if plateau == end:
            raise expected("end", f"another level than the plateau, {plateau:g}", end)
        return plateau, end
    base = float(np.mean([curve.v[0] for curve in curves])) if plateau is None else plateau
    furthest = float(ends[np.abs(ends - base).argmax()]) if end is None else end
    if abs(furthest - base) <= NOISE * float(np.median([curve.noise for curve in curves])):
        return base, np.nan
    times = [curve.crossing((base, furthest), level, (0.0, 1.0), "linear").time for curve in curves]
    plateaus = [c.plateau(time) for c, time in zip(curves, times, strict=True) if not np.isnan(time)]
    ends_of_crossings = ends[~np.isnan(times)]
    finite_plateaus = [level for level in plateaus if not np.isnan(level)]
    if plateau is None:
        base = float(np.median(finite_plateaus)) if finite_plateaus else base
    return base, float(np.median(ends_of_crossings)) if end is None and ends_of_crossings.size else furthest


def member_curves(curves: Any) -> tuple[xr.DataArray, str]:
    """Curves [member, step], and the name of their first axis."""
    if not isinstance(curves, xr.Dataset | xr.DataArray) and isinstance(getattr(curves, "dataset", None), xr.Dataset):
        records = curves.dataset  # of a run, whose class would load JAX
        has_held_out = "held_out_loss" in records and bool(records["held_out_loss"].notnull().any())
        curves = records["held_out_loss" if has_held_out else "training_loss"]
    if isinstance(curves, xr.Dataset):
        names = [str(name) for name in curves.data_vars]
        if len(names) != 1:
            raise expected("curve", "one variable", names, "dataset['name'] is that variable")
        curves = curves[names[0]]
    if not isinstance(curves, xr.DataArray):
        hint = "checkpoints need a task and a key: transitions(checkpoints, task, key=key)"
        raise expected("curve", "a run, a Dataset or a DataArray", type(curves).__name__, hint)
    if curves.dtype.kind not in "biuf":
        raise expected("curve", "values that are real numbers", str(curves.dtype))
    if "step" not in curves.dims:
        hint = "curve.rename(time='step') renames an axis"
        raise expected("curve", "values over step", [str(d) for d in curves.dims], hint)
    times = np.asarray(curves["step"].values, float)
    if not (np.diff(times) > 0).all():
        raise expected("step", "values that ascend", times[:4].tolist(), "curve.sortby('step')")
    if "position" in curves.dims:
        curves = curves.mean("position")
    other_axes = [str(d) for d in curves.dims if d != "step"]
    if len(other_axes) > 1:
        hint = "choose one value of the others, or stack them"
        raise expected("curve", "values over step and one other axis", [*other_axes, "step"], hint)
    if not other_axes:
        curves, other_axes = curves.expand_dims(member=[0]), ["member"]
    axis = other_axes[0]
    if axis not in curves.coords:
        curves = curves.assign_coords({axis: np.arange(curves.sizes[axis])})
    return cast(xr.DataArray, curves.transpose(axis, "step")), axis
