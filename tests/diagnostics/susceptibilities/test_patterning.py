"""Patterning on a posterior whose response is linear, and on a network that is trained again on the tilted data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from icllab.core.errors import InputError
from icllab.diagnostics import LinearResponse, LocalPosterior, Quadrature, patterning, susceptibility

KEY = jax.random.key(0)
H = np.array([3.0, 1.0])
PUSHES = np.array([[1.0, 0.5], [-0.3, 1.0], [0.4, 0.4]])


def bowl(w):
    return jnp.sum(jnp.asarray(H, w.dtype) * w**2) / 2


def pushed(push):
    return lambda w: bowl(w) - jnp.sum(jnp.asarray(push, w.dtype) * w)


TILTED = {f"push {i}": pushed(push) for i, push in enumerate(PUSHES)}
OBSERVED = {"first": lambda w: w[0], "second": lambda w: w[1]}


def test_the_exact_posterior_moves_as_wished():
    with jax.enable_x64(True):
        posterior = LocalPosterior(bowl, jnp.zeros(2), nbeta=50.0, localization=1.0)
        route = {"route": Quadrature(points=201), "key": KEY}
        response = susceptibility(posterior, tilted=TILTED, observables=OBSERVED, **route)
        pattern = patterning(response, {"first": 0.02}, controls=8, key=KEY)
        assert pattern.attrs["rank"] == 2

        def mean(h):
            loss = lambda w: bowl(w) + sum(c * (f(w) - bowl(w)) for c, f in zip(h, TILTED.values(), strict=True))  # noqa: E731
            moved = LocalPosterior(loss, jnp.zeros(2), nbeta=50.0, localization=1.0)
            return susceptibility(moved, tilted=TILTED, observables=OBSERVED, **route)["mean"].values

        np.testing.assert_allclose(mean(pattern["tilt"].values), [0.02, 0.0], atol=1e-9)
        np.testing.assert_allclose(pattern["predicted"], [0.02, 0.0], atol=1e-12)
        random = np.array([mean(h) for h in pattern["control"].values[:4]])
    np.testing.assert_allclose(random, pattern["control_predicted"].values[:4], atol=1e-9)
    assert np.abs(random - [0.02, 0.0]).max(1).min() > 0.002
    lengths = np.linalg.norm(pattern["control"].values, axis=1)
    np.testing.assert_allclose(lengths, np.linalg.norm(pattern["tilt"].values))
    # Of all tilts with this effect the pseudo-inverse is the shortest.
    null = np.linalg.svd(response["susceptibility"].values)[2][2]
    assert abs(null @ pattern["tilt"].values) < 1e-9


def test_directions_within_their_errors_are_not_used():
    posterior = LocalPosterior(bowl, jnp.zeros(2), nbeta=50.0, localization=1.0)
    response = susceptibility(posterior, tilted=TILTED, observables=OBSERVED, route=Quadrature(points=201), key=KEY)
    values = np.linalg.svd(response["susceptibility"].values, compute_uv=False)
    noisy = response.assign(susceptibility_error=response["susceptibility_error"] * 0 + 0.4 * values[1])
    with pytest.warns(UserWarning, match="not used"):
        pattern = patterning(noisy, {"first": 0.02}, key=KEY)
    assert pattern.attrs["rank"] == 1
    with pytest.raises(InputError, match="first"):
        patterning(response, {"fist": 0.02}, key=KEY)
    with pytest.raises(InputError, match="a Dataset with susceptibilities"):
        patterning(response.drop_vars("susceptibility"), {"first": 0.02}, key=KEY)


def test_a_network_trained_on_the_tilted_data_moves_as_wished_and_on_random_tilts_does_not():
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        x = rng.uniform(-2, 2, 90)
        y = np.sin(2 * x) + 0.3 * x + 0.2 * rng.normal(size=90)
        groups = np.digitize(x, [-1.2, -0.4, 0.4, 1.2])

        def answers(w, x):
            return jnp.tanh(x[:, None] * w[None, :4] + w[None, 4:8]) @ w[8:12]

        def losses(w, weights):
            return jnp.sum(
                jnp.asarray(weights) * (answers(w, jnp.asarray(x)) - jnp.asarray(y)) ** 2
            ) / 2 + 1e-3 * jnp.sum(w**2)

        def trained(weights, start):
            slope = jax.jit(jax.value_and_grad(lambda w: losses(w, weights)))
            found = minimize(lambda w: [np.asarray(a, float) for a in slope(w)], start, jac=True, method="L-BFGS-B").x
            curvature = jax.jit(jax.hessian(lambda w: losses(w, weights)))
            for _ in range(30):  # a minimum to rounding, from which small changes can be measured
                found = found - np.linalg.solve(np.asarray(curvature(found)) + 1e-9 * np.eye(12), slope(found)[1])
            assert np.linalg.norm(slope(found)[1]) < 1e-9
            return found

        even = np.full(90, 1 / 90)
        w = trained(even, rng.normal(size=12))
        shares = {f"group {g}": np.where(groups == g, 1 / (groups == g).sum(), 0.0) for g in range(5)}

        def answer_at(place):
            return lambda w: answers(w, jnp.array([place]))[0]

        observables = {f"at {place}": answer_at(place) for place in (-1.5, 0.0, 1.5)}
        posterior = LocalPosterior(lambda w: losses(w, even), jnp.asarray(w), nbeta=1e8, localization=1.0)
        tilted = {name: (lambda s: lambda w: losses(w, s))(share) for name, share in shares.items()}
        response = susceptibility(posterior, tilted=tilted, observables=observables, route=LinearResponse(), key=KEY)
        wish = 0.01 * np.abs(response["susceptibility"].values).max()
        pattern = patterning(response, {"at 0.0": wish}, controls=6, key=KEY)

        def moved(h):
            weights = even + sum(c * (share - even) for c, share in zip(h, shares.values(), strict=True))
            after = trained(weights, w)
            return np.array([float(f(jnp.asarray(after)) - f(jnp.asarray(w))) for f in observables.values()])

        wished = pattern["wished"].values
        got = moved(pattern["tilt"].values)
        random = np.array([moved(h) for h in pattern["control"].values])
    assert np.linalg.norm(got - wished) < 0.35 * wish
    assert np.linalg.norm(random - wished, axis=1).min() > 2 * np.linalg.norm(got - wished)
