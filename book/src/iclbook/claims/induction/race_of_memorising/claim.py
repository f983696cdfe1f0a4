r"""In-context and in-weights learning as a race: the time that each takes alone determines the winner.

Memorising K classes alone leaves the drive :math:`I_K = \int s\,dt`, the mean of :math:`\sigma(-l\varphi)` over time,
until the loss is 0.1 nats. The context alone, on fresh classes, needs half of the time until its copy's logit is 1. The
threshold is predicted from these two: the number of classes at which they are equal. It is measured in runs of both
together: the number of classes from which more than half of the runs have a copy's logit above 1 at the end.
"""

import dataclasses

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.core.statistics import first_rise
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates, intervals
from icllab.theory import memorisation_race

MEMORISED, ACQUIRED = 0.1, 1.0
EXPONENT, SPREAD = 0.92, 0.05  # below 1, that of a table of the classes
NEAR, POWER = 0.25, 0.25
LEAST = 0.1  # power of the number of classes of which a threshold is predicted
RESAMPLED = 500


def theory(dataset: xr.Dataset, *, reverse: bool = False) -> xr.Dataset:
    """Add the time of the context from each start, and measured and predicted thresholds with bootstrap errors.

    ``reverse``: the lengths are taken in the other order.
    """
    needed = dataset["context_time"].transpose("pairs", "seed")
    match, value = (dataset[name].transpose("pairs", "seed").values for name in ("start_match", "start_value"))
    times = [
        memorisation_race.context_time(int(n), float(match[i, j]), float(value[i, j]), logit=ACQUIRED)
        for i, n in enumerate(needed.pairs.values)
        for j in range(needed.sizes["seed"])
    ]
    dataset = dataset.assign(context_time_theory=needed.copy(data=np.reshape(times, needed.shape)))
    if dataset.sizes["classes"] < 2 or dataset.sizes["classes_per_pair"] < 2:
        return dataset
    seeds, rng = dataset.sizes["seed"], np.random.default_rng(0)
    drives = np.log(dataset["memorising_drive"].transpose("classes", "pairs", "seed").values)
    acquired = (dataset["copy_logit"] > ACQUIRED).transpose("pairs", "classes_per_pair", "seed").values
    arrays = drives, np.log(needed.values / 2), acquired

    def thresholds(rows: np.ndarray) -> np.ndarray:
        """Logarithms of the measured and the predicted number of classes, and their difference, [kind, pairs]."""
        drive, need, wins = (array[..., rows].mean(axis=-1) for array in arrays)
        slope, constant = np.polyfit(np.log(dataset.classes.values), drive.mean(axis=1), 1)
        law = {"prefactor": np.exp(constant), "exponent": slope}
        predicted = np.full(len(need), np.nan)  # where nothing is memorised there is no threshold
        if slope > LEAST:
            predicted = np.log(memorisation_race.threshold_classes(np.exp(need), **law))
        predicted = predicted[::-1] if reverse else predicted
        measured = first_rise(np.log(dataset.classes_per_pair.values), wins - 0.5) + np.log(dataset.pairs.values)
        return np.stack([measured, predicted, measured - predicted])

    best = thresholds(np.arange(seeds))
    samples = np.array([thresholds(rng.integers(seeds, size=seeds)) for _ in range(RESAMPLED)])
    errors = (seeds / max(seeds - 1, 1)) ** 0.5 * samples.std(axis=0, ddof=1)
    for kind, name in enumerate(("log_threshold", "log_threshold_predicted", "log_excess")):
        dataset[name], dataset[f"{name}_error"] = ("pairs", best[kind]), ("pairs", errors[kind])
    return dataset


def check(dataset: xr.Dataset) -> list[Finding]:
    """The exponent of memorising, the proportion of the context's time, and the threshold that both predict."""
    findings = []
    if "log_threshold" in dataset:
        for name, phrase in (("time", "time"), ("drive", "drive")):
            means = estimates.geometric_mean(dataset[f"memorising_{name}"].stack(run=("pairs", "seed")), "run")
            exponent = _slope(means, "classes")
            quantity = f"power of the number of classes in the {phrase} of memorising"
            findings += checks.near(f"exponent_{name}", quantity, exponent, EXPONENT, margin=SPREAD)
    ratio = dataset["context_time"] / dataset["context_time_theory"]
    quantity = "time of the context / predicted from its start"
    findings += checks.near("context_time", quantity, estimates.geometric_mean(ratio), 1.0, margin=0.1)
    if "log_threshold" not in dataset:
        return findings
    acquired = (dataset["copy_logit"] > ACQUIRED).isel(classes_per_pair=[0, -1]).stack(run=("pairs", "seed"))
    few, many = (intervals.fraction(acquired.isel(classes_per_pair=i, drop=True), "run") for i in (0, 1))
    findings += checks.below("few", "fraction of runs that use the context, fewest classes", few, 0.25)
    findings += checks.above("many", "fraction of runs that use the context, most classes", many, 0.75)
    excess = Estimate(dataset["log_excess"], dataset["log_excess_error"], freedom=dataset.sizes["seed"] - 1)
    quantity = "ln of the threshold's number of classes - predicted"
    findings += checks.near("threshold", quantity, excess, 0.0, margin=NEAR)
    quantity = "power of the length in the threshold - predicted"
    return findings + checks.near("power", quantity, _slope(excess, "pairs"), 0.0, margin=POWER)


