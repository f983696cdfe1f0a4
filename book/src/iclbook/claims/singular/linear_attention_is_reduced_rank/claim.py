r"""Linear attention with keys of width k has the loss of reduced-rank regression with k hidden units.

One head with :math:`W_QW_K^\top = BA` answers :math:`x^\top BAh` with :math:`h = \frac1\ell\sum_ix_iy_i`, so that for
inputs with :math:`E[xx^\top] = I` and a query independent of its context

.. math:: L(A, B) - L^* = \tfrac12\lVert(BA - M^*)\,E[hh^\top]^{1/2}\rVert^2, \qquad M^* = E[wh^\top]\,E[hh^\top]^{-1} .

The loss is a mean over all prompts. Derived: docs/singular-learning.md, Linear attention is reduced-rank regression.
"""

import itertools

import numpy as np
import xarray as xr

from icllab.core.axes import Quantity
from icllab.core.grid import tabulated
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import learning_coefficients as exact

MODEL = ("dim", "key_width", "task_rank")
REMAINDER = 0.03  # largest relative remainder of the expansion in 1 / log nbeta
ROUNDING = 1e-10
LARGEST = 0.02  # relative standard error


def theory(dataset: xr.Dataset, coefficient=exact.linear_attention) -> xr.Dataset:
    """lambda - (m - 1) / log nbeta of every cell with r <= k."""
    n = fixed_values(dataset)["samples"]

    def known(dim: int, key_width: int, task_rank: int) -> dict[str, float]:
        value = coefficient(dim, key_width, task_rank).at(n / np.log(n)) if task_rank <= min(key_width, dim) else np.nan
        return {"learning_coefficient_theory": float(value)}

    return dataset.assign(tabulated(known, **{name: dataset[name].values.tolist() for name in MODEL}))


def models(dataset: xr.Dataset) -> list[xr.Dataset]:
    """Results of every model with r <= k at the largest number of draws."""
    sizes = itertools.product(*(dataset[name].values for name in MODEL))
    every = [dataset.isel(draws=-1, drop=True).sel(dict(zip(MODEL, size, strict=True))) for size in sizes]
    return [model for model in every if np.isfinite(model["learning_coefficient_theory"])]


def check(dataset: xr.Dataset) -> list[Finding]:
    """The two losses agree; the sampled coefficients match the closed form, below half the number of parameters."""
    findings, every = [], models(dataset)
    for model in every:
        sampled, target = estimates.stored(model, "learning_coefficient"), model["learning_coefficient_theory"]
        mismatch, left_out = Estimate(model["loss_mismatch"].fillna(np.inf), 0.0), REMAINDER * target / checks.SIGMAS
        estimate, bound = Estimate(sampled.value, sampled.error + left_out), LARGEST * target + left_out
        share, at = sampled / float(model.dim * model.key_width), {name: int(model[name]) for name in MODEL}
        quantity = "sampled coefficient (3 % left to the expansion)"
        findings += [
            *checks.below("loss", "relative distance of the two losses", mismatch, ROUNDING),
            *checks.agrees("coefficient", quantity, estimate, target, largest_error=bound),
            *checks.below("half", "sampled coefficient / half the parameters", share, 1),
            *checks.complete("quiet", "no warning of the estimate", bool(model["sampler_warnings"] == 0), at=at),
        ]
    return [*findings, *checks.complete("models", "at least 4 models", len(every) >= 4)]


def figure(dataset: xr.Dataset):
    """Draw sampled coefficients of all models, the closed form, and half the number of parameters."""
    every = models(dataset)
    names = [f"$d={model.dim:g}, k={model.key_width:g}, r={model.task_rank:g}$" for model in every]
    table = xr.concat([model.drop_vars(MODEL) for model in every], xr.Variable("model", names))
    half = xr.DataArray([float(model.dim * model.key_width) for model in every], dims="model")
    lines = {"closed form": table["learning_coefficient_theory"], "half the parameters": half}
    table["learning_coefficient_line"] = xr.concat(list(lines.values()), xr.Variable("series", list(lines)))
    return panels(table, [Panel("learning_coefficient", "learning_coefficient_line")], x="model", hue="series")


claim = Claim(
    title="Keys of width k: rank k",
    sentence=(
        "The population loss of linear attention with keys of width k is that of reduced-rank regression; its learning "
        "coefficient is the closed form's, below half the number of parameters."
    ),
    conditions=(
        "One head, all prompts of a finite distribution: inputs along the axes, two examples, tasks of rank r <= k; "
        "regression with k hidden units and a truth of rank r. A million samples; the expansion in 1/log n beta is "
        "allowed 3 %."
    ),
    sources=("Aoyagi05", "Hoogland24"),
    quantities=(
        "learning_coefficient",
        "sampler_warnings",
        Quantity("loss_mismatch", r"\delta L", "relative distance of the two losses"),
        Quantity("sampler_rhat", r"\hat R", "R-hat of the loss"),
    ),
    static=("draws", "dim", "key_width", "task_rank"),
    fixed={"length": 2, "samples": 1e6, "chains": 16, "warm_up": 1000, "seed_of_law": 0},
    sizes={
        "smoke": {"draws": (500,), "dim": (3,), "key_width": (2,), "task_rank": (1,)},
        "small": {"draws": (2000,), "dim": (3, 4), "key_width": (2, 3), "task_rank": (1, 2)},
        "medium": {"draws": (8000,), "dim": (3, 4, 5), "key_width": (2, 3, 5), "task_rank": (1, 2)},
    },
    precision="float64",
    controls={
        "softmax": Control("the head has softmax attention", measure={"weighting": "softmax"}),
        "wide": Control(
            "keys are three times as wide as they are said to be",
            measure={"wider": 2},
            axes={"dim": (3,), "key_width": (1,), "task_rank": (1,)},
        ),
        "regular": Control(
            "every parameter counts a half", theory={"coefficient": lambda d, k, _: exact.regular(d * k)}
        ),
        "no_rank": Control(
            "the truth has rank 0", theory={"coefficient": lambda d, k, _: exact.reduced_rank_regression(d, k, d, 0)}
        ),
    },
)
