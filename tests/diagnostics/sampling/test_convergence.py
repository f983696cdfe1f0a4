"""Known processes: independent draws, autoregressive ones, chains that disagree in place or in width."""

import math

import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.diagnostics.sampling.convergence import effective_draws, mean_and_mcse, rhat


def autoregressive(phi, chains, draws, seed):
    rng = np.random.default_rng(seed)
    found = np.empty((chains, draws))
    found[:, 0] = rng.normal(size=chains) / math.sqrt(1 - phi**2)
    noise = rng.normal(size=(chains, draws))
    for t in range(1, draws):
        found[:, t] = phi * found[:, t - 1] + noise[:, t]
    return found


@pytest.mark.parametrize("phi", [0.0, 0.9, -0.5])
def test_effective_draws_of_an_autoregressive_process(phi):
    """N (1 - phi) / (1 + phi), to a tenth for 40 000 draws."""
    draws = autoregressive(phi, 8, 5000, seed=1)
    assert effective_draws(draws) == pytest.approx(draws.size * (1 - phi) / (1 + phi), rel=0.1)
    assert rhat(draws) < 1.01


def test_effective_draws_of_few_are_those_of_the_definition():
    """Sums over all pairs of draws, in four halves of four; Geyer's pairs are positive in the second chain's drift."""
    draws = np.array([[0.3, 1.2, 0.7, 2.0, 1.9, 2.4, 2.2, 3.1], [1.0, 0.2, 1.4, 1.1, 2.6, 2.0, 3.0, 2.7]])
    halves = draws.reshape(4, 4)
    apart = halves - halves.mean(1, keepdims=True)
    lagged = [np.mean([a[: 4 - t] @ a[t:] for a in apart]) / 4 for t in range(4)]
    variance = lagged[0] + halves.mean(1).var(ddof=1)
    rho = [1 - (lagged[0] - each) * 4 / 3 / variance for each in lagged]
    pairs = [rho[0] + rho[1], rho[2] + rho[3]]
    assert pairs[0] > pairs[1] > 0
    assert effective_draws(draws) == pytest.approx(16 / (2 * sum(pairs) - 1), rel=1e-12)


def test_the_error_of_the_mean_is_its_spread_over_repetitions():
    """Of 400 repetitions the scores have unit variance, to four of its standard errors."""
    scores = []
    for seed in range(400):
        mean, error = mean_and_mcse(autoregressive(0.7, 4, 400, seed))
        scores.append(mean / error)
    assert np.var(scores) == pytest.approx(1, abs=4 * math.sqrt(2 / 400))


def test_chains_that_disagree():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 1000))
    assert rhat(draws) < 1.01
    assert rhat(draws + np.array([[0], [0], [0], [0.5]])) > 1.02
    assert rhat(draws * np.array([[1], [1], [1], [2.0]])) > 1.02  # seen by the distances from the median alone
    assert rhat(draws + np.linspace(0, 1, 1000)) > 1.02  # every chain drifts alike
    apart = draws + np.array([[0], [0], [0], [5.0]])
    assert effective_draws(apart) < 20
    assert effective_draws(draws) > 3500


def test_heavy_tails_have_ranks():
    """Cauchy draws have no mean, and their ranks are those of independent draws."""
    draws = np.random.default_rng(2).standard_cauchy(size=(8, 1000))
    assert rhat(draws) < 1.01
    assert rhat(draws) == pytest.approx(rhat(np.arctan(draws)), abs=1e-2)


def test_draws_that_stand_still():
    assert math.isnan(rhat(np.ones((4, 20))))
    assert math.isnan(effective_draws(np.ones((4, 20))))
    assert rhat(np.ones((4, 20)) * np.arange(4.0)[:, None]) == math.inf


def test_too_few_draws_and_infinite_ones():
    with pytest.raises(InputError, match=r"draws: expected at least 8 of each chain, got 7"):
        rhat(np.ones((4, 7)))
    with pytest.raises(InputError, match=r"draws: expected finite numbers, got inf; leave out what diverged"):
        effective_draws(np.full((4, 10), np.inf))
