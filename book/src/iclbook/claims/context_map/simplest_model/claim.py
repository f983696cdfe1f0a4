r"""Which is the simplest trained model for which contexts are changes of weights by a law?

:math:`f_c(w)` are the weights that answer without a context c as w does with it. There is a law where they carry nine
tenths of a context's effect, of its change with w, and of the composition of its halves, each beside another context's
map. Linear attention with a direct term that sums over its context has it exactly, trained or not: :math:`f_c(A, B, b)
= (A, B, b + BAh_c)`. With a mean in place of the sum halves do not compose. Transformers of one and two layers are
measured after training; their dense layers move for queries of one token, their attention for queries of three.
"""

import xarray as xr

from iclbook.claims.context_map._law import ASKED, AXES, FIXED, QUANTITIES, TESTS, TRAINED, WORST, judged, with_ratios
from icllab.core.grid import Seeds
from icllab.diagnostics.contexts.verdicts import LEVEL
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks

SIMPLEST, MEAN = "linear_attention", "mean_attention"
TRANSFORMERS = ("dense", "attention")


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Every test's ratio, and the level of a law."""
    return with_ratios(dataset).assign(ratio_line=xr.full_like(dataset["layers"], LEVEL, dtype=float))


def check(dataset: xr.Dataset) -> list[Finding]:
    """A law in linear attention that sums, and in no other model; linear attention has one layer by construction."""
    trained = bool((dataset["training_score"] > TRAINED).all())
    findings = checks.complete("trained", f"every model ends with a score above {TRAINED:g}", trained)
    fewest_layers = int(dataset["layers"].min())
    for name in dataset["family"].values.tolist():
        if name == SIMPLEST:
            findings.append(judged("law", WORST, dataset, has_law=True, family=name, layers=fewest_layers))
            continue
        layers = dataset["layers"].values.tolist() if name in TRANSFORMERS else [fewest_layers]
        findings += [judged("no_law", WORST, dataset, has_law=False, family=name, layers=n) for n in layers]
    return findings


def figure(dataset: xr.Dataset):
    """What weights leave of effects, changes and compositions, against the number of layers."""
    rows = [Panel(f"{name}_ratio", "ratio_line", yscale="log") for name in TESTS]
    return panels(dataset, rows, x="layers", hue="family", line_name="threshold", columns=3)


claim = Claim(
    title="The simplest model with a context law",
    sentence=(
        "Of trained regression models, linear attention that sums over its context has a law for contexts; linear "
        "attention that averages, and transformers of one and two layers, have none."
    ),
    conditions=(
        "Linear regression, d = 2, 8 examples, Adam. Linear attention has a direct term, which moves. Of transformers "
        "dense layers move for queries of one token, attention for queries of three. Four contexts of each network."
    ),
    sources=("SLT22",),
    axes=AXES,
    quantities=QUANTITIES,
    static=("family", "layers"),
    outputs=("context", "world", "test"),
    fixed=FIXED | {"width": 16, "heads": 2},
    sizes={
        "smoke": {"family": (SIMPLEST,), "layers": (1,), "seed": 2, **ASKED, "context": (0, 1)}
        | {"queries": 8, "transformer_updates": 2},
        "small": {"family": (SIMPLEST, MEAN, *TRANSFORMERS), "layers": (1, 2), "seed": tuple(range(100, 104)), **ASKED},
        "medium": {"family": (SIMPLEST, MEAN, *TRANSFORMERS), "layers": (1, 2), "seed": Seeds(8, block=2), **ASKED},
    },
    key=39,
    controls={
        "sum": Control(
            "linear attention that sums stands in every model's place",
            measure={"stand_in": "linear_attention"},
            axes={"layers": (1,)},
        ),
        "mean": Control(
            "linear attention that averages stands in every model's place",
            measure={"stand_in": "mean_attention"},
            axes={"family": (SIMPLEST,), "layers": (1,)},
        ),
    },
)
