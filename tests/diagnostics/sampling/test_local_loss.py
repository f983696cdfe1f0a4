"""What is found out before and beside the chains."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagnostics.questions import ask

from icllab.core.errors import InputError
from icllab.diagnostics import HMC, NUTS, SGLD, SMC, LocalPosterior, coefficient_at_temperature
from icllab.diagnostics.sampling import local_loss
from icllab.diagnostics.sampling.local_loss import FOR_CURVATURE, LocalLoss
from icllab.diagnostics.sampling.samplers import chain_mode
from icllab.diagnostics.singular.temperature_estimates import chosen
from icllab.theory import quadratic_posterior

at_temperature = functools.partial(ask, coefficient_at_temperature)


def squares(w, samples):
    return jnp.mean((samples @ w) ** 2) / 2


def test_the_sampler_is_decided_by_cost_and_says_so(getkey):
    posterior = LocalPosterior.from_function(squares, jnp.ones(3), data=jax.random.normal(getkey(), (20, 3)))
    local, sampler, reason = chosen(posterior, "auto")
    assert sampler == HMC()
    assert reason.startswith("the whole loss and its gradient nominally take ")
    mode, reason = chain_mode(sampler, local)
    assert mode == "vmap"
    assert reason.startswith("a gradient takes nominally ")
    asked = SGLD(mode="map", warm_up=7, batch=8)
    local, sampler, reason = chosen(posterior, asked)
    assert (local.block, sampler, reason) == (8, asked, "asked for")
    assert chain_mode(sampler, local) == ("map", "asked for")
    assert chain_mode(NUTS(), local) == ("map", "chains that end their trajectories are not kept waiting")


def test_a_start_outside_is_moved_inside(getkey):
    """From a third of the starts the loss is infinite: each ends inside, on its own line, and the others stay."""
    with jax.enable_x64(True):

        def starts(loss):
            here, far = LocalLoss.from_loss(loss, jnp.zeros(2), None, block=8), np.arange(40) >= 20
            return np.asarray(here.starts(0.05, far, jax.random.key(1), dispersion=0.3, inside=True))

        free = starts(lambda w: jnp.sum(w**2))
        found = starts(lambda w: jnp.where(w[0] > -0.2, jnp.sum(w**2), jnp.inf))
        none = starts(lambda w: jnp.where(jnp.all(w == 0), 0.0, jnp.nan) + 0 * jnp.sum(w))
    outside = free[:, 0] <= -0.2
    assert 5 < outside.sum() < 15
    np.testing.assert_array_equal(found[~outside], free[~outside])
    assert (found[:, 0] > -0.2).all()
    shrunk = free[outside] / found[outside]
    np.testing.assert_allclose(shrunk[:, 0], shrunk[:, 1], rtol=1e-12)
    np.testing.assert_array_equal(np.log2(shrunk) % 1, 0)
    np.testing.assert_array_equal(none, 0)


def test_what_the_localization_is_of_the_largest_curvature():
    """Of a quadratic exactly; of a loss that is flat at the point, where the chains are."""
    with jax.enable_x64(True):

        def narrowness(loss, gamma, places):
            here = LocalLoss.from_loss(loss, jnp.zeros(2), None, block=8)
            return here.narrowness(here.posterior(100.0, gamma), jnp.asarray(places), gamma, jax.random.key(0))

        both = [[0.0, 0.0], [2.0, 0.0]]
        for gamma in (1.0, 100.0):
            found = narrowness(lambda w: 3 * w[0] ** 2 / 2, gamma, both)
            assert found == pytest.approx(gamma / (300 + gamma), rel=1e-9)
        # Of w^4 the second derivative at 2 is 48; what has run away says nothing.
        found = narrowness(lambda w: w[0] ** 4, 1.0, [*both, [np.inf, 0.0]])
        assert found == pytest.approx(1 / 4801, rel=1e-9)


def test_the_curvature_of_much_data_is_that_of_some_of_it():
    """As many samples as are looked at, none of them twice, and all where there are not more."""
    with jax.enable_x64(True):

        def loss(w, rows):
            return jnp.mean(rows) + jnp.sum(w**2)

        for count in (FOR_CURVATURE, FOR_CURVATURE + 300):
            here = LocalLoss.from_loss(loss, jnp.zeros(2), jnp.arange(float(count)), block=4096)
            seen = np.asarray(here.curved.data)
            assert len(np.unique(seen)) == len(seen) == FOR_CURVATURE
        assert seen.max() > FOR_CURVATURE


@pytest.mark.slow
def test_a_region_that_the_starts_do_not_know():
    """Half a plane, far wider than the posterior: the value without it, within four errors, below 6 per cent."""

    def loss(w):
        return jnp.where(w[0] > -0.2, jnp.sum(w**2) / 2, jnp.inf)

    how = {"n": 1e6, "localization": 0.05, "sampler": HMC(warm_up=150, draws=400), "key": jax.random.key(3)}
    with jax.enable_x64(True):
        found = at_temperature(loss, jnp.zeros(3), **how)
    assert found["mcse"] < 0.09
    assert abs(found["estimate"] - 1.5) < 4 * found["mcse"]
    assert not any("smaller step" in sentence for sentence in found.attrs["warnings"])


@pytest.mark.slow
def test_a_localization_that_is_all_there_is_says_so():
    """A point that is nearly zero makes the default 5e11; the whole estimate is its own."""
    with jax.enable_x64(True):
        found = at_temperature(
            lambda w: jnp.sum(w**2) / 2,
            jnp.full(3, 1.4e-6),
            n=1e6,
            sampler=HMC(warm_up=150, draws=150),
            key=jax.random.key(0),
        )
    assert found.attrs["localization"] == pytest.approx(5.1e11, rel=0.01)
    assert found["estimate"] < 1e-5
    assert found["localization_share"] > 0.8
    assert any("the localization decides: it is" in sentence for sentence in found.attrs["warnings"])


@pytest.mark.slow
def test_the_noise_of_batches_is_what_they_add():
    """Of a linear model, 300 samples in batches of 256: within a quarter and four errors. No loss is called lower."""
    with jax.enable_x64(True):
        of_x, of_y, key = jax.random.split(jax.random.key(0), 3)
        x = jax.random.normal(of_x, (300, 3))
        y = x @ jnp.ones(3) + jax.random.normal(of_y, (300,))
        at = jnp.linalg.lstsq(x, y)[0]

        def loss(w, samples):
            return jnp.mean((samples[0] @ w - samples[1]) ** 2) / 2

        how = {"data": (x, y), "localization": 1.0, "sampler": SGLD(), "key": key}
        found = at_temperature(loss, at, nbeta=5000.0, **how)
        plain = at_temperature(loss, at, **how)
        h = np.linalg.eigvalsh(x.T @ x / 300)
    without = quadratic_posterior.gaussian_coefficient(
        h, nbeta=5000.0, localization=1.0, step_size=float(found["step_size"])
    )
    added, error = float(found["estimate"]) - without, float(found["mcse"])
    assert error < 0.1 * added
    assert abs(added - float(found["noise_bias"])) < 4 * error + 0.25 * added
    assert any("the noise of the batches may add" in sentence for sentence in found.attrs["warnings"])
    for one in (found, plain):
        assert not any("no minimum" in sentence for sentence in one.attrs["warnings"])


@pytest.mark.slow
def test_the_hessians_share_by_random_probes(monkeypatch):
    """Of a diagonal Hessian, vectors of signs make it exact: the same as written out."""
    h = np.geomspace(1e-4, 1, 12)
    how = {"nbeta": 1000.0, "localization": 1.0, "sampler": HMC(warm_up=20, draws=20), "key": jax.random.key(0)}
    with jax.enable_x64(True):

        def share():
            return float(
                at_temperature(lambda w: jnp.sum(jnp.asarray(h) * w**2) / 2, jnp.zeros(12), **how)["hessian_share"]
            )

        exact = share()
        monkeypatch.setattr(local_loss, "DENSE", 5)
        assert share() == pytest.approx(exact, rel=1e-9)
        assert 0.1 < exact < 10


@pytest.mark.slow
def test_annealing_is_reached(getkey):
    """lambda of a quadratic in two dimensions is 1; annealing has no chains, and no curve of its own temperatures."""
    with jax.enable_x64(True):

        def asked(**how):
            at = jnp.zeros(2)
            return at_temperature(
                lambda w: jnp.stack([w[0] ** 2, w[1] ** 2]) / 2,
                at,
                localization=1.0,
                sampler=SMC(),
                key=getkey(),
                **how,
            )

        found = asked(nbeta=1e5)
        assert found.attrs["sampler"] == "SMC"
        assert found["mcse"] < 0.03
        assert abs(found["estimate"] - 1) < 4 * found["mcse"] + 0.01
        assert "chain_estimate" not in found
        assert not {"mode", "dispersion", "draws", "warm_up"} & set(found.attrs)
        assert 0 < found["localization_share"] < 0.01
        with pytest.raises(InputError, match="nbeta: expected a number, got None; or n, the number of samples"):
            asked(n=None)


def default_localization(loss, at, nbeta):
    with jax.enable_x64(True):
        return LocalLoss.from_loss(loss, jnp.asarray(at, jnp.float64), None).localized(nbeta).localization


def test_the_default_localization_leaves_the_estimate_alone():
    """A factor of e changes the estimate of curvatures 1 by gamma / (nbeta + gamma) of it: three per cent at most."""

    def loss(w):
        return jnp.sum(w[:2] ** 2) / 2

    at = [0.0, 0.0, 0.3, 0.4]  # one over the mean square is 16
    assert default_localization(loss, at, 1e4) == pytest.approx(16)
    weaker = default_localization(loss, at, 100.0)
    assert weaker < 100 * 0.03 / 0.97 < weaker * 100 ** (1 / 16) * 1.001
    # No localization down to a hundredth does: the first, and the estimate warns.
    assert default_localization(loss, at, 1.0) == pytest.approx(16)
    assert default_localization(lambda w: jnp.prod(w[:2] ** 2), at, 100.0) == pytest.approx(16)
    assert default_localization(lambda w: jnp.sum(w**2), np.zeros(3), 1e4) == 1


@pytest.mark.slow
def test_the_default_localization_is_part_of_the_error():
    """By default the error has the change of the estimate with it; at one that is given it has not."""
    how = {"nbeta": 30.0, "sampler": HMC(warm_up=100, draws=300), "key": jax.random.key(0)}
    with jax.enable_x64(True):
        at = jnp.full(3, 0.5)

        def loss(w):
            return jnp.sum((w - 0.5) ** 2) / 2

        default = at_temperature(loss, at, **how)
        gamma = default.attrs["localization"]
        given = at_temperature(loss, at, localization=gamma, **how)
        cold = at_temperature(loss, at, **(how | {"nbeta": 0.1}))
    slope = float(default["localization_slope"])
    assert slope == pytest.approx(
        -1.5 * 30 * gamma / (30 + gamma) ** 2, abs=4 * float(default["localization_slope_error"])
    )
    assert float(default["mcse"]) == pytest.approx(np.hypot(float(given["mcse"]), slope), rel=1e-6)
    assert not any("the localization decides" in text for text in default.attrs["warnings"])
    assert any("the localization decides: the estimate changes by" in text for text in cold.attrs["warnings"])
