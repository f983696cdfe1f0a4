r"""Is the change of weights that replaces a context a step of gradient descent on that context?

The weights :math:`f_c(w)` answer queries of one token without the context as the network w does with it. Their change
is compared with the step :math:`-g` on the loss of the context's examples, each asked without the others, at w: by the
cosine, and by what the best step along it leaves of the context's effect. The same numbers are measured for the steps
on other contexts of the task, and on the context's examples with their labels shuffled, since either may be generic.

In linear attention with a direct term b both sides are formulas, with :math:`h = \sum_i y_i x_i` and
:math:`S = \sum_i x_i x_i^\top` over the context:

.. math:: \cos\big(f_c(w) - w, -g\big) = \cos\big(BAh,\; h - Sb\big)

which is 1 where :math:`BA \propto 1` and :math:`b = 0`, as after training on tasks around zero, and less where
:math:`b \ne 0`. Derived: docs/contexts-to-weights.md, A context and a gradient step.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, Subject, checks, estimates

LINEAR = "linear attention"
ARCHITECTURES = (LINEAR, "attention only", "one layer", "two layers")
JUDGED = (LINEAR, "one layer")
ALL = "all"
PARTS = ("attention 1", "dense 1", "attention 2", "dense 2", ALL)
OWN, OTHER, SHUFFLED = EXAMPLES = ("own", "other", "shuffled")
NEARER = 0.02  # difference of cosines
LESS = 0.75  # of what the step on other contexts leaves
PARTLY, WHOLLY = 0.5, 0.95  # cosines
ROUNDING = 1e-3
EXACT = 1e-9  # gaps below this are as good as none
LEARNED, MOST, FITTED, LOST = 0.5, 0.9, 0.1, 0.25  # variance explained; fraction of networks; gap; fraction of fits


def excess(dataset: xr.Dataset) -> xr.DataArray:
    """The cosine with the step on the context's own examples minus the cosine with steps on others' examples."""
    return dataset["step_cosine"].sel(examples=OWN, drop=True) - dataset["step_cosine"].sel(examples=OTHER, drop=True)


def check(dataset: xr.Dataset) -> list[Finding]:
    """In transformers the best step leaves less than others', and is part of the change: all of it if linear."""
    end = dataset.isel(step=-1, drop=True)
    learned = end["training_score"] > LEARNED
    end = end.where(learned)
    whole = end.sel(part=ALL, drop=True)
    transformers = [name for name in dataset["architecture"].values if name != LINEAR]
    most = bool((learned.mean("seed") >= MOST).all())
    findings = checks.complete("learned", "nine of ten networks have learned", most)
    fitted = bool((estimates.mean(whole["map_gap"]).value < FITTED).all())
    findings += checks.complete("fitted", f"maps leave less than {FITTED:g} of the effect", fitted)
    lost = bool((whole["unconverged"].mean("seed") <= LOST).all())
    findings += checks.complete("converged", "three quarters of the fits have converged", lost)
    if transformers:
        chosen = {"architecture": transformers}
        findings += checks.above(
            "nearer", "cosine with the context's step - with others'", estimates.mean(excess(whole.sel(chosen))), NEARER
        )
        own = estimates.mean(whole["step_cosine"].sel(examples=OWN, drop=True).sel(chosen))
        findings += checks.below("partly", "cosine with the context's step", own, PARTLY)
        gap = end["best_step_gap"]
        ratio = gap.sel(examples=OWN, drop=True).clip(min=EXACT) / gap.sel(examples=OTHER, drop=True)
        for name in transformers:
            of_parts = ratio.sel(architecture=[name]).dropna("part", how="all")
            quantity = "what the context's best step leaves / what others' leave"
            findings += checks.below("leaves_less", quantity, estimates.geometric_mean(of_parts), LESS)
    if LINEAR in dataset["architecture"]:
        linear = dataset.sel(architecture=LINEAR, part=ALL, drop=True)
        cosine = linear["step_cosine"].sel(examples=OWN, drop=True)
        off = abs(cosine - linear["exact_cosine"]).fillna(np.inf).max(["seed", "step"])
        quantity = "largest difference of a cosine to its closed form"
        findings += checks.below("closed_form", quantity, Estimate(off, 0.0), ROUNDING)
        trained = estimates.mean(cosine.isel(step=-1, drop=True).where(learned.sel(architecture=LINEAR, drop=True)))
        findings += checks.above("wholly", "cosine in linear attention", trained, WHOLLY)
    return findings


