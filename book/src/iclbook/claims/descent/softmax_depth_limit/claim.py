r"""The limit of infinitely many attention layers with identity keys and queries and one rate.

A layer multiplies the residual labels by :math:`I - \eta W`, with the kernel
:math:`e_{ij} = \exp(x_i^\top x_j/T)` of the labels, :math:`D_j = \sum_{i \le n + 1} e_{ij}` and the weights

.. math:: W_{ij} = e_{ij}, \qquad W_{ij} = e_{ij}/D_j \;\text{(softmax over keys)}, \qquad
          W_{ij} = e_{ij}/D_i \;\text{(softmax over queries)}.

The limits are :math:`y\,e^{-1}k_q`, :math:`y\,D\,e^{-1}k_q/D_q`, :math:`y\,e^{-1}k_q`, with :math:`k_q` the column of
the query. The first and the last are the posterior mean. The usual softmax is off by a factor :math:`D_j/D_q` for each
label. At the points called ``even``, :math:`\pm e_i` turned at random, all D are equal.
"""

import xarray as xr

from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates

KEYS, QUERIES, EXPONENTIAL = "softmax over keys", "softmax over queries", "exponential"
REACHED = 0.01  # root mean square distance from the limit, over that of answering 0 from it
ENOUGH = 96  # seeds that tell the excess error from 0
ROUNDING = 1e-9  # relative distance of equal answers


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Squared distance of the exact limit of softmax over keys from the posterior mean, as a line at every depth."""
    offset = dataset["limit_bayes"].sel(predictor=KEYS, drop=True).mean("seed")
    return dataset.assign(limit_line=offset.expand_dims({"layers": dataset.layers.values}))


def check(dataset: xr.Dataset) -> list[Finding]:
    """All approach their limits with depth; softmax over keys has a different limit only at random points."""
    scale = dataset["limit_scale"].mean("seed")
    distance = (dataset["limit_distance"].mean("seed") / scale) ** 0.5
    steps = (distance.diff("layers") < 0) | (distance.isel(layers=slice(1, None)) < ROUNDING)
    final, last = Estimate(distance.isel(layers=-1), 0.0), dataset.isel(layers=-1)
    offset = (last["limit_bayes"].mean("seed") / scale) ** 0.5
    keys = last.sel(predictor=KEYS, setting="random")
    separation, least = estimates.mean(keys["bayes_distance"]), REACHED**2 * keys["limit_scale"].mean("seed")
    off = estimates.mean(keys["function_error"] - keys["function_bayes"] - keys["bayes_distance"])
    off_words = "excess error over the posterior mean's - squared distance from it"
    findings = [
        *checks.below("limit_reached", "relative distance from the limit", final, REACHED),
        *checks.equal("limit_falls", "distance from the limit falls with depth", steps.all("layers"), 1.0),
        *checks.above("keys_apart", "squared distance from the posterior mean", separation, least),
    ]
    many = dataset.sizes["seed"] >= ENOUGH
    if many:
        findings += checks.agrees("keys_excess", off_words, off, 0.0, largest_error=0.3 * separation.value)
    even_offset, words = (
        Estimate(offset.sel(predictor=KEYS, setting="even"), 0.0),
        "distance of the limit from the posterior mean",
    )
    findings += checks.below("limit_is_bayes", f"relative {words}", even_offset, ROUNDING)
    findings += checks.complete("depths", "at least three depths", dataset.sizes["layers"] >= 3)
    return [*findings, *checks.complete("seeds", f"excess errors, which take {ENOUGH} seeds", many)]


def figure(dataset: xr.Dataset):
    """Draw the squared distance from the posterior mean against depth, at both sets of points."""
    short = {KEYS: "softmax, keys", QUERIES: "softmax, queries", EXPONENTIAL: "exp"}
    part = dataset.isel(dim=-1).assign_coords(predictor=[short[str(name)] for name in dataset.predictor.values])
    lines = {"random": "limit_line", "even": None}
    at = {setting: {"setting": setting} for setting in lines if setting in part.setting}
    rows = [Panel("bayes_distance", lines[setting], "log", (1e-10, 30.0), at[setting]) for setting in at]
    return panels(part, rows, x="layers", hue="predictor", line_name="limit, keys", xscale="log")


def called_the_mean(dataset: xr.Dataset) -> xr.Dataset:
    """Treat all limits as the posterior mean."""
    return theory(dataset.assign(limit_distance=dataset["bayes_distance"]))


CHEAP = {"predictor": (KEYS,), "layers": (64,)}
CASES = {"setting": ("random", "even"), "predictor": (KEYS, QUERIES, EXPONENTIAL)}
claim = Claim(
    title="Limit of deep softmax attention",
    sentence=(
        "Deep softmax attention with one rate tends to the posterior mean for labels reweighted by normalisers; "
        "exponential attention, or softmax over queries, to the posterior mean itself."
    ),
    conditions=(
        "Identity keys and queries, the exponential kernel on the sphere, no label noise, 2d points; softmax over keys "
        "tends to the posterior mean too where all normalisers are equal."
    ),
    sources=("Cheng24",),
    quantities=(
        *("function_error", "function_bayes"),
        Quantity("limit_distance", r"E(\hat y - \hat y_\infty)^2", "squared distance from the limit of depth"),
        Quantity("limit_scale", r"E\hat y_\infty^2", "mean square of the limit of depth"),
        Quantity("limit_bayes", r"E(\hat y_\infty - \hat y^*)^2", "squared distance of the limit from Bayes"),
        Quantity("limit", r"E(\hat y_\infty - \hat y^*)^2", "squared distance of the limit from Bayes"),
        Quantity("bayes_distance", r"E(\hat y - \hat y^*)^2", "squared distance from the posterior mean"),
    ),
    static=("dim",),
    outputs=("layers",),
    fixed={"temperature": 0.5, "step_size": 0.3, "prompts": 64},
    sizes={
        "smoke": {"dim": (4,), **CASES, "layers": (1, 8, 64, 2048), "seed": 8},
        "small": {"dim": (5,), **CASES, "layers": (1, 4, 16, 64, 256, 1024), "seed": 192},
        "medium": {"dim": (5, 8), **CASES, "layers": (1, 4, 16, 64, 256, 1024, 4096), "seed": Seeds(384, block=96)},
    },
    precision="float64",
    controls={
        "hotter": Control("the attention has a higher temperature than the kernel", measure={"hotter": 1.3}),
        "other_labels": Control("functions of another temperature", measure={"labels": 0.125}, axes=CHEAP),
        "over_queries": Control(
            "softmax is over queries",
            measure={"keys": QUERIES},
            axes=CHEAP | {"layers": (1024,), "seed": tuple(range(24))},
        ),
        "uneven": Control("normalisers differ at all points", measure={"even": False}, axes=CHEAP),
        "the_mean": Control("all limits are called the posterior mean", theory=called_the_mean),
    },
)
