"""Posteriors with a prior beside the localization, whose moments are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask
from diagnostics.sampling.gaussian import H, quadratic
from scipy.stats import truncnorm

from icllab.core.errors import InputError
from icllab.diagnostics import (
    HMC,
    MALA,
    NUTS,
    SGLD,
    SGNHT,
    SMC,
    Prior,
    Quadrature,
    RMSpropSGLD,
    coefficient_of_draws,
    learning_coefficient,
)
from icllab.diagnostics.sampling import convergence

NBETA, GAMMA = 7.0, 0.5
HOW = {"nbeta": NBETA, "localization": GAMMA, "key": jax.random.key(0)}


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def require_mean(values, wanted, relative):
    """Within four Monte Carlo errors, each below a share of a scale."""
    mean, error = convergence.mean_and_mcse(np.asarray(values, np.float64))
    assert error < relative
    assert abs(mean - wanted) < 4 * error


@pytest.mark.parametrize("sampler", [HMC(warm_up=200, draws=1500), MALA(warm_up=500, draws=8000)])
def test_a_normal_prior_moves_the_posterior_of_a_quadratic(sampler):
    """Precision a = nbeta h + gamma + 1/s^2, mean c/(s^2 a), and nbeta E[K] = nbeta h (1/a + mean^2) / 2."""
    centre, std = np.array([0.5, -1.0, 2.0]), np.array([0.4, 1.0, 0.5])
    prior = Prior(centre=jnp.asarray(centre), std=jnp.asarray(std))
    draws = ask(sampler.sample, quadratic, jnp.zeros(3), prior=prior, **HOW)
    with pytest.warns(UserWarning, match="the prior moves the posterior away from the point"):
        estimate = coefficient_of_draws(draws)
    precision = NBETA * H + GAMMA + std**-2.0
    mean = centre / std**2 / precision
    for i in range(3):
        require_mean(draws.parameters[:, :, i], mean[i], 0.03)
        require_mean((draws.parameters[:, :, i] - mean[i]) ** 2, 1 / precision[i], 0.06 / precision[i])
    require_mean(NBETA * draws.losses, np.sum(NBETA * H * (1 / precision + mean**2)) / 2, 0.1)
    assert float(estimate["estimate"]) == pytest.approx(NBETA * draws.losses.mean())


@pytest.mark.parametrize(("centre", "std", "away"), [(0.5, 1.0, False), (3.0, 0.05, True), (3.0, 2.0, False)])
def test_a_prior_elsewhere_is_warned_of(centre, std, away):
    """A prior that the loss outweighs is none: its slope is compared with the largest curvature."""
    draws = ask(HMC(warm_up=50, draws=50).sample, quadratic, jnp.zeros(3), prior=Prior(centre=centre, std=std), **HOW)
    sentences = [text for text in draws.warnings() if "the prior moves the posterior away" in text]
    assert bool(sentences) == away
    slope = 3 * (centre / std**2) ** 2
    assert draws.statistics["prior_slope"] == pytest.approx(slope / (NBETA * H.max() + GAMMA + std**-2.0), rel=0.01)


BOXED = [
    HMC(warm_up=200, draws=1500),
    SGLD(warm_up=200, draws=6000, step_size=4e-3),
    SGNHT(warm_up=500, draws=6000),
]


@pytest.mark.parametrize(
    "sampler", [*BOXED, pytest.param(NUTS(warm_up=300, draws=1000), marks=pytest.mark.slow)], ids=lambda s: s.name
)
def test_a_box_truncates_the_posterior(sampler):
    """Mean and variance of a truncated normal, within four errors and, without a test, the bias of the step."""
    lower, upper = np.array([-0.1, -0.5, -0.05]), np.array([0.6, 0.2, 1.5])
    prior = Prior(lower=jnp.asarray(lower), upper=jnp.asarray(upper))
    draws = ask(sampler.sample, quadratic, jnp.zeros(3), prior=prior, **HOW)
    values = np.asarray(draws.parameters)
    assert ((values >= lower) & (values <= upper)).all()
    for i, h in enumerate(H):
        std = (NBETA * h + GAMMA) ** -0.5
        exact, width = truncnorm(lower[i] / std, upper[i] / std, scale=std), upper[i] - lower[i]
        bias = 0 if sampler.tested else 0.012
        for series, wanted in ((values[:, :, i], exact.mean()), ((values[:, :, i] - exact.mean()) ** 2, exact.var())):
            mean, error = convergence.mean_and_mcse(series)
            assert error < 0.02 * width
            assert abs(mean - wanted) < 4 * error + bias * width
    assert np.isnan(draws.chains.acceptance).all() == (not sampler.tested)


@pytest.mark.parametrize("sampler", [SGLD(step_size=0.3, draws=3000), RMSpropSGLD(step_size=0.03, draws=3000)])
def test_reflected_steps_leave_a_flat_posterior_uniform(sampler):
    """Also where a step is as long as the box: the moments of a uniform density between -0.2 and 0.3."""
    options = HOW | {"localization": 1e-9, "prior": Prior(lower=-0.2, upper=0.3)}
    draws = ask(sampler.sample, lambda w: 0 * jnp.sum(w), jnp.zeros(2), **options)
    require_mean(draws.parameters[:, :, 0], 0.05, 0.004)
    require_mean((draws.parameters[:, :, 1] - 0.05) ** 2, 0.25 / 12, 0.001)


def test_reflection_and_the_signs_of_momenta():
    prior = Prior(
        *(jnp.asarray(row) for row in ([0.0] * 7, [jnp.inf] * 7, [0.0] * 6 + [-jnp.inf], [1.0] * 6 + [jnp.inf]))
    )
    place, signs = prior.reflected(jnp.asarray([0.25, -0.25, 1.25, 2.25, -1.25, 3.75, 9.0]))
    np.testing.assert_allclose(place, [0.25, 0.25, 0.75, 0.25, 0.75, 0.25, 9.0])
    np.testing.assert_array_equal(signs, [1, -1, -1, 1, 1, -1, 1])


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (Prior(), "a finite std or a box"),
        (Prior(std=-1.0), "a positive std"),
        (Prior(lower=0.1, upper=1.0), "the point between them"),
        (Prior(lower=0.0), "lower below upper"),
        (Prior(std=jnp.ones(2)), "a std that is a number or a tree like the parameters"),
    ],
)
def test_a_prior_that_cannot_be_is_refused(prior, message):
    with pytest.raises(InputError, match=f"prior: expected .*{message}"):
        ask(HMC().sample, quadratic, jnp.zeros(3), prior=prior, **HOW)


def test_a_limit_and_populations_have_the_localization_for_a_prior():
    options = {"n": 100, "localization": 1.0, "prior": Prior(std=1.0), "key": jax.random.key(0)}
    for question in (learning_coefficient, SMC().sample, Quadrature(points=9).sample):
        with pytest.raises(InputError, match="prior: expected None "):
            ask(question, quadratic, jnp.zeros(3), **options)
