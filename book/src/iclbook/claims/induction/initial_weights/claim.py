r"""The time at which in-context learning begins, against the scale of the initial weights.

Queries and keys of each layer are multiplied by a number before training, :math:`s_1` in the layer of the previous
token and :math:`s_2` in that of the match; values, classifier, prompts and all else are the same for all networks of a
seed. Strengths of attention begin :math:`s^2` times as large. Near a saddle of a strength, time goes with
:math:`\ln(1/s)`: every halving costs as much as the one before. Near one of matrices that multiply each other it goes
with a power of :math:`1/s`. Runs that end before are censored, and times of them are lower bounds.
"""

import xarray as xr

from iclbook.claims.induction import _transitions
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Outcome, checks, estimates, intervals
from icllab.lab.results import fixed_values

SCALES = (0.25, 0.5, 1.0)  # of the second layer; the first of them is the first layer's other one
LAYERS = ("first", "second")
LONGER, MORE = 2.0, 3.0  # times with a quarter of the scale of the second layer: over the whole, and over the first's


def theory(dataset: xr.Dataset, *, order: tuple[int, ...] = ()) -> xr.Dataset:
    """No prediction; ``order``: networks at these places along the second scale are exchanged."""
    places = [*order, *range(len(order), dataset.sizes["second_scale"])]
    return dataset.isel(second_scale=places).assign_coords(second_scale=dataset.second_scale)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Smaller second-layer weights delay learning, by more with each halving, and more than first-layer weights do."""
    off = [abs(dataset[f"{layer}_strength"] / dataset[f"{layer}_scale"] ** 2 - 1).max() for layer in LAYERS]
    quantity = "strengths of attention at the start over squares of the scales, largest distance from 1"
    findings = checks.equal("scaled", quantity, max(off).round(4), 0.0)
    times = _transitions.risen(dataset["accuracy"], plateau=1 / fixed_values(dataset)["pairs"], end=1.0)
    return findings + _compared(times.astype(float).reindex(first_scale=[SCALES[0], 1.0], second_scale=SCALES))


def _compared(times: xr.Dataset) -> list[Finding]:
    """Compare times of networks of one seed with one layer scaled, or with none."""
    small, half, full = (times.sel(second_scale=scale, first_scale=1.0, drop=True) for scale in SCALES)
    first = times.sel(first_scale=SCALES[0], second_scale=1.0, drop=True)
    learned = intervals.fraction(full["transitioned"])
    findings = checks.complete("learned", "most runs with s₁ = s₂ = 1 learn", float(learned.low) > 1 / 2)
    for id, reference, words, bound in (("second", full, "1", LONGER), ("layers", first, "1, s₁ = 1/4", MORE)):
        ratio = estimates.geometric_mean(small["observed_time"] / reference["transition_time"])
        comparison = checks.above(id, f"time (or that of the end), s₂ = 1/4 / s₂ = {words}", ratio, bound)
        findings += _of_lower_bounds(comparison, small)
    findings += _transitions.delayed("log_rank", "later with s₂ = 1/4 than with 1", full, small)
    bend = small["observed_time"] - 2 * half["transition_time"] + full["transition_time"]
    quantity = "time that the second halving of s₂ adds - that of the first, in steps"
    return findings + _of_lower_bounds(checks.above("not_logarithmic", quantity, estimates.mean(bend), 0.0), small)


def _of_lower_bounds(findings: list[Finding], times: xr.Dataset) -> list[Finding]:
    """Withhold failures for runs that ended before they learned, whose times are lower bounds."""
    if all(finding.outcome is not Outcome.FAILS for finding in findings) or bool((times["transitioned"] == 1).all()):
        return findings
    return checks.withheld(findings, "some runs have not learned; longer training would tell")


def figure(dataset: xr.Dataset):
    """Accuracy against training, a panel for each pair of scales, a line for each network."""
    scales = [(first, second) for second in dataset.second_scale.values for first in dataset.first_scale.values]
    rows = [
        Panel(None, line="accuracy", at={"first_scale": first, "second_scale": second}, ylim=(0.0, 1.05))
        for first, second in scales
    ]
    return panels(
        dataset[["accuracy"]], rows, x="step", hue="seed", line_x="step", columns=dataset.sizes["first_scale"]
    )


claim = Claim(
    title="Small initial weights delay learning",
    sentence=(
        "Smaller initial queries and keys of the second layer delay in-context learning, by more than a logarithm of "
        "their scale, and much more than smaller ones of the first layer."
    ),
    conditions=(
        "N = 4, L = 16, novel classes in every prompt, SGD at rate 0.3, ten starts, 6000 steps. At a quarter of the "
        "scale times are more than doubled, and three times those with that of the first. Chosen on two other keys."
    ),
    sources=("Reddy24",),
    axes=(
        Axis("first_scale", r"s_1", "scale of the first layer's initial queries and keys", above=0),
        Axis("second_scale", r"s_2", "scale of the second layer's initial queries and keys", above=0),
    ),
    quantities=(
        "accuracy",
        Quantity(
            "first_strength", r"a_1", "strength of the first layer's attention at the start over the unscaled one"
        ),
        Quantity(
            "second_strength", r"a_2", "strength of the second layer's attention at the start over the unscaled one"
        ),
    ),
    static=("first_scale", "second_scale"),
    outputs=("step",),
    fixed={"pairs": 4, "label_count": 16, "dim": 31, "learning_rate": 0.3, "batch": 128, "prompts": 512},
    sizes={
        "smoke": {"first_scale": (0.5,), "second_scale": (0.25,), "step": (40,), "seed": 3},
        "small": {"first_scale": (SCALES[0], 1.0), "second_scale": SCALES, "step": tuple(range(50, 6001, 50))}
        | {"seed": Seeds(10, block=5)},
        "medium": {"first_scale": SCALES, "second_scale": (0.125, *SCALES), "step": tuple(range(50, 16001, 50))}
        | {"seed": Seeds(16, block=4)},
    },
    key=5,
    controls={
        "unscaled": Control(
            "no weights are scaled",
            measure={"scaled": False},
            axes={"first_scale": (0.25, 1.0), "second_scale": (0.25, 1.0), "seed": (0, 1, 2)},
        ),
        "limited": Control(
            "no scale is below a half: the second halving adds nothing",
            measure={"least": 0.5},
            axes={"first_scale": (1.0,), "seed": tuple(range(20))},
        ),
        "reverse": Control(
            "the smaller weights of the second layer are the larger ones",
            measure={"reverse": True},
            axes={"first_scale": (1.0,), "second_scale": (0.25, 1.0), "seed": tuple(range(5))},
        ),
        "turned": Control("networks of a quarter are those of the whole scale", theory={"order": (2, 1, 0)}),
    },
)
