r"""Error of networks and classical estimators against the number of examples, also beyond the trained length.

Tasks are :math:`w \sim N(0, C)`, :math:`C_{jj} \propto r^{-j}`. Least squares knows nothing of C, ridge of strength
:math:`\rho` its mean variance, the Bayes predictor all of it. A network that errs less than ridge after few examples
has learned C in training. Least squares has no mean error at d - 1 to d + 1 examples; it is compared before that.
"""

import numpy as np
import xarray as xr

from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Subject, checks
from icllab.lab.estimates import geometric_mean, mean
from icllab.lab.results import fixed_values

ESTIMATORS = ("least squares", "ridge", "Bayes")
TRANSFORMERS = {"no positions": "none", "learned positions": "learned", "rotary positions": "rotary"}
CLAIMED = (*ESTIMATORS, "no positions", "learned positions", "linear attention")
CLOSED = 0.9  # fraction of the way from no example to the Bayes predictor, at least, after the trained length
STARTED = 0.25  # the same for one layer of linear attention
OVER_RIDGE = 2.0  # error of linear attention over that of ridge, at least


def theory(dataset: xr.Dataset, *, exchanged: tuple[tuple[str, str], ...] = ()) -> xr.Dataset:
    """No prediction; ``exchanged``: pairs of predictors that swap places."""
    other = {**dict(exchanged), **{second: first for first, second in exchanged}}
    names = [other.get(name, name) for name in dataset.predictor.values.tolist()]
    return dataset.assign_coords(predictor=names).sel(predictor=dataset.predictor.values) if exchanged else dataset


def check(dataset: xr.Dataset) -> list[Finding]:
    """Every network lies between Bayes and ridge after few examples; its progress; the effect of more examples."""
    findings = []
    for dim in dataset.dim.values:
        length = round(fixed_values(dataset)["alpha"] * int(dim))
        loss = dataset["loss"].sel(dim=dim).isel(width=-1, step=-1, drop=True)
        findings += [*_learned(loss, length), *_beyond(loss, length)]
    complete = set(CLAIMED) <= set(dataset.predictor.values)
    return [*findings, *checks.complete("predictors", "every predictor of the claim", complete)]


