"""What is sampled, as a value: its temperature, its part, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import unchecked

from icllab.core.errors import InputError
from icllab.diagnostics import LocalPosterior, Prior
from icllab.models import LinearAttention
from icllab.tasks import LinearRegression

ROWS = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
AT = {"a": np.ones(2, np.float32), "b": np.zeros(3, np.float32)}
TASK = LinearRegression.from_scaling(dim=2, alpha=2.0, kappa=1.0, rho=0.1, key=jax.random.key(0))


def loss(w, rows):
    return jnp.mean((rows @ w["a"]) ** 2) + jnp.sum(w["b"] ** 2)


def test_the_temperature_is_given_or_that_of_the_samples():
    posterior = LocalPosterior.from_function(loss, AT, data=ROWS)
    assert posterior.temperature == pytest.approx(20 / np.log(20), rel=1e-15)
    assert posterior.count == 20
    assert dataclasses.replace(posterior, n=100.0).temperature == pytest.approx(100 / np.log(100), rel=1e-15)
    assert dataclasses.replace(posterior, nbeta=7).temperature == 7.0
    assert repr(dataclasses.replace(posterior, nbeta=7)) == "LocalPosterior(parameters: 5, n beta: 7)"
    with pytest.raises(InputError, match="nbeta: expected one number, got"):
        _ = dataclasses.replace(posterior, nbeta=[1.0, 2.0]).temperature
    with pytest.raises(InputError, match="nbeta: expected a number, got None; or n, the number of samples"):
        _ = LocalPosterior.from_function(lambda w: jnp.sum(w), jnp.ones(2)).temperature


def test_a_part_is_evaluated_with_the_rest_as_it_is():
    """The loss of the part at the point is that of the whole; a second look is the same object."""
    posterior = LocalPosterior.from_function(loss, AT, data=ROWS, weights=lambda w: w["b"], localization=2.0)
    local = posterior.local_loss()
    assert local.centre.size == 3
    assert local.localization == 2.0
    wanted = float(loss(AT, ROWS))
    assert float(local.known.baseline.sum()) == pytest.approx(wanted, rel=1e-6)
    assert float(posterior.whole_loss(posterior.part[1])) == pytest.approx(wanted, rel=1e-6)
    moved = local.part(jnp.ones(3))
    assert moved["a"] is None
    assert float(posterior.whole_loss(moved)) == pytest.approx(wanted + 3, rel=1e-6)
    assert posterior.local_loss() is local
    assert posterior.local_loss(8) is not local


def test_a_network_and_its_task_are_a_loss_of_fixed_prompts():
    network = LinearAttention.ahn(dim=2, layers=1, std=0.3, key=jax.random.key(0))
    posterior = LocalPosterior.from_network(network, TASK, data=6, key=jax.random.key(1))
    assert posterior.count == 6
    again = LocalPosterior.from_network(network, TASK, data=posterior.data)
    np.testing.assert_array_equal(again.loss(again.at, again.data), posterior.loss(posterior.at, posterior.data))
    terms = LocalPosterior.from_network(network, TASK, data=posterior.data, per_position=True)
    assert float(jnp.sum(terms.loss(terms.at, terms.data))) == pytest.approx(
        float(posterior.loss(posterior.at, posterior.data)), rel=1e-5
    )
    for data in (None, 6):
        with pytest.raises(InputError, match="key: expected one random key of JAX"):
            LocalPosterior.from_network(network, TASK, data=data)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("n", 1.0, "n: expected a finite number > 1, got 1.0"),
        ("localization", 0.0, "localization: expected a finite number > 0, got 0.0"),
        ("nbeta", -1.0, "nbeta: expected a finite number > 0, got -1.0"),
        ("prior", 3, r"prior: expected a Prior\(...\), got"),
    ],
)
def test_numbers_out_of_range_are_refused_at_once(field, value, said):
    with unchecked(), pytest.raises(InputError, match=said):
        LocalPosterior(lambda w: jnp.sum(w), jnp.ones(2), **{field: value})
    LocalPosterior(lambda w: jnp.sum(w), jnp.ones(2), prior=Prior(std=1.0))
