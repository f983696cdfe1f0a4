"""A constant in a loss changes no posterior: what its rounding takes of an estimate is said, and nothing else is."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask

from icllab.diagnostics import (
    HMC,
    MALA,
    NUTS,
    SGLD,
    SMC,
    Quadrature,
    coefficient_at_temperature,
    free_energy,
    singular_fluctuation,
    susceptibility,
)
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.posteriors import Posterior
from icllab.diagnostics.sampling.sampling_warnings import resolved
from icllab.diagnostics.singular.estimate_checks import Lowest, lowest_near, with_descent

H = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
N = 1e4
NBETA = N / np.log(N)
EXACT = 0.5 * np.sum(NBETA * H / (NBETA * H + 1))  # a quadratic's, whatever constant is added
CHAINS: Any = {"chains": 4, "warm_up": 150, "draws": 250}
SAMPLERS = {
    "HMC": HMC(**CHAINS),
    "MALA": MALA(**CHAINS),
    "NUTS": NUTS(chains=4, warm_up=50, draws=100),
    "SGLD": SGLD(**CHAINS),
    "SMC": SMC(particles=100, repeats=4),
}


def bowl(w, offset=0.0):
    return jnp.sum(jnp.asarray(H) * w**2) / 2 + offset


def line(w, offset=0.0):
    return 2.0 * w[0] ** 2 + offset


def steeper(w, offset=0.0):
    return 2 * line(w) + offset


def raised(loss, offset):
    """With the constant as data: one program for all of them."""
    return eqx.Partial(loss, offset=jnp.asarray(offset, jnp.float32))


def rounds(dataset):
    return any("rounds" in sentence for sentence in dataset.attrs["warnings"])


def estimate(sampler, offset):
    loss = raised(bowl, offset)
    options = {"nbeta": NBETA, "localization": 1.0, "key": jax.random.key(0)}
    if not isinstance(sampler, SMC):
        options["checks"] = ()
    return ask(coefficient_at_temperature, loss, jnp.zeros(4), sampler=sampler, **options)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_constant_of_which_the_rounding_decides_is_told(name):
    """In float32 a loss of 1e5 has steps of 0.008, eight nats at this temperature; one of ten has none to speak of."""
    usual, large = estimate(SAMPLERS[name], 10.0), estimate(SAMPLERS[name], 1e5)
    assert not rounds(usual)
    assert abs(float(usual["estimate"]) - EXACT) < 5 * float(usual["mcse"])
    assert rounds(large)


@pytest.mark.parametrize("offset", [-1e5, 1e6])
def test_a_constant_of_any_sign_and_one_that_leaves_one_number(offset):
    """At 1e6 all losses are one number: no draw differs, and there is no error to compare with."""
    assert rounds(estimate(SAMPLERS["MALA"], offset))


def test_the_precision_of_float64_holds_what_float32_rounds():
    with jax.enable_x64(True):
        options = {"nbeta": NBETA, "localization": 1.0, "key": jax.random.key(0), "sampler": SAMPLERS["HMC"]}
        loss = lambda w: jnp.sum(jnp.asarray(H, float) * w**2) / 2 + 1e5  # noqa: E731
        dataset = ask(coefficient_at_temperature, loss, jnp.zeros(4), **options)
    assert not rounds(dataset)
    assert abs(float(dataset["estimate"]) - EXACT) < 5 * float(dataset["mcse"])


def test_terms_that_cancel_are_rounded_one_by_one():
    """Their sum is zero at the point; each is known to half a unit in its last place."""
    loss = lambda w: jnp.stack([bowl(w, 1e5), -1e5 * jnp.ones(())])  # noqa: E731
    local = LocalLoss.from_loss(loss, jnp.zeros(4), None)
    assert float(local.known.baseline.sum()) == 0
    assert local.rounding == pytest.approx(2e5 * 2**-24)


def test_of_data_it_is_the_size_of_the_samples_losses():
    local = LocalLoss.from_loss(lambda w, x: jnp.mean(x + jnp.sum(w)), jnp.zeros(1), jnp.array([3e4, -1e4]))
    assert local.rounding == pytest.approx(2e4 * 2**-24)


def test_energies_are_those_of_the_loss_above_its_baseline():
    """Half a unit above 1e5 is held by float32; a thousand times 1e5 and a half is not."""
    level = jnp.asarray(1e5, jnp.float32)
    posterior = Posterior(bowl, jnp.zeros(4), jnp.asarray(1001.0), jnp.asarray(1.0), level)
    assert float(posterior.potential(level + 0.5, jnp.zeros(4))) == 500.5
    local = LocalLoss.from_loss(raised(bowl, 1e5), jnp.zeros(4), None)
    assert float(local.posterior(1.0, 1.0).baseline) == 1e5


def test_what_an_error_does_not_show_is_resolved_and_what_decides_moves_is_not():
    assert [resolved(error) for error in (0.03, 0.001, 5.0)] == pytest.approx([0.06, 0.01, 1.0])
    assert resolved(np.nan) == resolved(0.0) == 0.01


def test_a_descent_into_rounding_accuses_no_point():
    """A search among losses that are rounded to one of two numbers goes down by the difference of these."""
    local = LocalLoss.from_loss(raised(bowl, 1e5), jnp.zeros(4), None)
    lowest = lowest_near(local, NBETA)
    assert lowest.rounding == local.rounding
    chains = estimate(SAMPLERS["MALA"], 0.0)
    step = 2**-7  # of float32 at 1e5
    rounded = Lowest(1e5, 1e5 - step, jnp.zeros(4), local.rounding)
    told = ["lowers the loss" in s for s in with_descent(chains, rounded, NBETA).attrs["warnings"]]
    assert not any(told)
    deeper = rounded._replace(loss=1e5 - 4 * step)
    assert any("lowers the loss" in s for s in with_descent(chains, deeper, NBETA).attrs["warnings"])


@pytest.mark.parametrize(("offset", "told"), [(0.0, False), (10.0, False), (1e5, True)])
def test_a_free_energy_tells_it(offset, told):
    options = {"nbeta": [10.0, NBETA], "localization": 1.0, "key": jax.random.key(0), "sampler": SAMPLERS["SMC"]}
    assert rounds(ask(free_energy, raised(bowl, offset), jnp.zeros(4), **options)) is told


@pytest.mark.parametrize("route", [Quadrature(points=65), HMC(chains=4, warm_up=100, draws=100)])
@pytest.mark.parametrize(
    ("of_loss", "of_observable", "told"), [(0.0, 0.0, False), (1e5, 0.0, True), (0.0, 1e5, True), (1.0, 1.0, False)]
)
def test_susceptibilities_tell_it_of_losses_and_of_observables(route, of_loss, of_observable, told):
    dataset = ask(
        susceptibility,
        raised(line, of_loss),
        jnp.zeros(1),
        tilted={"steeper": raised(steeper, of_loss)},
        observables={"loss": raised(line, of_observable)},
        nbeta=30.0,
        localization=1.0,
        route=route,
        key=jax.random.key(0),
    )
    assert rounds(dataset) is told


@pytest.mark.parametrize(("offset", "told"), [(1.0, False), (3e6, True)])
def test_the_fluctuation_tells_it_of_single_samples(offset, told):
    """With the mean over samples centred, what is rounded is the loss of each."""
    y = jnp.asarray(np.random.default_rng(0).normal(size=20), jnp.float32)
    signs = jnp.asarray(np.tile([1.0, -1.0], 10), jnp.float32)

    def loss(w, samples):
        y, sign = samples
        return jnp.mean((y - w[0]) ** 2 / 2 + offset * sign)

    options = {"data": (y, signs), "nbeta": 20.0, "localization": 1.0, "key": jax.random.key(0)}
    dataset = singular_fluctuation(ask(Quadrature(points=65).sample, loss, jnp.zeros(1), **options))
    assert any("losses of samples" in sentence for sentence in dataset.attrs["warnings"]) is told


def test_weights_whose_effect_is_lost_in_rounding_are_no_idle_ones():
    options = {"localization": 1.0, "checks": (), "key": jax.random.key(0), "sampler": SAMPLERS["MALA"], "nbeta": NBETA}
    at = {"head": jnp.zeros(2), "other": jnp.zeros(2)}
    loss = lambda w: jnp.sum(w["head"] ** 2) / 2 + 1e8  # noqa: E731
    assert rounds(ask(coefficient_at_temperature, loss, at, weights=lambda w: w["head"], **options))
