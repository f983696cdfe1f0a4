r"""Is the transition of the whole that of the one context that joins, measured on the context alone?

A network, the *mother*, has learned all programs but the rarest, c; now it comes. If the others keep their phases, the
whole changes as the daughter c does, and what c does can be measured elsewhere: in a run from the same weights on the
same prompts in which the others' losses are multiplied by 0. By stochastic gradient descent with momentum, which is
linear in gradients, both runs would be the same where the others' gradients vanish and stay away. They need not: a step
for one program changes the answers to all, and what the others lose they take back.

The whole falls at the time T at which :math:`L = \sum_c \pi_c L_c`, measured on prompts of its own, is below half of
:math:`\pi_c \ln V`, what guessing the answers of c costs. *Alone* c is learned at the time :math:`T_c` at which its
loss is below half of :math:`\ln V`; and at :math:`T_c^0` alone by a *fresh* network, that has learned nothing.
"""

import numpy as np
import xarray as xr

from iclbook.claims.routing import _times
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values

PROGRAMS = ("a", "b", "c", "d", "e", "f")
TOGETHER, ALONE, FRESH = "together", "alone", "fresh"
STEPS = (0, *(int(step) for step in np.unique(np.geomspace(2, 1500, 34).astype(int))))
FACTOR = 1.5
SOONER = 0.75  # of the time of a fresh network
KNOWN = 0.05  # nats a symbol
ENOUGH = 24  # networks


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Times of the whole and of the program alone, and the others' loss; of networks that know the others."""
    numbers = fixed_values(dataset)
    part = dataset.isel(layers=0, updates=0, drop=True)
    frequency = _times.frequencies(dataset.program, PROGRAMS, numbers["zipf_exponent"])
    joins = PROGRAMS[dataset.sizes["program"] - 1]
    pi, plateau = frequency.sel(program=joins, drop=True), np.log(numbers["symbols"])
    losses = part["program_loss"].sel(program=joins, drop=True)
    whole = part["whole_loss"].sel(training=TOGETHER, drop=True) / pi
    curves = {"whole": whole} | {kind: losses.sel(training=kind, drop=True) for kind in (ALONE, FRESH)}
    stacked = xr.concat(list(curves.values()), dim="program").assign_coords(program=list(curves))
    times = _times.times(stacked, plateau=plateau)["observed_time"]
    whole_time, alone_time, fresh_time = (times.sel(program=name, drop=True) for name in curves)
    others = (frequency * part["program_loss"].sel(training=TOGETHER, drop=True)).sum("program")
    others = others - pi * losses.sel(training=TOGETHER, drop=True)
    return dataset.assign(
        whole_time=whole_time,
        alone_time=alone_time,
        fresh_time=fresh_time,
        time_ratio=whole_time / alone_time,
        fresh_ratio=alone_time / fresh_time,
        own_loss=pi * losses,
        others_loss=others,
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """The whole falls when the program would alone, and that is sooner than where nothing is known."""
    counted = dataset["others_loss"].isel(step=0, drop=True) < KNOWN
    quantity = f"at least {ENOUGH} networks that know all others when the program joins"
    findings = checks.complete("known", quantity, int(counted.sum()) >= ENOUGH)
    findings += same_time(dataset["time_ratio"].where(counted))
    sooner = estimates.geometric_mean(dataset["fresh_ratio"].where(counted))
    quantity = "T of the program alone, from the weights that know the others / from fresh ones"
    return findings + checks.below("sooner", quantity, sooner, SOONER)


def same_time(ratios: xr.DataArray) -> list[Finding]:
    """Is the time of the whole that of the program alone within a factor, of the ratios of every seed?"""
    quantity = "T of the whole / of the program alone from the same weights"
    time = estimates.geometric_mean(ratios)
    return checks.near("time", quantity, time, 1.0, margin=np.log(FACTOR))


def figure(dataset: xr.Dataset):
    """The loss of the whole and of the others, and of the program alone, after it joins; times of every network."""
    losses = dataset["own_loss"]
    parts = {
        "whole": dataset["whole_loss"].isel(layers=0, updates=0, drop=True).sel(training=TOGETHER, drop=True),
        "program alone": losses.sel(training=ALONE, drop=True),
        "alone, fresh": losses.sel(training=FRESH, drop=True),
        "others": dataset["others_loss"],
    }
    part_loss = xr.concat(list(parts.values()), dim="part").assign_coords(part=list(parts))
    table = xr.Dataset({"part_loss": part_loss.isel(step=slice(1, None))}, attrs=dataset.attrs)
    return panels(table, [Panel("part_loss")], x="step", hue="part", xscale="log")


BOTH = {"layers": (2,), "training": (TOGETHER, ALONE, FRESH), "program": PROGRAMS, "step": STEPS}
claim = Claim(
    title="A new context shows in the whole loss",
    sentence=(
        "When a context joins known ones, the whole falls when the context alone would from the same weights, within "
        "a factor of 1.5, and sooner than from fresh weights."
    ),
    conditions=(
        "Transformers of two layers: five of six programs by Adam, then all by SGD with momentum, alone with the "
        "others' losses left out; frequencies 1/rank, the rarest joins. Chosen on ten seeds of other keys."
    ),
    sources=("SLT22",),
    axes=(
        _times.PROGRAM,
        Axis("updates", "t_0", "updates before the program joins", least=0),
        Axis("part", "p", "part of the loss"),
    ),
    quantities=(
        _times.PROGRAM_LOSS,
        Quantity("whole_loss", "L", "loss of all answers above their entropy", "nats"),
        Quantity("own_loss", r"\pi_c L_c", "part of the program in the loss", "nats"),
        Quantity("others_loss", r"\sum\pi L", "part of the others in the loss", "nats"),
        Quantity("part_loss", "L", "loss above the entropy", "nats"),
        Quantity("whole_time", "T", "time at which the whole falls", "updates"),
        Quantity("alone_time", "T_c", "time of the program alone", "updates"),
        Quantity("fresh_time", "T_c^0", "time of the program alone from fresh weights", "updates"),
        Quantity("time_ratio", "T/T_c", "time of the whole over that of the program alone"),
        Quantity("fresh_ratio", "T_c/T_c^0", "time of the program alone over that from fresh weights"),
    ),
    static=("layers", "updates"),
    outputs=("training", "program", "step"),
    fixed={"symbols": 5, "length": 2, "zipf_exponent": 1.0, "width": 16, "heads": 2}
    | {"batch": 64, "prompts": 512, "together": 8192},
    sizes={
        "smoke": BOTH | {"layers": (1,), "updates": (30,), "program": ("a", "b"), "step": (0, 30), "seed": (1,)},
        "small": BOTH | {"updates": (1500,), "seed": Seeds(48, block=8)},
        "medium": BOTH | {"updates": (2000,), "seed": Seeds(120, block=8)},
    },
    key=35,
    controls={
        "untaught": Control(
            "alone the program starts from another network that has learned nothing",
            measure={"taught": False},
            axes={"seed": tuple(range(24))},
        ),
    },
)