def _slope(values: Estimate, along: str) -> Estimate:
    """Slope of logarithms on an axis's logarithm, as a weighted sum."""
    x = np.log(values.value[along]) - np.log(values.value[along]).mean()
    return dataclasses.replace(values, logarithmic=False).combined(x / (x**2).sum(), along)


def figure(dataset: xr.Dataset):
    """Draw the drive of memorising against K, runs that use the context against K/N, and thresholds against N."""
    wins = dataset.assign(wins=(dataset["copy_logit"] > ACQUIRED).astype(float))
    rows = [Panel("memorising_drive", x="classes", hue="pairs", xscale="log", yscale="log")]
    rows += [Panel("wins", x="classes_per_pair", hue="pairs", xscale="log", ylim=(-0.03, 1.03))]
    if "log_threshold" in dataset:
        wins = wins.assign(log_threshold_line=dataset["log_threshold_predicted"])
        rows += [Panel("log_threshold", "log_threshold_line", x="pairs", xscale="log")]
    return panels(wins, rows, x="pairs", line_x="pairs", line_name="predicted", columns=3)


RATIOS = (5, 8.5, 10, 11.5, 13.5, 20)
SHORT = {"pairs": (8, 16), "seed": tuple(range(8))}
claim = Claim(
    title="A race of memorising and context",
    sentence=(
        "Memorising takes about K^0.9 for K classes between 64 and 512; with the context's time it predicts from how "
        "many classes in-context learning wins, within a quarter."
    ),
    conditions=(
        "An MLP of two hidden layers of 128 units beside attention of two numbers; unit items in 63 dimensions, "
        "labels ±1, 8 to 32 pairs; SGD at rate 0.5, 64 prompts a step. About: 0.92 to 0.05; the local power is 0.87 "
        "from 64 to 128 classes and 0.92 to 0.94 beyond. Bounds were set on another key."
    ),
    sources=("Nguyen25",),
    axes=(Axis("classes_per_pair", r"K/N", "classes over pairs of a prompt", above=0),),
    quantities=(
        Quantity("memorising_time", "t_K", "time until a loss of 0.1 nats, alone, or the end"),
        Quantity("memorising_drive", "I_K", "drive, the integrated residual of memorising alone"),
        Quantity("context_time", "t_N", "time until the copy's logit is 1, on fresh classes"),
        Quantity("start_value", "w_0", "value of the attention at the start"),
        Quantity("start_match", r"\beta_0", "match of the attention at the start"),
        Quantity("copy_logit", "wp", "copy's logit at the end of the race"),
        Quantity("race_loss", "L", "loss at the end of the race", "nats"),
        Quantity("wins", "f", "fraction of runs that use the context"),
        Quantity("log_threshold", r"\ln K^*", "logarithm of the threshold's number of classes"),
        Quantity("log_threshold_predicted", r"\ln K^*", "logarithm of the predicted number of classes"),
        Quantity("log_excess", r"\Delta\ln K^*", "logarithm of the threshold over the prediction"),
    ),
    static=("pairs",),
    fixed={"dim": 63, "hidden": 128, "batch": 64, "rate": 0.5, "std": 0.1, "longest": 280.0, "race": 12.0},
    sizes={
        "smoke": {"pairs": (8,), "classes": (64,), "classes_per_pair": (10,), "seed": 2, "longest": 50.0},
        "small": {"pairs": (8, 16, 32), "classes": (64, 128, 256, 512), "classes_per_pair": RATIOS, "seed": 24},
        "medium": {"pairs": (8, 16, 32, 64), "classes": (64, 128, 256, 512, 1024), "classes_per_pair": RATIOS}
        | {"seed": Seeds(32, block=16, first=32), "longest": 480.0},
    },
    key=412,  # the sentence spoke of a power at any number of classes
    controls={
        "reshuffled": Control(
            "all labels of a prompt are turned at random: nothing can be memorised",
            measure={"reshuffled": True},
            axes=SHORT,
        ),
        "frozen": Control(
            "attention stays as it starts: memorising alone",
            measure={"frozen": True},
            axes=SHORT,
        ),
        "table": Control(
            "a table of the classes memorises in place of the MLP",
            measure={"weights": "table"},
            axes=SHORT,
        ),
        "reverse": Control("thresholds are predicted for the lengths in the other order", theory={"reverse": True}),
    },
)
