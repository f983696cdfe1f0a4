r"""Does the response of a program's loss to more of its data peak before the loss has halved, in networks?

A share h of the data is exchanged for prompts of one program. To first order, with the Gauss-Newton matrix G of the
loss at the resolution :math:`\rho`, the loss of that program responds by

.. math:: -\chi_c = g_c^\top (G + \rho)^{-1} (g_c - g)

for its gradient :math:`g_c` and that of the whole, g. A program is learned at the time T at which half of what guessing
costs is gone from its loss. A peak is one of :mod:`icllab.diagnostics.curves.peaks`, after the first updates, in which
the network only learns which tokens are symbols. The last program never comes. Derived: docs/routing.md, Three routes.
"""

import xarray as xr

from iclbook.claims.routing import _times
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks

PROGRAMS = "abcde"
RAREST = "d"  # of those that come
ABSENT = "e"
LEARNED = 0.9  # of the networks
MOST = 0.5


def check(dataset: xr.Dataset) -> list[Finding]:
    """Does the rarest program's response peak in most networks, and then before T, and the absent one's not?"""
    part = dataset.isel(layers=0, drop=True)
    rarest = part.sel(program=RAREST, drop=True)
    fraction = float((rarest["transitioned"] == 1).mean())
    findings = checks.complete("learned", "nine of ten networks learn the rarest program", fraction >= LEARNED)
    peaked = rarest["peaked"] == 1
    findings += checks.above("peaks", "fraction of networks whose response peaks", frequency(peaked), MOST)
    before = (rarest["peak_time"] < rarest["transition_time"]) | ~(rarest["transitioned"] == 1)
    findings += checks.above("before", "peaks before the loss has halved", frequency(before, peaked), MOST)
    absent = part["peaked"].sel(program=ABSENT, drop=True) == 1
    quantity = "networks in which that of a program that never comes peaks"
    return findings + checks.below("absent", quantity, frequency(absent), MOST)


def frequency(events: xr.DataArray, among: xr.DataArray | None = None) -> Estimate:
    """Frequency of an event over seeds, ``among`` some of them, with an error above zero even where it is always."""
    count = events.sizes["seed"] if among is None else int(among.sum())
    value = (float((events if among is None else events & among).sum()) + 1) / (count + 2)
    return Estimate(value, (value * (1 - value) / (count + 3)) ** 0.5)


def reduce(dataset: xr.Dataset) -> xr.Dataset:
    """The numbers in single precision, and the curves of the first seed alone."""
    first = dataset["seed"] == dataset["seed"][0]
    curves = {name: dataset[name].where(first) for name in ("program_loss", "own_response")}
    return dataset.assign(curves).astype("float32")


def figure(dataset: xr.Dataset):
    """Losses and responses of one network, and the frequency of peaks of every program."""
    part = dataset.isel(layers=0, drop=True)
    curves = part[["program_loss", "own_response"]].isel(seed=0, drop=True)
    programs = [str(name) for name in part["program"].values]
    parts = [frequency(part["peaked"].sel(program=name, drop=True) == 1) for name in programs]
    share, error = ([float(getattr(estimate, name)) for estimate in parts] for name in ("value", "error"))
    curves = curves.assign(peak_share=("context", share), peak_share_error=("context", error))
    curves = curves.assign_coords(context=programs)
    rows = [Panel("program_loss", xscale="log"), Panel("own_response", xscale="log", yscale="log")]
    return panels(curves, [*rows, Panel("peak_share", x="context")], x="step", hue="program", columns=3)


STEPS = (5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 100, *range(120, 401, 20), *range(450, 1201, 50))
COMMON = {"layers": (1,), "program": tuple(PROGRAMS), "step": STEPS}

claim = Claim(
    title="Responses of rare programs peak",
    sentence=(
        "In most networks the response of the rarest program's loss to its data peaks before the loss has halved; that "
        "of a program that never comes does not."
    ),
    conditions=(
        "Transformers of one layer and about 500 weights, by Adam on four programs of frequencies 1/rank squared, to "
        "first order at a resolution of 0.001; a peak doubles and halves. Chosen on 12 seeds of another key."
    ),
    sources=("Baker25",),
    axes=(_times.PROGRAM, Axis("context", "c", "program")),
    quantities=(
        Quantity("program_loss", "L_c", "loss of the program's answers", "nats"),
        Quantity("own_response", r"-\chi_c", "response of the loss to more of the program's data", "nats"),
        Quantity("peak_time", "t_c", "time of the highest response", "updates"),
        Quantity("rise", "r", "logarithm of the highest response over that at the start"),
        Quantity("fall", "f", "logarithm of the highest response over that at the end"),
        Quantity("peaked", "P", "whether the response peaks"),
        Quantity("peak_share", "P", "fraction of networks whose response peaks"),
        "transitioned",
        "transition_time",
    ),
    static=("layers",),
    outputs=("program", "step"),
    fixed={
        "updates": 1200,
        "every": 5,
        "symbols": 6,
        "length": 1,
        "zipf_exponent": 2.0,
        "width": 6,
        "heads": 2,
        "batch": 64,
        "resolution": 1e-3,
    },
    sizes={
        "smoke": COMMON | {"step": (10, 100, 300), "updates": 300, "every": 10, "seed": 2},
        "small": COMMON | {"seed": tuple(range(96, 144))},
        "medium": COMMON | {"seed": Seeds(96, block=12)},
    },
    key=133,
    precision="float64",
    controls={
        "squared": Control("the response is replaced by the squared loss", measure={"squared": True}),
        "misplaced": Control(
            "responses are those of the program before, 400 updates late", measure={"misplaced": True}
        ),
    },
)
