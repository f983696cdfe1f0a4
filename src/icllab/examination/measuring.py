"""Prompts of a section, answers and losses of a network on them, and baselines that combine nothing."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab import algorithms
from icllab.algorithms.estimators import NearestNeighbours
from icllab.core.prompt import ItemLabelPrompt, RegressionPrompt, TokenPrompt
from icllab.core.protocols import AbstractPredictor, Predictor, declared
from icllab.diagnostics.behaviour.answers import EveryPosition, Question, answers_to
from icllab.examination.subject import Subject


class Mean(AbstractPredictor):
    """The mean label of the examples so far; 0 before the first."""

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " position"]:
        """The mean at every position."""
        before = jnp.cumsum(prompt.y) - prompt.y
        return before / jnp.maximum(jnp.arange(len(prompt.y), dtype=prompt.y.dtype), 1)


class Zero(AbstractPredictor):
    """The answer 0 at every position."""

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " position"]:
        """Zeros."""
        return jnp.zeros_like(prompt.y)


class Uniform(AbstractPredictor):
    """Equal logits at every position."""

    classes: int = eqx.field(static=True)

    def __call__(self, prompt: Any) -> Float[Array, "position class"]:
        """Zeros."""
        positions = 1 if isinstance(prompt, ItemLabelPrompt) else prompt.positions
        return jnp.zeros((positions, self.classes))


class Answers(Question):
    """All answers of a predictor to a prompt, as one vector."""

    def __call__(self, predictor: Predictor, task: Any, prompt: Any) -> Float[Array, " answer"]:
        """The answers."""
        return predictor(prompt).reshape(-1)


class Paired(NamedTuple):
    """Mean of a difference on the same prompts, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, samples: Float[np.ndarray, " prompt"]) -> "Paired":
        """Mean and error of samples, one for each prompt."""
        return cls(float(np.mean(samples)), float(np.std(samples, ddof=1) / np.sqrt(len(samples))))

    @classmethod
    def variables(cls, samples: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Means by name, each with an ``_error``."""
        pairs = {name: cls.of(values) for name, values in samples.items()}
        return {name: pair.mean for name, pair in pairs.items()} | {f"{n}_error": p.error for n, p in pairs.items()}


def losses(network: Predictor, task: Any, prompts: Any) -> Float[np.ndarray, "prompt position"]:
    """The task's loss of a predictor at every position that it answers."""
    return answers_to(EveryPosition(), network, task, prompts)


def latest(kind: str, samples: Float[np.ndarray, "prompt position"]) -> Float[np.ndarray, " prompt"]:
    """Losses [prompt] at the last position; of sequences the mean over their last eighth, NaN if they have none."""
    if kind != "tokens":
        return samples[:, -1]
    return mean_of_finite(samples[:, -eighth(samples.shape[1]) :])


def eighth(positions: int) -> int:
    """An eighth of the positions, at least one."""
    return max(1, positions // 8)


def mean_of_finite(samples: Float[np.ndarray, "prompt position"]) -> Float[np.ndarray, " prompt"]:
    """Mean over positions without NaN; NaN where there is none."""
    there = ~np.isnan(samples)
    with np.errstate(invalid="ignore"):
        return np.where(there, samples, 0.0).sum(1) / there.sum(1)


def outputs(network: Predictor, task: Any, prompts: Any) -> np.ndarray:
    """Answers [prompt, position] or [prompt, position, class]."""
    flat = answers_to(Answers(), network, task, prompts)
    prompt = jax.tree.map(lambda leaf: leaf[0], prompts)
    positions = 1 if declared(network, "positions") == "last" else prompt.positions
    if isinstance(prompt, RegressionPrompt):
        return flat.reshape(len(flat), positions)
    return flat.reshape(len(flat), positions, -1)


def targets(task: Any, prompts: Any) -> np.ndarray:
    """Targets [prompt, position] of regression, or the classes of item labels and tokens."""
    if isinstance(prompts, RegressionPrompt):
        return np.asarray(prompts.y)
    return np.asarray(jax.vmap(task.targets)(prompts))


def shuffled(prompts: Any, *, key: PRNGKeyArray) -> Any:
    """Prompts whose context loses the pairing of its parts; what the last position is asked stays.

    The labels of the examples are permuted among the examples, of items and labels likewise. Of tokens all but the last
    two are permuted: the last is the target, and the one before it the query.
    """
    count = len(jax.tree.leaves(prompts)[0])
    keys = jax.random.split(key, count)

    def permuted(values: Array, kept: int, own: PRNGKeyArray) -> Array:
        size = values.shape[0] - kept
        return jnp.concatenate([values[:size][jax.random.permutation(own, size)], values[size:]])

    def one(prompt: Any, own: PRNGKeyArray) -> Any:
        if isinstance(prompt, RegressionPrompt):
            return eqx.tree_at(lambda p: p.y, prompt, permuted(prompt.y, 1, own))
        if isinstance(prompt, TokenPrompt):
            return eqx.tree_at(lambda p: p.tokens, prompt, permuted(prompt.tokens, 2, own))
        changed = (permuted(prompt.label_vectors, 0, own), permuted(prompt.labels, 1, own))
        return eqx.tree_at(lambda p: (p.label_vectors, p.labels), prompt, changed)

    return jax.vmap(one)(prompts, keys)


def table_of(rows: dict[str, np.ndarray]) -> xr.Dataset:
    """Mean loss and error [predictor, position]; NaN where a predictor does not answer."""
    width = max(samples.shape[1] for samples in rows.values())
    means, errors = np.full((2, len(rows), width), np.nan)
    for mean, error, samples in zip(means, errors, rows.values(), strict=True):
        mean[-samples.shape[1] :] = samples.mean(0)
        error[-samples.shape[1] :] = samples.std(0, ddof=1) / np.sqrt(len(samples))
    axes = ("predictor", "position")
    coords = {"predictor": list(rows), "position": np.arange(width)}
    return xr.Dataset({"loss": (axes, means), "loss_error": (axes, errors)}, coords)


def bayes(subject: Subject) -> dict[str, Predictor]:
    """The Bayes predictors of the task, if they are known: ridge for fresh tasks, and dMMSE for a pool."""
    known: dict[str, Predictor] = {}
    fresh = subject.task.fresh() if hasattr(subject.task, "fresh") else subject.task
    try:
        known["ridge"] = algorithms.bayes_optimal(fresh)
        if subject.pool:
            known["dMMSE"] = algorithms.bayes_optimal(subject.task)
    except ValueError:  # the Bayes predictor of this distribution is not known
        pass
    return known


def baselines(subject: Subject) -> dict[str, Predictor]:
    """Predictors beside which the losses of a network stand; the best possible ones last."""
    if subject.kind == "regression":
        return {"zero": Zero(), "mean": Mean(), "nearest": NearestNeighbours(1)} | bayes(subject)
    return {"uniform": Uniform(subject.task.class_count)}
