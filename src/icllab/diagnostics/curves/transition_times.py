r"""When a curve of training leaves its plateau, how sharply, and what if it does not.

A curve v(t) goes from a plateau p to an end e. On the scale of the two it is

.. math:: u(t) = \frac{v(t) - p}{e - p}

and the *transition time* T is the first t at which u is ``level``, 1/2 by default. The *width* is the time from the
last t before T at which u is 0.1 to the first one after it at which u is 0.9. Between recorded steps v is
interpolated linearly in the step, or in its logarithm. A run that never crosses has no time: it is censored at its last
step, and the times of all are a survival function.

Every curve that gets from p to e has a time, a power law too. What tells an abrupt one is that it waits first. On the
way from t = T/5 to T it lies on the plateau's side of its own chord s(t), by the *concavity*

.. math:: A = \frac{1}{T - T/5}\int_{T/5}^T \frac{v(t) - s(t)}{v(T/5) - v(T)}\,dt,

which is 1/2 for a jump and at most 0 for every convex fall: power laws, exponentials and their sums.
:func:`change_points <icllab.diagnostics.curves.breakpoints.change_points>` asks for breaks against smooth curves.
"""

from typing import Any, NamedTuple, cast

import numpy as np
import xarray as xr
from scipy.stats import t as student

from icllab.core.errors import expected, require_known
from icllab.core.statistics import mean_and_error
from icllab.diagnostics.curves.survival import kaplan_meier

EARLY, AROUND = 0.2, 0.25  # where a chord begins, over the transition time; what is averaged there, over that
ABRUPT = 0.1  # concavity above which a curve waits: a stretched exponential of 10 to 90 % in a factor of ten has .04
NOISE = 5.0  # a change of fewer standard deviations of what neighbouring steps differ by is none
SCALES = ("linear", "log")


def transitions(
    run_or_curve: Any,
    *,
    variable: str | None = None,
    plateau: float | None = None,
    end: float | None = None,
    level: float = 0.5,
    edges: tuple[float, float] = (0.1, 0.9),
    window: tuple[float, float] = (0.5, 0.8),
    scale: str = "linear",
    along: str = "step",
    confidence: float = 0.95,
) -> xr.Dataset:
    r"""Time, width and plateau of the transition of every member, and the survival function of all.

    Levels that are known are best named: 1/N and 1 for the accuracy of an induction head with N pairs. What is None
    is measured: first with the mean of the curves' first values in place of the plateau, then with the median over
    the members that crossed of their own plateaus and ends, the same two levels for all. Where no curve ends further
    from its beginning than five standard deviations of its noise, there is no transition.

    Args:
        run_or_curve: A :class:`Run <icllab.training.runs.Run>`, or curves over ``along`` and at most one other axis:
            members, seeds. NaN is not recorded; a curve ends with its last value.
        variable: Name of the curve in a Dataset or a run; of a run by default ``held_out_loss`` where it is recorded,
            else ``training_loss``, the mean over its recorded positions.
        plateau: p, in the unit of the curve, or None.
        end: e, or None.
        level: Level of u at the transition time, between the edges.
        edges: Levels of u between which the width is measured.
        window: The plateau is the mean over time from the first to the second share of the transition time; of a
            curve that does not cross, from the first share of its own length to its end.
        scale: ``"linear"`` or ``"log"``: whether v is interpolated in the step or in its logarithm.
        along: The axis of time.
        confidence: Coverage of all intervals. That of the plateau is Student's, over members; those of the survival
            function are in :func:`kaplan_meier <icllab.diagnostics.curves.survival.kaplan_meier>`.

    Returns:
        Over members: ``transitioned``; ``transition_time``, ``transition_width``, ``relative_width`` (width over
        time), NaN where censored; ``observed_time``, the time or the last step; ``time_resolution``, the distance of
        the recorded steps on both sides of T; ``plateau_level`` and ``end_level`` (the mean of the last tenth of its
        records); ``concavity`` and ``abrupt``, whether it exceeds 0.1 (a curve with a time and without waiting is none:
        ``warnings`` in the attributes say how many). ``plateau_mean`` with ``plateau_interval``, and the survival
        function with its median and restricted mean. Attributes: the ``plateau`` and ``end`` that were used.

    Raises:
        InputError: The curve has other axes or no values, or levels and edges are out of order.

    Derived: docs/transitions.md, Time and width.
    """
    require_known("scale", scale, SCALES)
    if not 0 <= edges[0] < level < edges[1] <= 1:
        raise expected("edges", f"two numbers from 0 to 1 around the level {level:g}", list(edges))
    if not 0 <= window[0] < window[1] <= 1:
        raise expected("window", "two shares from 0 to 1, in order", list(window))
    values, over = member_curves(run_or_curve, variable, along)
    curves = [_Curve.read(values[over].values[i], values[along].values, row) for i, row in enumerate(values.values)]
    ends = np.array([curve.end for curve in curves])
    at = _levels(curves, ends, (plateau, end), level, window)
    found = [curve.crossed(at, level, edges, scale) for curve in curves]
    times = np.array([one.time for one in found])
    crossed = ~np.isnan(times)
    levels = np.array([curve.plateau(time, window) for curve, time in zip(curves, times, strict=True)])
    widths = np.array([one.width for one in found])
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = widths / times
    observed = np.where(crossed, times, [curve.t[-1] for curve in curves])
    concave = np.array([curve.concavity(time, at, level) for curve, time in zip(curves, times, strict=True)])
    abrupt = concave > ABRUPT
    mean, error = mean_and_error(levels)
    reach = float(student.ppf(0.5 + confidence / 2, max(len(levels) - 1, 1)) * error)
    of_members = {
        "transitioned": crossed,
        "transition_time": times,
        "observed_time": observed,
        "transition_width": widths,
        "relative_width": relative,
        "time_resolution": np.array([one.resolution for one in found]),
        "plateau_level": levels,
        "end_level": ends,
        "concavity": concave,
        "abrupt": abrupt,
    }
    own = xr.Dataset(
        {name: (over, some) for name, some in of_members.items()}
        | {"plateau_mean": float(mean), "plateau_interval": ("bound", [float(mean) - reach, float(mean) + reach])},
        coords={over: values[over], "bound": ["low", "high"]},
        attrs={"plateau": at[0], "end": at[1], "level": level, "scale": scale, "confidence": confidence}
        | {"warnings": _warnings(crossed, abrupt)},
    )
    # A curve that is beyond the level when it begins has made its transition by then; zero is no time of survival.
    survival = kaplan_meier(np.maximum(observed, np.finfo(float).tiny), crossed, confidence=confidence)
    return own.merge(survival, combine_attrs="drop_conflicts")


