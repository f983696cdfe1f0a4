r"""Double descent in context on a real table: the diabetes data of Efron et al., 442 rows and 10 columns.

Every draw takes rows of the table as examples and one more as the query. All predictors scale with the
examples alone. Centred, :math:`\ell` examples have rank :math:`\min(\ell - 1, d)`: least squares with an
intercept interpolates up to :math:`\ell = d + 1`, and peaks there. Near the peak its squared error has
very heavy tails, so least squares is judged by mean logarithms and the other predictors by means.

The table is fixed and the draws are independent given it. Standard errors are therefore of averages over
all draws from *this table*; how other tables would differ they do not say.
"""

import functools

import numpy as np
import xarray as xr

from icllab.claims.asymptotics._tables import FITTED, diabetes, fitted_losses, log_losses
from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.figures.curves import Panel, panels

COMPILED = ("context mean", "least squares", "ridge")
SMALLER = 3.0  # the factor by which ridge's typical error is below that of least squares, at the peak
EXPLAINED = 0.25  # share of the target's variance that ridge explains, at least, after the longest context


def measure(point, *, key, shuffled=False, explained=None):
    """One cell: every predictor on the same draws; ``explained`` is the share of variance in ridge's prior."""
    import jax
    import jax.numpy as jnp

    from icllab import algorithms
    from icllab.tasks import Standardised, Table

    data = diabetes()
    lengths = np.array(point.length)
    x, names = data.data[:, : point.dim], data.feature_names[: point.dim]
    table = Table(x, data.target, length=int(lengths.max()), columns=names, target="progression")
    explained = point.explained if explained is None else explained
    predictors = {
        "context mean": lambda prompt: jnp.zeros_like(prompt.y),
        "least squares": algorithms.LeastSquares(),
        # The Bayes value where weights are N(0, h/d), noise 1 - h and inputs have variance 1.
        "ridge": algorithms.Ridge(point.dim * (1 - explained) / explained),
    }

    @jax.jit
    @jax.vmap
    def drawn(seed):
        of_rows, of_shuffle = jax.random.split(jax.random.fold_in(key, seed))
        source = table.shuffled(key=of_shuffle) if shuffled else table
        prompt = source.sample(key=of_rows)
        return prompt, {name: table.loss(Standardised(p)(prompt), prompt) for name, p in predictors.items()}

    prompts, compiled = drawn(jnp.array(point.seed))
    rows = []
    for name in point.predictor:
        if name in COMPILED:
            rows.append(np.asarray(compiled[name])[:, lengths].T)
        else:
            rows.append(np.array([fitted_losses(name, prompts, length, table) for length in point.length]))
    return {"table_error": (("predictor", "length", "seed"), np.stack(rows))}


def theory(dataset: xr.Dataset, intercept: int = 1) -> xr.Dataset:
    """As many examples as there are numbers to fit: one for each column, and the intercept."""
    return dataset.assign(peak_theory=("dim", dataset.dim.values + intercept))


def check(dataset: xr.Dataset) -> list[Finding]:
    """For every number of columns the peak, and ridge there; with the most columns, ridge beside the others."""
    errors = dataset["table_error"].transpose("dim", "predictor", "length", "seed")
    findings = []
    for dim in dataset.dim.values:
        findings += _peak(errors.sel(dim=dim), int(dim), float(dataset["peak_theory"].sel(dim=dim)))
    return findings + _ridge(errors.sel(dim=errors.dim.max()))


def _peak(errors: xr.DataArray, dim: int, predicted: float) -> list[Finding]:
    """The mean logarithm is largest at the predicted length, clearly above all others, and falls on both sides."""
    lengths = errors.length.values
    logs = log_losses(errors.sel(predictor="least squares").values)
    what = f"examples at the peak of least squares, {dim} columns"
    if not (predicted in lengths and lengths.min() < predicted < lengths.max()):
        return [Finding(what, predicted, np.nan, np.nan, np.nan, Outcome.UNDECIDED, "the peak is not on the grid")]
    top, second = np.argsort(logs.mean(1))[:-3:-1]
    first, last = int(np.argmin(lengths)), int(np.argmax(lengths))
    above = {
        i: _above(logs[top] - logs[i], f"log error there above that at {lengths[i]} examples, {dim} columns")
        for i in dict.fromkeys((int(second), first))
    }
    clear = above[int(second)].outcome is Outcome.HOLDS
    fall = f"log error at {lengths[first]} above that at {lengths[last]} examples, {dim} columns"
    ratio = logs[top] - log_losses(errors.sel(predictor="ridge").values)[top]
    beside = f"log error of least squares above that of ridge at {lengths[top]} examples, {dim} columns"
    return [
        exactly(what, predicted, float(lengths[top]), otherwise=Outcome.FAILS if clear else Outcome.UNDECIDED),
        *above.values(),
        _above(logs[first] - logs[last], fall),
        _above(ratio, beside, bound=np.log(SMALLER)),
    ]


