"""Responses of a small trained network: chains beside the linear response, where that holds and where it does not."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask

from icllab.diagnostics import HMC, LinearResponse, Quadrature, susceptibility
from icllab.diagnostics.curvature.products import GaussNewton

INPUTS, HIDDEN, ANSWERS, SAMPLES = 3, 5, 2, 12
SIZE = HIDDEN * (INPUTS + 1 + ANSWERS)  # 30 weights, of which 24 residuals leave at least six free
RESOLUTION, STRONG, WEAK = 0.02, 3e4, 10.0
CHAINS = HMC(chains=16, warm_up=100, draws=400, leapfrogs=16, mode="vmap")


def outputs(w, x):
    """A layer of hyperbolic tangents, and a linear one."""
    first, above = w[: HIDDEN * (INPUTS + 1)].reshape(HIDDEN, -1), w[HIDDEN * (INPUTS + 1) :].reshape(ANSWERS, -1)
    return jnp.tanh(x @ first[:, 1:].T + first[:, 0][None]) @ above.T


class Squares(eqx.Module):
    """Half the mean squared error on some samples."""

    x: jax.Array
    y: jax.Array

    def __call__(self, w):
        return jnp.sum((outputs(w, self.x) - self.y) ** 2) / (2 * len(self.x))


class Answer(eqx.Module):
    """The first answer to one input."""

    x: jax.Array

    def __call__(self, w):
        return outputs(w, self.x)[0, 0]


def half_square(z, batch):
    """The loss of outputs, whose second derivative is one."""
    return jnp.sum(z**2) / (2 * len(batch))


@functools.cache
def network():
    """Data of two hidden units, and weights of five that answer them exactly, by Levenberg-Marquardt."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(SAMPLES, INPUTS))
    y = np.tanh(x @ rng.normal(size=(INPUTS, 2))) @ rng.normal(size=(2, ANSWERS))
    w, damping = rng.normal(size=SIZE) / 2, 1.0
    with jax.enable_x64(True):
        residual = jax.jit(lambda w: (outputs(w, jnp.asarray(x)) - y).ravel())
        derivative = jax.jit(jax.jacfwd(residual))
        for _ in range(200):
            r, j = np.asarray(residual(jnp.asarray(w))), np.asarray(derivative(jnp.asarray(w)))
            moved = w - j.T @ np.linalg.solve(j @ j.T + damping * np.eye(len(r)), r)
            better = np.sum(np.asarray(residual(jnp.asarray(moved))) ** 2) < np.sum(r**2)
            w, damping = (moved, damping / 3) if better else (w, damping * 4)
    assert np.sum(r**2) < 1e-20
    return x, y, w, np.linalg.eigvalsh(j.T @ j / SAMPLES)


@functools.cache
def responses(localization, chains=True):
    """Of a program's loss and of an answer, to more of these samples and to other answers: [second, first order]."""
    x, y, w, _ = network()
    with jax.enable_x64(True):
        data, at = jnp.asarray(x), jnp.asarray(w)
        other = y + 3 * np.eye(SAMPLES, ANSWERS)  # to two samples; the observable is the answer beside the first
        tilted = {"more": Squares(data[:6], jnp.asarray(y[:6])), "other": Squares(data, jnp.asarray(other))}
        observables = {"loss": Squares(data[4:], jnp.asarray(y[4:])), "answer": Answer(data[:1] + 0.1)}
        route = CHAINS
        if not chains:
            curvature = GaussNewton(half_square, at, data, outputs=outputs)
            route = LinearResponse(curvature=curvature)
        how = {"nbeta": localization / RESOLUTION, "localization": localization, "key": jax.random.key(0)}
        loss = Squares(data, jnp.asarray(y))
        return ask(susceptibility, loss, at, tilted=tilted, observables=observables, route=route, **how)


@pytest.mark.slow
def test_chains_of_a_trained_network_agree_with_the_linear_response_where_weights_hardly_move():
    """Pairs of one order within three errors that are small; mixed ones, which are near zero, within three errors."""
    eigenvalues, weights = network()[3], np.linalg.norm(network()[2])
    assert (eigenvalues > 1e-10).sum() <= 24 < SIZE  # singular
    assert 0.01 * weights > (SIZE / STRONG) ** 0.5
    found, linear = responses(STRONG), responses(STRONG, chains=False)
    assert found.attrs["warnings"] == linear.attrs["warnings"] == []
    wanted, error = linear["susceptibility"].values, found["susceptibility_error"].values
    assert (np.diagonal(error) < 0.08 * np.abs(np.diagonal(wanted))).all()
    assert (np.abs(found["susceptibility"].values - wanted) < 3 * error).all()
    # The order of each: what has no slope at the minimum responds to second order alone.
    assert abs(float(linear["first_order"][0, 0])) < 1e-6 * abs(wanted[0, 0])
    assert abs(float(linear["second_order"][1, 1])) < 0.01 * abs(wanted[1, 1])


