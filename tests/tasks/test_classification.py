"""Cross-entropy against SciPy, and accuracy; every position, or the last."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from icllab.core.errors import InputError
from icllab.tasks import RepeatedTokens


def test_loss_and_accuracy(getkey):
    task = RepeatedTokens(vocabulary=4, period=3)
    prompt = task.sample(key=getkey())
    with jax.enable_x64(True):
        logits = jnp.asarray(3 * np.random.default_rng(0).normal(size=(5, 4)))
        target = np.asarray(prompt.tokens[1:])
        wanted = -log_softmax(np.asarray(logits), axis=1)[np.arange(5), target]
        loss = jax.jit(task.loss)
        np.testing.assert_allclose(loss(logits, prompt), wanted, rtol=1e-14, atol=1e-14)
        np.testing.assert_array_equal(loss(logits[-1:], prompt), loss(logits, prompt)[-1:])
        np.testing.assert_array_equal(
            jax.jit(task.accuracy)(logits, prompt), np.asarray(logits).argmax(axis=1) == target
        )


def test_another_number_of_positions_is_refused(getkey):
    task = RepeatedTokens(vocabulary=4, period=3)
    with pytest.raises(InputError, match="prediction: expected 5 positions, or 1 for the last, got 2"):
        task.loss(jnp.zeros((2, 4)), task.sample(key=getkey()))
