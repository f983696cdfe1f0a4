r"""On an induction head's landscape the susceptibility peaks before the loss falls, by the posterior's reach.

Along gradient flow from the origin on :mod:`icllab.theory.induction_landscape` the posterior near :math:`w_t`,
:math:`\exp(-n\beta\mathcal L - \frac\gamma2\lVert w-w_t\rVert^2)`, answers a tilt of the data: a share h of the prompts
has a label outside the context, :math:`\Delta = \xi z`. Its mode is a step of implicit gradient descent of length
:math:`n\beta/\gamma` from :math:`w_t`, the reach: what is sampled at time t is the landscape some time ahead.
Everything is by quadrature. Derived: docs/routing.md, Before the cliff.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.diagnostics.curves import peaks as _peaks
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks

OBSERVABLES = ("loss", "attention")
PEAK = 5.0  # times as high as at both ends: a peak
ACCURATE = 0.02  # of its largest size: error of a susceptibility
TOGETHER = 0.25  # of the lead: how far the peak may be from the steepest fall of the posterior's own loss


def extreme_time(times: np.ndarray, values: np.ndarray) -> float:
    """Time of the largest value, by a parabola through three points; NaN at an end."""
    i = int(np.argmax(values))
    if i in (0, len(times) - 1):
        return np.nan
    a, b, _ = np.polyfit(times[i - 1 : i + 2] - times[i], values[i - 1 : i + 2], 2)
    return float(times[i] - b / (2 * a)) if a < 0 else float(times[i])


def steepest_time(times: np.ndarray, values: np.ndarray) -> float:
    """Time of the fastest fall."""
    return extreme_time((times[1:] + times[:-1]) / 2, -np.diff(values) / np.diff(times))


def _times(values: xr.DataArray, function) -> xr.DataArray:
    axis = values["time"].values
    return xr.apply_ufunc(lambda row: function(axis, row), values, input_core_dims=[["time"]], vectorize=True)


def leads(dataset: xr.Dataset) -> xr.Dataset:
    """Times of the susceptibility's peak and of the fastest falls, and the lead of the peak."""
    times = {
        "peak_time": _times(dataset["susceptibility"].sel(observable="loss", drop=True), extreme_time),
        "posterior_time": _times(dataset["posterior_loss"], steepest_time),
        "dimension_time": _times(-dataset["effective_dimension"], steepest_time),
        "fall_time": _times(dataset["label_loss"], steepest_time),
    }
    return xr.Dataset(times).assign(peak_lead=times["fall_time"] - times["peak_time"])


def check(dataset: xr.Dataset) -> list[Finding]:
    """The peak, its lead over the loss and the effective dimension, and other quantities with the same lead."""
    times = dataset["time"].values
    peaks, fine = leads(dataset), float(np.diff(times).min()) / 12**0.5
    height = abs(dataset["susceptibility"].sel(observable="loss", drop=True))
    peaked = _peaks.peaks(height, along="time", height=PEAK)["peaked"].astype(float)
    highest = abs(dataset["susceptibility"]).max("time")
    worst = (dataset["susceptibility_error"].max("time") / highest).max("observable")
    lead, reach = peaks["peak_lead"], dataset["reach"]
    later = Estimate(peaks["dimension_time"] - peaks["peak_time"], fine)
    distance = Estimate((peaks["posterior_time"] - peaks["peak_time"]) / lead, 0.0)
    every = reach.size >= 3 and dataset["nbeta"].size >= 2
    findings = [
        *checks.equal("peak", f"whether the susceptibility peaks, {PEAK:g} times as high as at both ends", peaked, 1.0),
        *checks.above("lead", "steepest fall of the loss - peak", Estimate(lead, fine), reach.broadcast_like(lead)),
        *checks.above("dimension", "steepest rise of the effective dimension - peak", later),
        *checks.near(
            "together", "steepest fall of the posterior's loss - peak, over lead", distance, 0.0, margin=TOGETHER
        ),
        *checks.complete("quiet", "no warning", float(dataset["sampler_warnings"].sum()) == 0),
        *checks.complete("accurate", "errors of the quadrature are below 2 %", bool((worst < ACCURATE).all())),
        *checks.complete("reaches", "at least three reaches, two temperatures", every),
    ]
    if reach.size > 1:
        by_reach = lead.sortby("reach")
        ratios = by_reach.isel(reach=slice(1, None)) / by_reach.isel(reach=slice(-1)).values
        findings += checks.above("grows", "lead / at the reach before", Estimate(ratios, 0.0), 1.0)
    return findings


