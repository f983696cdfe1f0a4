r"""Is a trained linear attention one for which contexts are changes of weights by a law?

:math:`f_c(w)` are the weights that answer without a context c as w does with it. There is a law where they carry nine
tenths of the effect of most contexts, of its change with w, and of the composition of its halves, each beside another
context's map. Linear attention with a direct term that sums over its context has it exactly, trained or not:
:math:`f_c(A, B, b) = (A, B, b + BAh_c)`. With a mean in place of the sum halves do not compose. Of transformers the
tests cannot tell: a planted law of the same size is not found in them.
"""

import xarray as xr

from iclbook.claims.context_map._law import ASKED, AXES, FIXED, QUANTITIES, TESTS, TRAINED, WORST, judged, with_ratios
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks

SIMPLEST, MEAN = "linear_attention", "mean_attention"


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Every test's ratio."""
    return with_ratios(dataset)


def check(dataset: xr.Dataset) -> list[Finding]:
    """A law in linear attention that sums, and none in linear attention that averages."""
    trained = bool((dataset["training_score"] > TRAINED).all())
    findings = checks.complete("trained", f"every model ends with a score above {TRAINED:g}", trained)
    for id, name in (("law", SIMPLEST), ("no_law", MEAN)):
        if name in dataset["family"].values:
            findings.append(judged(id, WORST, dataset, has_law=name == SIMPLEST, family=name))
    return findings


def figure(dataset: xr.Dataset):
    """Draw the ratios of effects, changes and compositions for both models."""
    rows = [Panel(f"{name}_ratio", yscale="log") for name in TESTS]
    return panels(dataset, rows, x="family", columns=3)


claim = Claim(
    title="A context law in linear attention",
    sentence=(
        "Of trained linear attentions with a direct term, one that sums over its context has a law for contexts, and "
        "one that averages has none."
    ),
    conditions=(
        "Linear regression, d = 2, 8 examples, Adam; one layer, whose direct term moves, queries of one token. A law:"
        " in most of ten networks, of most of four contexts, weights leave under a tenth of effect, change and "
        "composition. On another key transformers were asked too, in which a planted law was not found."
    ),
    sources=("SLT22",),
    axes=AXES,
    quantities=QUANTITIES,
    static=("family",),
    outputs=("context", "world", "test"),
    fixed=FIXED,
    sizes={
        "smoke": {"family": (SIMPLEST,), "seed": 2, **ASKED, "context": (0, 1)}
        | {"queries": 8, "transformer_updates": 2},
        "small": {"family": (SIMPLEST, MEAN), "seed": 10, **ASKED},
        "medium": {"family": (SIMPLEST, MEAN), "seed": Seeds(24, block=3), **ASKED},
    },
    key=439,
    controls={
        "sum": Control(
            "linear attention that sums stands in both models' place",
            measure={"stand_in": "linear_attention"},
        ),
        "mean": Control(
            "linear attention that averages stands in both models' place",
            measure={"stand_in": "mean_attention"},
        ),
    },
)
