r"""A transformer that learns chains in context is uniform at first, then counts tokens, then pairs of tokens.

A phase is the steps at which one of three predictors is the nearest to the network, by the mean divergence
:math:`\mathrm{KL}(\text{predictor}\,\|\,\text{network})` of its predictions. Losses are compared with the exact ones of
the predictors, in units of the fall from uniform to bigrams. The slow part is the middle half of the phase of unigrams
on a logarithmic axis of steps: the loss falls there at 0.6 of its mean slope, so that it is not a plateau.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Subject, checks, estimates, intervals
from icllab.lab.results import fixed_values
from icllab.theory import markov_pools

NAMES = ("uniform", "unigram", "bigram")
MARGIN = 0.15  # of the fall from uniform to bigrams
SLOWER = 1.0  # the mean slope of the loss
LONG = 3.0


def theory(dataset: xr.Dataset, *, endless: bool = False, exchanged: bool = False) -> xr.Dataset:
    """Add the expected losses. ``endless``: for long sequences; ``exchanged``: of unigrams for bigrams."""
    fixed = fixed_values(dataset)
    law = {"states": fixed["states"], "concentration": fixed["concentration"], "tokens": fixed["tokens"]}
    levels = markov_pools.fresh_levels(
        **law, unigram_concentration=fixed["states"] * fixed["concentration"], draws=3000
    )
    values = [levels.uniform, levels.unigram, levels.bigram]
    if endless:
        rows = np.random.default_rng(0).dirichlet(
            np.full(fixed["states"], fixed["concentration"]), (3000, fixed["states"])
        )
        values[1:] = [float(np.mean(f(rows))) for f in (markov_pools.stationary_entropy, markov_pools.entropy_rate)]
    if exchanged:
        values[1:] = values[:0:-1]
    of_predictors = xr.DataArray(values, coords={"predictor": list(NAMES)})
    return dataset.assign(predictor_loss_theory=of_predictors.reindex(predictor=dataset.predictor))


def phases(dataset: xr.Dataset) -> xr.Dataset:
    """True for runs with the phases in order, and the length and loss of the unigram phase.

    ``length`` is the first step nearest to bigrams over that nearest to unigrams, 1 without a phase of unigrams; the
    last step stands for one that does not come. ``excess`` and ``slope`` are those of the slow part; ``end`` is the
    excess over bigrams after training.
    """
    loss = dataset["loss_curve"].transpose("seed", "step")
    uniform, unigram, bigram = dataset["predictor_loss_theory"].sel(predictor=list(NAMES)).values
    distance = dataset["predictor_divergence"].sel(predictor=list(NAMES)).transpose("seed", "step", "predictor")
    time, rows = np.log(np.maximum(dataset.step.values.astype(float), 0.5)), []
    for curve, near in zip(loss.values, distance.values.argmin(-1), strict=True):
        starts = [time[near == i].min(initial=time[-1]) for i in range(3)]
        ordered = near[0] == 0 and near[-1] == 2 and starts[1] < starts[2]
        row = {"ordered": ordered, "length": 1.0, "excess": np.nan, "slope": np.nan}
        if starts[1] < starts[2]:
            middle = np.linspace(0.75 * starts[1] + 0.25 * starts[2], 0.25 * starts[1] + 0.75 * starts[2], 9)
            slow = np.interp(middle, time, curve)
            slopes = [(y[0] - y[-1]) / (x[-1] - x[0]) for x, y in ((middle, slow), (time, curve))]
            row |= {"length": np.exp(starts[2] - starts[1]), "slope": slopes[0] / slopes[1]}
            row["excess"] = (slow.mean() - unigram) / (uniform - bigram)
        rows.append(row | {"end": (curve[-1] - bigram) / (uniform - bigram)})
    return xr.Dataset({name: ("seed", [float(row[name]) for row in rows]) for name in rows[0]}, {"seed": loss.seed})


def check(dataset: xr.Dataset) -> list[Finding]:
    """Phases come in order, the unigram phase is long, slower and at its level, and the end is at the bigram level."""
    runs = phases(dataset)
    findings = checks.above(
        "order", "runs uniform, unigram, bigram in this order", intervals.fraction(runs["ordered"]), 0.5
    )
    length = estimates.geometric_mean(runs["length"])
    findings += checks.above("length", "first step nearest to bigrams / to unigrams", length, LONG)
    slope = "slope of the loss in the slow part / mean slope, in the logarithm of the step"
    findings += checks.below("slower", slope, estimates.mean(runs["slope"]), SLOWER)
    for name, phrase in (
        ("excess", "loss in the slow part - that of unigrams"),
        ("end", "last loss - that of bigrams"),
    ):
        findings += checks.near(name, f"({phrase}) / fall", estimates.mean(runs[name]), 0.0, margin=MARGIN)
    measured = estimates.mean(dataset["predictor_loss"].sel(predictor=list(NAMES[1:])))
    level = dataset["predictor_loss_theory"].sel(predictor=list(NAMES[1:]))
    return findings + checks.agrees("level", "loss of counts, in nats", measured, level, largest_error=0.02)


def figure(dataset: xr.Dataset):
    """Draw the loss of every run with the exact levels, and the distances to the three predictors."""
    lines = dataset["predictor_loss_theory"].broadcast_like(dataset["predictor_divergence"].isel(seed=0, drop=True))
    part = dataset[["loss_curve", "predictor_divergence"]].assign(loss_curve_line=lines)
    rows = [
        Panel("loss_curve", "loss_curve_line", hue="predictor"),
        Panel("predictor_divergence", yscale="log", hue="predictor"),
    ]
    return panels(part, rows, x="step", xscale="log", hue="predictor")


STEPS = (1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64, 85, 113, 150, 200, 270, 360, 480, 640, 800)
SHORT = {"step": STEPS[:-4], "seed": tuple(range(10))}
claim = Claim(
    title="The loss slows down at n-grams",
    sentence=(
        "On fresh Markov chains the network passes from uniform predictions over counts of tokens to counts of pairs; "
        "its loss slows down at the exact loss of counts of tokens."
    ),
    conditions=(
        "Transformers; three states, rows of Dirichlet(½), 64 tokens, two layers, width 16, Adam at rate 0.003 for 800 "
        "steps from a small start. At the loss: within 15 % of the fall from uniform to counts of pairs. Slower: than "
        "on average in the logarithm of the step. Bounds were set on another key."
    ),
    sources=("Edelman24",),
    quantities=(
        Quantity("loss_curve", "L", "cross-entropy of the network", "nats"),
        Quantity(
            "predictor_divergence", r"\mathrm{KL}(p\|q)", "divergence of the network q from a predictor p", "nats"
        ),
        Quantity("predictor_loss", "L_p", "cross-entropy of a predictor on the same sequences", "nats"),
    ),
    static=(),
    outputs=("step", "predictor"),
    fixed={"states": 3, "concentration": 0.5, "tokens": 64, "width": 16, "std": 0.03, "rate": 0.003}
    | {"batch": 32, "prompts": 256},
    sizes={
        "smoke": {"step": (1, 4, 11, 27), "predictor": NAMES, "seed": 2, "prompts": 64},
        "small": {"step": STEPS, "predictor": NAMES, "seed": Seeds(10, block=5)},
        "medium": {"step": STEPS, "predictor": NAMES, "seed": Seeds(24, block=3, first=10)},
    },
    key=7,
    subject=Subject("tokens", "transformers of two layers", run=True, controls=("sliding", "endless", "exchanged")),
    controls={
        "one_layer": Control("networks have one layer", measure={"layers": 1}, axes={"seed": tuple(range(10))}),
        "urns": Control("the rows of a chain are equal", measure={"chains": "urns"}, axes=SHORT),
        "balanced": Control(
            "chains are doubly stochastic: tokens alone tell nothing", measure={"chains": "balanced"}, axes=SHORT
        ),
        "sliding": Control(
            "predictions slide over unigrams at one rate in the logarithm of the step",
            measure={"sliding": True},
            axes={"seed": tuple(range(10))},
        ),
        "endless": Control("the losses are those of long sequences", theory={"endless": True}),
        "exchanged": Control("the losses of unigrams and bigrams are exchanged", theory={"exchanged": True}),
    },
)
