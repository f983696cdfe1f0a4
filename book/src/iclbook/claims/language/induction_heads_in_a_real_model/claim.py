"""The heads of a language model that repeat random tokens, and the heads that direct their attention.

A prompt is 32 tokens drawn uniformly and the same 32 again. The *induction heads* are the eight of largest induction
score, the *previous-token heads* the eight that attend most to the previous token, both on prompts that nothing else is
measured on. A head is ablated by its mean output over those prompts and their tokens. Random heads are as many others
of the same blocks.

A *path* from the previous-token heads to the induction heads replaces the outputs of the former by their means in what
the latter read, as keys, queries or values, with all between as it was.

Errors are over draws of prompts and of random heads: the model is one.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Subject, checks, estimates

HALVES = ("first", "repeated")
SETS = ("named", "random")
KINDS = ("previous-token", "induction")
THROUGH = ("keys", "queries", "values")
COPIED = 8.0  # nats by which repetition lowers the loss
RISEN = 3.0  # nats


def check(dataset: xr.Dataset) -> list[Finding]:
    """The model repeats by these heads, which are deeper than the others and read them through their keys."""
    loss, depth = dataset["half_loss"], dataset["depth"]
    copied = estimates.mean(loss.sel(half="first", drop=True) - loss.sel(half="repeated", drop=True))
    findings = checks.above("copied", "loss of the first half - of the repeated half, nats", copied, COPIED)
    named, random = (dataset["loss_rise"].sel(head_set=name, drop=True) for name in SETS)
    quantity = "rise without the induction heads - without random heads, nats"
    findings += checks.above("rise", quantity, estimates.mean(named - random), RISEN)
    later = estimates.mean(
        depth.sel(head_kind="induction", drop=True) - depth.sel(head_kind="previous-token", drop=True)
    )
    findings += checks.above("depth", "mean block of induction heads - of previous-token heads", later)
    named, random = (dataset["path_rise"].sel(head_set=name, drop=True) for name in SETS)
    keys, queries = (named.sel(through=name, drop=True) for name in ("keys", "queries"))
    over_random = estimates.mean(keys - random.sel(through="keys", drop=True))
    findings += checks.above("path", "rise by the path through keys - between random heads, nats", over_random, RISEN)
    quantity = "rise by the path through keys - through queries, nats"
    return findings + checks.above("keys", quantity, estimates.mean(keys - queries), RISEN)


def figure(dataset: xr.Dataset):
    """Draw losses of the halves, rises without heads, depths, and rises by paths, each over draws."""
    part = dataset.isel(model=0, drop=True).sel(head_set=list(SETS), head_kind=list(KINDS))
    part = part.assign_coords(head_set=["best by score", "random"])
    rows = [
        Panel("half_loss", x="half"),
        Panel("loss_rise", x="head_set"),
        Panel("depth", x="head_kind"),
        Panel("path_rise", x="through", hue="head_set"),
    ]
    return panels(part, rows, x="half", columns=2)


OUTPUTS = {"half": HALVES, "head_set": SETS, "head_kind": KINDS, "through": THROUGH}

claim = Claim(
    title="Heads that carry repetition",
    sentence=(
        "Without its eight strongest induction heads the network loses repetition, without random heads it does not; "
        "the induction heads are deeper than previous-token heads and read them by keys."
    ),
    conditions=(
        "Of 270 heads of SmolLM2-135M, on 32 random tokens and the same again; mean ablation. Repetition lowers the "
        "loss by more than 8 nats; without the heads it rises by 3 nats more than without others of their blocks, by "
        "the path through keys 3 nats more than by a random one and than by queries. Heads are chosen on other "
        "prompts. Errors are over prompts and random heads. Bounds were set on other draws."
    ),
    sources=("Olsson22", "WangIOI23"),
    axes=(
        Axis("half", "H", "half of the prompt"),
        Axis("head_set", "S", "set of heads"),
        Axis("head_kind", "K", "kind of heads"),
        Axis("through", "P", "what the path changes"),
    ),
    quantities=(
        Quantity("half_loss", "L", "loss of the half", "nats"),
        Quantity("loss_rise", r"\Delta L", "rise of the repeated loss without heads", "nats"),
        Quantity("depth", "b", "mean block of the heads"),
        Quantity("path_rise", r"\Delta L", "rise of the repeated loss by the path", "nats"),
    ),
    static=("model",),
    outputs=tuple(OUTPUTS),
    fixed={"period": 32, "choice": 4, "chosen": 8, "sets": 2, "prompts": 4},
    sizes={
        "smoke": {"model": ("glassllm-en",), "chosen": 2, "seed": 2} | OUTPUTS,
        "small": {"model": ("smollm2-135m",), "seed": 6} | OUTPUTS,
        "medium": {"model": ("smollm2-135m",), "seed": Seeds(16, block=2)} | OUTPUTS,
    },
    key=71,
    subject=Subject(
        "language model",
        "SmolLM2-135M",
        axes={"model": ("the network",)},
        controls=("permuted", "misnamed", "exchanged"),
    ),
    controls={
        "no_induction": Control(
            "glassllm, which has previous-token heads and no induction heads; two heads in the place of eight",
            measure={"opened": "glassllm-en", "chosen": 2},
        ),
        "permuted": Control(
            "the entries of each query matrix are permuted", measure={"permuted": True}, axes={"seed": (0, 1, 2)}
        ),
        "misnamed": Control(
            "random heads of the same blocks are taken for the induction heads and previous-token heads",
            measure={"misnamed": True},
            axes={"seed": (0, 1, 2)},
        ),
        "exchanged": Control(
            "previous-token heads and induction heads are taken for each other",
            measure={"exchanged": True},
            axes={"seed": (0, 1, 2)},
        ),
    },
)
