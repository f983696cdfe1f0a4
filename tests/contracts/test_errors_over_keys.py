"""Every stated standard error of a diagnostic is the scatter over its keys, from both sides."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.calibration import assert_calibrated, repeated
from refusals import unchecked

from icllab import algorithms
from icllab.diagnostics.behaviour.lengths import accuracy, per_length
from icllab.diagnostics.behaviour.scores import icl_scores
from icllab.diagnostics.identification.layer_probe import _r_squared
from icllab.diagnostics.identification.verdicts import resamplings
from icllab.diagnostics.identification.weights import interpolate
from icllab.diagnostics.sampling.hmc import HMC
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.coefficients import coefficient_at_temperature
from icllab.diagnostics.singular.fluctuations import singular_fluctuation
from icllab.diagnostics.singular.free_energies import free_energy
from icllab.diagnostics.susceptibilities.tilts import susceptibility
from icllab.models import LinearAttention
from icllab.tasks import HigherOrderChain, LinearRegression

KEYS = 60
REGRESSION = LinearRegression.convention("raventos", dim=2, length=4)


def tables_over(measure, keys=KEYS):
    """What a diagnostic gives at each key; types are checked at the first alone."""
    first, *others = jax.random.split(jax.random.key(5), keys)
    tables = [measure(first)]
    with unchecked():
        return tables + [measure(key) for key in others]


def side_by_side(tables, pairs):
    """Values and errors, all pairs of names beside each other."""
    return tuple(
        np.array([np.concatenate([np.ravel(table[pair[i]].values) for pair in pairs]) for table in tables])
        for i in (0, 1)
    )


def over_keys(measure, pairs, keys=KEYS):
    """Values and errors of a diagnostic at each key."""
    return side_by_side(tables_over(measure, keys), pairs)


def with_error(*names):
    return [(name, f"{name}_error") for name in names]


def test_losses_of_each_length():
    predictors = {"ridge": algorithms.Ridge(0.5), "least squares": algorithms.Ridge(2.0)}
    measure = functools.partial(per_length, predictors, REGRESSION, against="ridge", prompts=60)
    tables = tables_over(lambda key: measure(key=key))
    assert_calibrated(*side_by_side(tables, [("loss", "standard_error"), *with_error("loss_sum", "loss_mean")]))
    apart = [table.isel(predictor=1).isel(position=slice(1, None)) for table in tables]
    assert_calibrated(*side_by_side(apart, with_error("difference", "difference_mean")))


def test_scores_of_learning_in_context():
    pairs = with_error("early_minus_late", "win_rate", "context_benefit")
    ridge = algorithms.Ridge(0.5)
    assert_calibrated(*over_keys(lambda key: icl_scores(ridge, REGRESSION, key=key, early=1, prompts=60), pairs))


def test_accuracies():
    chain = HigherOrderChain(jnp.array([[0.6, 0.3, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]]), order=1, tokens=6)
    known = algorithms.NGram.knowing(chain)
    assert_calibrated(*over_keys(lambda key: accuracy(known, chain, key=key, prompts=60), with_error("accuracy")))


def test_losses_between_two_networks():
    network, end = (LinearAttention.ahn(dim=2, layers=1, std=0.3, key=jax.random.key(i)) for i in (1, 2))
    measure = functools.partial(interpolate, network, end, REGRESSION, points=3, prompts=60)
    pairs = [("loss", "standard_error"), *with_error("difference")]
    values, errors = over_keys(lambda key: measure(key=key), pairs)
    differs = values.std(0) > 0  # the difference of the first point from itself is zero
    assert differs.sum() == values.shape[1] - 1
    assert_calibrated(values[:, differs], errors[:, differs])


def test_shares_of_variance_that_a_layer_explains():
    """Residuals of a half of the target's variance, at two steps."""

    def measure(rng):
        target = rng.normal(size=(80, 2))
        residual = np.sqrt(0.5) * rng.normal(size=(80, 2))
        weights = resamplings(80, resamples=200, seed=[int(rng.integers(2**31))])
        return _r_squared(residual**2, target**2, weights)

    assert_calibrated(*repeated(measure))


CURVATURES = jnp.array([1.0, 2.0, 3.0])


def quadratic(w):
    return 0.5 * jnp.sum(CURVATURES * w**2)


def tilted(w):
    return quadratic(w) + jnp.sum(w) + w[0] ** 2


CHAINS = HMC(chains=4, draws=100, warm_up=50)


def test_coefficients_at_a_temperature():
    posterior = LocalPosterior.from_function(quadratic, jnp.zeros(3), nbeta=50.0, localization=1.0)
    measure = functools.partial(coefficient_at_temperature, posterior, sampler=CHAINS, checks=())
    assert_calibrated(*over_keys(lambda key: measure(key=key), [("estimate", "mcse")]))


@pytest.mark.slow
def test_susceptibilities_by_chains():
    functions = {"tilted": {"more": tilted}, "observables": {"first": lambda w: w[0] ** 2, "loss": quadratic}}
    posterior = LocalPosterior.from_function(quadratic, jnp.zeros(3), nbeta=50.0, localization=1.0)
    measure = functools.partial(susceptibility, posterior, **functions, route=CHAINS)
    assert_calibrated(*over_keys(lambda key: measure(key=key), with_error("susceptibility", "mean"), 80))


@pytest.mark.slow
def test_fluctuations_by_chains():
    data = np.random.default_rng(0).normal(size=(6, 2))

    def loss(w, sample):
        return 0.5 * jnp.mean(jnp.sum((sample - w[None]) ** 2, axis=1))

    at = {"data": jnp.asarray(data, jnp.float32), "nbeta": 6.0, "localization": 1.0}
    posterior = LocalPosterior.from_function(loss, jnp.zeros(2), **at)

    def measure(key):
        return singular_fluctuation(CHAINS.sample(posterior, key=key))

    assert_calibrated(*over_keys(measure, with_error("fluctuation", "training_loss", "waic", "estimate")))


@pytest.mark.slow
def test_free_energies_of_populations():
    posterior = LocalPosterior.from_function(quadratic, jnp.zeros(3), nbeta=[10.0, 100.0], localization=1.0)

    def measure(key):
        return free_energy(posterior, key=key, sampler=SMC(particles=40, repeats=12))

    names = with_error("free_energy", "integrated", "mean_loss")
    assert_calibrated(*over_keys(measure, names))