def test_chains_of_a_trained_network_leave_the_second_term_where_weights_move():
    """At the same resolution, and a localization three thousand times weaker: what has a first term has it alone."""
    found, linear = responses(WEAK), responses(WEAK, chains=False)
    of_first, of_second = (float(linear[name][1, 1]) for name in ("first_order", "second_order"))
    chains, error = (float(found[name][1, 1]) for name in ("susceptibility", "susceptibility_error"))
    assert error < 0.05 * of_first
    assert abs(chains - of_first) < 3 * error
    assert chains < of_first + of_second - 10 * error
    # Which is said: of that pair, and not of the one that has no first term.
    (said,) = linear.attrs["warnings"]
    assert "of 1 of 4 pairs" in said
    assert "first_order alone" in said
    # At one resolution the first term is the same.
    assert of_first == pytest.approx(float(responses(STRONG, chains=False)["first_order"][1, 1]), rel=1e-9)


def test_a_second_term_beside_a_first_is_no_warning_where_the_loss_is_quadratic():
    """There the sum is exact."""

    def loss(w):
        return w[0] ** 2 / 2 + w[1] ** 2

    def tilt(w):
        return loss(w) + w[0] + 3 * w[0] ** 2

    how = {"tilted": {"tilt": tilt}, "observables": {"tilt": tilt}, "localization": 1.0, "nbeta": 5.0}
    with jax.enable_x64(True):
        exact, linear = (
            ask(susceptibility, loss, jnp.zeros(2), route=route, key=jax.random.key(0), **how)
            for route in (Quadrature(), LinearResponse())
        )
    assert abs(float(linear["second_order"][0, 0])) > 0.1 * abs(float(linear["first_order"][0, 0]))
    assert float(linear["susceptibility"][0, 0]) == pytest.approx(float(exact["susceptibility"][0, 0]), rel=1e-6)
    assert linear.attrs["warnings"] == []


@pytest.mark.parametrize("resolution", [0.25, 4.0])
def test_of_a_second_term_beside_a_first_the_share_that_is_there_is_that_of_the_localization(resolution):
    r"""Of :math:`r = w_0 + w_1^2/2`, a residual: :math:`(\rho/(1+\rho))^2`, in the limit of strong localization."""

    def residual(w):
        return w[0] + w[1] ** 2 / 2

    def loss(w):
        return residual(w) ** 2 / 2

    def tilt(w):
        return loss(w) + residual(w)

    def share(gamma):
        how = {"tilted": {"tilt": tilt}, "observables": {"r": residual}, "localization": gamma}
        how |= {"nbeta": gamma / resolution, "key": jax.random.key(0)}
        with jax.enable_x64(True):
            exact, linear = (
                ask(susceptibility, loss, jnp.zeros(2), route=route, **how)
                for route in (Quadrature(), LinearResponse())
            )
        beyond = exact["susceptibility"] - linear["first_order"]
        return float(beyond[0, 0] / linear["second_order"][0, 0])

    coarse, fine = share(50.0), share(200.0)
    limit = (4 * fine - coarse) / 3  # what is left out is of relative order 1 / gamma
    assert limit == pytest.approx((resolution / (1 + resolution)) ** 2, rel=0.1)


@pytest.mark.parametrize("cubic", [0.5, -1.0])
def test_of_a_mixed_pair_the_linear_response_leaves_out_all_there_is(cubic):
    r"""Of :math:`w^2/2 + tw^3/6 + w^4/8`: the response of w to :math:`w^2/2`, and of it to w, is :math:`t/n\beta`."""

    def loss(w):
        return w[0] ** 2 / 2 + cubic * w[0] ** 3 / 6 + w[0] ** 4 / 8

    nbeta, gamma = 1e4, 1e2
    tilted = {"w": lambda w: loss(w) + w[0], "square": lambda w: loss(w) + w[0] ** 2 / 2}
    observables = {"w": lambda w: w[0], "square": lambda w: w[0] ** 2 / 2}
    how = {"tilted": tilted, "observables": observables, "nbeta": nbeta, "localization": gamma}
    with jax.enable_x64(True):
        exact, linear = (
            ask(susceptibility, loss, jnp.zeros(1), route=route, key=jax.random.key(0), **how)["susceptibility"].values
            for route in (Quadrature(), LinearResponse())
        )
    wanted = nbeta**2 * cubic / (nbeta + gamma) ** 3
    np.testing.assert_allclose([exact[0, 1], exact[1, 0]], wanted, rtol=0.01)
    np.testing.assert_array_equal([linear[0, 1], linear[1, 0]], 0)
    np.testing.assert_allclose(np.diagonal(linear), np.diagonal(exact), rtol=0.01)
