r"""Layers of linear attention that cannot change their inputs become the best steps of gradient descent.

:math:`P_l = \mathrm{diag}(0, 1)` and :math:`Q_l = \mathrm{diag}(-A_l, 0)` are L steps of preconditioned gradient
descent. Without noise the loss of the best step sizes :math:`A_l = a_lI` is known exactly. Networks may take them in
any order. For the probe the best step sizes are put into the order of the network's :math:`\mathrm{tr}\,A_l`; then the
label slot of layer l should hold :math:`y_i - f_l(x_i)`, the residual of these l steps.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Quantity
from icllab.core.grid import Seeds, tabulated
from icllab.figures.curves import Panel, panels
from icllab.figures.hues import joined
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import descent

REACHED = 1.05  # loss over that of the best steps
EXACT = 0.05  # largest standard error of the simulated loss of the best steps over the exact one
HELD = 0.9  # fraction of variance of the label slots that the step of the same number explains


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Exact losses of the best steps, of different sizes and of one size."""
    length = fixed_values(dataset)["length"]

    def exact(**size):
        free, tied = (formula(**size, length=length).loss for formula in (descent.free_steps, descent.tied_steps))
        return {"free_line": free, "tied_line": tied}

    return dataset.assign(tabulated(exact, dim=dataset.dim.values.tolist(), layers=dataset.layers.values.tolist()))


def check(dataset: xr.Dataset) -> list[Finding]:
    """At every depth the loss is the best steps' and never less; every layer holds the step of its number."""
    last = dataset.isel(step=-1, drop=True)
    fraction, margin = slots(last)
    beaten = ((1 - dataset["loss_ratio"]) / dataset["loss_ratio_error"] > 3).sum(("step", "seed"))
    reference = (
        estimates.stored(last.isel(seed=0, drop=True), "reference_loss") / dataset["free_line"]
    )  # one of all seeds
    quantity = "fraction of the label slots that the layer's step explains"
    return [
        *checks.agrees("reference", "loss of the best steps / exact", reference, 1.0, largest_error=EXACT),
        *checks.below("loss", "loss / the best steps'", estimates.mean(last["loss_ratio"]), REACHED),
        *checks.above("slots", f"{quantity}, least", estimates.mean(fraction), HELD),
        *checks.above("slots_apart", f"{quantity} - that of any other step, least", estimates.mean(margin)),
        *checks.equal("none_beats", "networks below the best steps by 3 paired standard errors", beaten, 0),
        *checks.complete("depths", "more than one depth", dataset.sizes["layers"] > 1),
    ]


def slots(dataset: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Fraction of a layer's slots that its own step explains, and its lead over other steps; the least over layers."""
    r_squared = dataset["r_squared"].sel(layer=dataset.layer > 0)
    own_step, present = r_squared.layer == r_squared.algorithm_step, r_squared.layer <= r_squared.layers
    fraction, other_fraction = (r_squared.where(steps).max("algorithm_step") for steps in (own_step, ~own_step))
    least = (
        values.where(present, np.inf).min("layer", skipna=False) for values in (fraction, fraction - other_fraction)
    )
    return next(least), next(least)


def figure(dataset: xr.Dataset):
    """Draw the loss against layers with the exact lines, and the fraction of slots that steps leave unexplained."""
    part = dataset.isel(dim=-1, step=-1, drop=True)
    fractions = [part["r_squared"].sel(layer=k, algorithm_step=k, drop=True) for k in part.layer.values if k > 0]
    left = 1 - xr.concat(fractions, "layer").mean("layer")
    curves = {
        "trained": {"test_loss": part["test_loss"], "exact_loss": part["free_line"], "slots_left": left},
        "one step size": {"test_loss": part["test_loss"] / part["tied_ratio"], "exact_loss": part["tied_line"]},
    }
    table = joined(curves, "predictor", dataset.attrs)
    rows = [Panel("test_loss", "exact_loss", yscale="log"), Panel("slots_left", yscale="log")]
    return panels(table, rows, x="layers", hue="predictor", line_name="exact")


SLOTS = ("layer", "algorithm_step")
COMMON = {"layers": range(1, 4)} | dict.fromkeys(SLOTS, range(4))
claim = Claim(
    title="Layers are gradient steps",
    sentence=(
        "Linear attention with fixed inputs reaches the loss of the best gradient steps to within 5 %, never less; the "
        "label slots of layer l hold what l steps leave."
    ),
    conditions=(
        "Up to three layers, a free matrix in each, trained by Adam from random starts; isotropic inputs and tasks "
        "without noise, d = 5, 20 examples. Each step has its own size; steps are counted in the network's order."
    ),
    sources=("Ahn23", "vonOswald23"),
    quantities=(
        *("test_loss", "heaviest", "loss_ratio", "step_size", "r_squared", "exact_loss", "free_line", "tied_line"),
        Quantity("reference_loss", "L", "error of the best steps found, on other covariances"),
        Quantity("slots_left", "1 - R^2", "fraction of variance that the layer's step does not explain"),
        Quantity("step_distance", r"\mathrm{dist}(A)", "distance of a matrix from a multiple of the identity"),
        Quantity("tied_ratio", "r_1", "loss over that of steps of one size on the same prompts"),
    ),
    static=("dim", "layers", "step"),
    outputs=SLOTS,
    fixed={"length": 20, "std": 0.3, "batch": 256, "rate": 0.03, "clip": 1.0, "prompts": 4000, "probed": 256},
    sizes={
        "smoke": {"dim": (2,), "layers": (2,), "step": (400,), "seed": 4, "batch": 64}
        | {"prompts": 2000}
        | dict.fromkeys(SLOTS, range(3)),
        "small": COMMON | {"dim": (5,), "step": (3000,), "seed": 10},
        "medium": COMMON | {"dim": (5, 10), "step": (6000,), "seed": Seeds(16, block=8)},
    },
    key=2,
    controls={
        "untrained": Control("the networks are left as they start", measure={"learn": False}),
        "inputs_change": Control("the layers may change their inputs", measure={"form": "blocks"}),
        "one_size": Control("the best steps are taken to be of one size", measure={"one_size": True}),
    },
)
