r"""Does the transition of one context show in the loss of the whole, when all others are known?

The loss of the whole is that of its programs, :math:`L = \sum_c \pi_c L_c`. A network has learned all programs but
the rarest, c, which did not come; now it comes. If the others stay as they are, the whole falls by :math:`\pi_c L_c`,
and at the time T at which :math:`L_c` is half that of guessing a symbol, L is :math:`\frac12 \pi_c \ln V`. They need
not: a gradient step for one program changes the answers of all. The whole is measured on prompts of its own, in which
programs come as often as in training.
"""

import numpy as np
import xarray as xr

from icllab.claims.routing import _times
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values

PROGRAMS = ("a", "b", "c", "d", "e", "f")
STEPS = (0, *(int(step) for step in np.unique(np.geomspace(2, 800, 24).astype(int))))
WHOLE = "whole"
NEARLY_ALL, FACTOR = 0.1, 1.5
MOST = 0.25  # of the first loss of the whole, of others
KNOWN = 0.05  # nats a symbol
ENOUGH = 6  # networks


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Times of the program that joins and of the whole, the share of the program in the fall, and the others' loss."""
    numbers, losses = fixed_values(dataset), dataset["program_loss"].isel(layers=0, updates=0)
    frequency = _times.frequencies(dataset.program, PROGRAMS, numbers["zipf_exponent"])
    joins = PROGRAMS[dataset.sizes["program"] - 1]
    pi, joining = frequency.sel(program=joins, drop=True), losses.sel(program=joins, drop=True)
    whole = dataset["whole_loss"].isel(layers=0, updates=0)
    pair = xr.concat([joining, whole / pi], dim="program").assign_coords(program=[joins, WHOLE])
    times = _times.times(pair, plateau=np.log(numbers["symbols"]))["transition_time"]
    remainder = (frequency * losses).sum("program") - pi * joining
    fall = whole.isel(step=0, drop=True) - whole.isel(step=-1, drop=True)
    return dataset.assign(
        own_loss=pi * joining,
        time_ratio=times.sel(program=WHOLE, drop=True) / times.sel(program=joins, drop=True),
        joining_time=times.sel(program=joins, drop=True),
        share=pi * (joining.isel(step=0, drop=True) - joining.isel(step=-1, drop=True)) / fall,
        others_loss=remainder,
        others_first=remainder.isel(step=0, drop=True),
        others_most=remainder.max("step") / whole.isel(step=0, drop=True),
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """The whole falls as the program does, by as much and at that time; the others stay."""
    prepared_networks = dataset["others_first"] < KNOWN
    quantity = f"at least {ENOUGH} networks that know all others when the program joins"
    findings = checks.complete("known", quantity, bool((prepared_networks.sum("seed") >= ENOUGH).all()))
    complete = bool(dataset["time_ratio"].notnull().where(prepared_networks, True).all())
    findings += checks.complete("learned", "the program is learned, and seen in the whole", complete)
    share, ratio, largest = (dataset[name].where(prepared_networks) for name in ("share", "time_ratio", "others_most"))
    quantity = "share of the program in the fall of the whole"
    findings += checks.near("share", quantity, estimates.mean(share), 1.0, margin=NEARLY_ALL)
    time = estimates.geometric_mean(ratio)
    findings += checks.near("time", "T of the whole / of the program", time, 1.0, margin=np.log(FACTOR))
    quantity = "largest loss of the others / first loss of the whole"
    return findings + checks.below("others", quantity, estimates.mean(largest), MOST)


def figure(dataset: xr.Dataset):
    """The loss of the whole, the part of the program in it, and that of the others, after the program joins."""
    later = dataset.isel(layers=0, updates=0, drop=True).isel(step=slice(1, None))
    parts = xr.concat([later[name] for name in ("whole_loss", "own_loss", "others_loss")], dim="part")
    parts = parts.assign_coords(part=["whole", "program that joins", "others"])
    return panels(
        xr.Dataset({"part_loss": parts}, attrs=dataset.attrs), [Panel("part_loss")], x="step", hue="part", xscale="log"
    )


claim = Claim(
    title="A new context shows in the whole loss",
    sentence=(
        "When a context joins known ones, its transition is the whole's: it makes nine tenths of the loss's fall, "
        "at the same time within a factor of 1.5."
    ),
    conditions=(
        "Transformers of two layers trained by Adam on five of six programs, then on all; frequencies 1/rank, the "
        "rarest joins. The sentence and its bounds were chosen on two other seeds."
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
        Quantity("others_first", r"\sum\pi L_0", "first part of the others in the loss", "nats"),
        Quantity("others_most", r"\max\sum\pi L/L_0", "largest part of the others over the first loss of the whole"),
        Quantity("share", r"\pi_c\Delta L_c/\Delta L", "fraction of the fall of the loss due to the program"),
        Quantity("joining_time", "T_c", "time of half the loss of the program that joins", "updates"),
        Quantity("time_ratio", "T/T_c", "time of the whole over that of the program"),
    ),
    static=("layers", "updates"),
    outputs=("program", "step"),
    fixed={"symbols": 5, "length": 2, "zipf_exponent": 1.0, "width": 16, "heads": 2}
    | {"batch": 64, "prompts": 512, "together": 8192},
    sizes={
        "smoke": {"layers": (1,), "updates": (100,), "program": ("a", "b"), "step": (0, 70), "seed": (1,)},
        "small": {"layers": (2,), "updates": (1500,), "program": PROGRAMS, "step": STEPS, "seed": 16},
        "medium": {"layers": (2,), "updates": (1500,), "program": PROGRAMS, "step": STEPS, "seed": Seeds(32, block=4)},
    },
    key=24,
    controls={
        "forgotten": Control(
            "prompts are of the program alone once it joins",
            measure={"forgotten": True},
            axes={"seed": tuple(range(8))},
        ),
    },
)