def _learned(loss: xr.DataArray, length: int) -> list[Finding]:
    """Transformers beat estimators without the prior, but not Bayes; the error of linear attention."""
    early = np.arange(1, max(int(loss.dim) // 2, 1) + 1)
    trained = loss.position.values[(loss.position.values > 0) & (loss.position.values <= length)]
    transformers = loss.sel(predictor=[name for name in TRANSFORMERS if name in loss.predictor])
    estimators = loss.sel(predictor=[name for name in ("ridge", "least squares") if name in loss.predictor])
    ahead = mean((estimators.rename(predictor="other_predictor") - transformers).sel(position=early).mean("position"))
    behind = mean((transformers - loss.sel(predictor="Bayes", drop=True)).sel(position=trained).mean("position"))
    findings = checks.above("few_examples", f"error of an estimator - a network's, 1 to {early[-1]} examples", ahead)
    findings += checks.above(
        "above_bayes", f"error of a network - Bayes, {trained[0]} to {trained[-1]} examples", behind
    )
    if length in loss.position:
        first, last = loss.sel(position=0, predictor="Bayes", drop=True), loss.sel(position=length)
        fraction, quantity = (
            (first - last) / (first - last.sel(predictor="Bayes", drop=True)),
            "fraction of the way to Bayes",
        )
        findings += checks.above("progress", quantity, mean(fraction.sel(predictor=transformers.predictor)), CLOSED)
        if "linear attention" in loss.predictor:
            linear, ridge = (last.sel(predictor=name, drop=True) for name in ("linear attention", "ridge"))
            progress, excess = mean(fraction.sel(predictor="linear attention", drop=True)), mean(linear / ridge)
            findings += checks.above("linear_progress", f"linear attention's {quantity}", progress, STARTED)
            findings += checks.above("linear_excess", "error of linear attention / ridge's", excess, OVER_RIDGE)
    return findings


def _beyond(loss: xr.DataArray, length: int) -> list[Finding]:
    """Beyond the trained length the error keeps falling without positions; with learned ones it lags."""
    findings, after = [], loss.position.values[(length in loss.position) & (loss.position.values > length)]
    if after.size and "no positions" in loss.predictor:
        network, quantity = loss.sel(predictor="no positions"), f"error at {length} examples"
        fall = mean(network.sel(position=length, drop=True) - network.sel(position=after).mean("position"))
        findings += checks.above("falls_beyond", f"{quantity} - mean of {after[0]:g} to {after[-1]:g}", fall)
    if after.size and {"learned positions", "no positions"} <= set(loss.predictor.values):
        excess = loss.sel(predictor="learned positions") / loss.sel(predictor="no positions", drop=True)
        beyond = np.exp(xr.apply_ufunc(np.log, excess).sel(position=after).mean("position"))
        growth = geometric_mean(beyond / excess.sel(position=length, drop=True))
        quantity = f"geometric mean of {after[0]:g} to {after[-1]:g} examples over that at {length}"
        findings += checks.above("departs_beyond", f"error / that without positions, {quantity}", growth, 1.0)
    return findings


def figure(dataset: xr.Dataset):
    """Draw every predictor's error against the number of examples at the largest d; dashed: the trained length."""
    part, parameters = dataset.isel(dim=-1, width=-1, step=-1), fixed_values(dataset)
    rows = [Panel("loss", yscale="log", ylim=(0.9 * parameters["rho"], 8.0))]
    return panels(part, rows, x="position", hue="predictor", vertical=round(parameters["alpha"] * int(part.dim)))


COMMON = {"dim": (4,), "width": (32,)}
claim = Claim(
    title="A transformer uses the tasks' prior",
    sentence=(
        "The network uses the anisotropic task prior, beating ridge after few examples; past the trained length its "
        "error keeps falling, and that of one with learned positions falls behind."
    ),
    conditions=(
        "Transformers of two layers, without positions and with learned ones, d = 4, tasks whose variances fall by a "
        "factor 4 from one direction to the next; Adam on prompts of 12 examples. By then nine tenths of the way to "
        "Bayes; linear attention a quarter, at twice ridge's error."
    ),
    sources=("Garg22", "Raventos23", "Lu24"),
    quantities=("loss",),
    static=("dim", "width", "step"),
    outputs=("position",),
    fixed={"alpha": 3.0, "ratio": 4.0, "rho": 0.25, "batch": 64, "rate": 3e-3, "prompts": 2048},
    sizes={
        # Few examples are learned first. Every network costs seconds, and longer contexts take longer training.
        "smoke": {"dim": (3,), "width": (16,), "step": (800,), "alpha": 2 / 3, "batch": 32, "rate": 0.01}
        | {"predictor": ("ridge", "Bayes", "no positions"), "position": (0, 1), "seed": 5},
        "small": COMMON
        | {"step": (1500,), "predictor": CLAIMED, "position": (*range(7), *range(8, 25, 2)), "seed": 10},
        "medium": COMMON
        | {"step": (20000,), "predictor": (*ESTIMATORS, *TRANSFORMERS, "linear attention")}
        | {"position": tuple(range(25)), "seed": Seeds(8, block=1)},
    },
    key=1,
    subject=Subject(
        "regression",
        "transformers of two layers without positions",
        axes={"predictor": CLAIMED},
        controls=("other_positions", "other_estimators"),
    ),
    controls={
        "isotropic": Control("training tasks are isotropic: no prior can be learned", {"prior": "isotropic"}),
        "labels_of_noise": Control("training labels are noise, without a task", {"prior": "noise"}),
        "untrained": Control("the networks make a single step", {"updates": 1}),
        "other_positions": Control(
            "the network without positions is the one that learns them",
            theory={"exchanged": (("no positions", "learned positions"),)},
        ),
        "other_estimators": Control(
            "Bayes is the network without positions, and ridge is linear attention",
            theory={"exchanged": (("no positions", "Bayes"), ("ridge", "linear attention"))},
        ),
    },
)
