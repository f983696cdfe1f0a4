r"""The landscape of three numbers compared with a trained network: neither the order of events nor the curve fits.

Read off a network at every record are y, the attention from labels to their items, z, that from the query to the right
label, and :math:`\xi`, the mean logit of the right label less that of labels out of context *where both patterns are
given*, clamped to those of an induction head: what the reader would make of perfect attention. (Its ``quotient``, that
difference without an intervention over z, rises first because z is small.) The loss that the landscape states with
these (``read_off``), or with z' measured too in place of :math:`(1-z)/2N` (``labels``), is
compared with the network's. Its flow is fitted to the loss: from the origin with one rate (``common``), with a rate and
a start for each strength (``three``), and with :math:`\beta_2`, the preference for labels (``four``). The fits with
three rates are profiled: one is held at another value, and all else fitted again.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.core.statistics import first_rise
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory.induction_landscape import previous_token_attention

NUMBERS = ("xi", "y", "z", "quotient")  # of the landscape, as they are read off; and xi by division
FITTED = ("common", "three", "four")
MISFIT = 0.1  # nats, of the root mean square: what counts as a fit
NEAR = 1.25  # of the misfit of the best fit: a rate whose profile stays below could as well be another
LEARNED = 0.9  # of the networks have learned the task, at least; the others are left out
PAIRS, LABELS = 4, 16


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Assign half times of each number, and the landscape's loss at the network's numbers."""
    pairs, labels = (fixed_values(dataset)[name] for name in ("pairs", "label_count"))
    numbers = dataset["landscape_number"]
    xi, z = (numbers.sel(number=name, drop=True) for name in ("xi", "z"))
    readings = {"read_off": (1 - z) / (2 * pairs), "labels": dataset["other_attention"]}
    predictions = [stated_loss(xi, z, attention, pairs, labels) for attention in readings.values()]
    predicted_loss = xr.concat(predictions, xr.Variable("reading", list(readings))).transpose("reading", "seed", "step")
    misfit = ((predicted_loss - dataset["label_loss"]) ** 2).mean("step") ** 0.5
    return dataset.assign(half_time=half_way(numbers), stated_loss=predicted_loss, stated_misfit=misfit)


def stated_loss(
    xi: xr.DataArray, right: xr.DataArray, attention: xr.DataArray, pairs: int, labels: int
) -> xr.DataArray:
    """The landscape's loss, from the attention to the right label and to each other label."""
    odds = (pairs - 1) * np.exp(-xi * (right - attention)) + (labels - pairs) * np.exp(-xi * right)
    return xr.apply_ufunc(np.log1p, odds)


