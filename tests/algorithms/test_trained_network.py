"""A network trained on every prefix, against a loop in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refusals import assert_refused

from icllab.algorithms import TrainedNetwork
from icllab.core.prompt import RegressionPrompt

KEY = jax.random.key(0)


def prompt_of(positions=7, dim=3):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(positions, dim))
    return RegressionPrompt(jnp.asarray(x), jnp.asarray(x[:, 0] - 2 * x[:, 1]))


def by_hand(network, prompt, i, steps, rate):
    """Gradient descent with all of the first i examples: derivatives written out."""
    first, last = network.layers
    u, a, v, c = (np.array(part) for part in (first.weight, first.bias, last.weight[0], last.bias[()]))
    x, y = np.asarray(prompt.x[:i]), np.asarray(prompt.y[:i])
    for _ in range(steps):
        hidden = np.maximum(x @ u.T + a, 0)
        error = 2 * (hidden @ v + c - y) / i
        back = error[:, None] * v * (hidden > 0)
        u, a = u - rate * back.T @ x, a - rate * back.sum(axis=0)
        v, c = v - rate * hidden.T @ error, c - rate * error.sum()
    return (np.maximum(np.asarray(prompt.x[i]) @ u.T + a, 0) @ v + c).item()


def test_gradient_descent_on_each_prefix_is_that_of_numpy():
    with jax.enable_x64(True):
        prompt, network = prompt_of(), eqx.nn.MLP(3, "scalar", 4, 1, key=KEY)
        answers = eqx.filter_jit(TrainedNetwork(network, optax.sgd(0.05), steps=5))(prompt)
        wanted = [0.0] + [by_hand(network, prompt, i, 5, 0.05) for i in range(1, 7)]
        np.testing.assert_allclose(answers, wanted, rtol=1e-10)


def test_batches_are_subsets_of_the_prefix_of_the_size_that_is_said():
    """With one step and one example of a batch, the answer is that of one of the examples before; each comes."""
    with jax.enable_x64(True):
        prompt, network = prompt_of(4), eqx.nn.MLP(3, "scalar", 4, 1, key=KEY)
        single = [RegressionPrompt(prompt.x[jnp.array([j, 3])], prompt.y[jnp.array([j, 3])]) for j in range(3)]
        wanted = np.array([by_hand(network, one, 1, 1, 0.1) for one in single])
        predict = eqx.filter_jit(
            jax.vmap(lambda key: TrainedNetwork(network, optax.sgd(0.1), steps=1, batch=1, key=key)(prompt)[3])
        )
        answers = np.asarray(predict(jax.random.split(KEY, 300)))
        matches = np.abs(answers[:, None] - wanted) < 1e-10
        np.testing.assert_array_equal(matches.sum(axis=1), 1)
        assert np.all(np.abs(matches.mean(axis=0) - 1 / 3) < 4 * np.sqrt(2 / 9 / 300))
        whole = TrainedNetwork(network, optax.sgd(0.1), steps=2, batch=3, key=KEY)
        np.testing.assert_allclose(whole(prompt), TrainedNetwork(network, optax.sgd(0.1), steps=2)(prompt), rtol=1e-12)


def test_batches_differ_from_step_to_step():
    with jax.enable_x64(True):
        network = eqx.nn.MLP(3, "scalar", 4, 1, key=KEY)
        predictor = TrainedNetwork(network, optax.sgd(0.0), steps=1, batch=4, key=KEY)
        shares = [
            np.asarray(predictor._shares(jnp.asarray(11), jnp.asarray(number), jnp.zeros(12))) for number in range(6)
        ]
        assert len({tuple(row) for row in shares}) > 4
        for row in shares:
            np.testing.assert_allclose(np.sort(row)[-4:], 0.25)
            assert row[11] == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"network": eqx.nn.MLP},
            "network: expected a function of one input, such as eqx.nn.MLP(...), got 'the class MLP'",
        ),
        ({"optimizer": 0.1}, "optimizer: expected an optax optimizer, got 'float'"),
        ({"steps": 0}, "steps: expected an integer of at least 1, got 0"),
        ({"batch": 0, "key": KEY}, "batch: expected an integer of at least 1, got 0"),
        ({"batch": 2}, "key: expected one random key of JAX, got 'NoneType'"),
    ],
)
def test_what_trains_no_network_is_refused(change, said):
    fields = {"network": jnp.sum, "optimizer": optax.sgd(0.1), "steps": 2}
    assert_refused(lambda: TrainedNetwork(**fields | change), said)
