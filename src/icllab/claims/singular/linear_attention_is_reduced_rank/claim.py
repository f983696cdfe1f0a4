r"""Linear attention with keys of width k is, as a learning machine, reduced-rank regression with k hidden units.

One head with :math:`W_QW_K^\top = BA` answers :math:`x^\top BAh` with :math:`h = \frac1\ell\sum_ix_iy_i`, so that for
inputs with :math:`E[xx^\top] = I` and a query independent of its context

.. math:: L(A, B) - L^* = \frac12\bigl\lVert(BA - M^*)\,E[hh^\top]^{1/2}\bigr\rVert^2,
          \qquad M^* = E[wh^\top]\,E[hh^\top]^{-1} .

The simulation is the attention of :mod:`icllab.models`, head and tokens, over *all* prompts of a finite distribution:
its loss is the population's, without sampling. Inputs are :math:`\sqrt d\,e_i`, uniformly, and tasks span r directions
that are not those of the inputs. Its coefficient is sampled at the solution that divides the singular values evenly.

Derived: docs/singular-learning.md, Linear attention is reduced-rank regression.
"""

import functools
import itertools
from collections.abc import Iterator

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from icllab.core.axes import Quantity
from icllab.experiments import checks, estimates
from icllab.experiments.checks import Finding
from icllab.experiments.estimates import Estimate
from icllab.experiments.experiment import Control, Experiment
from icllab.experiments.results import fixed_values
from icllab.figures import style
from icllab.figures.labels import named
from icllab.theory import learning_coefficients as exact

MODEL = ("dim", "key_width", "task_rank")
REMAINDER = 0.03  # of the coefficient: what the expansion in 1 / log nbeta leaves out, at most
ROUNDING = 1e-10
LARGEST = 0.02  # standard error, as a share of the coefficient


def theory(dataset: xr.Dataset, coefficient=exact.linear_attention) -> xr.Dataset:
    """lambda - (m - 1) / log nbeta of every cell with r <= k."""
    n = fixed_values(dataset)["samples"]
    values = np.full([dataset.sizes[name] for name in MODEL], np.nan)
    sizes = itertools.product(*(dataset[name].values.tolist() for name in MODEL))
    for at, (dim, width, rank) in zip(np.ndindex(values.shape), sizes, strict=True):
        if rank <= min(width, dim):
            values[at] = coefficient(dim, width, rank).at(n / np.log(n))
    return dataset.assign(learning_coefficient_theory=(MODEL, values))


def models(dataset: xr.Dataset) -> Iterator[xr.Dataset]:
    """Of every model with r <= k, what is known at the largest number of draws."""
    dataset = dataset.isel(draws=-1, drop=True)
    for sizes in itertools.product(*(dataset[name].values for name in MODEL)):
        one = dataset.sel(dict(zip(MODEL, sizes, strict=True)))
        if np.isfinite(one["learning_coefficient_theory"]):
            yield one


def check(dataset: xr.Dataset) -> list[Finding]:
    """The two losses are one; the sampled coefficients are the closed form's, and not half the parameters."""
    findings, every = [], list(models(dataset))
    for one in every:
        mismatch = Estimate(one["loss_mismatch"].fillna(np.inf), 0.0)
        findings += checks.below("loss", "relative distance of the two losses", mismatch, ROUNDING)
        sampled, known = estimates.stored(one, "learning_coefficient"), one["learning_coefficient_theory"]
        left_out = REMAINDER * known / checks.SIGMAS
        widened, most = Estimate(sampled.value, sampled.error + left_out), LARGEST * known + left_out
        what = "sampled coefficient (3 % left to the expansion)"
        findings += checks.covers("coefficient", what, widened, known, largest_error=most)
        share = sampled / float(one.dim * one.key_width)
        findings += checks.below("half", "sampled coefficient / half the parameters", share, 1)
        at = {name: int(one[name]) for name in MODEL}
        findings += checks.complete("quiet", "the estimate warns of nothing", bool(one["sampler_warnings"] == 0), at=at)
    return [*findings, *checks.complete("models", "at least 4 models", len(every) >= 4)]


def figure(dataset: xr.Dataset):
    """Sampled coefficients of all models, the closed form, and half the number of parameters."""
    every = list(models(dataset))
    predicted, sampled, error = (
        np.array([float(one[f"learning_coefficient{suffix}"]) for one in every]) for suffix in ("_theory", "", "_error")
    )
    half, at = [float(one.dim * one.key_width) for one in every], np.arange(len(every))
    with style.context():
        drawn = Figure(figsize=(1.3 * style.COLUMN, 2.6), layout="constrained")
        FigureCanvasAgg(drawn)
        axes = drawn.subplots()
        dash = {"linestyle": "none", "marker": "_", "markersize": 12}
        axes.plot(at, half, color=style.FAINT, label="half the parameters", **dash)
        axes.plot(at, predicted, color=style.CATEGORIES[1], label="closed form", **dash)
        look = {"marker": "o", "markersize": 4, "color": style.CATEGORIES[0], "label": "sampled, 3 standard errors"}
        axes.errorbar(at, sampled, 3 * error, linestyle="none", **look)
        axes.set_xticks(at, [", ".join(str(int(one[name])) for name in MODEL) for one in every])
        axes.set(xlabel="dimension $d$, width of keys $k$, rank of tasks $r$", ylim=(0, None))
        axes.set(ylabel=named(dataset, "learning_coefficient").label)
        axes.legend(loc="upper left")
    return drawn


def _regular(dim, width, rank):
    """As if no parameters computed the same."""
    del rank
    return exact.regular(dim * width)


def _without_a_rank(dim, width, rank):
    """As if the best map were zero, and not of the rank of the tasks."""
    del rank
    return exact.reduced_rank_regression(dim, width, dim, 0)


experiment = Experiment(
    claim=(
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
    theory=theory,
    check=check,
    figure=figure,
    controls={
        "softmax": Control("the head has softmax attention", measure={"weighting": "softmax"}),
        "regular": Control("every parameter counts a half", theory=functools.partial(theory, coefficient=_regular)),
        "no_rank": Control("the truth has rank 0", theory=functools.partial(theory, coefficient=_without_a_rank)),
    },
)
