"""Accuracy has a binomial standard error; over training it is a curve."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from drawing import with_normal_weights

import icllab as icl
from icllab import diagnostics
from icllab.core.errors import InputError
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.models import ItemLabelNetwork
from icllab.tasks import ItemLabel, LinearRegression
from icllab.training import Record

KEY, PROMPTS = jax.random.key(0), 400
TASK = ItemLabel.init(classes=8, labels=4, pairs=4, dim=6, burstiness=2, key=jax.random.key(1))


class Oracle:
    """Right in the given fraction of prompts: those whose first item has a small first number."""

    traceable = True
    positions = "last"
    __module__ = "icllab.tests"  # it sees the target on purpose

    def __init__(self, level):
        self.level = level

    def __call__(self, prompt):
        right = jax.nn.one_hot(prompt.labels[-1], 4)
        return jnp.where(prompt.items[0, 0] < self.level, right, jnp.roll(right, 1))[None]


def test_the_accuracy_and_its_error():
    result = diagnostics.accuracy({"all": Oracle(jnp.inf), "none": Oracle(-jnp.inf)}, TASK, key=KEY, prompts=PROMPTS)
    assert result.accuracy.dims == ("predictor", "position")
    np.testing.assert_array_equal(result.accuracy.isel(position=-1), [1, 0])
    np.testing.assert_array_equal(result.accuracy_error.isel(position=-1), [0, 0])
    assert np.isnan(result.accuracy.isel(position=slice(0, -1))).all()
    half = diagnostics.accuracy(Oracle(0.0), TASK, key=KEY, prompts=PROMPTS).isel(position=-1)
    level = float(half.accuracy)
    assert abs(level - 0.5) < 5 * 0.025
    assert float(half.accuracy_error) == pytest.approx((level * (1 - level) / 399) ** 0.5)


def test_over_training_it_is_a_curve():
    network = with_normal_weights(lambda: ItemLabelNetwork.from_task(TASK, depth=1, key=KEY), seed=2)
    run = icl.fit(
        network,
        TASK,
        steps=4,
        key=KEY,
        batch=8,
        optimizer=optax.sgd(0.1),
        record=Record([0], keep=[0, 4], progress=False),
    )
    result = diagnostics.accuracy(run.trajectory, TASK, key=KEY, prompts=PROMPTS)
    assert result.accuracy.dims == ("member", "step", "position")
    last = diagnostics.accuracy(run, TASK, key=KEY, prompts=PROMPTS)
    np.testing.assert_array_equal(result.accuracy.sel(step=4), last.accuracy)


def linear(weights):
    """Logits that are the query's item times a matrix."""

    def answer(prompt):
        return (prompt.items[-1] @ weights)[None]

    answer.positions = "last"
    return answer


def test_accuracies_among_the_labels_of_the_context_and_outside(getkey):
    """Prompt by prompt in NumPy; a purged context may lack the label, and a prompt has labels outside of it or none."""
    task = dataclasses.replace(TASK.in_weights(purged=True), burstiness=1)
    weights = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32) * 3
    result = diagnostics.context_accuracy(linear(jnp.asarray(weights)), task, key=KEY, prompts=PROMPTS)
    prompts = jax.tree.map(np.asarray, sample_prompts(task, key=KEY, prompts=PROMPTS))
    rows = {name: [] for name in result.data_vars if not name.endswith("_error")}
    for items, labels in zip(prompts.items, prompts.labels, strict=True):
        logits, target = items[-1].astype(float) @ weights, labels[-1]
        context = set(labels[:-1].tolist())
        mass = np.exp(logits) / np.exp(logits).sum()
        rows["outside_answers"].append(int(np.argmax(logits)) not in context)
        rows["outside_mass"].append(mass[[k not in context for k in range(4)]].sum())
        for end, part in (
            ("", range(4)),
            ("_among", sorted(context)),
            ("_outside", [k for k in range(4) if k not in context]),
        ):
            if part:
                rows[f"accuracy{end}"].append(target in part and max(part, key=lambda k: logits[k]) == target)
                rows[f"probability{end}"].append(mass[target] / mass[part].sum() if target in part else 0.0)
    assert 0 < len(rows["accuracy_outside"]) < PROMPTS
    for name, values in rows.items():
        np.testing.assert_allclose(result[name], np.mean(values), rtol=1e-5)
        np.testing.assert_allclose(result[f"{name}_error"], np.std(values, ddof=1) / len(values) ** 0.5, rtol=1e-5)


def test_among_the_context_a_network_that_answers_nan_is_nan_and_others_are_refused():
    task = ItemLabel.init(classes=4, labels=4, pairs=4, dim=6, no_repeats=True, key=KEY)
    result = diagnostics.context_accuracy(linear(jnp.ones((6, 4))), task, key=KEY, prompts=50)
    assert np.isnan(result.accuracy_outside)  # all labels are in every context
    assert (float(result.accuracy_among), float(result.probability_among)) == (float(result.accuracy), 0.25)

    def broken(prompt):
        return jnp.where(prompt.labels[0] == 0, jnp.nan, jnp.zeros((5, 4)))  # a quarter of the prompts

    result = diagnostics.context_accuracy(broken, task, key=KEY, prompts=50)
    assert all(np.isnan(result[name]) for name in result.data_vars)
    with pytest.raises(InputError, match="prediction: expected 4 classes, got 3"):
        diagnostics.context_accuracy(lambda prompt: jnp.zeros((5, 3)), task, key=KEY)
    with pytest.raises(InputError, match="task: expected a task of items and labels, got 'Li"):
        diagnostics.context_accuracy(broken, LinearRegression.convention("garg", dim=2, length=3), key=KEY)


def test_a_regression_has_no_accuracy():
    with pytest.raises(
        InputError, match="task: expected a classification task, whose answers are right or wrong, got 'Li"
    ):
        diagnostics.accuracy(Oracle(0.0), LinearRegression.convention("garg", dim=2, length=3), key=KEY)


def test_the_accuracy_of_a_network_that_answers_nan_is_nan():
    result = diagnostics.accuracy(lambda prompt: jnp.full((5, 4), jnp.nan), TASK, key=KEY, prompts=PROMPTS)
    assert np.isnan(result.accuracy).all()
    assert np.isnan(result.accuracy_error).all()


@pytest.mark.parametrize("classes", [3, 5])
def test_another_number_of_classes_is_refused(classes):
    with pytest.raises(InputError, match=f"^predictor '<lambda>': prediction: expected 4 classes, got {classes}\\b"):
        diagnostics.accuracy(lambda prompt: jnp.zeros((5, classes)), TASK, key=KEY, prompts=PROMPTS)
