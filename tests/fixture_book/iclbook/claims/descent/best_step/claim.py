"""A small network trained in context, and the best that its architecture can do in closed form.

Change the network, the task and the number that is compared.
"""

import numpy as np

from icllab.figures.curves import curves
from icllab.lab import Claim, Control, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import preconditioners


def theory(dataset):
    """Error of the best step of preconditioned gradient descent, of isotropic inputs."""
    inputs = np.ones(fixed_values(dataset)["dim"])
    errors = [preconditioners.optimal(inputs, length=int(length)).loss for length in dataset.length]
    return dataset.assign(test_loss_theory=("length", errors))


def check(dataset):
    """The mean over networks is within a tenth of the closed form."""
    line = dataset["test_loss_theory"]
    return checks.near("test_loss", "error", estimates.mean(dataset["test_loss"]), line, margin=0.1 * line)


def figure(dataset):
    """Networks as points with standard errors, and the closed form as a line."""
    return curves(dataset, x="length", y="test_loss", line="test_loss_theory", line_name="best step")


claim = Claim(
    title="A trained layer reaches the best step",
    sentence="The error of one trained layer of linear attention is within a tenth of that of the best gradient step.",
    conditions="Linear regression in one dimension without noise; ten networks of each length, Adam.",
    sources=("Ahn23",),
    quantities=("test_loss",),
    static=("length",),
    sizes={
        "smoke": {"length": (4,), "seed": 3, "steps": 50, "prompts": 512},
        "small": {"length": (4, 8), "seed": 10},
    },
    fixed={"dim": 1, "steps": 300, "batch": 64, "rate": 0.1, "std": 0.3, "prompts": 16_384},
    controls={"untrained": Control("the networks are as they start", measure={"train": False})},
)
