r"""A transformer trained on synthetic regressions alone predicts a real table in context.

It is trained on :class:`~icllab.tasks.hierarchical_regression.HierarchicalRegression`. The table's rows are scaled with
the examples alone, for all predictors. Least squares has very heavy tails near its peak, and is judged there by mean
logarithms, all else by means. Standard errors count draws from this table and networks, not tables.
"""

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics._tables import FITTED, log_losses
from icllab.core.axes import Quantity
from icllab.core.statistics import crossed_mean_and_error
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, Subject, checks, estimates
from icllab.lab.estimates import mean

PREDICTORS = ("context mean", "least squares", "ridge", *FITTED, "transformer")
SMALLER = 3.0  # factor by which the network's typical error is below that of least squares, at the peak
NEAR = 0.05  # fraction of the target's variance by which the network may be behind ridge
FLAT = 0.2  # fraction by which its typical error may be higher at the peak than on both sides
GAINED = 0.05  # fraction of the target's variance, at least, by which every network beats the mean


def reduce(dataset: xr.Dataset) -> xr.Dataset:
    """Round errors to single precision; keep errors of untrained predictors once for all networks."""
    errors = dataset["table_error"].astype("float32")
    trained = dataset.predictor == "transformer"
    return dataset.assign(table_error=errors.where(trained | (dataset.member == dataset.member[0])))


def theory(dataset: xr.Dataset, *, exchanged: tuple[str, ...] = ()) -> xr.Dataset:
    """No prediction; copy the errors of untrained predictors to every network.

    ``exchanged``: two predictors, each of which stands in the other's place.
    """
    other = dict(zip(exchanged, exchanged[::-1], strict=True))
    names = [other.get(name, name) for name in dataset.predictor.values.tolist()]
    errors = dataset["table_error"].assign_coords(predictor=names).sel(predictor=dataset.predictor.values)
    return dataset.assign(table_error=errors.fillna(errors.isel(member=0, drop=True)))


def check(dataset: xr.Dataset) -> list[Finding]:
    """After the longest training: comparison with least squares at its peak, ridge, the mean, and scikit-learn."""
    findings = []
    for dim in dataset.dim.values:
        errors = dataset["table_error"].sel(dim=dim).isel(width=-1, layers=-1, step=-1, drop=True)
        if "transformer" in errors.predictor:
            findings += _compare(errors)
    complete = set(PREDICTORS) <= set(dataset.predictor.values)
    return [*findings, *checks.complete("predictors", "every predictor of the claim", complete)]


def _compare(errors: xr.DataArray) -> list[Finding]:
    """Compare with least squares at its peak and at the end, ridge and the mean past the peak, and scikit-learn."""
    findings, lengths, peak = [], errors.length.values, int(errors.dim) + 1
    transformer = errors.sel(predictor="transformer", drop=True)
    ahead, past = errors - transformer, lengths[lengths >= peak]
    if "least squares" in errors.predictor:
        least_squares = errors.sel(predictor="least squares", drop=True)
        if peak in lengths:
            gap = (log_losses(least_squares) - log_losses(transformer)).sel(length=peak)
            ratio = _crossed_mean(gap, logarithmic=True)
            findings += checks.above("peak", "error of least squares / the transformer's at its peak", ratio, SMALLER)
        if lengths.min() < peak < lengths.max() and peak in lengths:
            at = int(np.flatnonzero(lengths == peak)[0])
            losses = log_losses(transformer)
            rise = losses.isel(length=at) - losses.isel(length=[at - 1, at + 1]).mean("length")
            quantity = f"error of the transformer at {peak} examples / at {lengths[at - 1]} and {lengths[at + 1]}"
            findings += checks.below("no_peak", quantity, _crossed_mean(rise, logarithmic=True), 1 + FLAT)
        lead = _crossed_mean((least_squares - transformer).sel(length=lengths.max()))
        findings += checks.above("in_the_end", "error of least squares - the transformer's", lead)
    later = ahead.sel(length=past).mean("length")
    if past.size and "ridge" in errors.predictor:
        behind = _crossed_mean(-later.sel(predictor="ridge", drop=True))
        findings += checks.below("ridge", f"error of the transformer - ridge's, {_over(past)}", behind, NEAR)
    if past.size and "context mean" in errors.predictor:
        lead = mean(later.sel(predictor="context mean", drop=True).drop_vars("member"))
        worst, quantity = (
            lead.sel(member=lead.value.argmin("member")),
            "error of the examples' mean - the worst network's",
        )
        findings += checks.above("every_network", f"{quantity}, {_over(past)}", worst, GAINED)
    sklearn = ahead.sel(predictor=[name for name in FITTED if name in errors.predictor]).mean("length")
    quantity = f"error of a fitted predictor - the transformer's, {_over(lengths)}"
    return [*findings, *checks.above("fitted", quantity, _crossed_mean(sklearn))]


