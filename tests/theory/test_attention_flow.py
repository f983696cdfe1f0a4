"""The closed form of the flow against an ODE solver, its conserved quantity, and the optimum that it reaches."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from icllab.theory import preconditioners
from icllab.theory.attention_flow import flow

SIZES = {"dim": 3, "length": 5}
SETTING = SIZES | {"variance": 0.7, "noise_variance": 0.4}
TIMES = np.array([0.0, 0.5, 2.0, 4.0, 6.0, 9.0, 30.0])


def second_moment(dim, length, variance, noise_variance):
    """Covariance of the mean of labels times inputs, for tasks N(0, I)."""
    return ((length + 1) * variance**2 + (dim * variance + noise_variance) * variance) / length * np.eye(dim)


def solved(u, matrix, times, **setting):
    """u and U of gradient flow, by an ODE solver on all entries."""
    d, sigma, moment = setting["dim"], setting["variance"] * np.eye(setting["dim"]), second_moment(**setting)

    def slope(_, state):
        u, matrix = state[0], state[1:].reshape(d, d)
        of_product = u * sigma @ matrix @ moment - sigma @ sigma  # the gradient in A = u U of half the error
        return -np.concatenate([[np.sum(of_product * matrix)], (u * of_product).ravel()])

    start = np.concatenate([[u], matrix.ravel()])
    path = solve_ivp(slope, (0, times[-1]), start, t_eval=times, rtol=1e-11, atol=1e-14, method="DOP853").y
    return path[0], path[1:].T.reshape(-1, d, d)


def starts():
    """A multiple of the identity, and matrices near, across and against it; none but the first is symmetric."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(3, 3))
    for along in (None, 0.5, 0.0, -1.5):
        matrix = np.eye(3) if along is None else noise + (along - np.trace(noise) / 3) * np.eye(3)
        yield matrix / np.linalg.norm(matrix)


@pytest.mark.parametrize("sigma", [1e-3, 0.3, 1.5])
def test_the_closed_form_solves_the_equations(sigma):
    for direction in starts():
        u, matrices = solved(sigma, sigma * direction, TIMES, **SETTING)
        alignment = np.trace(direction) / np.sqrt(3)
        found = flow(TIMES, start=sigma, alignment=min(alignment, 1.0), **SETTING)
        traces = np.trace(matrices, axis1=1, axis2=2)
        rest = matrices - traces[:, None, None] / 3 * np.eye(3)
        np.testing.assert_allclose(found.value, u, rtol=1e-8)
        np.testing.assert_allclose(found.along, traces / np.sqrt(3), rtol=1e-8, atol=1e-11)
        np.testing.assert_allclose(found.across, np.linalg.norm(rest, axis=(1, 2)), rtol=1e-6, atol=1e-11)
        np.testing.assert_allclose(found.value**2, found.along**2 + found.across**2, rtol=1e-12)
        products = u[:, None, None] * matrices
        losses = [preconditioners.loss(a, np.full(3, 0.7), length=5, noise_variance=0.4) for a in products]
        np.testing.assert_allclose(found.loss, losses, rtol=1e-8)
        # the direction of the rest stays
        flat = rest.reshape(len(TIMES), -1)
        if flat[0] @ flat[0] > 1e-20:
            np.testing.assert_allclose(flat[3], flat[0] * (found.across[3] / found.across[0]), rtol=1e-5, atol=1e-10)


def test_from_the_identity_it_is_logistic_and_ends_at_the_best_matrix():
    time = np.linspace(0, 12, 7)
    found = flow(time, start=0.01, **SIZES)
    top = np.sqrt(3) / (9 / 5)
    np.testing.assert_allclose(
        found.value**2, top / (1 + (top / 1e-4 - 1) * np.exp(-2 * np.sqrt(3) * time)), rtol=1e-12
    )
    np.testing.assert_array_equal(found.across, 0)
    end = flow(1e4, start=0.01, alignment=-0.999, **SETTING)
    best = preconditioners.optimal(np.full(3, 0.7), length=5, noise_variance=0.4)
    assert end.loss == pytest.approx(best.loss, rel=1e-12)
    assert end.value * end.along / np.sqrt(3) == pytest.approx(best.matrix[0, 0], rel=1e-12)
    assert flow(0.0, start=0.2, **SIZES).value == pytest.approx(0.2, rel=1e-14)
