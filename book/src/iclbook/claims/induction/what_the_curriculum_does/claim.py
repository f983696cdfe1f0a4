"""The effect of labels outside the context: they are removed at L > N, and their effect is supplied at L = N.

With more labels than pairs a network can do better than chance by naming any label of its context, and learns that
first: a curriculum, in which its readout comes to tell labels apart. It is *removed* where logits of labels out of
context are masked, in the loss as in the answer: what is left to learn is the same, and any label of the context is
chance. It is *restored* at L = N where the readout (values of the second layer, and classifier) is that of a network
trained with more labels, as it was at 0.8 of the time of its jump, and is held; or is left to be trained on. What it
was taught is told from its size by the same readout with the entries of each matrix in a random order, held as well.

All networks of a seed begin with the same weights. The accuracy is among the labels of the context throughout: chance
is 1/N in every arm, and the time that at which it is half-way from there to 1. Runs that end before are censored.
"""

import xarray as xr

from iclbook.claims.induction import _transitions
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values

MORE, MASKED = "L > N", "L > N, masked"
EQUAL, HELD, FREE, SHUFFLED = "L = N", "L = N, readout held", "L = N, readout free", "L = N, shuffled readout held"
ARMS = (MORE, MASKED, EQUAL, HELD, FREE, SHUFFLED)
SLOWER, SOONER, TAUGHT = 2.0, 3.0, 2.0  # times without the curriculum, the readout, what it was taught, over those with


def check(dataset: xr.Dataset) -> list[Finding]:
    """Networks learn later without the curriculum, and sooner if it is restored."""
    arms, pairs = dataset.intervention.values.tolist(), fixed_values(dataset)["pairs"]
    arms_masked = [name for name in ARMS if name in arms and name != MORE]
    largest = dataset["outside_probability"].sel(intervention=arms_masked).max(("seed", "step"))
    findings = checks.equal("outside", "largest probability of labels out of context", largest, 0)
    times = _transitions.risen(dataset["accuracy"], plateau=1 / pairs, end=1.0)
    return findings + _compared({name: times.sel(intervention=name, drop=True) for name in arms}, dataset)


def _compared(arms: dict[str, xr.Dataset], dataset: xr.Dataset) -> list[Finding]:
    """Times of arms that differ in one respect."""
    findings = []
    for id, name in (("learned", MORE), ("restored", HELD)):
        if name in arms:
            learners = arms[name]["transitioned"].sum("seed")
            findings += checks.equal(id, f"runs that learn, {name}", learners, dataset.sizes["seed"])
    if {MORE, MASKED} <= arms.keys():
        before = (arms[MASKED]["transition_time"] < arms[MORE]["observed_time"].max("seed")).sum("seed")
        findings += checks.equal("before", "masked runs that learn before the last that is not", before, 0)
    comparisons = [("removed", MORE, MASKED, SLOWER), ("held", HELD, EQUAL, SOONER), ("taught", HELD, SHUFFLED, TAUGHT)]
    for id, soon, late, bound in comparisons:
        if {soon, late} <= arms.keys():
            ratio = estimates.geometric_mean(arms[late]["observed_time"] / arms[soon]["observed_time"])
            findings += checks.above(f"ratio_{id}", f"time (or that of the end), {late} / {soon}", ratio, bound)
    return findings


def figure(dataset: xr.Dataset):
    """Draw accuracy among the context's labels against training, one panel for each arm, one line for each network."""
    part = dataset[["accuracy"]].isel(dim=0, drop=True)
    arms = [name for name in ARMS if name in dataset.intervention.values]
    rows = [Panel(None, line="accuracy", at={"intervention": name}, ylim=(0.0, 1.05)) for name in arms]
    return panels(part, rows, x="step", hue="seed", line_x="step", columns=2)


claim = Claim(
    title="What labels out of context teach",
    sentence=(
        "Masking labels out of context delays in-context learning at L > N; at L = N, holding a readout trained at "
        "L > N before its jump brings it forward."
    ),
    conditions=(
        "N = 4, L = 16 or 4, novel classes in every prompt, SGD at rate 0.3, ten starts, 4000 steps. Delays: more "
        "than twice as long; forward: to under a third of the time. Left to be trained on, the readout is unlearned."
    ),
    sources=("Reddy24",),
    quantities=("accuracy", Quantity("outside_probability", "p", "probability of labels out of context")),
    static=("dim",),
    outputs=("intervention", "step"),
    fixed={"pairs": 4, "label_count": 16, "learning_rate": 0.3, "batch": 128, "prompts": 512},
    sizes={
        "smoke": {"dim": (31,), "intervention": (MASKED,), "step": (0, 40), "seed": 3},
        "small": {"dim": (31,), "intervention": ARMS, "step": tuple(range(0, 4001, 50)), "seed": Seeds(10, block=5)},
        "medium": {"dim": (31, 63), "intervention": ARMS, "step": tuple(range(0, 12001, 50))}
        | {"seed": Seeds(16, block=4)},
    },
    key=1,
    controls={
        "unmasked": Control("no logit is masked", measure={"unmasked": True}),
        "shuffled": Control(
            "the entries of every readout that is supplied are in a random order",
            measure={"shuffled": True},
            axes={"seed": (0, 1)},
        ),
        "equal_labels": Control(
            "L = N in the first arm too: there is no curriculum, and no readout is supplied that it has trained",
            measure={"equal": True},
            axes={"intervention": (MORE, EQUAL, HELD), "seed": (0, 1)},
        ),
    },
)