def _ridge(errors: xr.DataArray) -> list[Finding]:
    """Ridge falls where least squares rises, explains part of the target, and on average beats what was fitted."""
    lengths, peak = errors.length.values, int(errors.dim) + 1
    first, last = lengths.min(), lengths.max()
    ridge = errors.sel(predictor="ridge")
    findings = []
    if peak in lengths and peak > first:
        fall = ridge.sel(length=first).values - ridge.sel(length=peak).values
        findings.append(_above(fall, f"fall of ridge's error from {first} to {peak} examples"))
    left = ridge.sel(length=last).values
    findings.append(_above(1 - left, f"share of variance that ridge explains from {last} examples", bound=EXPLAINED))
    fitted = [name for name in FITTED if name in errors.predictor]
    for name in fitted:
        lead = (errors.sel(predictor=name) - ridge).mean("length").values
        findings.append(_above(lead, f"error of {name} above ridge's, mean over {first} to {last} examples"))
    compared = exactly("predictors of scikit-learn compared", len(FITTED), len(fitted), otherwise=Outcome.UNDECIDED)
    return [*findings, compared]


def _above(samples: np.ndarray, what: str, bound: float = 0.0) -> Finding:
    mean, error = mean_and_error(samples)
    return exceeds(what, float(mean), float(error), bound=float(bound))


def figure(dataset: xr.Dataset):
    """With all the columns there are: the peak by mean logarithms, and below it the means; with standard errors."""
    columns = int(dataset.dim.values.max())
    shown = dataset[["table_error"]].sel(dim=columns)
    logs = shown["table_error"].copy(data=log_losses(shown["table_error"].values))
    shown = shown.assign(log_table_error=logs.where(shown.predictor.isin(COMPILED)))
    rows = [Panel("log_table_error"), Panel("table_error", ylim=(0.5, 1.5))]
    return panels(shown, rows, x="length", hue="predictor", xscale="log", vertical=columns + 1)


ALL = (*COMPILED, *FITTED)

experiment = Experiment(
    claim=(
        "On the diabetes table least squares with an intercept has its double descent, in context, at one example more "
        "than there are columns. Ridge with the strength of its prior has less than a third of that typical error "
        "there and no peak, explains over a quarter of the variance from 40 examples, and on average over 5 to 40 "
        "examples beats nearest neighbours, a random forest and cross-validated ridge."
    ),
    sources=("Efron04",),
    static=("dim",),
    fixed={"explained": 0.5},
    sizes={
        "smoke": {
            "dim": (10,),
            "length": (5, 10, 11, 12, 40),
            # A fit costs scikit-learn milliseconds: 2500 of them would be most of the time.
            "predictor": ("context mean", "least squares", "ridge"),
            "seed": 500,
        },
        "small": {"dim": (5, 10), "length": (5, 6, 7, 8, 10, 11, 12, 20, 40), "predictor": ALL, "seed": 500},
        "medium": {
            "dim": (5, 7, 10),
            "length": (*range(5, 16), 20, 25, 30, 40),
            "predictor": ALL,
            "seed": 4000,
        },
    },
    precision="float64",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "shuffled_targets": World(
            "targets are permuted among the rows", measure=functools.partial(measure, shuffled=True)
        ),
        "hardly_ridge": World(
            "a prior in which all but a ten-millionth of the variance is explained",
            measure=functools.partial(measure, explained=1 - 1e-7),
        ),
        "no_intercept": World(
            "the peak is at as many examples as columns, as it would be without an intercept",
            theory=functools.partial(theory, intercept=0),
        ),
    },
)
