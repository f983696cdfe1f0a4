"""Accuracy has a binomial standard error; over training it is a curve."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from drawing import with_normal_weights

import icllab as icl
from icllab import diagnostics
from icllab.core.errors import InputError
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
