"""The part of a few-shot prompt's effect that one change of one layer's weights carries, at held-out queries.

A prompt has pairs of a table, such as "France -> Paris", and then the question of another pair. For a block the last
weights of its dense layers are changed so that, without the examples, the stream after the block is what it is with
them: at the last token of eleven fitted queries by least squares, of least norm, then cut to a rank in the metric of
what the layer reads. The change is the same for all queries, and acts at every token. At eleven other queries the
answer has :math:`L_0` nats alone, :math:`L_c` after the prompt and :math:`L_p` with the change, which carries the
fraction

.. math:: (L_0 - L_p) / (L_0 - L_c)

of the prompt's benefit. The nulls are changes that other contexts make: other examples of the table, the same with
shuffled labels, examples of another table; and changes fitted to what the prompt does at other queries.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, Subject, checks, estimates

CONTEXTS = OWN, SAME, SHUFFLED, FOREIGN, PERMUTED = (
    "own",
    "other examples",
    "shuffled labels",
    "other table",
    "permuted queries",
)
RANKS = ("1", "full")
BLOCK, EARLY = 20, 8  # of 30
HALF = 0.5
MORE = 0.25


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Fractions of the prompt's benefit with each change, and with each context itself."""
    alone = dataset["nats_alone"]
    benefit = alone - dataset["nats_after"].sel(context=OWN, drop=True)
    return dataset.assign(
        carried=(alone - dataset["nats"]) / benefit, carried_after=(alone - dataset["nats_after"]) / benefit
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """A change of rank one in a late block carries most of the prompt's benefit, and more than another table's."""
    rank_one = dataset["carried"].sel(map_rank="1", drop=True)

    def carried(context: str, block: int = BLOCK) -> xr.DataArray:
        return rank_one.sel(context=context, block=block, drop=True)

    def mean(values: xr.DataArray) -> Estimate:
        return estimates.mean(values)

    findings = checks.above("own", "benefit carried by rank one", mean(carried(OWN)), HALF)
    by_table = mean(carried(OWN) - carried(FOREIGN))
    findings += checks.above("table", "benefit carried by rank one - by that of another table", by_table, MORE)
    by_depth = mean(carried(OWN) - carried(OWN, EARLY))
    return findings + checks.above("late", "benefit carried in a late block - in an early one", by_depth)


def figure(dataset: xr.Dataset):
    """Draw the benefit of a rank-one change in each block, for each context and table."""
    part = dataset.isel(model=-1, shots=-1, drop=True).sel(map_rank="1", context=list(CONTEXTS))
    part = part.assign_coords(block=[str(block) for block in part.block.values])
    rows = [Panel("carried", hue="context", at={"table": table}) for table in part.table.values]
    return panels(part, rows, x="block", columns=2)


OUTPUTS = {"context": CONTEXTS, "map_rank": RANKS}
FEW = {"table": ("capitals",), "seed": (0, 1, 2, 3)}  # as many as it takes

claim = Claim(
    title="What one layer can carry",
    sentence=(
        "A rank-one change of one late layer of the network, fitted at other queries, carries over half of a few-shot "
        "prompt's benefit, at least a quarter more than another table's."
    ),
    conditions=(
        "SmolLM2-135M, the last dense layer of block 20 of 30, six examples, capitals and antonyms of a token each, "
        "eleven fitted and eleven tested queries; a quarter of the benefit. A seed draws examples and queries. Bounds, "
        "and that tables are compared in pairs, were chosen on other draws."
    ),
    sources=("Goldwaser25", "SLT22"),
    axes=(
        Axis("table", "T", "table of pairs"),
        Axis("shots", "k", "examples of the prompt", least=1),
        Axis("context", "c", "context whose change it is"),
        Axis("block", "b", "block whose weights change", least=0),
        Axis("map_rank", "r", "rank of the change"),
    ),
    quantities=(
        Quantity("nats", "L_p", "cross-entropy of the answer with the change", "nats"),
        Quantity("nats_after", "L_c", "cross-entropy of the answer after the context", "nats"),
        Quantity("nats_alone", "L_0", "cross-entropy of the answer alone", "nats"),
        Quantity("carried", r"(L_0 - L_p)/(L_0 - L_c)", "fraction of the prompt's benefit"),
        Quantity("carried_after", r"(L_0 - L_{c'})/(L_0 - L_c)", "benefit of a context over the prompt's"),
    ),
    static=("model", "table", "shots"),
    outputs=("context", "block", "map_rank"),
    fixed={"queries": 22},
    sizes={
        "smoke": {"model": ("glassllm-en",), "table": ("letters",), "shots": (3,), "block": (1, 2), "seed": 2}
        | OUTPUTS,
        "small": {
            "model": ("smollm2-135m",),
            "table": ("capitals", "antonyms"),
            "shots": (6,),
            "block": (8, 14, 20, 26),
            "seed": 9,
        }
        | OUTPUTS,
        "medium": {
            "model": ("smollm2-135m",),
            "table": ("capitals", "antonyms"),
            "shots": (2, 3, 4, 6),
            "block": (4, 8, 12, 16, 20, 24, 28),
            "seed": Seeds(8, block=8),
        }
        | OUTPUTS,
    },
    theory=theory,
    key=88,
    subject=Subject(
        "language model",
        "SmolLM2-135M",
        axes={"model": ("the network",)},
        controls=("reversed", "same_context"),
    ),
    controls={
        "reversed": Control("each change is subtracted", measure={"strength": -1.0}, axes=FEW),
        "same_context": Control("each other context is the prompt itself", measure={"same_context": True}, axes=FEW),
    },
)