def figure(dataset: xr.Dataset):
    """Draw cosines, and residuals of the best steps, for the context's own step and others, in every network."""
    part = dataset.isel(dim=0, step=-1, drop=True)
    names = [str(name) for name in part["architecture"].values if name != LINEAR] or [LINEAR]
    rows = [
        Panel(quantity, at={"architecture": name}, ylim=(-0.1, 1.0) if quantity == "step_cosine" else (0.0, 1.1))
        for quantity in ("step_cosine", "best_step_gap")
        for name in names
    ]
    return panels(part, rows, x="part", hue="examples", columns=len(names))


claim = Claim(
    title="A context is partly a step",
    sentence=(
        "In the network the best gradient step on a context's own examples leaves under 0.75 of the effect that steps "
        "on other contexts leave; linear attention's weights lie along it."
    ),
    conditions=(
        "Linear regression around zero, noise of variance 0.1, eight examples; 1000 updates of Adam; width 16, two "
        "heads; queries of one token; all weights change, or those of attention. The change's cosine with the step is "
        "under 0.5, and above that with others' by 0.02. Bounds were set on other keys, where two layers and dense "
        "layers were undecided, and one network in 24 had not learned; fits that do not converge and networks that "
        "explain under half of the variance, at most one in ten, are left out."
    ),
    sources=("SLT22", "vonOswald23"),
    axes=(
        Axis("architecture", "F", "network"),
        Axis("part", "P", "weights that may move"),
        Axis("examples", "c", "examples of the step"),
    ),
    quantities=(
        Quantity("training_score", "R^2", "fraction of variance explained with contexts"),
        Quantity("step_cosine", r"\cos", "cosine of the change with the step"),
        Quantity("exact_cosine", r"\cos", "cosine in closed form"),
        Quantity("best_step_gap", r"\rho_g", "fraction of the effect that the best step does not explain"),
        Quantity("map_gap", r"\rho_c", "fraction of the effect that the map does not explain"),
        Quantity("unconverged", "u", "fraction of fits that have not converged"),
    ),
    static=("architecture", "dim"),
    outputs=("step", "part", "examples"),
    fixed={"length": 8, "width": 16, "heads": 2, "batch": 64, "contexts": 3, "others": 6, "queries": 96},
    sizes={
        "smoke": {"architecture": (LINEAR,), "dim": (2,), "step": (0, 20), "part": (ALL,), "examples": EXAMPLES}
        | {"seed": 2, "queries": 16, "contexts": 2},
        "small": {"architecture": JUDGED, "dim": (2,), "step": (1000,), "part": ("attention 1", ALL)}
        | {"examples": EXAMPLES, "seed": Seeds(24, block=6)},
        "medium": {"architecture": JUDGED, "dim": (2, 4), "step": (4000,), "part": ("attention 1", ALL)}
        | {"examples": EXAMPLES, "seed": Seeds(48, block=6)},
    },
    key=753,
    subject=Subject(
        "regression",
        "regression transformers of one layer",
        axes={"architecture": (LINEAR, ARCHITECTURES[-1]), "step": (1000,), "part": (ALL,)},
        controls=("shuffled", "negated", "exact"),
    ),
    controls={
        "shuffled": Control(
            "the step is on the context's examples with shuffled labels",
            measure={"shuffled": True},
            axes={"architecture": JUDGED, "seed": tuple(range(10))},
        ),
        "negated": Control(
            "the labels of the step's examples have the wrong sign, in linear attention",
            measure={"negated": True, "exact": True},
            axes={"architecture": ("one layer",), "seed": tuple(range(10))},
        ),
        "exact": Control(
            "the network is linear attention with a direct term",
            measure={"exact": True},
            axes={"architecture": ("one layer",), "seed": tuple(range(10))},
        ),
    },
)
