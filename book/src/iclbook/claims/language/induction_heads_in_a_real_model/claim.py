r"""The heads of a language model that repeat random tokens, and the heads that direct their attention.

A prompt is 32 tokens drawn uniformly and the same 32 again. The *induction heads* are the eight of largest induction
score, the *previous-token heads* the eight that attend most to the previous token, both on prompts that nothing else is
measured on. A head is ablated by its mean output over those prompts and their tokens. Random heads are as many others
of the same blocks.

A *path* from the previous-token heads to the induction heads replaces the outputs of the former by their means in what
the latter read, as keys, queries or values, with all between as it was. Two paths have one end that matters and one at
random: random heads send to the keys of the induction heads, and previous-token heads to the keys of random heads.

Depth is the share of pairs of a previous-token head and an induction head, sixteen of each, in which the induction head
is deeper; a pair of one block counts half. With scores :math:`\psi_{ij}` of m and n heads its squared error is
:math:`\mathrm{Var}_i(\bar\psi_i)/m + \mathrm{Var}_j(\bar\psi_j)/n`, over heads: all draws choose nearly the same.

All other errors are over draws of prompts and of random heads: the model is one.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, Subject, checks, estimates

HALVES = ("first", "repeated")
SETS = ("named", "random")
KINDS = ("previous-token", "induction")
PATHS = ("keys", "queries", "values", "keys, from random heads", "keys, of random heads")
RANKS = tuple(range(16))
COPIED = 8.0  # nats by which repetition lowers the loss
RISEN = 3.0  # nats


def check(dataset: xr.Dataset) -> list[Finding]:
    """The model repeats by these heads, which are deeper than the others and read them through their keys."""
    loss, rise = dataset["half_loss"], dataset["loss_rise"]
    copied = estimates.mean(loss.sel(half="first", drop=True) - loss.sel(half="repeated", drop=True))
    findings = checks.above("copied", "loss of the first half - of the repeated half, nats", copied, COPIED)
    named, random = (rise.sel(head_set=name, drop=True) for name in SETS)
    quantity = "rise without the induction heads - without random heads, nats"
    findings += checks.above("rise", quantity, estimates.mean(named - random), RISEN)
    quantity = "share of pairs with the induction head deeper than the previous-token head"
    findings += checks.above("depth", quantity, deeper(dataset["block"]), 0.5)
    keys, *others = (dataset["path_rise"].sel(path=name, drop=True) for name in PATHS)
    for name, phrase, path in (
        ("keys", "through queries", others[0]),
        ("senders", "from random heads", others[2]),
        ("receivers", "to the keys of random heads", others[3]),
    ):
        quantity = f"rise by the path through keys - {phrase}, nats"
        findings += checks.above(name, quantity, estimates.mean(keys - path), RISEN)
    return findings


def deeper(block: xr.DataArray) -> Estimate:
    """The share of pairs (previous-token head, induction head) with the latter deeper, and its error over heads."""
    previous, induction = (block.sel(head_kind=kind, drop=True).rename(head_rank=kind) for kind in KINDS)
    score = ((induction > previous) + 0.5 * (induction == previous)).mean("seed")
    by_kind = [estimates.mean(score.mean(other), over=kind) for kind, other in (KINDS, KINDS[::-1])]
    return by_kind[0] + by_kind[1] - score.mean(KINDS)


def figure(dataset: xr.Dataset):
    """Draw losses of the halves, rises without heads, blocks of the heads, and rises by paths, each over draws."""
    part = dataset.isel(model=0, drop=True).sel(head_set=list(SETS), head_kind=list(KINDS), path=list(PATHS))
    paths = ["keys", "queries", "values", "from random", "to random"]
    part = part.assign_coords(head_set=["best by score", "random"], path=paths)
    rows = [
        Panel("half_loss", x="half"),
        Panel("loss_rise", x="head_set"),
        Panel("block", x="head_rank", hue="head_kind"),
        Panel("path_rise", x="path"),
    ]
    return panels(part, rows, x="half", columns=2)


OUTPUTS = {"half": HALVES, "head_set": SETS, "head_kind": KINDS, "head_rank": RANKS, "path": PATHS}

claim = Claim(
    title="Heads that carry repetition",
    sentence=(
        "Without its eight strongest induction heads the network loses repetition, without random heads it does not; "
        "induction heads are mostly deeper than previous-token heads, which they read by keys."
    ),
    conditions=(
        "Of 270 heads of SmolLM2-135M, on 32 random tokens and the same again; mean ablation. Repetition lowers the "
        "loss by more than 8 nats; without the heads it rises by 3 nats more than without others of their blocks, by "
        "the path through keys 3 nats more than by queries, from random heads, and to random heads. Depth is asked of "
        "sixteen heads of each kind, since eight do not decide it. Heads are chosen on other prompts."
    ),
    sources=("Olsson22", "WangIOI23"),
    axes=(
        Axis("half", "H", "half of the prompt"),
        Axis("head_set", "S", "set of heads"),
        Axis("head_kind", "K", "kind of heads"),
        Axis("head_rank", "r", "rank of the head by its score"),
        Axis("path", "P", "path between heads"),
    ),
    quantities=(
        Quantity("half_loss", "L", "loss of the half", "nats"),
        Quantity("loss_rise", r"\Delta L", "rise of the repeated loss without heads", "nats"),
        Quantity("block", "b", "block of the head"),
        Quantity("path_rise", r"\Delta L", "rise of the repeated loss by the path", "nats"),
    ),
    static=("model",),
    outputs=tuple(OUTPUTS),
    fixed={"period": 32, "choice": 4, "chosen": 8, "sets": 2, "prompts": 4},
    sizes={
        "smoke": {"model": ("glassllm-en",), "chosen": 2, "seed": 2} | OUTPUTS | {"head_rank": tuple(range(4))},
        "small": {"model": ("smollm2-135m",), "seed": 6} | OUTPUTS,
        "medium": {"model": ("smollm2-135m",), "seed": Seeds(16, block=2)} | OUTPUTS,
    },
    key=571,
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
