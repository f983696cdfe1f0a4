"""The loss of each program along training, against a loop over prompts; and programs that do not count."""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from iclbook.claims.routing import _transformers
from icllab.core.prompt import TokenPrompt
from icllab.tasks import StringPrograms

KEY = jax.random.key(5)
SGD = optax.sgd(0.5)
STEPS = (0, 3)
POINT = SimpleNamespace(width=4, layers=1, heads=1, batch=8)


def task():
    programs = ((0,), (1, 0), (1,))
    return StringPrograms.init(functions=2, symbols=3, lengths=(1, 2), programs=programs, noise=0.2, key=KEY)


def network(task):
    return _transformers.transformer(task, POINT, key=KEY)


def run(weights):
    counted = _transformers.Counted(task(), jnp.asarray(weights, jnp.float32))
    return _transformers.train(counted, network(task()), POINT, optimizer=SGD, steps=STEPS, key=KEY)


@pytest.fixture(scope="module")
def whole():
    return run([1.0, 1.0, 1.0])


def test_losses_are_means_over_the_symbols_of_answers(whole):
    asked = _transformers.held_out(task(), 5, KEY)
    found = _transformers.program_losses(whole, task(), prompts=5, key=KEY)
    assert found.shape == (3, 2)
    tokens = np.asarray(asked.tokens)
    ask = eqx.filter_jit(lambda model, prompt: jax.nn.log_softmax(model(prompt)))
    for k, step in enumerate(STEPS):
        model = whole.trajectory.at(step).member(0)
        for c in range(3):
            losses = []
            for i in range(5):
                answers = np.asarray(ask(model, TokenPrompt(jnp.asarray(tokens[c, i]))))
                row = tokens[c, i].tolist()
                n = row[2:].index(task().vocabulary - 1)
                losses += [-answers[j - 1, row[j]] for j in range(3 + n, 3 + 2 * n)]
                assert row[:2] == task().program_tokens()[c].tolist()
            assert found[c, k] == pytest.approx(np.mean(losses) - task().answer_entropy(), abs=1e-5)
    assert np.abs(np.diff(found)).min() > 1e-4


def test_programs_without_weight_change_nothing(whole):
    """Training on weights w is that on their sum; and nothing is learned where none counts."""
    start, none = network(task()), run([0.0, 0.0, 0.0]).members.member(0)
    same = jax.tree.map(np.array_equal, eqx.filter(start, eqx.is_array), eqx.filter(none, eqx.is_array))
    assert all(jax.tree.leaves(same))
    prompts = _transformers.held_out(task(), 4, KEY)
    weights = jnp.array([0.0, 2.0, 0.5])
    plain_task = task()
    counted = _transformers.Counted(plain_task, weights)

    @eqx.filter_jit
    def both(prompt):
        prediction = start(prompt)
        return counted.loss(prediction, prompt), plain_task.loss(prediction, prompt)

    for c in range(3):
        one = jax.tree.map(lambda leaf, c=c: leaf[c, 0], prompts)
        weighted, plain = both(one)
        np.testing.assert_allclose(weighted, weights[c] * plain, rtol=1e-6)