def _over(lengths: np.ndarray) -> str:
    return f"mean over {lengths.min()} to {lengths.max()} examples"


def _crossed_mean(samples: xr.DataArray, logarithmic: bool = False) -> Estimate:
    """Mean over networks and draws, with a standard error that includes both; of one network that of draws."""
    if samples.sizes["member"] == 1:
        of_draws = estimates.mean(samples.isel(member=0, drop=True))
        return Estimate(of_draws.value, of_draws.error, logarithmic, freedom=of_draws.freedom)
    like = samples.isel(member=0, seed=0, drop=True)
    mean, error = crossed_mean_and_error(samples.transpose(*like.dims, "member", "seed").values)
    return Estimate(like.copy(data=mean), like.copy(data=error), logarithmic)


def figure(dataset: xr.Dataset):
    """Draw mean errors and their differences from the transformer's; least squares leaves both frames."""
    part = dataset.isel(dim=-1, width=-1, layers=-1, step=-1).mean("member")
    excess = part["table_error"] - part["table_error"].sel(predictor="transformer", drop=True)
    part = part.assign(table_excess=excess.where(part.predictor != "transformer"))
    rows = [Panel("table_error", ylim=(0.6, 1.8)), Panel("table_excess", ylim=(-0.1, 0.6))]
    return panels(part, rows, x="length", hue="predictor", xscale="log", vertical=int(dataset.dim.values[-1]) + 1)


COMMON = {"dim": (5,), "width": (32,), "layers": (2,), "predictor": PREDICTORS}
claim = Claim(
    title="Synthetic training, a real table",
    sentence=(
        "The network, trained on synthetic regressions alone, predicts a real table from examples in context: better "
        "than their mean, nearly as well as ridge, without least squares' peak."
    ),
    conditions=(
        "Transformers of two layers; diabetes data, 5 columns; training draws correlations, weights and noise at "
        "random. Nearly: on average within a twentieth of the variance. Ahead of nearest neighbours, a random forest "
        "and cross-validated ridge."
    ),
    sources=("Garg22", "Efron04"),
    quantities=("table_error", Quantity("table_excess", r"\Delta e", "squared error above that of the transformer")),
    static=("dim", "width", "layers", "step", "member"),
    outputs=("length",),
    # Every network is asked the same draws of the table, whatever its own cell.
    fixed={"batch": 64, "rate": 3e-3, "draws_key": 1},
    sizes={
        # Compiling each predictor costs seconds; without the others some findings are left undecided.
        "smoke": COMMON
        | {"width": (16,), "layers": (1,), "step": (400,), "predictor": ("context mean", "transformer")}
        | {"length": (8, 12), "member": (0, 1), "seed": 400, "batch": 32, "rate": 6e-3},
        "small": COMMON | {"step": (2000,), "length": (5, 6, 8, 10, 15, 20), "member": (0, 1, 2, 3), "seed": 1000},
        "medium": COMMON
        | {"step": (20000,), "length": (5, 6, 7, 8, 10, 12, 15, 20, 30, 40), "member": tuple(range(8)), "seed": 2000},
    },
    key=1,
    subject=Subject(
        "regression",
        "transformers of two layers",
        axes={"member": (0,), "dim": (5,), "step": (2000,), "width": (32,), "layers": (2,), "predictor": PREDICTORS},
        controls=("shuffled_targets", "least_squares"),
    ),
    controls={
        "untrained": Control("the networks make a single step", {"updates": 1}),
        "labels_of_noise": Control("in training the inputs explain nothing of the labels", {"most_explained": 0.0}),
        "shuffled_targets": Control("the table's targets are permuted among its rows", {"shuffled": True}),
        "least_squares": Control(
            "the transformer is least squares in context", theory={"exchanged": ("transformer", "least squares")}
        ),
    },
)
