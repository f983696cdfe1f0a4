"""Gradient flow of linear attention in closed form, and gradient descent of the layer on fresh prompts."""

import jax
import jax.numpy as jnp
import numpy as np

from icllab.models import LinearAttention
from icllab.models.linear.linear_attention import MASKED
from icllab.tasks import LinearRegression
from icllab.theory import attention_flow

DIM, LENGTH, START, RATE, STEPS, BATCH, SEEDS = 2, 8, 0.2, 0.01, 120, 128, 12


def test_descent_of_the_layer_follows_the_flow():
    """All entries of P and Q are trained, with query labels and prompts of the task; twelve runs give the error."""
    task = LinearRegression.convention("ahn", dim=DIM, length=LENGTH)
    direction = np.array([[0.8, 0.5], [-0.3, 0.1]])
    direction /= np.linalg.norm(direction)
    p = jnp.zeros((1, DIM + 1, DIM + 1)).at[0, DIM, DIM].set(START)
    # The answer is -u x_q' Q' b: the matrix U is -Q', and the query has no label.
    q = jnp.zeros_like(p).at[0, :DIM, :DIM].set(-START * direction.T)

    def loss(weights, key):
        model = LinearAttention(*weights, **MASKED, answers="last", normalised=True)
        prompts = jax.vmap(lambda key: task.sample(key=key))(jax.random.split(key, BATCH))
        return jnp.mean(jax.vmap(lambda prompt: task.loss(model(prompt), prompt))(prompts))

    def run(key):
        def step(weights, number):
            gradient = jax.grad(loss)(weights, jax.random.fold_in(key, number))
            return jax.tree.map(lambda w, g: w - RATE * g, weights, gradient), weights

        return jax.lax.scan(step, (p, q), jnp.arange(STEPS + 1))[1]

    ps, qs = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), SEEDS))
    u, matrices = np.asarray(ps[..., 0, DIM, DIM], float), -np.asarray(qs[..., 0, :DIM, :DIM], float).swapaxes(-1, -2)
    along = np.trace(matrices, axis1=-2, axis2=-1) / np.sqrt(DIM)
    across = np.linalg.norm(matrices - along[..., None, None] * np.eye(DIM) / np.sqrt(DIM), axis=(-2, -1))
    steps = np.array([20, 50, 80, STEPS])
    alignment = np.trace(direction) / np.sqrt(DIM)
    flow = attention_flow.flow(2 * RATE * steps, start=START, dim=DIM, length=LENGTH, alignment=alignment)
    for simulated, closed in ((u, flow.value), (along, flow.along), (across, flow.across)):
        means, errors = simulated[:, steps].mean(0), simulated[:, steps].std(0, ddof=1) / np.sqrt(SEEDS)
        assert errors.max() < 0.02
        np.testing.assert_array_less(abs(means - closed), 4 * errors + 0.005)  # 0.005: the steps are no flow
    assert flow.value[-1] > 3 * START  # it has grown
