r"""Double descent in context on a real table: the diabetes data of Efron et al., 442 rows and 10 columns.

Centred, :math:`\ell` examples have rank :math:`\min(\ell - 1, d)`: least squares with an intercept interpolates up to
:math:`\ell = d + 1`, and peaks there. Near the peak its squared error has very heavy tails: it is judged by geometric
means, the other predictors by means. Standard errors are of averages over draws from *this table*, not over tables.
"""

import numpy as np
import xarray as xr

from icllab.claims.asymptotics._tables import FITTED, log_losses, resolved
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Outcome, checks, estimates

COMPILED = ("context mean", "least squares", "ridge")  # at smoke alone: each fit of the others costs milliseconds
ALL = (*COMPILED, *FITTED)
SMALLER = 3.0  # the factor by which ridge's typical error is below that of least squares, at the peak
EXPLAINED = 0.25  # fraction of the target's variance that ridge explains, at least, after the longest context


def theory(dataset: xr.Dataset, intercept: int = 1) -> xr.Dataset:
    """As many examples as there are numbers to fit: one for each column, and the intercept."""
    return dataset.assign(peak_theory=("dim", dataset.dim.values + intercept))


def check(dataset: xr.Dataset) -> list[Finding]:
    """For every number of columns the peak, and ridge there; with the most columns, ridge beside the others."""
    errors, findings, most = dataset["table_error"], [], int(dataset.dim.max())
    for dim in dataset.dim.values:
        findings += _peak(errors.sel(dim=dim, drop=True), dataset["peak_theory"].sel(dim=dim).item(), {"dim": int(dim)})
    return findings + _ridge(errors.sel(dim=most, drop=True), most)


def _peak(errors: xr.DataArray, predicted: float, at: dict[str, int]) -> list[Finding]:
    """The geometric mean is largest at the predicted length, clearly above all others, and falls on both sides."""
    lengths = errors.length.values
    covered = bool(predicted in lengths and lengths.min() < predicted < lengths.max())
    found = checks.complete("peak_covered", "lengths include the peak and both sides", covered, at=at)
    if not covered:
        return found
    least, ridge = (resolved(errors.sel(predictor=name, drop=True)) for name in ("least squares", "ridge"))
    ranked = lengths[np.argsort(log_losses(least).mean("seed").values)[::-1]]
    top, second, first, last = (int(length) for length in (*ranked[:2], lengths.min(), lengths.max()))
    peak, next_to_it, start, end = (least.sel(length=length, drop=True) for length in (top, second, first, last))
    ratios = (peak / next_to_it, peak / start, start / end, peak / ridge.sel(length=top, drop=True))
    (higher, rise, fall, beside), what = map(estimates.geometric_mean, ratios), "error of least squares"
    height = checks.above("peak_height", f"{what} at {top} / at {second} examples", higher, 1.0, at=at)
    otherwise = Outcome.FAILS if height[0].outcome is Outcome.HOLDS else Outcome.UNDECIDED
    found += checks.equal("peak", "examples at the peak of least squares", top, predicted, otherwise=otherwise, at=at)
    found += checks.above("rise", f"{what} at {top} / at {first} examples", rise, 1.0, at=at)
    found += checks.above("fall", f"{what} at {first} / at {last} examples", fall, 1.0, at=at)
    found += checks.above("ridge", f"{what} / ridge's at {top} examples", beside, SMALLER, at=at)
    return [*found, *height]


def _ridge(errors: xr.DataArray, columns: int) -> list[Finding]:
    """Ridge falls where least squares rises, explains part of the target, and beats what was fitted on either side."""
    findings, lengths, peak = [], errors.length.values, columns + 1
    first, last, ridge = lengths.min(), lengths.max(), errors.sel(predictor="ridge", drop=True)
    if peak in lengths and peak > first:
        fall = estimates.mean(ridge.sel(length=first, drop=True) - ridge.sel(length=peak, drop=True))
        findings += checks.above("ridge_falls", f"error of ridge at {first} - at {peak} examples", fall)
    part, what = estimates.mean(1 - ridge.sel(length=last, drop=True)), "fraction of variance that ridge explains"
    findings += checks.above("ridge_explains", f"{what} from {last} examples", part, EXPLAINED)
    fitted = errors.sel(predictor=[name for name in FITTED if name in errors.predictor])
    for name, part in (("few", lengths[lengths <= peak]), ("many", lengths[lengths > peak])):
        if part.size:
            lead = estimates.mean((fitted - ridge).sel(length=part).mean("length"))
            what = f"error - ridge's, mean over {part[0]} to {part[-1]} examples"
            findings += checks.above(f"ridge_leads_{name}", what, lead)
    there = fitted.sizes["predictor"] == len(FITTED)
    return [*findings, *checks.complete("compared", "every predictor of scikit-learn is compared", there)]


def figure(dataset: xr.Dataset):
    """With all the columns there are: the peak by mean logarithms, and below it the means; with standard errors."""
    shown = dataset[["table_error"]].sel(dim=dataset.dim.max())
    shown = shown.assign(log_table_error=log_losses(shown["table_error"]).where(shown.predictor.isin(COMPILED)))
    rows = [Panel("log_table_error"), Panel("table_error", ylim=(0.5, 1.5))]
    return panels(shown, rows, x="length", hue="predictor", xscale="log", vertical=int(shown.dim) + 1)


claim = Claim(
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
    },
)
