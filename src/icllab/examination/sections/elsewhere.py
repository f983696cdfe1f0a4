"""Inputs and tasks from elsewhere: the loss beside that of ridge where the network was not trained."""

import dataclasses
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab import algorithms
from icllab.core.protocols import AbstractTask
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.examination.measuring import Zero, losses
from icllab.examination.section import UNDECIDED, Finding, Section, Size, tail
from icllab.examination.subject import Subject
from icllab.tasks import LinearRegression
from icllab.tasks.regression_distributions import GaussianInputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALE = 2.0
PROMPTS = 4
"""Multiple of the size's prompts, of which each world has so many: every world is judged, and all jointly."""
NEAR = 0.5
"""A network follows ridge elsewhere if its excess is below this fraction of what ridge gains over zero."""


def worlds(task: LinearRegression, key: PRNGKeyArray) -> dict[str, AbstractTask]:
    """The task with fresh task vectors, and changes of it, one at a time."""
    fresh: Any = task.fresh()
    dim = task.dim
    rotation = jnp.linalg.qr(jax.random.normal(key, (dim, dim)))[0]
    changed = {
        "fresh tasks": fresh,
        "larger task vectors": eqx.tree_at(lambda t: t.weights.covariance, fresh, SCALE**2 * fresh.weights.covariance),
        "more noise": dataclasses.replace(fresh, noise_variance=4 * fresh.noise_variance + 0.25),
    }
    if isinstance(fresh.inputs, GaussianInputs) and fresh.inputs.covariance.ndim == 0:
        square = fresh.inputs.covariance
        spectrum = jnp.where(jnp.arange(dim) < (dim + 1) // 2, square, 1e-4 * square)
        half = (rotation * spectrum[None]) @ rotation.T
        changed |= {
            "larger inputs": eqx.tree_at(lambda t: t.inputs.covariance, fresh, SCALE**2 * square),
            "inputs of a subspace": eqx.tree_at(lambda t: t.inputs, fresh, GaussianInputs(half)),
        }
    return changed


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """Losses of the network, of ridge and of zero at the last position, in every world."""
    rows: dict[str, dict[str, np.ndarray]] = {}
    for i, (name, task) in enumerate(worlds(subject.task, jax.random.fold_in(key, 99)).items()):
        prompts = sample_prompts(task, key=jax.random.fold_in(key, i), prompts=PROMPTS * size.prompts)
        rivals = {"network": subject.network, "ridge": algorithms.bayes_optimal(task), "zero": Zero()}
        rows[name] = {rival: losses(predictor, task, prompts)[:, -1] for rival, predictor in rivals.items()}
    samples = {name: np.stack([row[name] for row in rows.values()]) for name in ("network", "ridge", "zero")}
    samples["excess"] = samples["network"] - samples["ridge"]
    samples["possible"] = samples["zero"] - samples["ridge"]
    samples["beyond"] = samples["excess"] - NEAR * samples["possible"]
    variables = {}
    for name, values in samples.items():
        variables[name] = ("world", values.mean(1))
        variables[f"{name}_error"] = ("world", values.std(1, ddof=1) / np.sqrt(values.shape[1]))
    variables["samples"] = (("world", "prompt"), samples["network"])
    return xr.Dataset(variables, {"world": list(rows)}, {"kind": subject.kind, "warnings": []})


def judge(dataset: xr.Dataset) -> Finding:
    """The worlds in which the network does not follow ridge; none, some, or undecided."""
    beyond, errors = dataset["beyond"].values, dataset["beyond_error"].values
    names = [str(name) for name in dataset["world"].values]
    count = len(names)
    fails = [tail(value, error) * count <= 0.05 for value, error in zip(beyond, errors, strict=True)]
    keeps = [tail(-value, error) * count <= 0.05 for value, error in zip(beyond, errors, strict=True)]
    failed = [name for name, fail in zip(names, fails, strict=True) if fail]
    ratios = dataset["excess"].values / dataset["possible"].values
    worst = int(np.argmax(ratios))
    if failed:
        verdict = "fails on fresh tasks" if failed[0] == "fresh tasks" else "fails elsewhere"
    else:
        verdict = "holds up everywhere" if all(keeps) else UNDECIDED
    at = dataset.isel(world=worst)
    error = float(at["excess_error"] / at["possible"])
    sentence = (
        f"Farthest from ridge with {names[worst]}: loss {float(at['network']):.3g} ± {float(at['network_error']):.1g}, "
        f"ridge {float(at['ridge']):.3g}, zero {float(at['zero']):.3g}"
        + (f"; it is half-way to zero or further with {', '.join(failed)}." if failed else ".")
    )
    what = f"excess over ridge, as a fraction of ridge's gain over zero, with {names[worst]}"
    chosen = [tail(abs(v), e) for v, e in zip(beyond, errors, strict=True)]
    p_value = min(1.0, count * (min(chosen) if failed else max(chosen)))
    first = float(ratios[0])
    null = f"on fresh tasks of the training distribution {first:.3g}"
    change = f"an excess {'below' if failed else 'above'} {NEAR} of what ridge gains"
    return Finding(verdict, sentence, float(ratios[worst]), error, what, null, f"{2.8 * error:.2g}", change, p_value)


def figure(dataset: xr.Dataset) -> "Figure":
    """Losses of the network, ridge and zero by world."""
    from icllab.examination.drawing import groups

    return groups(dataset, {"network": "the network", "ridge": "ridge", "zero": "zero"}, "world")


def lacks(subject: Subject) -> str:
    """Linear regression with Gaussian tasks, whose other worlds have a best predictor."""
    if not isinstance(subject.task, LinearRegression) or not hasattr(subject.task.fresh().weights, "covariance"):
        return "the question needs linear regression with Gaussian tasks"
    return ""


SECTION = Section(
    name="elsewhere",
    question="What does the network do with inputs and tasks from elsewhere?",
    measure=measure,
    judge=judge,
    lacks=lacks,
    code="diagnostics.per_length({'network': network, 'ridge': algorithms.bayes_optimal(other)}, other, key=key)",
    figure=figure,
    batches=10.0 * PROMPTS,
    programs=10,
)
