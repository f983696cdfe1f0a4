r"""Which kernel of attention is best for labels of which Gaussian process, at which depth.

Inputs are uniform on the unit sphere, labels are values of a Gaussian process with the linear, the rectified (its
matrix made positive) or the exponential kernel at T = 1, without noise. The answer is that of L layers

.. math:: u_j \leftarrow u_j - \eta_l \sum_{i \le n} u_i\, h(x_i, x_j), \qquad \hat y = -u_q,

with h linear, rectified, exponential or a softmax over the keys. Two ways of training it on a fixed set of prompts,
both to a minimum: ``steps``, where only :math:`\eta_l` are trained and h is the kernel itself at T = 1; and
``temperature``, where one T of all layers is trained too. For the linear and the rectified weighting these are the
same, since T is a factor of :math:`\eta_l`. In a third, ``everything``, all entries of V, B and C of one network are
trained by Adam from a random start: it is measured at one depth, with softmax, on exponential labels. Not every start
arrives where the construction is.

If :math:`h = K` and L is infinite, the answer is the posterior mean. The claim is about few layers. Predictors are
compared on the same test prompts.
"""

import xarray as xr

from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.experiments import checks, estimates
from icllab.experiments.checks import Finding
from icllab.experiments.experiment import Control, Experiment
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels

WEIGHTINGS = ("linear", "relu", "exponential", "softmax")
STEPS, HEATED, EVERYTHING = "steps", "temperature", "everything"
COOL = ("linear", "relu")  # for which a temperature changes nothing but the unit of the steps
BEST = {  # labels, way of training -> depth -> weighting
    ("linear", STEPS): {1: "linear", 3: "linear", 8: "linear"},
    ("linear", HEATED): {1: "linear", 3: "linear", 8: "linear"},
    ("relu", STEPS): {1: "relu", 3: "relu", 8: "relu"},
    ("relu", HEATED): {1: "softmax", 3: "relu", 8: "relu"},
    ("exponential", STEPS): {1: "relu", 8: "softmax"},
    ("exponential", HEATED): {1: "softmax", 3: "softmax"},
}
BEATEN = {STEPS: (1, 3, 8), HEATED: (1, 3)}  # depths at which another weighting is better on exponential labels


def check(dataset: xr.Dataset) -> list[Finding]:
    """Which is best, by how much more the next best errs; how far from Bayes the kernel's own weighting is."""
    error, findings = dataset["function_error"], []
    for (labels, way), by_depth in BEST.items():
        for depth, best in by_depth.items():
            if labels in dataset.labels and way in dataset.training and depth in dataset.layers:
                part = error.sel(labels=labels, training=way, layers=depth)
                ratio = part.drop_sel(predictor=best).min("predictor") / part.sel(predictor=best, drop=True)
                findings += _above_one("best", f"error of the next best / that of {best}", ratio)
    if "exponential" in dataset.labels:
        findings += _own_labels(dataset, error.sel(labels="exponential"))
    both = {STEPS, HEATED} <= set(dataset.training.values)
    return [*findings, *checks.complete("trained", "both ways of training", both)]


def _own_labels(dataset: xr.Dataset, error: xr.DataArray) -> list[Finding]:
    """On exponential labels: the exponential is beaten, is above Bayes, and comes nearer to it with depth."""
    findings = []
    for way in (way for way in BEATEN if way in dataset.training):
        for depth in (depth for depth in BEATEN[way] if depth in dataset.layers):
            part = error.sel(training=way, layers=depth)
            others = part.drop_sel(predictor="exponential").min("predictor")
            ratio = part.sel(predictor="exponential", drop=True) / others
            findings += _above_one("beaten", "error of exponential / the best other", ratio)
    bayes = dataset["function_bayes"].sel(labels="exponential", drop=True)
    above = error.sel(predictor="exponential", training=STEPS, drop=True) / bayes
    findings += _above_one("above_bayes", "error of exponential / Bayes", above)
    if dataset.sizes["layers"] > 1:
        fall = above.isel(layers=0, drop=True) / above.isel(layers=-1, drop=True)
        findings += _above_one(
            "falls", "error of exponential / Bayes at the least depth, over that at the largest", fall
        )
    depth = fixed_values(dataset)["free_layers"]
    if EVERYTHING in dataset.training and depth in dataset.layers:
        free = error.sel(predictor="softmax", training=EVERYTHING, layers=depth) / bayes.sel(layers=depth)
        findings += _above_one("free", "error of softmax with every weight trained / Bayes", free)
    return findings


def _above_one(id: str, what: str, ratio: xr.DataArray) -> list[Finding]:
    return checks.above(id, what, estimates.geometric_mean(ratio), 1.0)


def figure(dataset: xr.Dataset):
    """The error above that of Bayes against depth, one panel for each kernel of the labels."""
    excess = dataset["function_error"] - dataset["function_bayes"]
    curves = {name: excess.sel(predictor=name, training=STEPS) for name in COOL if name in dataset.predictor}
    for name, short in (("exponential", "exp"), ("softmax", "softmax")):
        for way, said in ((STEPS, ""), (HEATED, ", trained $T$")):
            if name in dataset.predictor and way in dataset.training:
                curves[short + said] = excess.sel(predictor=name, training=way)
    parts = [own.drop_vars(["predictor", "training"]) for own in curves.values()]
    joined = xr.concat(parts, dim="predictor").assign_coords(predictor=list(curves))
    shown = xr.Dataset({"function_excess": joined, "function_excess_line": joined.mean("seed")}, attrs=dataset.attrs)
    rows = [
        Panel("function_excess", "function_excess_line", "log", at={"labels": labels})
        for labels in ("linear", "relu", "exponential")
        if labels in dataset.labels
    ]
    return panels(shown, rows, x="layers", hue="predictor", line_x="layers", line_name="means", xscale="log")


ALL = {"labels": ("linear", "relu", "exponential"), "training": (STEPS, HEATED, EVERYTHING), "predictor": WEIGHTINGS}
experiment = Experiment(
    claim=(
        "Attention with trained step sizes errs least with the labels' own kernel if that is linear or ReLU (from "
        "three layers on), but not if it is exponential."
    ),
    conditions=(
        "Identity keys and queries, d = 5, 20 examples, up to 8 layers. ReLU labels at one layer: softmax of a trained "
        "temperature is better. Exponential labels: ReLU at one layer and softmax at eight (T = 1), softmax at one and "
        "three (T trained). Which is best was read off first runs with three seeds."
    ),
    sources=("Cheng24",),
    quantities=(
        "function_error",
        "function_bayes",
        "temperature",
        "identity_distance",
        Quantity("function_excess", "e - e^*", "error above Bayes"),
    ),
    static=("layers",),
    fixed={
        "dim": 5,
        "length": 20,
        "fitting": 768,
        "prompts": 4096,
        "free_layers": 3,
        "free_prompts": 16384,
        "std": 0.3,
        "steps": 2500,
        "rate": 0.03,
    },
    sizes={
        "smoke": {
            "layers": (1,),
            "labels": ("exponential",),
            "training": (STEPS,),
            "predictor": WEIGHTINGS,
            "seed": 3,
        },
        "small": {"layers": (1, 3, 8), **ALL, "seed": 3},
        "medium": {"layers": (1, 2, 3, 5, 8, 12), **ALL, "seed": Seeds(8, block=2)},
    },
    check=check,
    figure=figure,
    controls={"one_law": Control("all labels are linear, whatever they are called", measure={"one_law": True})},
)
