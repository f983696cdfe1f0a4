r"""Networks trained on a pool of K chains: memorising or counting, with unigrams or bigrams.

Predictions are fitted by the mixture of the four strategies that is nearest in divergence,
:math:`\min_w\mathrm{KL}(q\|\sum_kw_kp_k)` with weights that are positive and sum to one. What is memorised is the
weight of the two posteriors over the pool. The boundary is the K at which it is one half, between two pool sizes in
:math:`\ln K`; a boundary beyond the smallest or the largest pool counts as that. What a mixture leaves is its
divergence over that of the nearest single strategy, on sequences that the weights were not fitted on.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

NAMES = ("Uni-M", "Uni-G", "Bi-M", "Bi-G")
SOURCES = ("pool", "fresh")
BOUNDARY, FACTOR = 15.0, 2.0  # chains, and how far off it may be
UNEXPLAINED = 0.5
OUTSIDE = 0.02  # nats


def memorised(dataset: xr.Dataset) -> xr.DataArray:
    """The weight of memorising strategies, by pool size, step and seed, on the pool's sequences."""
    weights = dataset["mixture_weight"].sel(distribution="pool", drop=True)
    return weights.sel(predictor=["Uni-M", "Bi-M"]).sum("predictor")


def boundary(dataset: xr.Dataset) -> xr.DataArray:
    """The pool size at which memorising and counting have equal weight, by step and seed."""
    weight = memorised(dataset).sortby("tasks").transpose("step", "seed", "tasks")
    sizes = np.log(weight.tasks.values.astype(float))

    def crossing(row: np.ndarray) -> float:
        below = np.flatnonzero(row < 0.5)
        if not len(below) or below[0] == 0:
            return sizes[-1 if not len(below) else 0]
        i = below[0]
        return sizes[i - 1] + (row[i - 1] - 0.5) / (row[i - 1] - row[i]) * (sizes[i] - sizes[i - 1])

    values = np.exp(np.apply_along_axis(crossing, -1, weight.values))
    return weight.isel(tasks=0, drop=True).copy(data=values)


def check(dataset: xr.Dataset) -> list[Finding]:
    """The heaviest strategies by pool size and step, the location of the boundary, and the residual of mixtures."""
    weight, sizes, steps = memorised(dataset), dataset.tasks.values, dataset.step.values
    end = {"step": steps.max()}
    phrase = "weight of what is memorised after training"
    small = estimates.mean(weight.sel(tasks=sizes.min(), **end, drop=True))
    large = estimates.mean(weight.sel(tasks=sizes.max(), **end, drop=True))
    findings = checks.above("memorised", f"{phrase}, smallest pool", small, 0.5)
    findings += checks.below("counted", f"{phrase}, largest pool", large, 0.5)
    weights = dataset["mixture_weight"].sel(distribution="pool", drop=True)
    pairs = weights.sel(predictor=["Bi-M", "Bi-G"]).sum("predictor")
    first = estimates.mean(pairs.sel(tasks=sizes.max(), step=steps.min(), drop=True))
    findings += checks.below("unigrams", "weight of bigrams at the first step, largest pool", first, 0.5)
    findings += checks.above(
        "bigrams", "weight of bigrams after training", estimates.mean(pairs.sel(end, drop=True)), 0.5
    )
    edge = estimates.geometric_mean(boundary(dataset).sel(end, drop=True))
    phrase = "pool size at which memorised and counted weigh equally"
    findings += checks.near("boundary", phrase, edge, BOUNDARY, margin=np.log(FACTOR))
    mixture, nearest = dataset["mixture_divergence"], dataset["predictor_divergence"].min("predictor")
    part = (mixture / nearest).sel(distribution="pool", **end, drop=True)
    phrase = "divergence from the mixture / from the nearest strategy"
    findings += checks.above("unexplained", phrase, estimates.mean(part), UNEXPLAINED)
    last = mixture.sel(tasks=sizes.min(), **end, drop=True)
    excess = last.sel(distribution="fresh", drop=True) - last.sel(distribution="pool", drop=True)
    phrase = "divergence from the mixture on fresh chains - on the pool's, smallest pool, in nats"
    return findings + checks.above("outside", phrase, estimates.mean(excess), OUTSIDE)


def figure(dataset: xr.Dataset):
    """Draw the weights of the four strategies after training, and of memorising along it, against the pool size."""
    part = dataset.sel(distribution="pool", drop=True)
    last = part["mixture_weight"].isel(step=-1, drop=True)
    drawn = xr.Dataset({"mixture_weight": last, "memorised_weight": memorised(dataset)}, attrs=dataset.attrs)
    rows = [Panel("mixture_weight", hue="predictor"), Panel("memorised_weight", hue="step")]
    return panels(drawn, rows, x="tasks", xscale="log")


STEPS = (25, 50, 100, 200, 400, 800)
COMMON = {"predictor": NAMES, "distribution": SOURCES, "step": STEPS}
FEW = {"tasks": (4, 128), "step": (25, 100, 800)}
claim = Claim(
    title="Four strategies on pools of chains",
    sentence=(
        "Transformers trained on many Markov chains count tokens, then pairs; trained on few they memorise them; "
        "mixtures of the four strategies leave most of the divergence unexplained."
    ),
    conditions=(
        "Three states, rows of Dirichlet(½), 64 tokens, pools of 4, 16 and 128 chains, two layers, width 16, Adam at "
        "rate 0.003 for 800 steps. Few: below 15, to a factor of 2. Most: of the divergence from the nearest strategy. "
        "Bounds were set on another key."
    ),
    sources=("Park24",),
    axes=(Axis("distribution", "D", "chains of the test: the pool's or fresh ones"),),
    quantities=(
        Quantity("mixture_weight", "w", "weight of a strategy in the nearest mixture"),
        Quantity("memorised_weight", "w_M", "weight of memorising strategies"),
        Quantity("predictor_divergence", r"\mathrm{KL}(q\|p)", "divergence of a strategy p from the network q", "nats"),
        Quantity("mixture_divergence", r"\mathrm{KL}(q\|m)", "divergence of the mixture m from the network q", "nats"),
    ),
    static=("tasks",),
    outputs=("predictor", "distribution", "step"),
    fixed={"states": 3, "concentration": 0.5, "tokens": 64, "width": 16, "std": 0.03, "rate": 0.003}
    | {"batch": 32, "prompts": 256},
    sizes={
        "smoke": COMMON | {"tasks": (4,), "step": (10, 20), "seed": 2, "prompts": 32},
        "small": COMMON | {"tasks": (4, 16, 128), "seed": Seeds(8, block=4)},
        "medium": COMMON
        | {"tasks": (4, 8, 16, 32, 64, 128, 512), "step": (*STEPS, 1600, 3200), "seed": Seeds(16, block=8, first=8)},
    },
    key=8,
    controls={
        "untrained": Control("networks stay at their start", measure={"trained": False}, axes=FEW),
        "other": Control(
            "memorised strategies are those of another pool",
            measure={"other": True},
            axes={"tasks": (4,), "step": (100, 800)},
        ),
        "memorising": Control(
            "a mixture that memorises pools of every size", measure={"planted": (0.0, 0.0, 0.9, 0.1)}, axes=FEW
        ),
        "unigrams": Control("a mixture of unigrams at all times", measure={"planted": (0.1, 0.9, 0.0, 0.0)}, axes=FEW),
    },
)
