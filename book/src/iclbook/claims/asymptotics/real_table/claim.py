r"""Double descent in context on a real table: the diabetes data of Efron et al., 442 rows and 10 columns.

Centred, :math:`\ell` examples have rank :math:`\min(\ell - 1, d)`, so least squares with an intercept interpolates up
to :math:`\ell = d + 1`, and peaks there. Near the peak its squared error has very heavy tails: it is judged by
geometric means, the other predictors by means. Standard errors count draws from *this table*, not tables.
"""

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics._tables import FITTED, floored, log_losses
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Outcome, checks, estimates

COMPILED = ("context mean", "least squares", "ridge")  # at smoke alone: each fit of the others costs milliseconds
ALL = (*COMPILED, *FITTED)
SMALLER = 3.0  # the factor by which ridge's typical error is below that of least squares, at the peak
EXPLAINED = 0.25  # fraction of the target's variance that ridge explains, at least, after the longest context


def reduce(dataset: xr.Dataset) -> xr.Dataset:
    """Round the errors of all draws to eleven bits, a relative error of at most 1/2048."""
    mantissa, exponent = np.frexp(dataset["table_error"])
    return dataset.assign(table_error=np.ldexp(np.round(2**11 * mantissa) / 2**11, exponent))


def theory(
    dataset: xr.Dataset, intercept: int = 1, exchanged: tuple[str, ...] = (), turned: bool = False
) -> xr.Dataset:
    """Predicted peak: one example for each fitted parameter, which are the columns and the intercept.

    ``exchanged``: two predictors, each in the other's place; ``turned``: the longest contexts are the shortest.
    """
    dataset = dataset.assign(peak_theory=("dim", dataset.dim.values + intercept))
    if exchanged:
        other = dict(zip(exchanged, exchanged[::-1], strict=True))
        names = [other.get(name, name) for name in dataset.predictor.values.tolist()]
        dataset = dataset.assign_coords(predictor=names).sel(predictor=dataset.predictor.values)
    if turned:
        dataset = dataset.isel(length=slice(None, None, -1)).assign_coords(length=dataset.length)
    return dataset


def check(dataset: xr.Dataset) -> list[Finding]:
    """The peak and ridge at it for every number of columns; ridge and other predictors for the most columns."""
    errors, findings, columns = dataset["table_error"], [], int(dataset.dim.max())
    for dim in dataset.dim.values:
        findings += _peak(errors.sel(dim=dim, drop=True), dataset["peak_theory"].sel(dim=dim).item(), {"dim": int(dim)})
    return findings + _ridge(errors.sel(dim=columns, drop=True), columns)


def _peak(errors: xr.DataArray, target: float, at: dict[str, int]) -> list[Finding]:
    """The geometric mean is largest at the predicted length, clearly above all others, and falls on both sides."""
    lengths = errors.length.values
    complete = bool(target in lengths and lengths.min() < target < lengths.max())
    findings = checks.complete("peak_covered", "lengths include the peak and both sides", complete, at=at)
    if not complete:
        return findings
    least, ridge = (floored(errors.sel(predictor=name, drop=True)) for name in ("least squares", "ridge"))
    order = lengths[np.argsort(log_losses(least).mean("seed").values)[::-1]]
    peak, rival = int(target), int(order[order != target][0])
    top, first, last = int(order[0]), int(lengths.min()), int(lengths.max())
    at_peak, at_rival, start, end = (least.sel(length=length, drop=True) for length in (peak, rival, first, last))
    ratios = (at_peak / at_rival, at_peak / start, start / end, at_peak / ridge.sel(length=peak, drop=True))
    (higher, rise, fall, beside), quantity = map(estimates.geometric_mean, ratios), "error of least squares"
    height = checks.above("peak_height", f"{quantity} at {peak} / at {rival} examples", higher, 1.0, at=at)
    otherwise = Outcome.FAILS if height[0].outcome is Outcome.FAILS else Outcome.UNDECIDED
    findings += checks.equal("peak", "examples at the peak of least squares", top, target, otherwise=otherwise, at=at)
    findings += checks.above("rise", f"{quantity} at {peak} / at {first} examples", rise, 1.0, at=at)
    findings += checks.above("fall", f"{quantity} at {first} / at {last} examples", fall, 1.0, at=at)
    findings += checks.above("ridge", f"{quantity} / ridge's at {peak} examples", beside, SMALLER, at=at)
    return [*findings, *height]


