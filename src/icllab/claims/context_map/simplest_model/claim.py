r"""Which is the simplest transformer for which contexts are changes of weights, by a law beyond the nulls?

:math:`f_c(w)` are the weights that answer without a context c as w does with it. There is a law where derivative test
and composition both leave less than for unrelated targets and for untrained networks: a law ratio :math:`\Lambda` below
1. Trained regression transformers of all sizes are measured. Their dense layers move for queries of one token, their
attention for queries of three. Fast weights that a sum over the context writes show that the tests find a law where
there is one.
"""

import xarray as xr

from icllab.claims.context_map._law_ratios import (
    ANSWERED,
    AXES,
    EXACT,
    FIXED,
    LAW,
    QUANTITIES,
    of_contexts,
    with_ratios,
)
from icllab.core.axes import Axis
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

FAMILIES = ("regression", "three_tokens")
TRAINED = 0.6  # score at the end


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Each test over the least of its nulls, and the larger of both."""
    return with_ratios(dataset).assign(ratio_line=xr.ones_like(dataset["width"], dtype=float))


def check(dataset: xr.Dataset) -> list[Finding]:
    """No law at any size."""
    networks = dataset.sel(family=dataset.family.isin(FAMILIES))
    law = estimates.geometric_mean(of_contexts(networks["law_ratio"]))
    trained = bool((networks["training_score"] > TRAINED).all())
    findings = checks.complete("trained", f"every network ends with a score above {TRAINED:g}", trained)
    return findings + checks.above("law", LAW, law, 1.0)


def figure(dataset: xr.Dataset):
    """Both tests over their nulls against the width, for the fewest layers and heads."""
    part = dataset.isel(layers=0, heads=0, drop=True)
    part = part.assign({name: of_contexts(part[name]) for name in ("derivative_ratio", "composition_ratio")})
    ratios = ("derivative_ratio", "composition_ratio")
    rows = [Panel(name, "ratio_line", yscale="log", hollow="unconverged") for name in ratios]
    return panels(part, rows, x="width", hue="family", line_name="least null")


ASKED = {"context": (0, 1, 2, 3), "answered_by": ANSWERED}

claim = Claim(
    title="No small model maps contexts by a law",
    sentence=(
        "No regression transformer of one or two layers, one to four heads and width 8 to 32 has a functorial law "
        "from contexts to weights beyond its nulls."
    ),
    conditions=(
        "Linear regression, d = 2, 8 examples, Adam. Dense layers move for queries of one token, attention for queries "
        "of three. 6 seeds of 4 contexts."
    ),
    sources=("SLT22",),
    axes=(*AXES, Axis("heads", "H", "heads of attention", least=1)),
    quantities=QUANTITIES,
    static=("family", "layers", "heads", "width"),
    outputs=("context", "answered_by"),
    fixed=FIXED,
    sizes={
        "smoke": {"family": (EXACT,), "layers": (1,), "heads": (1,), "width": (8,), "seed": 2, **ASKED},
        "small": {"family": FAMILIES, "layers": (1, 2), "heads": (1,), "width": (8, 32), "seed": 4, **ASKED},
        "medium": {"family": FAMILIES, "layers": (1, 2), "heads": (1, 4), "width": (8, 32), **ASKED}
        | {"seed": Seeds(6, block=6)},
    },
    key=15,
    controls={
        "exact": Control(
            "fast weights that a sum over the context writes stand in a transformer's place",
            measure={"exact": True},
            axes={"family": ("regression",), "layers": (1,), "width": (8,)},
        ),
    },
)
