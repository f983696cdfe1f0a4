r"""Does it learn in context: loss by position beside baselines, with shuffled labels, and with shuffled weights.

The benefit of the context is :math:`D = E\,(L_0 - L)` at the last position, with :math:`L_0` the loss of a predictor
that does not use the examples (zero, or equal logits; for sequences the network's own loss where little context is
there). It is paired: all predictors answer the same prompts. The network learns in context if the benefit is positive
and the loss rises when the pairing in the context is destroyed.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.examination.measuring import Paired, baselines, eighth, latest, losses, mean_of_finite, shuffled, table_of
from icllab.examination.section import UNDECIDED, Finding, Section, Size, tail
from icllab.examination.subject import Subject
from icllab.models.torch_derivatives import with_autograd
from icllab.tasks import SignLabels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 0.1
"""A benefit below this fraction of the possible one is none."""
_UNITS = {"regression": "squared error", "item labels": "nats", "tokens": "nats"}


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """Losses by position of the network and of baselines, and paired differences at the last position."""
    of_prompts, of_shuffle, of_weights = (jax.random.fold_in(key, i) for i in range(3))
    prompts = sample_prompts(subject.task, key=of_prompts, prompts=size.prompts)
    rows = {subject.name: losses(subject.network, subject.task, prompts)}
    rows |= {name: losses(predictor, subject.task, prompts) for name, predictor in baselines(subject).items()}
    own, alone = latest(subject.kind, rows[subject.name]), _without_context(subject, rows)
    cost = losses(subject.network, subject.task, shuffled(prompts, key=of_shuffle)) - rows[subject.name]
    values = {"benefit": Paired.of(alone - own), "shuffle_cost": Paired.of(cost[:, -1])}
    twin = untrained(subject.network, key=of_weights)
    if twin is not None:
        rows_of_twin = rows | {subject.name: losses(twin, subject.task, prompts)}
        benefit = _without_context(subject, rows_of_twin) - latest(subject.kind, rows_of_twin[subject.name])
        values["benefit_of_untrained"] = Paired.of(benefit)
    least = latest(subject.kind, rows[list(rows)[-1]]) if subject.kind == "regression" else 0.0
    values["possible"] = Paired.of(alone - least)
    table = table_of(rows)
    numbers = {name: value.mean for name, value in values.items()}
    numbers |= {f"{name}_error": value.error for name, value in values.items()}
    unit = "nats" if isinstance(subject.task, SignLabels) else _UNITS[subject.kind]
    attributes = {"kind": subject.kind, "unit": unit, "network": subject.name}
    table["samples"] = ("prompt", rows[subject.name][:, -1])
    return table.assign(numbers).assign_attrs(attributes)


def _without_context(subject: Subject, rows: dict[str, np.ndarray]) -> np.ndarray:
    """Losses [prompt] without a context: of zero or of equal logits; of sequences over their first eighth."""
    if subject.kind == "tokens":
        own = rows[subject.name]
        return mean_of_finite(own[:, : eighth(own.shape[1])])
    return rows["zero" if subject.kind == "regression" else "uniform"][:, -1]


def untrained(network: Any, *, key: PRNGKeyArray) -> Any:
    """The network with the entries of every array of weights in random order; None for a network without arrays."""
    arrays, static = eqx.partition(with_autograd(network), eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(arrays)
    if not any(leaf.size > 1 for leaf in leaves):
        return None
    keys = jax.random.split(key, len(leaves))
    turned = [
        jax.random.permutation(k, leaf.reshape(-1)).reshape(leaf.shape) for k, leaf in zip(keys, leaves, strict=True)
    ]
    return eqx.combine(jax.tree.unflatten(tree, turned), static)


def judge(dataset: xr.Dataset) -> Finding:
    """ "learns in context", "does not learn in context", or undecided."""
    benefit, error = float(dataset["benefit"]), float(dataset["benefit_error"])
    cost, cost_error = float(dataset["shuffle_cost"]), float(dataset["shuffle_cost_error"])
    possible = float(dataset["possible"])
    uses = max(tail(benefit - LEAST * possible, error), tail(cost, cost_error))
    does_not = min(tail(LEAST * possible - benefit, error), 1.0)
    means, errors = (dataset[name].isel(position=-1) for name in ("loss", "loss_error"))
    network, unit = dataset.attrs["network"], dataset.attrs["unit"]
    beside = ", ".join(
        f"{name} {float(means.sel(predictor=name)):.3g}" for name in means["predictor"].values if name != network
    )
    own = f"{float(means.sel(predictor=network)):.3g} ± {float(errors.sel(predictor=network)):.1g}"
    sentence = f"At the last position the loss is {own} ({unit}); {beside}."
    verdict, p_value = UNDECIDED, max(uses, does_not)
    if uses <= 0.05:
        verdict, p_value = "learns in context", uses
    elif does_not <= 0.05:
        verdict, p_value = "does not learn in context", does_not
    null = f"with the pairing of the context shuffled the loss rises by {cost:.3g} ± {cost_error:.1g}"
    if "benefit_of_untrained" in dataset:
        twin, twin_error = float(dataset["benefit_of_untrained"]), float(dataset["benefit_of_untrained_error"])
        null += f"; with shuffled weights the benefit is {twin:.3g} ± {twin_error:.1g}"
    what = f"benefit of the context at the last position, {unit}"
    smallest = f"a benefit of {2.8 * error:.2g} {unit}"
    change = f"a benefit {'below' if verdict == 'learns in context' else 'above'} {LEAST * possible:.3g} {unit}"
    return Finding(verdict, sentence, benefit, error, what, null, smallest, change, p_value)


def figure(dataset: xr.Dataset) -> "Figure":
    """Loss by position, clipped at three times the largest loss of the network and the zero answer."""
    from icllab.examination.drawing import lines

    return lines(dataset, "loss", x="position", hue="predictor", first=dataset.attrs["network"])


SECTION = Section(
    name="in_context",
    question="Does the network learn in context?",
    measure=measure,
    judge=judge,
    lacks=lambda subject: "",
    code="diagnostics.per_length({'network': network, 'ridge': algorithms.bayes_optimal(task.fresh())}, task, key=key)",
    figure=figure,
    batches=4.0,
    programs=10,
)
