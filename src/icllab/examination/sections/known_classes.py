"""Memorised or general, of items and labels: right in context on novel classes, and in weights without the context.

In context the classes are novel, so that the context alone knows their labels. In weights they are known, and the
context has no item of the query's class. A third accuracy is that on known classes whose labels the context exchanges.
"""

from typing import Any

import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.spelling import with_error
from icllab.diagnostics import accuracy
from icllab.examination.section import UNDECIDED, Finding, Size, tail
from icllab.examination.subject import Subject


def worlds(task: Any) -> dict[str, Any]:
    """Variants of the task that tell the context from the weights."""
    return {
        "in context": task.in_context(),
        "in weights": task.in_weights(purged=True),
        "exchanged": task.swapped_labels(),
    }


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """The accuracy of the network in each world, and of chance."""
    variants = worlds(subject.task)
    parts = [
        accuracy(subject.network, task, key=key, prompts=size.prompts).isel(position=-1) for task in variants.values()
    ]
    variables = {name: ("world", [float(part[name]) for part in parts]) for name in ("accuracy", "accuracy_error")}
    attributes = {"kind": subject.kind, "warnings": [], "chance": 1 / subject.task.class_count}
    return xr.Dataset(variables, {"world": list(variants)}, attributes)


def judge(dataset: xr.Dataset) -> Finding:
    """Memorised, general, both or neither: each accuracy is nearer to 1 than to chance, or it is not."""
    names = [str(world) for world in dataset["world"].values]
    values, errors = (
        dict(zip(names, map(float, dataset[name].values), strict=True)) for name in ("accuracy", "accuracy_error")
    )
    chance = float(dataset.attrs["chance"])
    half = (1 + chance) / 2

    def sides(world: str) -> tuple[float, float]:
        """p-values that the accuracy is not above half-way, and that it is."""
        gap, error = values[world] - half, errors[world]
        return tail(gap, error), tail(-gap, error)

    (not_context, is_context), (not_weights, is_weights) = sides("in context"), sides("in weights")
    options = {
        "memorised": max(not_weights, is_context),
        "general": max(not_context, is_weights),
        "memorised and general": max(not_weights, not_context),
        "neither": max(is_weights, is_context),
    }
    verdict = min(options, key=options.__getitem__)
    p_value = options[verdict]
    in_context, in_weights, exchanged = (
        with_error(values[w], errors[w]) for w in ("in context", "in weights", "exchanged")
    )
    sentence = (
        f"On novel classes {in_context} of the answers are right, on known classes without them in the context "
        f"{in_weights} (chance {chance:.3g}); where the context exchanges labels of known classes, {exchanged} follow "
        "it."
    )
    what = "accuracy on known classes that the context does not show"
    number, error = values["in weights"], errors["in weights"]
    change = f"an accuracy on the other side of {half:.2g}, half-way from chance to 1"
    smallest = f"a difference of {2.8 * max(errors.values()):.2g} in an accuracy"
    null = f"chance, {chance:.3g}"
    return Finding(
        verdict if p_value <= 0.05 else UNDECIDED, sentence, number, error, what, null, smallest, change, p_value
    )
