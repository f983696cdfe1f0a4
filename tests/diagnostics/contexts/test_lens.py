"""The logit lens: the last layer is the model, and a layer that adds nothing changes nothing."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import diagnostics, models, tasks
from icllab.core.errors import InputError
from icllab.diagnostics.contexts.lens import logit_lens
from icllab.models.contexts.exact_family import FastWeights

TASK = tasks.LinearRegression.convention("timaeus", dim=2, length=3)
MODEL = models.Transformer.raventos(dim=2, length=3, width=8, layers=2, heads=1, key=jax.random.key(0))
HOW = {"key": jax.random.key(1), "prompts": 16}


@pytest.fixture(scope="module")
def lens():
    # The second block adds nothing.
    still = eqx.tree_at(
        lambda m: (m.blocks[1].attention.output, m.blocks[1].mlp.layers[-1]),
        MODEL,
        replace_fn=lambda part: jax.tree.map(jnp.zeros_like, part),
    )
    return still, logit_lens(still, TASK, **HOW)


def test_the_last_layer_is_the_model_and_one_that_adds_nothing_changes_nothing(lens):
    model, result = lens
    assert result.sizes == {"layer": 3}
    np.testing.assert_allclose(result["distance"][1:], 0.0, atol=1e-12)
    np.testing.assert_allclose(result["distance_alone"][1:], 0.0, atol=1e-12)
    assert float(result["distance"][0]) > 1e-6
    np.testing.assert_allclose(result["loss"][2], diagnostics.per_length(model, TASK, **HOW)["loss"][-1], rtol=1e-5)


def test_alone_the_query_has_no_context(lens):
    model, result = lens
    losses = diagnostics.icl_scores(model, TASK, **HOW)["context_benefit"]
    difference = result["loss_alone"][2] - result["loss"][2]
    np.testing.assert_allclose(difference, losses, atol=1e-5)


def test_logits_of_the_item_label_network_are_read_layer_by_layer():
    task = tasks.ItemLabel.init(classes=None, labels=4, pairs=2, dim=5, key=jax.random.key(0))
    network = models.ItemLabelNetwork.from_task(task, key=jax.random.key(1))
    result = logit_lens(network, task, **HOW)
    assert result.sizes == {"layer": 3}
    assert float(result["distance"][2]) == pytest.approx(0.0, abs=1e-6)
    assert (result["distance"][:2] > 1e-3).all()
    # One token without context: softmax attention of a token to itself.
    assert np.isfinite(result["loss_alone"]).all()


def test_a_model_without_a_stream_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"model: expected one with a residual stream and a read-out.*FastWeights"):
        logit_lens(FastWeights.init(dim=2, hidden=1, std=1.0, normalised=False, key=jax.random.key(0)), TASK, **HOW)
    with pytest.raises(InputError, match="model: expected one with a trace of named activations, got 'function'"):
        logit_lens(lambda prompt: prompt.y, TASK, **HOW)
    with pytest.raises(InputError, match="query_length: expected an integer from 1 to 4, got 5"):
        logit_lens(MODEL, TASK, query_length=5, **HOW)
