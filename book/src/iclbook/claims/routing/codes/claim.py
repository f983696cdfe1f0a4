r"""Are contexts codes that one network runs, new codes and longer codes among them?

A code is a string of instructions: two maps of symbols, a turn of the data, a counter, and a copy on condition that the
counter is odd. An interpreter runs it on three symbols of data. The network predicts the result after code and data.
Half of all codes of one to five instructions are trained. Accuracy is measured on trained codes, on the other half, and
on codes of six to eight instructions. Instructions stand in random slots, so that no slot of a longer code is new.

A network that has memorised its codes knows nothing about new ones. Two guesses are computed exactly over all codes of
a length: the best that sees the data alone, and the best *order-blind* guess, which sees the data and how often each
instruction comes, and not their order. The second is drawn, and not judged.
"""

import xarray as xr

from iclbook.claims.routing import _codes
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

NETWORKS = {  # layers, heads, width
    "two layers": (2, 4, 48),
    "one layer": (1, 10, 60),
    "two heads in all": (2, 1, 48),
    "half the width": (2, 4, 24),
    "three layers": (3, 4, 48),
}
DEEP = "two layers"
TRAINED, NEW = GROUPS = ("trained", "new")
LENGTHS = tuple(range(1, 9))
SHORTEST = 3  # of the codes that are judged: of one and two instructions there are 30
AS_WELL, LESS = 0.9, 2 / 3
ABOVE = 0.1


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Accuracies of the two guesses for each length."""
    guesses = [_codes.guesses(int(length)) for length in dataset.code_length.values]
    data_alone, order_blind = zip(*guesses, strict=True)
    return dataset.assign(data_alone=("code_length", list(data_alone)), order_blind=("code_length", list(order_blind)))


def check(dataset: xr.Dataset) -> list[Finding]:
    """New codes are run as trained ones; longer codes less often, and more often than by a guess from the data."""
    accuracy = dataset["code_accuracy"].sel(network=DEEP, drop=True)
    judged = dataset["code_length"] >= SHORTEST
    short = accuracy.sel(group=TRAINED, drop=True).notnull().any("seed")
    of_short = accuracy.sel(code_length=judged & short).mean("code_length")
    new, trained = (of_short.sel(group=group, drop=True) for group in (NEW, TRAINED))
    longer = accuracy.sel(group=NEW, code_length=judged & ~short, drop=True)
    ratio = estimates.geometric_mean(new / trained)
    findings = checks.above("as_well", "accuracy at new codes / at trained codes of the same lengths", ratio, AS_WELL)
    ratio = estimates.geometric_mean(longer.mean("code_length") / new)
    findings += checks.below("longer", "accuracy at longer codes / at new codes of trained lengths", ratio, LESS)
    above = estimates.mean((longer - dataset["data_alone"]).mean("code_length"))
    return findings + checks.above(
        "guess", "accuracy at longer codes - that of the best guess from the data", above, ABOVE
    )


def figure(dataset: xr.Dataset):
    """Accuracy against the length of the code, a panel for each network, with the order-blind guess."""
    part = dataset[["code_accuracy", "order_blind"]]
    rows = [Panel("code_accuracy", "order_blind", at={"network": str(name)}) for name in dataset.network.values]
    return panels(part, rows, x="code_length", hue="group", line_x="code_length", line_name="order-blind guess")


OUTPUTS = {"group": GROUPS, "code_length": LENGTHS}
claim = Claim(
    title="New codes run, longer codes less well",
    sentence=(
        "Two layers run new codes as accurately as trained ones; on longer codes the accuracy is below two thirds of "
        "that, but above any guess from the data."
    ),
    conditions=(
        "Codes of maps, a turn, a counter and a conditional copy on three symbols; half of all codes of one to five "
        "instructions are trained, by 2500 steps of Adam. New codes of three to five instructions, longer ones of six "
        "to eight. As well: 0.9 of the accuracy; above: by 0.1. The sentence was chosen on six seeds of another key."
    ),
    sources=("SLT22",),
    axes=(
        Axis("network", "T", "shape of the network"),
        Axis("group", "g", "whether a code was trained"),
        Axis("code_length", r"\ell", "instructions of a code", least=1),
    ),
    quantities=(
        Quantity("code_accuracy", "A", "fraction of data that are answered wholly right"),
        Quantity("data_alone", "A_0", "accuracy of the best guess from the data alone"),
        Quantity("order_blind", "A_b", "accuracy of the best guess that does not see the order"),
    ),
    static=("network",),
    outputs=("group", "code_length"),
    fixed={"slots": 8, "longest": 5, "updates": 2500, "batch": 128, "codes": 64},
    sizes={
        "smoke": {"network": (DEEP,), "group": GROUPS, "code_length": (2, 3, 4), "seed": 2}
        | {"slots": 4, "longest": 3, "updates": 3, "batch": 8, "codes": 2},
        "small": {"network": (DEEP,), "seed": Seeds(8, block=1)} | OUTPUTS,
        "medium": {"network": tuple(NETWORKS), "seed": Seeds(12, block=1)} | OUTPUTS,
    },
    key=62,
    theory=theory,
    controls={
        "memorised": Control(
            "64 codes are trained, which a network can memorise",
            measure={"few": 64},
            axes={"seed": tuple(range(3))},
        ),
        "scrambled": Control(
            "each code of training is answered as another code of its length",
            measure={"scrambled": True},
            axes={"seed": tuple(range(3))},
        ),
        "exchanged": Control(
            "new codes of three to five instructions are called longer ones, and longer ones these",
            measure={"exchanged": True},
            axes={"seed": tuple(range(6)), "updates": 800},
        ),
    },
)
