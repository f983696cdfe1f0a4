"""The heads of a language model that carry few-shot prompts, and those that carry repetitions of random tokens.

The *function-vector score* of a head is the drop of the loss, to first order, of prompts whose examples have shuffled
labels, by the head's mean output over prompts with right labels in place of its output, at the last token before the
answer. The eight heads of largest score are compared with the eight of largest induction score on repeated random
tokens. Beside them stand the eight of largest induction score among heads that are not among the first eight of both.

All sets, and random heads of the blocks of the first two, are ablated by mean outputs, in few-shot prompts with right
labels and in repeated tokens. Heads are chosen on other prompts. Errors are over draws of prompts and random heads: the
model is one.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import curves
from icllab.lab import Claim, Control, Finding, Subject, checks, estimates

VECTOR, INDUCTION = "function vector", "induction"
SETS = (VECTOR, INDUCTION, "induction alone", "beside function vector", "beside induction")
TASKS = ("few-shot", "repeated")
REPEATED = 2.0  # nats
SPARED = 0.5  # nats


def check(dataset: xr.Dataset) -> list[Finding]:
    """Induction heads carry the repetition more than the others; few-shot prompts do not need them."""
    rise = dataset["loss_rise"]
    few_shot, repeated = ({name: rise.sel(task=task, head_set=name, drop=True) for name in SETS} for task in TASKS)
    quantity = "rise of the repeated loss without induction heads - without heads beside them, nats"
    over_random = estimates.mean(repeated[INDUCTION] - repeated[SETS[-1]])
    findings = checks.above("repeated", quantity, over_random, REPEATED)
    quantity = "rise of the few-shot loss without induction heads - without heads beside them, nats"
    return findings + checks.below("spared", quantity, estimates.mean(few_shot[INDUCTION] - few_shot[SETS[-1]]), SPARED)


def figure(dataset: xr.Dataset):
    """Draw the rise of both losses without each set of heads."""
    part = dataset.isel(model=0, table=0, drop=True).sel(head_set=list(SETS))
    return curves(part, x="head_set", y="loss_rise", hue="task")


SMOKE = {"chosen": 2, "shots": 3, "choice": 2, "prompts": 2}
OUTPUTS = {"task": TASKS, "head_set": SETS}

claim = Claim(
    title="Function vectors or induction",
    sentence=(
        "The eight strongest induction heads carry the network's repetition of random tokens; few-shot antonyms lose "
        "under half a nat more without them than without random heads."
    ),
    conditions=(
        "Of 270 heads of SmolLM2-135M, eight examples, 32 random tokens and the same again; mean ablation. Without "
        "induction heads repetition loses 2 nats more than without others of their blocks. Some are function-vector "
        "heads too. That those carry few-shot prompts, and less of repetition, was expected and is not judged. Errors "
        "are over prompts and random heads. Bounds were chosen on other keys."
    ),
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
        "smoke": {"model": ("glassllm-en",), "table": ("antonyms",), "seed": 2} | SMOKE | OUTPUTS,
        "small": {"model": ("smollm2-135m",), "table": ("antonyms",), "seed": Seeds(10, block=2, first=6)} | OUTPUTS,
        "medium": {"model": ("smollm2-135m",), "table": ("antonyms", "capitals"), "seed": Seeds(16, block=4)} | OUTPUTS,
    },
    key=473,
    subject=Subject(
        "language model",
        "SmolLM2-135M",
        axes={"model": ("the network",)},
        controls=("copied", "permuted"),
    ),
    controls={
        "copied": Control(
            "the query is one of the examples, whose shuffled label is the answer",
            measure={"copied": True},
        ),
        "permuted": Control(
            "the entries of each query matrix are permuted", measure={"permuted": True}, axes={"seed": (6, 7, 8, 9)}
        ),
    },
)
