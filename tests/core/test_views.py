"""The text of a module shows its numbers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.views import module_repr
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, Table


class Holder(eqx.Module):
    value: object
    __repr__ = module_repr


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (jnp.asarray(1.0), "value=1.0"),
        (jnp.asarray(0.1), "value=0.1"),
        (jnp.asarray(3), "value=3"),
        (np.float64(2.5), "value=2.5"),
        (jnp.asarray([1.0, 0.25]), "value=[1.0, 0.25]"),
        (jnp.arange(12.0).reshape(3, 4), "value=float32[3,4](0.0, 1.0, 2.0, ...)"),
        (jnp.zeros((0, 2)), "value=float32[0,2]()"),
        (jax.random.key(0), "value=key<fry>[]"),
    ],
)
def test_arrays_are_shown_by_their_numbers(value, text):
    assert text in repr(Holder(value))


def test_a_traced_array_is_shown_by_its_shape():
    texts = []
    jax.jit(lambda x: texts.append(repr(Holder(x))) or x)(jnp.ones(3))
    assert "value=f32[3]" in texts[0]


def test_a_task_shows_its_scales():
    covariance, weights, noise = (round(number, 3) for number in np.random.default_rng().uniform(0.1, 9, 3))
    inputs, weights_of_task = GaussianInputs(jnp.asarray(covariance)), GaussianWeights(jnp.asarray(weights))
    text = repr(LinearRegression(3, 5, inputs, weights_of_task, jnp.asarray(noise)))
    assert f"GaussianInputs(covariance={covariance})" in text
    assert f"GaussianWeights(covariance={weights})" in text
    assert f"noise_variance={noise}" in text
    assert repr(inputs) == f"GaussianInputs(covariance={covariance})"


def test_a_table_is_shown_in_a_few_lines():
    table = Table(np.random.default_rng(0).normal(size=(50, 2)), np.arange(50.0), length=4)
    assert "x=float32[50,2](0.1257, -0.1321, 0.6404, ...)" in repr(table)
    assert len(repr(table).splitlines()) < 15
