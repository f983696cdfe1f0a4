r"""Which heads of a language model carry few-shot prompts, and which the repetition of random tokens.

The *function-vector score* of a head is the drop of the loss, to first order, of prompts whose examples have shuffled
labels, by the head's mean output over prompts with right labels in place of its output, at the last token before the
answer. The eight heads of largest score are compared with the eight of largest induction score on repeated random
tokens. A head that is among the first eight of both is left out of both sets, which the next heads fill.

Both sets, and random heads of the same blocks, are ablated by mean outputs, in few-shot prompts with right labels and
in repeated tokens. Heads are chosen on other prompts. Errors are over draws of prompts and random heads: the model is
one.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

VECTOR, INDUCTION = "function vector", "induction"
SETS = (VECTOR, INDUCTION, "beside function vector", "beside induction")
TASKS = ("few-shot", "repeated")
REPEATED = 2.0  # nats


def check(dataset: xr.Dataset) -> list[Finding]:
    """Each set carries one of the two tasks more than the other set, and than random heads of its blocks."""
    rise = {task: dataset["loss_rise"].sel(task=task, drop=True) for task in TASKS}
    few_shot, repeated = (
        {name: part.sel(head_set=name, drop=True) for name in SETS} for part in (rise["few-shot"], rise["repeated"])
    )
    findings = []
    for id, values, name, other, bound in (
        ("few_shot", few_shot, VECTOR, SETS[2], 0.0),
        ("vector_first", few_shot, VECTOR, INDUCTION, 0.0),
        ("repeated", repeated, INDUCTION, SETS[3], REPEATED),
        ("induction_first", repeated, INDUCTION, VECTOR, REPEATED),
    ):
        task = "few-shot" if values is few_shot else "repeated"
        quantity = f"rise of the {task} loss without {name} heads - without {other} heads, nats"
        findings += checks.above(id, quantity, estimates.mean(values[name] - values[other]), bound)
    return findings


def figure(dataset: xr.Dataset):
    """Rises of both losses without each set of heads, and the losses of the whole model."""
    part = dataset.isel(model=0, drop=True)
    rows = [Panel("loss_rise", x="head_set", hue="task"), Panel("task_loss", x="task", hue="table")]
    return panels(part, rows, x="head_set", columns=1)


OUTPUTS = {"task": TASKS, "head_set": SETS}

claim = Claim(
    title="Function vectors or induction",
    sentence="The sentence.",
    conditions="Bounds were set on other draws.",
    sources=("YinSteinhardt25", "Todd24", "Olsson22"),
    axes=(
        Axis("table", "T", "table of pairs"),
        Axis("task", "t", "task"),
        Axis("head_set", "S", "set of heads"),
    ),
    quantities=(
        Quantity("task_loss", "L", "loss", "nats"),
        Quantity("loss_rise", r"\Delta L", "rise of the loss without the heads", "nats"),
        Quantity("overlap", "o", "heads among the first of both scores"),
    ),
    static=("model", "table"),
    outputs=tuple(OUTPUTS),
    fixed={"shots": 8, "period": 32, "choice": 6, "chosen": 8, "prompts": 8},
    sizes={
        "smoke": {"model": ("glassllm-en",), "table": ("antonyms",), "seed": 2, "chosen": 2, "shots": 3} | OUTPUTS,
        "small": {"model": ("smollm2-135m",), "table": ("antonyms",), "seed": 6} | OUTPUTS,
        "medium": {"model": ("smollm2-135m",), "table": ("antonyms", "capitals"), "seed": Seeds(16, block=4)} | OUTPUTS,
    },
    key=72,
    controls={
        "exchanged": Control(
            "the two kinds of heads are taken for each other", measure={"exchanged": True}, axes={"seed": (0, 1, 2)}
        ),
        "misnamed": Control(
            "random heads of the same blocks are taken for both kinds",
            measure={"misnamed": True},
            axes={"seed": (0, 1, 2)},
        ),
        "permuted": Control(
            "the entries of each query matrix are permuted", measure={"permuted": True}, axes={"seed": (0, 1, 2)}
        ),
    },
)