def _ridge(errors: xr.DataArray, columns: int) -> list[Finding]:
    """Ridge falls where least squares rises, explains part of the target, and beats scikit-learn on either side."""
    findings, lengths, peak = [], errors.length.values, columns + 1
    first, last, ridge = lengths.min(), lengths.max(), errors.sel(predictor="ridge", drop=True)
    if peak in lengths and peak > first:
        fall = estimates.mean(ridge.sel(length=first, drop=True) - ridge.sel(length=peak, drop=True))
        findings += checks.above("ridge_falls", f"error of ridge at {first} - at {peak} examples", fall)
    part, quantity = estimates.mean(1 - ridge.sel(length=last, drop=True)), "fraction of variance that ridge explains"
    findings += checks.above("ridge_explains", f"{quantity} from {last} examples", part, EXPLAINED)
    sklearn = errors.sel(predictor=[name for name in FITTED if name in errors.predictor])
    for name, part in (("few", lengths[lengths <= peak]), ("many", lengths[lengths > peak])):
        if part.size:
            lead = estimates.mean((sklearn - ridge).sel(length=part).mean("length"))
            quantity = f"error - ridge's, mean over {part[0]} to {part[-1]} examples"
            findings += checks.above(f"ridge_leads_{name}", quantity, lead)
    complete = sklearn.sizes["predictor"] == len(FITTED)
    return [*findings, *checks.complete("compared", "every predictor of scikit-learn is compared", complete)]


def figure(dataset: xr.Dataset):
    """Draw the peak by mean logarithms, and below it the means, for the most columns."""
    part = dataset[["table_error"]].sel(dim=dataset.dim.max())
    part = part.assign(log_table_error=log_losses(part["table_error"]).where(part.predictor.isin(COMPILED)))
    rows = [Panel("log_table_error"), Panel("table_error", ylim=(0.5, 1.5))]
    return panels(part, rows, x="length", hue="predictor", xscale="log", vertical=int(part.dim) + 1)


claim = Claim(
    title="Double descent on the diabetes table",
    sentence=(
        "On the diabetes table, in-context least squares peaks at one example more than columns; ridge has under a "
        "third of that error, no peak, and explains a quarter of variance."
    ),
    conditions=(
        "Geometric means of least squares over draws of rows; ridge with the strength of its prior, which explains the "
        "quarter from 40 examples. Up to the peak and beyond it beats neighbours, a forest and cross-validated ridge."
    ),
    sources=("Efron04",),
    quantities=(
        "table_error",
        Quantity("log_table_error", r"\ln e", "log squared error over the target's variance"),
        Quantity("peak_theory", r"\ell^*", "examples at the peak, as predicted"),
    ),
    static=("dim",),
    fixed={"explained": 0.5},
    sizes={
        "smoke": {"dim": (10,), "length": (5, 10, 11, 12, 40), "predictor": COMPILED, "seed": 1000},
        "small": {"dim": (5, 10), "length": (5, 6, 7, 8, 10, 11, 12, 20, 40), "predictor": ALL, "seed": 1000},
        "medium": {"dim": (5, 7, 10), "length": (*range(5, 16), 20, 25, 30, 40), "predictor": ALL}
        | {"seed": Seeds(4000, block=1000)},
    },
    precision="float64",
    key=1,
    controls={
        "shuffled_targets": Control("targets are permuted among the rows", measure={"shuffled": True}),
        "hardly_ridge": Control("the prior leaves 1e-7 of the variance to noise", measure={"explained": 1 - 1e-7}),
        "no_intercept": Control("a peak at as many examples as columns, without an intercept", theory={"intercept": 0}),
        "exchanged": Control(
            "ridge and least squares are each in the other's place", theory={"exchanged": ("ridge", "least squares")}
        ),
        "turned": Control("the longest contexts are the shortest", theory={"turned": True}),
    },
)
