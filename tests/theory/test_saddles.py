"""Plateaus against Monte Carlo and the flow, the flow against finite differences, times of drops against the flow."""

import numpy as np
import pytest
from refusals import assert_refused

from icllab.theory import preconditioners, saddles

SPECTRUM = np.array([0.4, 0.3, 0.2, 0.1])
SETTING = {"length": 5, "noise_variance": 0.3}


def turned(spectrum, seed=0):
    """A covariance of this spectrum in a random basis, and the basis."""
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(spectrum),) * 2))[0]
    return (basis * spectrum) @ basis.T, basis


def small_heads(scale, heads, rows, dim, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(scale * rng.normal(size=shape) for shape in (heads, (heads, rows, dim), (heads, rows, dim)))


def crossing_times(path, levels):
    """Times at which the error falls below levels, between records."""
    return np.array([np.interp(-level, -path.loss, path.time) for level in levels])


def test_levels_of_the_reference():
    losses = saddles.plateau_losses(SPECTRUM[::-1], length=31)
    np.testing.assert_allclose(losses, [1, 0.640580, 0.377372, 0.209805, 0.135995], atol=1e-6)


def test_the_errors_of_the_plateaus_are_those_of_simulated_prompts():
    covariance, basis = turned([0.6, 0.3, 0.1])
    rng, prompts, n = np.random.default_rng(1), 100_000, SETTING["length"]
    x = rng.normal(size=(prompts, n + 1, 3)) @ (basis * np.sqrt([0.6, 0.3, 0.1])).T
    w, noise = rng.normal(size=(prompts, 3)), np.sqrt(0.3) * rng.normal(size=(prompts, n))
    labels = np.einsum("pnd,pd->pn", x, w)
    beta = np.einsum("pn,pnd->pd", labels[:, :n] + noise, x[:, :n]) / n
    weights = saddles.component_weights(covariance, **SETTING)
    for m, level in enumerate(saddles.plateau_losses(covariance, **SETTING)):
        learned = (basis[:, :m] * weights[:m]) @ basis[:, :m].T
        errors = (labels[:, n] - np.einsum("pd,de,pe->p", beta, learned, x[:, n])) ** 2
        standard_error = errors.std() / np.sqrt(prompts)
        assert standard_error < 0.01 * level
        assert abs(errors.mean() - level) < 4 * standard_error


def test_the_plateaus_end_at_the_best_step_and_each_is_the_best_on_its_components():
    covariance, basis = turned(SPECTRUM)
    losses, weights = (f(covariance, **SETTING) for f in (saddles.plateau_losses, saddles.component_weights))
    best = preconditioners.optimal(covariance, **SETTING)
    np.testing.assert_allclose(losses[-1], best.loss, rtol=1e-12)
    np.testing.assert_allclose((basis * weights) @ basis.T, best.matrix, rtol=1e-10)
    for m in range(5):
        for factor in (1.0, 0.99, 1.01):
            learned = factor * (basis[:, :m] * weights[:m]) @ basis[:, :m].T
            error = preconditioners.loss(learned, covariance, **SETTING)
            assert error > losses[m] if m and factor != 1 else error == pytest.approx(losses[m], rel=1e-12)


def test_limits():
    long = saddles.plateau_losses(SPECTRUM, length=10**9, noise_variance=0.5)
    np.testing.assert_allclose(long, [1, 0.6, 0.3, 0.1, 0], atol=1e-7)
    single = saddles.plateau_losses([0.7], length=4, noise_variance=0.35)
    np.testing.assert_allclose(single, [0.7, 0.7 - 0.7 / (1 + 2.5 / 4)], rtol=1e-12)
    np.testing.assert_allclose(saddles.plateau_losses([1.0, 0.0], length=2), [1, 0.5, 0.5])
    assert saddles.plateau_losses(SPECTRUM, length=5, noise_variance=1e9)[-1] == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_array_equal(saddles.component_weights([0.0, 0.0], length=2), [0, 0])


@pytest.mark.parametrize("merged", [False, True])
def test_the_flow_descends_the_gradient_of_the_error(merged):
    covariance, _ = turned([0.6, 0.3, 0.1])
    v, k, q = small_heads(0.7, 2, 3 if merged else 2, 3)
    arrays = [v, k] if merged else [v, k, q]

    def error(*arrays):
        heads = arrays[1] if merged else np.swapaxes(arrays[1], 1, 2) @ arrays[2]
        return preconditioners.loss(np.tensordot(arrays[0], heads, 1).T, covariance, **SETTING)

    path = saddles.flow(*arrays, covariance=covariance, times=[0.0, 1e-4], **SETTING)
    assert path.loss[0] == pytest.approx(error(*arrays), rel=1e-12)
    for i, moved in enumerate([path.values, path.keys] if merged else [path.values, path.keys, path.queries]):
        slope = np.zeros_like(arrays[i])
        for at in np.ndindex(slope.shape):
            step = np.zeros_like(slope)
            step[at] = 1e-6
            ahead, behind = ([*arrays[:i], arrays[i] + sign * step, *arrays[i + 1 :]] for sign in (1, -1))
            slope[at] = (error(*ahead) - error(*behind)) / 2e-6
        np.testing.assert_allclose((moved[1] - moved[0]) / 1e-4, -slope, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("noise_variance", [0.0, 0.5])
def test_separate_heads_of_rank_one_rest_on_every_plateau(noise_variance):
    law = {"length": 31, "noise_variance": noise_variance}
    levels = saddles.plateau_losses(SPECTRUM, **law)
    covariance, basis = turned(SPECTRUM)
    v, k, q = small_heads(1e-3, 6, 1, 4, seed=2)
    drops = saddles.staged_drops(covariance, v, k[:, 0], q[:, 0], **law)
    path = saddles.flow(v, k, q, covariance=covariance, times=np.linspace(0, 1.3 * drops.time[-1], 3000), **law)
    times = crossing_times(path, (levels[1:] + levels[:-1]) / 2)
    np.testing.assert_allclose(times, drops.time, rtol=0.02)
    middles = np.searchsorted(path.time, np.append(np.concatenate([[0], times[:-1]]) + times, 2 * path.time[-1]) / 2)
    middles[-1] = -1
    np.testing.assert_allclose(path.loss[middles], levels, rtol=1e-3)
    weights = saddles.component_weights(SPECTRUM, **law)
    for m, at in enumerate(middles):
        learned = np.where(np.arange(4) < m, weights, 0)
        np.testing.assert_allclose(basis.T @ path.matrix[at] @ basis, np.diag(learned), atol=0.05)
    assert len(set(drops.head)) == 4
    for head, component in zip(drops.head, range(4), strict=True):
        assert np.argmax(np.abs(basis.T @ path.keys[-1, head, 0])) == component


def test_times_of_drops_go_as_one_over_the_start_whatever_the_basis_and_the_order_of_heads():
    v, k, q = small_heads(1e-5, 6, 1, 4, seed=1)
    heads = v, k[:, 0], q[:, 0]
    drops = saddles.staged_drops(SPECTRUM, *heads, length=31)
    half = saddles.staged_drops(SPECTRUM, *(array / 2 for array in heads), length=31)
    np.testing.assert_allclose(half.time, 2 * drops.time, rtol=1e-3)
    covariance, basis = turned(SPECTRUM)
    same = saddles.staged_drops(covariance, v[::-1], k[::-1, 0] @ basis.T, -(q[::-1, 0] @ basis.T), length=31)
    mirrored = saddles.staged_drops(SPECTRUM, -v, k[:, 0], -q[:, 0], length=31)
    np.testing.assert_allclose(mirrored.time, drops.time, rtol=1e-4)
    np.testing.assert_array_equal(mirrored.head, drops.head)
    again = saddles.staged_drops(SPECTRUM, v[::-1], k[::-1, 0], -q[::-1, 0], length=31)
    np.testing.assert_allclose(same.time, again.time, rtol=1e-4)
    assert len(saddles.staged_drops(SPECTRUM, *(array[:2] for array in heads), length=31).time) == 2
    resting = saddles.staged_drops(SPECTRUM, *(0 * array for array in heads), length=31)
    assert len(resting.time) == len(resting.head) == 0


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_aligned_heads_drop_at_the_exact_times(fraction):
    law, start = {"length": 7, "noise_variance": 0.2}, np.array([0.1, 0.2, 0.15])
    spectrum = np.array([0.6, 0.3, 0.1])
    times = saddles.drop_times(spectrum, start=start, fraction=fraction, **law)
    keys = np.diag(start)[:, None]
    path = saddles.flow(start, keys, keys, covariance=spectrum, times=np.linspace(0, 2 * times.max(), 40_000), **law)
    weights = saddles.component_weights(spectrum, **law)
    for d in range(3):
        reached = np.interp(fraction * weights[d], path.matrix[:, d, d], path.time)
        assert reached == pytest.approx(times[d], rel=1e-5)


def test_a_small_start_waits_one_over_twice_the_squared_eigenvalue_and_the_start():
    times = saddles.drop_times(SPECTRUM, length=31, start=1e-7)
    np.testing.assert_allclose(times * 2 * SPECTRUM**2 * 1e-7, 1, rtol=1e-5)
    heads = 1e-7 * np.ones(4), 1e-7 * np.eye(4), 1e-7 * np.eye(4)
    np.testing.assert_allclose(saddles.staged_drops(SPECTRUM, *heads, length=31).time, times, rtol=1e-4)


@pytest.mark.parametrize("noise_variance", [0.0, 0.5])
def test_merged_heads_of_any_number_follow_one_logistic_curve(noise_variance):
    law, dim, lam = {"length": 31, "noise_variance": noise_variance}, 3, 0.4
    v, w, _ = small_heads(1e-4, 5, dim, dim)
    start = np.sum(((v + np.trace(w, axis1=1, axis2=2) / np.sqrt(dim)) / 2) ** 2)
    times = np.linspace(0, 45, 3000)
    path = saddles.flow(v, w, covariance=np.full(dim, lam), times=times, **law)
    size = np.trace(path.matrix, axis1=1, axis2=2) / np.sqrt(dim)
    last = np.sqrt(dim) * saddles.component_weights(np.full(dim, lam), **law)[0]
    assert size[-1] == pytest.approx(last, rel=1e-6)
    for fraction in (0.1, 0.5, 0.9):
        time = saddles.merged_drop_time(start, dim=dim, variance=lam, fraction=fraction, **law)
        assert np.interp(fraction * last, size, path.time) == pytest.approx(time, rel=1e-3)


def test_merged_heads_of_any_spectrum_rest_on_no_plateau_between():
    v, w, _ = small_heads(1e-4, 5, 4, 4)
    path = saddles.flow(v, w, covariance=SPECTRUM, length=31, times=np.linspace(0, 200, 2000))
    levels = saddles.plateau_losses(SPECTRUM, length=31)
    assert path.loss[-1] == pytest.approx(levels[-1], rel=0.02)
    begun = crossing_times(path, [0.99])[0]
    near = np.abs(path.loss[:, None] / levels[1:-1] - 1) < 0.01
    assert near.any(axis=0).all()
    assert (near.sum(axis=0) * path.time[1] < 0.05 * begun).all()


def test_what_has_no_plateaus_is_refused():
    heads = np.ones(2), np.ones((2, 3)), np.ones((2, 3))
    assert_refused(lambda: saddles.plateau_losses(SPECTRUM, length=0), "length: expected an integer of at least 1")
    assert_refused(lambda: saddles.plateau_losses([1.0, -1.0], length=1), "covariance: expected eigenvalues >= 0")
    assert_refused(lambda: saddles.plateau_losses(1.0, length=1), "covariance: expected a vector")
    assert_refused(lambda: saddles.drop_times([1.0, 0.0], length=1, start=0.1), "covariance: expected positive eigen")
    assert_refused(lambda: saddles.drop_times([1.0], length=1, start=1.0), "start: expected sizes below")
    assert_refused(lambda: saddles.drop_times([1.0], length=1, start=[0.1, 0.1]), "start: expected a number, or one")
    assert_refused(lambda: saddles.merged_drop_time(9.0, dim=2, length=1), "start: expected a size below the last")
    assert_refused(lambda: saddles.staged_drops(SPECTRUM, *heads, length=1), "keys: expected keys and queries")
    wrong = {"covariance": [1.0, 1.0], "length": 1, "times": [0.0, 1.0]}
    assert_refused(lambda: saddles.flow(*heads, **wrong), "keys: expected [head, row, 2]")
    assert_refused(lambda: saddles.flow(*heads, **{**wrong, "times": [1.0, 1.0]}), "times: expected increasing")
