"""What heads are trained on and how: the curvatures, the contexts that stand for longer ones, what is held."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclbook.claims.asymptotics.trained_linear_attention import heads as trained_heads
from iclbook.claims.asymptotics.trained_linear_attention.heads import Contexts
from icllab.models import LinearAttention
from icllab.tasks import LinearRegression
from icllab.tasks.attention_features import features


def test_the_exact_minimum_is_where_the_gradient_of_the_loss_vanishes(getkey):
    """With fewer contexts than parameters and without ridge it fits them, in the span of their products."""
    for tau in (0.5, 3.0):
        point = SimpleNamespace(dim=3, tau=tau, alpha=2.0, kappa=2.0, rho=0.1)
        with jax.enable_x64(True):
            contexts = Contexts.sample(point, getkey(), getkey(), single=True)
            x, h, y = (np.asarray(part) for part in (contexts.x, contexts.h, contexts.y))
            for ridge, model in zip((0.0, 0.3), contexts.exact([0.0, 0.3]), strict=True):
                gamma = np.asarray(model.gamma)
                residuals = np.sum((x @ gamma) * h, axis=1) - y
                slope = x.T @ (residuals[:, None] * h) / len(y) + ridge / 3 * gamma
                assert np.abs(slope).max() < 1e-9
                found = contexts.compare(model, model)
                assert (found["gamma_distance"], found["gamma_norm"]) == (0.0, 1.0)
                np.testing.assert_allclose(found["training_error"], np.mean(residuals**2) / np.mean(y**2))
                np.testing.assert_allclose(found["icl_error"], model.icl_error())
                if tau < 1:
                    z = np.einsum("ni,nj->nij", x, h).reshape(len(y), -1)
                    inside = z.T @ np.linalg.lstsq(z.T, gamma.ravel())[0]
                    np.testing.assert_allclose(inside, gamma.ravel(), atol=1e-9)
                    assert (found["training_error"] < 1e-12) == (ridge == 0)


def test_curvatures_are_those_of_the_loss(precision):
    rng = np.random.default_rng(0)
    x, h = (jnp.asarray(rng.normal(size=(40, n)), precision) for n in (2, 3))

    def loss(gamma):
        return jnp.mean(jnp.sum((x @ gamma) * h, axis=1) ** 2)

    hessian = np.asarray(jax.jit(jax.hessian(loss))(np.zeros((2, 3), precision))).reshape(6, 6)
    values = np.linalg.eigvalsh(hessian)
    found = Contexts(None, x, h, None, None).curvatures()
    np.testing.assert_allclose(found, (values[-1], values[0]), rtol=1e-4 if precision == "float32" else 1e-10)
    few = Contexts(None, x[:3], h[:3], None, None).curvatures()  # the three directions they do not have are left out
    z = np.einsum("ni,nj->nij", np.asarray(x)[:3], np.asarray(h)[:3]).reshape(3, 6)
    spectrum = 2 * np.linalg.svd(z, compute_uv=False) ** 2 / 3
    np.testing.assert_allclose(few, (spectrum[0], spectrum[-1]), rtol=1e-3 if precision == "float32" else 1e-10)


@pytest.mark.parametrize("free", [True, False])
def test_the_layers_gradient_is_held_at_zero_in_v21_alone(free, getkey):
    of_layer = trained_heads._of_layer(10, 0.1, free)

    @jax.jit
    def first_update(key) -> Any:
        layer: Any = LinearAttention.lu(dim=3, std=1.0, key=key)
        return of_layer.update(layer, of_layer.init(layer), layer)[0]

    with jax.numpy_dtype_promotion("standard"):
        update = first_update(getkey())
    still = np.asarray(update.p) == 0
    expected = np.zeros_like(still)
    expected[:, -1, :-1] = not free
    np.testing.assert_array_equal(still, expected)
    assert not np.any(np.asarray(update.q) == 0)


@pytest.mark.slow
def test_one_example_stands_for_a_context(getkey):
    with jax.enable_x64(True):
        task = LinearRegression.from_scaling(dim=3, alpha=4.0, kappa=2.0, rho=0.1, key=getkey())
        prompts = jax.vmap(lambda k: task.sample(key=k))(jax.random.split(getkey(), 5))
        h = jax.vmap(features)(prompts.x[:, :-1], prompts.y[:, :-1])
        short = jax.vmap(trained_heads.one_example)(prompts.x[:, -1], h, prompts.y[:, -1])
        layer = LinearAttention.from_gamma(jax.random.normal(getkey(), (3, 4)), answers="last")
        assert short.x.shape == (5, 2, 3)
        np.testing.assert_allclose(jax.vmap(layer)(short), jax.vmap(layer)(prompts), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(jax.vmap(features)(short.x[:, :-1], short.y[:, :-1]), h, rtol=1e-12)
        np.testing.assert_array_equal(short.y[:, -1], prompts.y[:, -1])
