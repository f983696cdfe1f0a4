"""Eigenvalues of the Fisher matrix of answers, against the matrix written out and the curvature of the loss."""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from iclbook.claims.routing import _answers, _transformers
from icllab.diagnostics import SpectrumSolver, fisher_spectrum
from icllab.tasks import StringPrograms

KEY = jax.random.key(2)
COUNT = 3


@pytest.fixture(scope="module")
def case():
    task = StringPrograms.init(functions=2, symbols=3, lengths=(2,), noise=0.3, key=KEY)
    network = _transformers.transformer(task, SimpleNamespace(width=2, layers=1, heads=1), key=KEY)
    asked = jax.tree.map(lambda leaf: leaf[1], _transformers.held_out(task, COUNT, KEY))
    return network, task, asked, np.asarray(_answers.fisher_eigenvalues(network, task, asked), float)


def test_they_are_those_of_the_gauss_newton_matrix_of_the_answers_loss(case):
    network, task, asked, found = case
    params, rest = eqx.partition(network, eqx.is_inexact_array)
    weights, whole = ravel_pytree(params)

    def outputs(w, tokens):
        rows = [eqx.combine(whole(w), rest)(type(asked)(row))[3:5] for row in tokens]
        return jnp.stack(rows)

    def loss(z, tokens):
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(z) * jax.nn.one_hot(tokens[:, 4:6], task.vocabulary), axis=2))

    # Answers of strings of two symbols are asked for by the sign and by the first of them.
    np.testing.assert_array_equal(np.asarray(asked.tokens)[:, 3], task.vocabulary - 1)
    how = {"outputs": outputs, "data": asked.tokens, "key": KEY, "solver": SpectrumSolver(dense=weights.size)}
    wanted = fisher_spectrum(loss, weights, **how)["eigenvalue"].values
    assert len(found) == COUNT * 2 * task.vocabulary
    several = min(len(wanted), 5)
    np.testing.assert_allclose(np.sort(found)[::-1][:several], wanted[:several], rtol=1e-3)
    assert wanted[several - 1] > 1e-4


def test_the_effective_dimension_counts_what_is_above_the_resolution(case):
    network, task, asked, h = case
    h = np.clip(h, 0, None)
    for resolution in (1e-3, 1e-1):
        found = _answers.effective_dimension(network, task, asked, resolution=resolution)
        assert found == pytest.approx(np.sum(h / (h + resolution)), rel=1e-5)
    assert 0 < found < np.sum(h > 0)


def test_certain_answers_have_no_fisher_information(case):
    network, task, asked, h = case
    # A readout that names one token whatever comes before it.
    sure = eqx.tree_at(lambda n: n.readout.bias, network, network.readout.bias.at[0].set(60.0))
    assert np.abs(np.asarray(_answers.fisher_eigenvalues(sure, task, asked))).max() < 1e-6 * h.max()
