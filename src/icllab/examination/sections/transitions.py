"""When: the loss, the benefit of the context and p along checkpoints."""

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.diagnostics.identification.mixtures import mixture_weight
from icllab.examination.measuring import bayes, losses
from icllab.examination.section import UNDECIDED, Finding, Section, Size, tail
from icllab.examination.subject import Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABRUPT = 0.8
"""A transition is abrupt if one interval between checkpoints has this fraction of the whole fall of the loss."""


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """Loss at the last position at every checkpoint, on the same prompts, and p if the task has a pool."""
    prompts = sample_prompts(subject.task, key=key, prompts=size.prompts)
    samples = np.stack([_loss(subject, network, prompts) for network in subject.checkpoints.values()])
    falls = samples[:-1] - samples[1:]
    count = np.sqrt(samples.shape[1])
    variables = {
        "loss": ("step", samples.mean(1)),
        "loss_error": ("step", samples.std(1, ddof=1) / count),
        "fall": ("interval", falls.mean(1)),
        "fall_error": ("interval", falls.std(1, ddof=1) / count),
    }
    whole = samples[0] - samples[-1]
    variables |= {"whole_fall": whole.mean(), "whole_fall_error": whole.std(ddof=1) / count}
    excess = falls - ABRUPT * whole
    variables["beyond"] = ("interval", excess.mean(1))
    variables["beyond_error"] = ("interval", excess.std(1, ddof=1) / count)
    ends = bayes(subject)
    if subject.kind == "regression" and subject.pool:
        options = {"key": key, "prompts": size.prompts}
        parts = [
            mixture_weight(network, ends["dMMSE"], ends["ridge"], subject.task, **options)
            for network in subject.checkpoints.values()
        ]
        for name in ("mixture_weight", "mixture_weight_error"):
            variables[name] = ("step", [float(part[name]) for part in parts])
    steps = list(subject.checkpoints)
    return xr.Dataset(variables, {"step": steps, "interval": steps[1:]}, {"kind": subject.kind, "warnings": []})


def _loss(subject: Subject, network: object, prompts: object) -> np.ndarray:
    samples = losses(network, subject.task, prompts)  # pyright: ignore[reportArgumentType]
    return np.nanmean(samples[:, samples.shape[1] // 2 :], axis=1) if subject.kind == "tokens" else samples[:, -1]


def judge(dataset: xr.Dataset) -> Finding:
    """ "abrupt" if one interval has most of the fall, "gradual" if none has, "no fall", or undecided."""
    whole, error = float(dataset["whole_fall"]), float(dataset["whole_fall_error"])
    beyond, errors = dataset["beyond"].values, dataset["beyond_error"].values
    steps = [int(step) for step in dataset["step"].values]
    best = int(np.argmax(dataset["fall"].values))
    count = len(beyond)
    falls = tail(whole, error)
    abrupt = min(1.0, count * tail(float(beyond[best]), float(errors[best])))
    gradual = max(tail(-float(value), float(e)) for value, e in zip(beyond, errors, strict=True))
    verdict, p_value = UNDECIDED, min(1.0, max(falls, min(abrupt, gradual)))
    if falls > 0.05:
        verdict = "no fall" if tail(-whole, error) <= 0.05 else UNDECIDED
    elif count == 1:
        verdict, p_value = "a fall between two checkpoints", falls
    elif abrupt <= 0.05:
        verdict, p_value = "abrupt between the checkpoints", max(falls, abrupt)
    elif gradual <= 0.05:
        verdict, p_value = "gradual between the checkpoints", max(falls, gradual)
    losses_said = ", ".join(
        f"{float(loss):.3g} at {step}" for step, loss in zip(steps, dataset["loss"].values, strict=True)
    )
    sentence = f"The loss at the last position is {losses_said}"
    if "mixture_weight" in dataset:
        weights = dataset["mixture_weight"].values
        sentence += f"; p goes from {weights[0]:.2g} to {weights[-1]:.2g}"
    what = "fall of the loss from the first checkpoint to the last"
    null = f"an equal fall in each interval: {whole / count:.3g}"
    change = "checkpoints between those that are there"
    return Finding(verdict, f"{sentence}.", whole, error, what, null, f"{2.8 * error:.2g}", change, p_value)


def figure(dataset: xr.Dataset) -> "Figure":
    """Loss by step."""
    from icllab.examination.drawing import lines

    return lines(dataset.expand_dims(predictor=["the network"]), "loss", x="step", hue="predictor", first="the network")


def lacks(subject: Subject) -> str:
    """At least two checkpoints."""
    return "" if len(subject.checkpoints) > 1 else "give checkpoints of the training, at least two"


SECTION = Section(
    name="transitions",
    question="When was it learned?",
    measure=measure,
    judge=judge,
    lacks=lacks,
    code="diagnostics.transitions(icl.checkpoints('run/*.pt', load), task, key=key)",
    figure=figure,
    batches=8.0,
    programs=8,
)
