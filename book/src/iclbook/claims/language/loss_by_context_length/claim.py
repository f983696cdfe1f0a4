r"""The part of a longer context's benefit that comes from repetitions of the next token.

The last T tokens of windows of a text are predicted after c tokens of context, c = 1 to 256, and again after the
window's near context of 16 tokens with another window's in place of the far one. The targets are the same, so that
the fall of the loss from the near context to the whole one is exactly a sum over three kinds of targets,

.. math:: L_{16} - L_{256} = \sum_k E[(\ell_{16} - \ell_{256})\, 1_k],

those that only the far context has (*far*), those that the near context has already (*near*), and those that neither
has (*new*). What has not come before cannot be copied: new tokens bound what a longer context is good for besides.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, Subject, checks, estimates
from icllab.lab.results import fixed_values

FAR, NEAR, NEW = "far", "near", "new"
TARGETS = (FAR, NEAR, NEW)
FALL = 0.6  # nats
HALF = 0.5


def check(dataset: xr.Dataset) -> list[Finding]:
    """The loss falls, by more than half on repeated tokens; another window's context brings less than half."""
    dataset = dataset.isel(model=0, drop=True)
    fall, elsewhere = dataset["fall"].sum("target"), dataset["elsewhere_fall"].sum("target")
    most, near = int(dataset["context"].max()), fixed_values(dataset)["near"]
    quantity = f"loss after {near} tokens - after {most}, nats"
    findings = checks.above("falls", quantity, estimates.mean(fall), FALL)
    repeated = dataset["fall"].sel(target=[FAR, NEAR]).sum("target")
    quantity = "fall on tokens that the context has already - half of the fall, nats"
    findings += checks.above("repetition", quantity, estimates.mean(repeated - HALF * fall))
    quantity = "fall with another window's far context - half of that with the text's, nats"
    return findings + checks.below("elsewhere", quantity, estimates.mean(elsewhere - HALF * fall))


def figure(dataset: xr.Dataset):
    """Draw the loss against the length of the context, and the parts of its fall by kind of target."""
    part = dataset.isel(model=0, drop=True)
    rows = [Panel("loss", xscale="log"), *(Panel(name, x="target") for name in ("fall", "elsewhere_fall", "share"))]
    return panels(part, rows, x="context", columns=2)


CONTEXTS = (1, 4, 16, 64, 256)
OUTPUTS = {"context": CONTEXTS, "target": TARGETS}
CORPUS = "first 13 hexadecimal digits of the corpus's digest, as a number"

claim = Claim(
    title="A long context is used to repeat",
    sentence=(
        "On Python sources, the network's loss falls from 16 to 256 tokens of context, mostly on tokens that the "
        "context has already; another window's further context brings less than half."
    ),
    conditions=(
        "SmolLM2-135M; a tenth of the files of the running Python's standard library, whose digest is among the data; "
        "windows without a token at their start; the last 16 tokens of each are targets, after c to c + 15 tokens; "
        "errors are over draws of windows. The fall is above 0.6 nats; mostly: more than half of it. Tokens that the "
        "near context has count too, as was chosen on other draws."
    ),
    sources=("Olsson22",),
    axes=(
        Axis("context", "c", "tokens of context", least=1),
        Axis("target", "k", "where a target has come before"),
    ),
    quantities=(
        "loss",
        Quantity("fall", r"\Delta_k", "contribution to the fall of the loss", "nats"),
        Quantity("elsewhere_fall", r"\Delta'_k", "contribution with another window's context", "nats"),
        Quantity("share", "p_k", "fraction of the targets"),
        Quantity("corpus_bytes", "|T|", "bytes of the corpus"),
        Quantity("corpus_digest", r"\mathrm{SHA}", CORPUS),
    ),
    static=("model",),
    outputs=("context", "target"),
    fixed={"near": 16, "targets": 16, "windows": 2},
    sizes={
        "smoke": {"model": ("glassllm-en",), "context": (16, 64), "target": TARGETS, "seed": 2},
        "small": {"model": ("smollm2-135m",), "seed": 24} | OUTPUTS,
        "medium": {"model": ("smollm2-135m",), "seed": Seeds(96, block=12)} | OUTPUTS,
    },
    key=14,
    subject=Subject(
        "language model",
        "SmolLM2-135M",
        axes={"model": ("the network",)},
        controls=("exchanged", "negated"),
    ),
    controls={
        "exchanged": Control(
            "another window's far context is called the text's, and the text's another's",
            measure={"exchanged": True},
            axes={"context": (16, 256)},
        ),
        "negated": Control(
            "targets that the context has are called new, and new ones far",
            measure={"negated": True},
            axes={"context": (16, 256)},
        ),
    },
)
