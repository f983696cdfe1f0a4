r"""A transformer that has seen synthetic regressions alone, asked in context about a real table.

It is trained on :class:`~icllab.tasks.hierarchical_regression.HierarchicalRegression` alone. The table's rows are shown
to it, and to all rivals, scaled with the examples alone. Least squares has very heavy tails near its peak, and is
judged there by mean logarithms, all else by means. Standard errors count both the draws, given this table, and the
networks; how other tables would differ they do not say.
"""

import xarray as xr

from icllab.claims.asymptotics._tables import FITTED, log_losses
from icllab.core.axes import Quantity
from icllab.core.statistics import crossed_mean_and_error
from icllab.experiments import Control, Estimate, Experiment, Finding, checks
from icllab.experiments.estimates import mean
from icllab.figures.curves import Panel, panels

PREDICTORS = ("context mean", "least squares", "ridge", *FITTED, "transformer")
SMALLER = 3.0  # the factor by which the network's typical error is below that of least squares, at the peak
NEAR = 0.05  # fraction of the target's variance by which the network may be behind ridge
GAINED = 0.05  # fraction of the target's variance, at least, by which every network beats the mean


def check(dataset: xr.Dataset) -> list[Finding]:
    """Of the longest training: beside least squares at its peak, ridge, the mean, and scikit-learn."""
    findings = []
    for dim in dataset.dim.values:
        errors = dataset["table_error"].sel(dim=dim).isel(width=-1, layers=-1, step=-1, drop=True)
        if "transformer" in errors.predictor:
            findings += [*_least_squares(errors), *_past_the_peak(errors), *_fitted(errors)]
    there = set(PREDICTORS) <= set(dataset.predictor.values)
    return [*findings, *checks.complete("predictors", "every predictor of the claim is there", there)]


def _least_squares(errors: xr.DataArray) -> list[Finding]:
    """At its peak, one example more than columns, by mean logarithms; and in the end."""
    if "least squares" not in errors.predictor:
        return []
    findings, peak = [], int(errors.dim) + 1
    own, other = (errors.sel(predictor=name, drop=True) for name in ("transformer", "least squares"))
    if peak in errors.length.values:
        found = _crossed((log_losses(other) - log_losses(own)).sel(length=peak))
        ratio = Estimate(found.value, found.error, logarithmic=True)
        findings = checks.above("peak", "error of least squares / the transformer's at its peak", ratio, SMALLER)
    lead = _crossed((other - own).sel(length=errors.length.max()))
    return [*findings, *checks.above("in_the_end", "error of least squares - the transformer's", lead)]


def _past_the_peak(errors: xr.DataArray) -> list[Finding]:
    """On average past d examples: near ridge, and every network ahead of the examples' mean."""
    many = errors.length.values[errors.length.values > int(errors.dim)]
    if not many.size:
        return []
    findings, what = [], f"mean over {many.min()} to {many.max()} examples"
    behind = errors.sel(predictor="transformer", drop=True) - errors.drop_sel(predictor="transformer")
    behind = behind.sel(length=many).mean("length")
    if "ridge" in behind.predictor:
        ridge = _crossed(behind.sel(predictor="ridge", drop=True))
        findings += checks.below("ridge", f"error of the transformer - ridge's, {what}", ridge, NEAR)
    if "context mean" in behind.predictor:
        lead = mean(-behind.sel(predictor="context mean", drop=True))
        at = {"member": int(lead.value.argmin("member"))}
        worst = Estimate(lead.value.isel(at, drop=True), lead.error.isel(at, drop=True))
        said = f"error of the examples' mean - the worst network's, {what}"
        findings += checks.above("every_network", said, worst, GAINED)
    return findings


def _fitted(errors: xr.DataArray) -> list[Finding]:
    """On average over all lengths, the transformer beside each predictor of scikit-learn."""
    fitted = errors.sel(predictor=[name for name in FITTED if name in errors.predictor])
    lead = _crossed((fitted - errors.sel(predictor="transformer", drop=True)).mean("length"))
    over = f"mean over {int(errors.length.min())} to {int(errors.length.max())} examples"
    return checks.above("fitted", f"error of a fitted predictor - the transformer's, {over}", lead)


def _crossed(samples: xr.DataArray) -> Estimate:
    """The mean over networks and draws, whose standard error counts both."""
    like = samples.isel(member=0, seed=0, drop=True)
    value, error = crossed_mean_and_error(samples.transpose(*like.dims, "member", "seed").values)
    return Estimate(like.copy(data=value), like.copy(data=error))


def figure(dataset: xr.Dataset):
    """Mean errors over draws and networks, and below it the differences draw by draw, which have smaller errors.

    Bars are standard errors over draws. Least squares leaves both frames around its peak.
    """
    shown = dataset.isel(dim=-1, width=-1, layers=-1, step=-1).mean("member")
    excess = shown["table_error"] - shown["table_error"].sel(predictor="transformer", drop=True)
    shown = shown.assign(table_excess=excess.where(shown.predictor != "transformer"))
    rows = [Panel("table_error", ylim=(0.6, 1.8)), Panel("table_excess", ylim=(-0.1, 0.6))]
    return panels(shown, rows, x="length", hue="predictor", xscale="log", vertical=int(dataset.dim.values[-1]) + 1)


COMMON = {"dim": (5,), "width": (32,), "layers": (2,), "predictor": PREDICTORS}
experiment = Experiment(
    claim=(
        "A transformer trained on synthetic regressions alone predicts a real table from examples in context: better "
        "than their mean, nearly as well as ridge, without least squares' peak."
    ),
    conditions=(
        "Diabetes data, 5 columns; training draws correlations, weights and noise at random. Nearly: on average within "
        "a twentieth of the variance of ridge of a fixed strength. On average ahead of nearest neighbours, a random "
        "forest and cross-validated ridge."
    ),
    sources=("Garg22", "Efron04"),
    quantities=("table_error", Quantity("table_excess", r"\Delta e", "squared error above that of the transformer")),
    static=("dim", "width", "layers", "step", "member"),
    outputs=("length",),
    # Every network is asked the same draws of the table, whatever its own cell.
    fixed={"batch": 64, "rate": 3e-3, "draws_key": 0},
    sizes={
        # Compiling each predictor costs seconds; without the others some findings are left undecided.
        "smoke": COMMON
        | {"width": (16,), "layers": (1,), "step": (500,), "predictor": ("context mean", "transformer")}
        | {"length": (8, 14), "member": (0, 1), "seed": 400},
        "small": COMMON | {"step": (2000,), "length": (5, 6, 8, 10, 15, 20), "member": (0, 1, 2, 3), "seed": 1000},
        "medium": COMMON
        | {"step": (20000,), "length": (5, 6, 7, 8, 10, 12, 15, 20, 30, 40), "member": tuple(range(8)), "seed": 2000},
    },
    controls={
        "untrained": Control("the networks make a single step", {"updates": 1}),
        "labels_of_noise": Control("in training the inputs explain nothing of the labels", {"most_explained": 0.0}),
        "shuffled_targets": Control("the table's targets are permuted among its rows", {"shuffled": True}),
    },
)
