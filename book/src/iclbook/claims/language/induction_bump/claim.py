r"""When a byte model of two attention layers forms an induction head, does its loss bend, and does one layer's?

Half of the windows it trains on are text of the standard library as it is; the others are the beginning of such a
window over and over, with a period that the window alone tells. A one-layer network cannot look up what followed an
earlier occurrence. Three curves are followed over the same steps: the *benefit of repetition*, the loss on the first
half of a held-out window minus that on its repetition; the attention of the best head of the last layer to what
followed the same letter, in strings of random letters (prefix matching); and the loss on held-out text. The *bump* of
a loss is how much its steepness :math:`-dL/d\ln t` rises again after it has fallen. The restricted coefficient of that
head is sampled at some of the steps, and is not judged: docs/language-models.md says why.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.core.statistics import first_rise
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Subject, checks, estimates

LIBRARY, TABLES = "standard library", "multiplication tables"
FEW = 8  # records at the start, of which the plateau is the mean
SCORE = 0.2  # least prefix matching that two layers have above one
BENEFIT = 0.3  # least benefit of repetition that two layers have above one, in nats
BUMP = 0.1  # least rise of the steepness that two layers have above one, in nats
TOGETHER = 0.7  # logarithm of a factor two between times


def check(dataset: xr.Dataset) -> list[Finding]:
    """With two layers a head matches prefixes and repetition helps at one time, and the loss bends; not with one."""
    parts = {int(layers): dataset.sel(layers=layers, drop=True) for layers in dataset["layers"].values}
    two, findings = parts[2], []
    if 1 in parts:
        gap = two - parts[1]
        last = gap.isel(step=-1, drop=True)
        rise = steepness_rise(two["repeated_loss"]) - steepness_rise(parts[1]["repeated_loss"])
        for id, quantity, gaps, bound in (
            ("matching", "prefix matching of the best head", last["prefix_matching_score"], SCORE),
            ("benefit", "benefit of repetition", last["repeat_benefit"], BENEFIT),
            ("bump", "rise of the steepness of the loss", rise, BUMP),
        ):
            findings += checks.above(id, f"{quantity}, two layers minus one", estimates.mean(gaps), bound)
    ratio = estimates.geometric_mean(half_time(two["repeat_benefit"]) / half_time(two["prefix_matching_score"]))
    quantity = "half the benefit of repetition / half the prefix matching, in steps"
    findings += checks.near("together", quantity, ratio, 1.0, margin=TOGETHER)
    return findings + checks.complete("compared", "one layer and two", set(parts) == {1, 2})


def half_time(curve: xr.DataArray) -> xr.DataArray:
    """Step at which a curve is half-way from its plateau at the start to its end; interpolated in the logarithm."""
    curve = curve.transpose(..., "step")
    start, end = curve.isel(step=slice(FEW)).mean("step"), curve.isel(step=-1)
    above = (curve - (start + end) / 2) * np.sign(end - start)
    time = np.exp(first_rise(np.log(np.maximum(curve["step"].values, 1)), above.transpose(..., "step").values))
    return start.copy(data=time)


def steepness_rise(loss: xr.DataArray) -> xr.DataArray:
    """Largest amount by which the steepness -dL/dln t is above an earlier one, after the first ``FEW`` records.

    The steepness at a record is the difference quotient of the two records on either side of it.
    """
    late = loss.transpose(..., "step").isel(step=slice(FEW, None))
    values, logs = late.values, np.log(late["step"].values)
    steepness = -(values[..., 2:] - values[..., :-2]) / (logs[2:] - logs[:-2])
    rise = (steepness - np.minimum.accumulate(steepness, axis=-1)).max(axis=-1)
    return late.isel(step=0, drop=True).copy(data=rise)


def figure(dataset: xr.Dataset):
    """Draw losses, prefix matching, benefits and restricted coefficients over the same steps."""
    part = dataset.sel(step=dataset["step"] > 0)
    rows = [
        Panel("text_loss"),
        Panel("repeated_loss"),
        Panel("prefix_matching_score"),
        Panel("repeat_benefit"),
        Panel("early_minus_late"),
        Panel("restricted_coefficient", x="checkpoint", xscale="log", hollow="sampler_warnings"),
    ]
    return panels(part, rows, x="step", hue="layers", xscale="log", columns=2)


STEPS = (0, *(int(t) for t in np.unique(np.rint(np.geomspace(10, 4000, 29)))))
CHECKPOINTS = STEPS[9::4]
FOUR = {"seed": (0, 1, 2, 3)}

claim = Claim(
    title="The bump of a byte model",
    sentence=(
        "The network forms an induction head as repetition begins to lower its loss on repeats, which bends there; "
        "with one layer of attention all three are absent."
    ),
    conditions=(
        "Byte models of two attention layers and of one, without other layers, on windows of 64 bytes of Python "
        "sources, half of which repeat their beginning; Adam. Bounds were set on two seeds of another key. The sources "
        "are those of the running Python."
    ),
    sources=("Olsson22", "Wang24"),
    quantities=(
        "early_minus_late",
        "previous_token_score",
        "prefix_matching_score",
        "sampler_warnings",
        Quantity("text_loss", "L", "loss on held-out text", "nats"),
        Quantity("repeated_loss", "L_r", "loss on held-out text that repeats", "nats"),
        Quantity("repeat_benefit", "B", "loss before a repetition minus that in it", "nats"),
        Quantity("restricted_coefficient", r"\hat\lambda_h", "restricted coefficient of the head"),
        Quantity("chain_rhat", r"\hat R", "R-hat of the loss over chains"),
        Quantity("corpus_bytes", "|T|", "bytes of the corpus"),
        Quantity("corpus_digest", r"\mathrm{SHA}", "first 13 hexadecimal digits of the corpus's digest, as a number"),
    ),
    static=("layers",),
    outputs=("step", "checkpoint"),
    fixed={"corpus": LIBRARY, "tokens": 64, "width": 32, "heads": 2, "batch": 16, "learning_rate": 0.015}
    | {"repeating": 0.5, "windows": 256, "strings": 32}
    | {"samples": 256, "nbeta": 1000.0, "localization": 100.0, "warm_up": 50, "chain_batch": 4},
    sizes={
        "smoke": {"layers": (2,), "step": (0, 4), "checkpoint": (4,), "seed": 2}
        | {"corpus": TABLES, "tokens": 36, "width": 8, "batch": 4, "windows": 16, "strings": 4}
        | {"samples": 8, "warm_up": 20},
        "medium": {"layers": (1, 2), "step": STEPS, "checkpoint": CHECKPOINTS, "seed": Seeds(8, block=2)},
    },
    key=2,
    subject=Subject(
        "tokens", "byte models of two attention layers", run=True, axes={"checkpoint": (1,)}, controls=("lag",)
    ),
    controls={
        "untrained": Control("the network stays as it began", measure={"untrained": True}, axes=FOUR),
        "one_layer": Control("the network has one layer, whatever the cell says", measure={"blocks": 1}, axes=FOUR),
        "lag": Control(
            "heads are those of the network after four times as many updates",
            measure={"lag": 0.25},
            axes={"layers": (2,), **FOUR},
        ),
        "shuffled": Control("bytes of a training window are in random order", measure={"shuffled": True}, axes=FOUR),
        "even": Control("queries are zero and stay so: attention is even", measure={"even": True}, axes=FOUR),
    },
)