def _warnings(crossed: np.ndarray, abrupt: np.ndarray) -> str:
    smooth = int((crossed & ~abrupt).sum())
    if not smooth:
        return ""
    return f"{smooth} of {crossed.sum()} curves with a time do not wait before it: a smooth fall has one too"


class _Crossing(NamedTuple):
    time: float
    width: float
    resolution: float


class _Curve(NamedTuple):
    """What is recorded of one member."""

    t: np.ndarray
    v: np.ndarray

    @classmethod
    def read(cls, name: Any, t: np.ndarray, v: np.ndarray) -> "_Curve":
        there = np.isfinite(v)
        if not there.any():
            raise expected("curve", "at least one recorded value of every member", f"none of {name}")
        order = np.argsort(t[there])
        return cls(np.asarray(t, float)[there][order], np.asarray(v, float)[there][order])

    @property
    def end(self) -> float:
        """The mean of the last tenth of the records."""
        return float(self.v[-max(len(self.v) // 10, 1) :].mean())

    @property
    def noise(self) -> float:
        """What a value differs by from a straight line between its neighbours, as a standard deviation."""
        if len(self.v) < 3:
            return 0.0
        return float(np.median(np.abs(self.v[1:-1] - (self.v[2:] + self.v[:-2]) / 2)) / (0.6745 * np.sqrt(1.5)))

    def crossed(self, levels: tuple[float, float], level: float, edges: tuple[float, float], scale: str) -> _Crossing:
        plateau, end = levels
        none = _Crossing(np.nan, np.nan, np.nan)
        if not np.isfinite(levels).all() or plateau == end:
            return none
        u = (self.v - plateau) / (end - plateau)
        after = np.flatnonzero(u >= level)
        if not after.size:
            return none
        i = int(after[0])
        if i == 0:
            return _Crossing(float(self.t[0]), np.nan, np.nan)
        time = self._between(i, u, level, scale)
        below = np.flatnonzero(u[:i] < edges[0])
        begin = self._between(int(below[-1]) + 1, u, edges[0], scale) if below.size else np.nan
        above = i + np.flatnonzero(u[i:] >= edges[1])
        done = self._between(int(above[0]), u, edges[1], scale) if above.size else np.nan
        return _Crossing(time, done - begin, float(self.t[i] - self.t[i - 1]))

    def _between(self, i: int, u: np.ndarray, level: float, scale: str) -> float:
        """Where u passes the level between the records i - 1 and i."""
        share = (level - u[i - 1]) / (u[i] - u[i - 1])
        a, b = self.t[i - 1], self.t[i]
        if scale == "log" and a > 0:
            return float(np.exp((1 - share) * np.log(a) + share * np.log(b)))
        return float((1 - share) * a + share * b)

    def concavity(self, time: float, levels: tuple[float, float], level: float) -> float:
        """How far the curve is on the plateau's side of its chord; NaN where too little is recorded before ``time``."""
        start, last = EARLY * time, levels[0] + level * (levels[1] - levels[0])
        near = np.abs(self.t - start) <= AROUND * start
        inside = (self.t > start) & (self.t < time)
        if np.isnan(time) or inside.sum() < 3 or not self.t[0] <= start:
            return np.nan
        first = float(self.v[near].mean()) if near.any() else float(np.interp(start, self.t, self.v))
        if (first - last) * (levels[0] - levels[1]) <= 0:
            return np.nan
        t = np.concatenate([[start], self.t[inside], [time]])
        v = np.concatenate([[first], self.v[inside], [last]])
        chord = first + (last - first) * (t - start) / (time - start)
        return float(np.trapezoid(v - chord, t) / ((time - start) * (first - last)))

    def plateau(self, time: float, window: tuple[float, float]) -> float:
        """The mean over the time of the window, by trapezoids; NaN where the curve has no plateau before ``time``."""
        low, high = (window[0] * self.t[-1], self.t[-1]) if np.isnan(time) else (window[0] * time, window[1] * time)
        if low < self.t[0] or high <= low:
            return float(self.v[0]) if high <= low else np.nan
        inside = (self.t > low) & (self.t < high)
        t = np.concatenate([[low], self.t[inside], [high]])
        return float(np.trapezoid(np.interp(t, self.t, self.v), t) / (high - low))


def _levels(
    curves: list[_Curve], ends: np.ndarray, given: tuple[Any, Any], level: float, window: tuple[float, float]
) -> tuple[float, float]:
    """The plateau and the end that all curves are measured by; NaN for an end that none reaches."""
    plateau, end = given
    if plateau is not None and end is not None:
        if plateau == end:
            raise expected("end", f"another level than the plateau, {plateau:g}", end)
        return plateau, end
    base = float(np.mean([curve.v[0] for curve in curves])) if plateau is None else plateau
    furthest = float(ends[np.abs(ends - base).argmax()]) if end is None else end
    if abs(furthest - base) <= NOISE * float(np.median([curve.noise for curve in curves])):
        return base, np.nan
    times = [curve.crossed((base, furthest), level, (0.0, 1.0), "linear").time for curve in curves]
    own = [c.plateau(time, window) for c, time in zip(curves, times, strict=True) if not np.isnan(time)]
    reached = ends[~np.isnan(times)]
    known = [one for one in own if not np.isnan(one)]
    if plateau is None:
        base = float(np.median(known)) if known else base
    return base, float(np.median(reached)) if end is None and reached.size else furthest


def member_curves(given: Any, variable: str | None, along: str) -> tuple[xr.DataArray, str]:
    """The curves [member, time], and what their first axis is called."""
    if not isinstance(given, xr.Dataset | xr.DataArray) and isinstance(getattr(given, "dataset", None), xr.Dataset):
        given = given.dataset  # of a run, whose class would load JAX
        recorded = "held_out_loss" in given and bool(given["held_out_loss"].notnull().any())
        variable = variable or ("held_out_loss" if recorded else "training_loss")
    if isinstance(given, xr.Dataset):
        names = [str(name) for name in given.data_vars]
        if variable is None and len(names) != 1:
            raise expected("variable", "the name of one, since there are several", names)
        variable = variable or names[0]
        require_known("variable", variable, names)
        given = given[variable]
    if not isinstance(given, xr.DataArray):
        raise expected("curve", "a run, a Dataset or a DataArray", type(given).__name__)
    if along not in given.dims:
        raise expected("curve", f"values over {along}", [str(d) for d in given.dims])
    times = np.asarray(given[along].values, float) if along in given.coords else np.arange(given.sizes[along])
    if not (np.diff(times) > 0).all():
        raise expected(along, "values that ascend", times[:4].tolist(), f"curve.sortby({along!r})")
    if "position" in given.dims:
        given = given.mean("position")
    others = [str(d) for d in given.dims if d != along]
    if len(others) > 1:
        hint = "choose one value of the others, or stack them"
        raise expected("curve", f"values over {along} and one other axis", [*others, along], hint)
    if not others:
        given, others = given.expand_dims(member=[0]), ["member"]
    over = others[0]
    if over not in given.coords:
        given = given.assign_coords({over: np.arange(given.sizes[over])})
    return cast(xr.DataArray, given.transpose(over, along)), over
