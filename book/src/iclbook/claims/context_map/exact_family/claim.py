r"""If a formula gives a context's change of weights, does the measurement find it, and what sets it apart?

The model answers :math:`\hat y = x \cdot (b + BAh_c)` with :math:`h_c = \sum_{i \in c} y_i x_i`, so that
:math:`f_c(A, B, b) = (A, B, b + BAh_c)`: the gap, the derivative test and the composition gap vanish. The rank of the
map where A alone varies is that of :math:`B \otimes h_c^\top`, which is min(k, d).

An unrelated target is linear in the query here too: its gap vanishes as well, and says nothing. The weights it is
fitted with do not compose. With a mean instead of the sum, no weights of contexts do.

A model whose context is one gradient step has its map along that gradient: cosine 1, and the best step leaves nothing.
Derived: docs/context-map.md, A family where all is known.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Estimate, Finding, checks
from icllab.lab.claim import Control
from icllab.lab.results import fixed_values

EXACT = 1e-10
PLAIN = 1e-2  # a fraction that is plainly not zero
VANISH = {
    "map_gap": "gap of the context's weights",
    "derivative_gap": "change along random directions not carried",
    "composition_gap": "two halves after each other against the whole",
    "unrelated_gap": "gap of an unrelated target's weights",
    "step_gap": "what the best gradient step leaves, of a model that takes it",
}


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """The rank of the map if A alone varies."""
    dim = int(fixed_values(dataset)["dim"])
    return dataset.assign(map_rank_theory=np.minimum(dataset["hidden"], dim).astype(float))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Exact gaps vanish for the worst seed, an unrelated target does not compose, and ranks follow the formula."""
    findings = []
    for name, quantity in VANISH.items():
        worst = dataset[name].fillna(np.inf).max("seed")
        findings += checks.below(name, f"{quantity}, largest of all seeds", Estimate(worst, 0.0), EXACT)
    least = dataset["unrelated_composition_gap"].min("seed")
    quantity = "an unrelated target's weights and the later half against the whole, smallest of all seeds"
    findings += checks.above("unrelated_composition_gap", quantity, Estimate(least, 0.0), PLAIN)
    away = abs(dataset["step_cosine"] - 1).max("seed")
    findings += checks.below(
        "step_cosine", "1 - cosine with the gradient that a model takes", Estimate(away, 0.0), EXACT
    )
    none = (dataset["law"] != 1).sum("seed")
    findings += checks.equal("law", "seeds whose contexts are not judged to have a law", none, 0)
    wrong = (dataset["map_rank"] != dataset["map_rank_theory"]).sum("seed")
    findings += checks.equal("map_rank", "seeds with another rank than min(k, d)", wrong, 0)
    return checks.seedless(findings)  # rounding is their only error


def figure(dataset: xr.Dataset):
    """Draw the ranks, and the composition gaps of the context and of an unrelated target."""
    floor = 1e-34  # exact zeros are drawn here
    part = dataset.assign(
        {name: dataset[name].clip(min=floor) for name in ("composition_gap", "unrelated_composition_gap")}
    )
    rows = [
        Panel("map_rank", "map_rank_theory"),
        Panel("composition_gap", yscale="log"),
        Panel("unrelated_composition_gap", yscale="log"),
    ]
    return panels(part.isel(length=-1), rows, x="hidden", line_name="min(k, d)")


claim = Claim(
    title="Fast weights: an exact context map",
    sentence=(
        "Fast weights written by a sum over the context map contexts to weights exactly, compose, and pass for a law; "
        "unrelated targets are fitted as exactly, but do not compose."
    ),
    conditions=(
        "Linear regression, d = 4, random normal weights, contexts of 2 to 8 examples, in float64; targets of other "
        "networks of the same form; a second model takes one gradient step."
    ),
    sources=("SLT22", "vonOswald23"),
    axes=(Axis("hidden", "k", "hidden units of the fast weights", least=1),),
    quantities=(
        Quantity("map_gap", r"\rho_c", VANISH["map_gap"]),
        Quantity("derivative_gap", r"\tau_c", VANISH["derivative_gap"]),
        Quantity("composition_gap", r"\kappa_c", "composition gap"),
        Quantity("unrelated_gap", r"\rho_u", VANISH["unrelated_gap"]),
        Quantity("unrelated_composition_gap", r"\kappa_u", "composition gap, unrelated target"),
        Quantity("step_gap", r"\min_\eta D_c / D_c(0)", VANISH["step_gap"]),
        Quantity("step_cosine", r"\cos(f_c(w) - w, -g)", "cosine of the map with the gradient that a model takes"),
        Quantity("law", "1", "whether the contexts are judged to have a law"),
        Quantity("map_rank", "r_c", "rank where A varies"),
    ),
    static=("hidden", "length"),
    fixed={"dim": 4, "queries": 16},
    sizes={
        "smoke": {"hidden": (2,), "length": (4,), "seed": 1},
        "small": {"hidden": (1, 2, 4, 6), "length": (4,), "seed": 5},
        "medium": {"hidden": (1, 2, 3, 4, 6), "length": (2, 8), "seed": 10},
    },
    precision="float64",
    key=2,
    controls={
        "mean": Control("the context is written by its mean", measure={"kind": "mean"}),
        "softmax": Control("softmax attention to the context leaves the linear family", measure={"kind": "softmax"}),
        "last": Control(
            "the last example overwrites the weights: what other weights have been does not matter",
            measure={"kind": "last"},
        ),
        "signs": Control("the second model steps along the signs of its gradient", measure={"signs": True}),
    },
)
