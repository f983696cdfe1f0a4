r"""Do few-shot examples give a language model the form of the question, or the relation of labels to items?

Prompts have k examples of a table of pairs and the question of another pair, with right labels, with the same labels
shuffled among the examples, or with new symbols in place of a table's two answers. The log-likelihood of the right
answer rises with k right examples by the benefit

.. math:: B_k = \ell_k^{\text{right}} - \ell_0
    = (\ell_k^{\text{shuffled}} - \ell_0) + (\ell_k^{\text{right}} - \ell_k^{\text{shuffled}}),

the part that the shuffled labels give too (*recognition* of words, form and table), and the part that right labels add
(*learning*, or recognition that wrong labels disturb). Symbols have no meaning before the prompt: whoever chooses the
right one of the two more often than by chance has learned it there.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Subject, checks, estimates

RIGHT, SHUFFLED, SYMBOLS = "right", "shuffled", "symbols"
LABELS = (RIGHT, SHUFFLED, SYMBOLS)
TABLES = ("capitals", "antonyms", "kinds", "feelings")
HALF = 0.5  # of the benefit, that shuffled labels bring
HELP = 1.0  # nats that examples bring at least


def check(dataset: xr.Dataset) -> list[Finding]:
    """Examples help, and shuffled labels keep more than half of the help."""
    dataset = dataset.isel(model=0, drop=True)
    most = int(dataset["shots"].max())
    at_most = dataset["log_likelihood"].sel(shots=most, drop=True)
    none = dataset["log_likelihood"].sel(shots=0, shown=RIGHT, drop=True)
    right, shuffled = (at_most.sel(shown=name, drop=True) - none for name in (RIGHT, SHUFFLED))
    quantity = f"log-likelihood of the answer after {most} examples - without any, nats"
    findings = checks.above("helps", quantity, estimates.mean(right), HELP)
    quantity = f"what {most} examples with shuffled labels bring - half of what right ones bring, nats"
    return findings + checks.above("recognition", quantity, estimates.mean(shuffled - HALF * right))


def figure(dataset: xr.Dataset):
    """Draw log-likelihood and accuracy against the number of examples, for each table."""
    part = dataset.isel(model=0, drop=True)
    tables = part["table"].values.tolist()
    rows = [Panel("log_likelihood", at={"table": name}) for name in tables]
    rows += [Panel("accuracy", at={"table": name}) for name in tables]
    return panels(part, rows, x="shots", hue="shown", xscale="linear", columns=len(tables))


FEWER, FEW_TABLES = (0, 1, 4, 8, 16), ("capitals", "feelings")
OUTPUTS = {"shots": (0, 1, 2, 4, 8, 16), "shown": LABELS}

claim = Claim(
    title="Examples show the form",
    sentence=(
        "Few-shot examples help the network mostly by words, form and table: shuffled labels bring more than half of "
        "what right ones bring."
    ),
    conditions=(
        "SmolLM2-135M; tables of capitals and of words of feeling (at medium also antonyms and kinds of living "
        "things); 16 examples; log-likelihood of the answer, whose errors are over draws of prompts. Whether new "
        "symbols are learned was asked too, and is undecided. Bounds were set on other draws of the table of kinds."
    ),
    sources=("Brown20", "Min22", "Pan23", "Wei23"),
    axes=(
        Axis("table", "t", "table of pairs"),
        Axis("shots", "k", "examples", least=0),
        Axis("shown", "y", "labels of the examples"),
    ),
    quantities=(
        "accuracy",
        Quantity("log_likelihood", r"\ell_k", "log-likelihood of the answer", "nats"),
        Quantity("choice", "A_2", "accuracy among the table's answers"),
    ),
    static=("model", "table"),
    outputs=("shots", "shown"),
    fixed={"prompts": 1},
    sizes={
        "smoke": {
            "model": ("glassllm-en",),
            "table": ("kinds",),
            "shots": (0, 2),
            "shown": (RIGHT, SYMBOLS),
            "seed": 2,
        },
        "small": {"model": ("smollm2-135m",), "table": FEW_TABLES, "seed": 16} | OUTPUTS | {"shots": FEWER},
        "medium": {"model": ("smollm2-135m",), "table": TABLES, "seed": Seeds(48, block=16)} | OUTPUTS,
    },
    key=11,
    subject=Subject(
        "language model",
        "SmolLM2-135M",
        axes={"model": ("the network",)},
        controls=("learner",),
    ),
    controls={
        "learner": Control(
            "the answer is read off the labels that the query's kind has in the prompt, and nothing is known before",
            measure={"learner": True},
            axes={"table": ("feelings",), "shots": (0, 4, 16)},
        ),
    },
)