def figure(dataset: xr.Dataset):
    """Draw the susceptibility of the loss, the posterior's loss with the landscape's as a line, and the dimension."""
    part = dataset.isel(nbeta=0, drop=True).sel(observable="loss", drop=True)
    part = part.sel(time=part.time.values[part.time.values >= 60])
    sparse = xr.DataArray(np.arange(part.sizes["time"]) % 4 == 0, dims="time")  # points that leave the line to be seen
    line = part["label_loss"].isel(reach=0, drop=True)
    part = part.assign({name: part[name].where(sparse) for name in ("susceptibility", "posterior_loss")})
    part = part.drop_vars("susceptibility_error").assign(posterior_loss_line=line)
    rows = [Panel("susceptibility", yscale="log"), Panel("posterior_loss", "posterior_loss_line")]
    return panels(part, rows, x="time", hue="reach", line_name="the landscape's")


SPARSE = (60.0, 80.0, 90.0, *(94 + 0.25 * i for i in range(25)), 104.0, 110.0)
DENSE = (*range(0, 76, 15), *(76 + 0.25 * i for i in range(97)), 101, 102, 104, 108, 112, 118, 124, 130)

COMMON = {"reach": (1.0, 2.0, 4.0), "observable": OBSERVABLES, "time": DENSE}
ONE = {"reach": (1.0,), "nbeta": (20.0,)}

claim = Claim(
    title="Susceptibility peaks before the fall",
    sentence=(
        "The susceptibility of an induction head's loss peaks before the loss falls fastest, by more than "
        "n beta/gamma; the posterior's own mean loss falls fastest at that time too."
    ),
    conditions=(
        "The landscape of three strengths with 8 pairs and 32 labels, gradient flow from the origin, posteriors near "
        "its points by quadrature, tilted towards labels that are not in the context."
    ),
    sources=("Reddy24", "Baker25"),
    axes=(
        Axis("reach", r"n\beta/\gamma", "reach of the posterior", above=0),
        Axis("observable", r"\phi", "observable"),
    ),
    quantities=(
        "label_loss",
        Quantity("susceptibility", r"\chi", "response to labels outside the context"),
        Quantity("posterior_loss", r"\langle\mathcal{L}\rangle", "mean loss of the posterior", "nats"),
        Quantity("effective_dimension", r"d_{\mathrm{eff}}", "effective dimension at the point"),
        "sampler_warnings",
    ),
    static=("reach", "nbeta"),
    outputs=("time", "observable"),
    fixed={"pairs": 8, "labels": 32, "points": 81, "span": 16.0, "resolution": 1e-3},
    sizes={
        "smoke": {"reach": (1.0,), "nbeta": (20.0,), "observable": OBSERVABLES, "time": SPARSE},
        "small": COMMON | {"nbeta": (20.0, 50.0)},
        "medium": COMMON | {"nbeta": (10.0, 20.0, 50.0)},
    },
    precision="float64",
    controls={
        "formed": Control("both attentions are formed at the start: there is no cliff", measure={"formed": 8.0}),
        "squared": Control(
            "the susceptibility is the squared loss of the landscape", measure={"squared": True}, axes=ONE
        ),
        "behind": Control("posteriors are those of a time 30 earlier", measure={"behind": 30.0}, axes=ONE),
        "held": Control("the localization is a hundred times what is said", measure={"tighter": 100.0}),
    },
)
