r"""A change of a language model's weights that replaces a context exactly at one token, and its effect at others.

A query is the last six tokens of a text, and its context the tokens before them; both follow the token with which texts
begin. At the last token, blocks' dense layers read other values after the context than without it, and the stream
beside them differs. In each block rank-one changes of the dense layers make up for both: without the context the
patched model gives the logits that the model gave after it. The effect of a context is the divergence
:math:`\mathrm{KL}(T(c, x) \Vert T(x))` of the next token. What a patch leaves of it is measured at the query of the
patch, at queries some tokens away in the same text, and for the patch that the same query has after another text, of
the same kind or of another. The best patch of a text is fitted, block by block, to every other query and tested at
those between them.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, Subject, checks, estimates

PATCHES = OWN, NEXT, FURTHER, SIMILAR, UNRELATED, FITTED, BETWEEN = (
    "own query",
    "next query",
    "2 or 3 away",
    "similar text",
    "unrelated text",
    "best, fitted",
    "best, between",
)
EXACT = 1e-4  # relative error of the logits, in float32
MOST = 1 / 3  # of the effect of the context
LITTLE = 0.1
ROUNDING = 1e-6  # what is left of an effect is no smaller


def check(dataset: xr.Dataset) -> list[Finding]:
    """Exact at its query; elsewhere most is left, and the best patch works at the queries to which it was fitted."""
    exact = Estimate(dataset["logit_error"].sel(patch=OWN, drop=True).max("seed"), 0.0)
    findings = checks.below("exact", "largest relative error of the logits at its query", exact, EXACT)

    def left(patch: str) -> Estimate:
        return estimates.geometric_mean(dataset["effect_left"].sel(patch=patch, drop=True).clip(min=ROUNDING))

    findings += checks.above("next", "effect left by the patch of a token before or after", left(NEXT), MOST)
    findings += checks.above("further", "effect left by the patch of another query of the text", left(FURTHER), MOST)
    findings += checks.above("similar", "effect left by the patch after a text of its kind", left(SIMILAR), MOST)
    findings += checks.above("unrelated", "effect left by the patch after an unrelated text", left(UNRELATED), MOST)
    findings += checks.below("fitted", "effect left by the best patch where it was fitted", left(FITTED), LITTLE)
    return findings + checks.above("between", "effect left by the best patch between", left(BETWEEN), LITTLE)


def figure(dataset: xr.Dataset):
    """Draw the residual of a context's effect after each patch, by its number of tokens."""
    part = dataset.isel(model=-1, drop=True).sel(patch=list(PATCHES))
    return panels(part, [Panel("effect_left", hue="context_tokens")], x="patch")


OUTPUTS = {"patch": PATCHES}
FEW = {"seed": (0, 1, 2, 3)}  # as many as it takes

claim = Claim(
    title="An exact patch of one token",
    sentence=(
        "In the network a context is an exact rank-one patch per block at one token; patches of the next token or "
        "another text leave over a third of its effect."
    ),
    conditions=(
        "SmolLM2-135M, texts of a few people, towns and things in eight sentence patterns; queries of six tokens. "
        "In float32: logits are equal to 1e-4. The effect is a Kullback-Leibler divergence of the next token. A seed "
        "draws two texts of this kind; means are geometric. The best patch of a text leaves less than a "
        "tenth of the effect where it was fitted, and more between. Bounds were set on other draws."
    ),
    sources=("Goldwaser25", "Dherin25"),
    axes=(
        Axis("context_tokens", "n", "tokens of the context", least=1),
        Axis("patch", "p", "patch, and the queries it is tested at"),
    ),
    quantities=(
        Quantity("effect_left", r"D_p/D_0", "residual of the effect"),
        Quantity("effect", "D_0", "effect of the context", "nats"),
        Quantity("logit_error", r"\epsilon", "largest relative error of the logits"),
    ),
    static=("model", "context_tokens"),
    outputs=("patch",),
    fixed={"query_tokens": 6, "queries": 4, "fitted": 16},
    sizes={
        "smoke": {"model": ("glassllm-en",), "context_tokens": (16,), "seed": 2} | OUTPUTS,
        "small": {"model": ("smollm2-135m",), "context_tokens": (32,), "seed": 12} | OUTPUTS,
        "medium": {
            "model": ("glassllm-en", "smollm2-135m"),
            "context_tokens": (8, 16, 32, 64),
            "seed": Seeds(6, block=6),
        }
        | OUTPUTS,
    },
    key=89,
    subject=Subject(
        "language model",
        "SmolLM2-135M",
        axes={"model": ("the network",)},
        controls=("doubled", "same_query", "same_context"),
    ),
    controls={
        "doubled": Control("each patch is taken twice", measure={"strength": 2.0}, axes=FEW),
        "same_query": Control("all queries of a text are its first", measure={"same_query": True}, axes=FEW),
        "same_context": Control("the other texts are the text itself", measure={"same_context": True}, axes=FEW),
    },
)