def half_way(curve: xr.DataArray) -> xr.DataArray:
    """Time at which a curve first is half-way from start to end; NaN if it changes by less than 30 %."""
    v = curve.transpose(..., "step")
    begin, end = v.isel(step=0, drop=True), v.isel(step=slice(-max(v.sizes["step"] // 10, 1), None)).mean("step")
    times = first_rise(v.step.values, ((v - (begin + end) / 2) * np.sign(end - begin)).transpose(..., "step").values)
    return begin.copy(data=times).where(np.abs(end - begin) > 0.3 * np.maximum(np.abs(end), np.abs(begin)))


def check(dataset: xr.Dataset) -> list[Finding]:
    """The readout follows both attentions; no parameter-free fit; a fit with six numbers leaves the rates open."""
    learners = (dataset["label_loss"].isel(step=-1) < np.log(PAIRS) / 4).values  # they have made the transition
    findings = checks.complete(
        "learned", "nine networks in ten have learned the task", bool(learners.mean() >= LEARNED)
    )
    if not learners.any():
        return findings
    dataset = dataset.isel(seed=learners)
    times = dataset["half_time"]
    attentions = times.sel(number=["y", "z"])
    lead = estimates.geometric_mean(attentions / times.sel(number="xi", drop=True))
    findings += checks.below("readout_after", "time of half / the readout's", lead, 1.0)
    by_division = estimates.geometric_mean(attentions / times.sel(number="quotient", drop=True))
    findings += checks.above("quotient_first", "time of half / that of the logits over z", by_division, 1.0)
    off = estimates.mean(dataset["stated_misfit"])
    findings += checks.above("stated_misfit", "misfit of the loss that is stated [nats]", off, MISFIT)
    return findings + (_fits(dataset) if "form" in dataset.dims else [])


def _fits(dataset: xr.Dataset) -> list[Finding]:
    """The flow from the origin at one rate does not fit; free rates and starts fit, but are not identified."""
    misfit = dataset["misfit"]
    one_rate, free = (
        estimates.mean(misfit.sel(form="common", drop=True)),
        estimates.mean(misfit.sel(form=["three", "four"])),
    )
    start_beta = dataset["fitted_start"].sel(form="three", strength="beta", drop=True)
    first = dataset["landscape_number"].isel(step=0, drop=True).sel(number="y", drop=True)
    gap = estimates.mean(xr.apply_ufunc(previous_token_attention, start_beta, kwargs={"pairs": PAIRS}) - first)
    wide = checks.above("range", "range of the least known rate", estimates.geometric_mean(_range(dataset)), 2.0)
    if dataset.sizes["factor"] < 2:
        wide = checks.complete("factors", "several values of a rate are compared", False)
    return [
        *checks.above("one_rate", "misfit of the flow from the origin at one rate [nats]", one_rate, MISFIT),
        *checks.below("free_rates", "misfit of the flow with rates and starts fitted [nats]", free, MISFIT),
        *wide,
        *checks.above("start", "attention y that the fit begins with - the network's", gap),
    ]


def _range(dataset: xr.Dataset) -> xr.DataArray:
    """Largest ratio, over rates, of values that fit nearly as well as the best; one ratio for each seed."""
    profile = dataset["profile"]
    best = np.minimum(dataset["misfit"].sel(form="three", drop=True), profile.min(["strength", "factor"]))
    well = profile <= NEAR * best
    factors = dataset.factor.where(well)
    return (factors.max("factor") / factors.min("factor")).fillna(1.0).max("strength")


def figure(dataset: xr.Dataset):
    """Draw the readout and both attentions over training, and the loss with the landscape's loss.

    Time is in units of that at which attention to the right label is half-way, since the seeds' times differ.
    """
    learners = (dataset["label_loss"].isel(step=-1) < np.log(PAIRS) / 4).values
    dataset = dataset.isel(seed=learners) if learners.any() else dataset  # the networks that have learned, if any have
    numbers, unit = dataset["landscape_number"], dataset["half_time"].sel(number="z", drop=True)
    names = {"xi": r"readout $\xi$", "y": "attention $y$", "z": "attention $z$"}
    readings = {"read_off": "landscape's loss", "labels": "landscape's loss, $z'$ measured"}
    values = {"label_loss": dataset["label_loss"]}
    values |= {"relative_number": _series(numbers / numbers.isel(step=-1), "number", names)}
    values |= {"stated_loss": _series(dataset["stated_loss"], "reading", readings)}
    series = xr.Dataset(values, attrs=dataset.attrs)
    curves = xr.concat([_in_units(series.sel(seed=s), float(unit.sel(seed=s))) for s in unit.seed.values], "seed")
    curves["stated_loss_line"] = curves["label_loss"].mean("seed")
    rows = [Panel("relative_number"), Panel("stated_loss", "stated_loss_line")]
    return panels(curves, rows, x="relative_time", hue="series", line_x="relative_time", line_name="network's loss")


def _series(values: xr.DataArray, dim: str, names: dict[str, str]) -> xr.DataArray:
    return values.sel({dim: list(names)}).rename({dim: "series"}).assign_coords(series=list(names.values()))


def _in_units(member: xr.Dataset, unit: float) -> xr.Dataset:
    """One seed on a grid of times relative to its own time."""
    unit = unit if np.isfinite(unit) else float(member.step[-1])
    curve = member.assign_coords(step=member.step.values / unit).interp(step=np.linspace(0, 1.4, 36))
    return curve.rename(step="relative_time")


COMMON = {"step": tuple(range(0, 3001, 50)), "number": NUMBERS, "form": FITTED, "factor": (0.25, 0.5, 1.0, 2.0, 4.0)}
COMMON |= {"strength": ("beta", "alpha", "xi", "beta2")}
ALONG = {"step": COMMON["step"], "seed": (0, 1, 2)}

claim = Claim(
    title="Landscape against a network",
    sentence=(
        "Given an induction head's patterns the readout reaches half its strength after both attentions, where the "
        "landscape has it before them; the loss fits only with free rates and starts."
    ),
    conditions=(
        "Networks trained by SGD, N = 4 pairs, 16 labels, 10 seeds, those that learn. A fit is a misfit below 0.1 "
        "nats; neither the loss that the landscape states with the network's own numbers nor its flow from the origin "
        "at one rate is one. With free rates one is known to no better than a factor of two, and the fit begins where "
        "the network does not."
    ),
    sources=("Reddy24",),
    axes=(Axis("relative_time", "t/T", "time relative to the transition", least=0),),
    quantities=(
        "label_loss",
        "half_time",
        "misfit",
        "profile",
        Quantity("landscape_number", "w", "number of the landscape"),
        Quantity("relative_number", "w/w_T", "parameter relative to its final value"),
        Quantity("other_attention", "z'", "attention from the query to another label"),
        Quantity("stated_loss", r"\mathcal{L}", "cross-entropy of the label", "nats"),
        Quantity("stated_misfit", r"\Delta\mathcal{L}", "misfit of the landscape's loss", "nats"),
        Quantity("fitted_rate", r"\rho", "fitted rate", "per 1000 steps"),
        Quantity("fitted_start", "w_0", "fitted start"),
    ),
    static=(),
    outputs=("step", "number"),
    fixed={"pairs": PAIRS, "label_count": LABELS, "batch": 128, "prompts": 512, "rate_guess": 28.0}
    | {"restarts": 24, "iterations": 60, "perturbed": 3},
    sizes={
        "smoke": {"step": (0, 20, 40), "number": NUMBERS, "seed": 2},
        "small": COMMON | {"seed": 10},
        "medium": COMMON | {"step": tuple(range(0, 4001, 25)), "seed": Seeds(12, block=1)},
    },
    key=1,
    controls={
        "reduced_model": Control(
            "descent on the landscape itself, at one rate: the loss is what it states",
            measure={"rates": (28.0, 28.0, 28.0)},
            axes=ALONG,
        ),
        "fast_attention": Control(
            "descent on the landscape with attention a thousand times faster than the readout",
            measure={"rates": (7000.0, 7000.0, 7.0)},
            axes=ALONG,
        ),
        "two_drops": Control(
            "descent on the landscape stands still for 1000 steps in the midst of the drop",
            measure={"rates": (28.0, 28.0, 28.0), "pause": 1.0},
            axes=ALONG,
        ),
    },
)
