"""Every predictor answers, and every task draws, the same compiled and not: in float64, where that is known to 1e-12.

An eager call compiles every operation by itself, which takes seconds: most of them are slow tests.
"""

import equinox as eqx
import jax
import numpy as np
import pytest
from contracts.cases import MODELS, PREDICTORS, TASKS, cast, task_of
from drawing import sampled

SLOW = {*MODELS, "pool_posterior", "n_gram", "trained_network_batches"} - {"generalised_attention"}
# What is no function of JAX is never compiled.
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
    for name in PREDICTORS
    if name not in ("sklearn", "sklearn_last")
]
DRAWN = [pytest.param(name, marks=[] if name in ("lu_letey", "markov_chain") else pytest.mark.slow) for name in TASKS]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_jit_equals_eager(name, precision, getkey):
    predictor, task = cast(PREDICTORS[name](), precision), cast(task_of(name), precision)
    prompt = sampled(task, getkey())
    compiled = eqx.filter_jit(lambda predictor, prompt: predictor(prompt))(predictor, prompt)
    np.testing.assert_allclose(compiled, predictor(prompt), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_a_task_draws_the_same_compiled_and_not(name, precision, getkey):
    task, key = cast(TASKS[name](), precision), getkey()
    leaves = (jax.tree.leaves(prompt) for prompt in (task.sample(key=key), sampled(task, key)))
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
