"""Coefficients that are known, and runs that are known to be bad: each must say so, and a good one nothing."""

import functools
import itertools
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from diagnostics.questions import ask
from refusals import unchecked

from icllab.core.errors import EnvironmentFault, InputError
from icllab.diagnostics import (
    HMC,
    MALA,
    NUTS,
    SGLD,
    SMC,
    LocalPosterior,
    along,
    coefficient_at_temperature,
    free_energy,
    learning_coefficient,
    posterior_draws,
    susceptibility,
)
from icllab.diagnostics.singular import temperature_estimates
from icllab.diagnostics.singular.coefficient_curves import with_growth
from icllab.tasks import LinearRegression
from icllab.theory import learning_coefficients as exact
from icllab.theory import quadratic_posterior

at_temperature = functools.partial(ask, coefficient_at_temperature)
N = 1e6
TASK = LinearRegression.from_scaling(dim=2, alpha=2.0, kappa=1.0, rho=0.1, key=jax.random.key(0))
NBETA = N / np.log(N)


def linear_layers(widths, rank):
    """Half the squared distance of a product of matrices from the identity of that rank; at the plainest solution."""
    layers = [jnp.eye(b, a).at[:, rank:].set(0) for a, b in itertools.pairwise(widths)]

    def product(layers):
        found = layers[0]
        for layer in layers[1:]:
            found = layer @ found
        return found

    truth = product(layers)
    return lambda w: jnp.sum((product(w) - truth) ** 2) / 2, layers


TOYS = {
    "quadratic": lambda: (lambda w: jnp.sum(w**2) / 2, jnp.zeros(10), exact.regular(10)),
    "crossing": lambda: (lambda w: (w[0] * w[1] ** 2) ** 2, jnp.zeros(2), exact.normal_crossing((1, 2))),
    "reduced rank": lambda: (*linear_layers((3, 2, 3), 1), exact.reduced_rank_regression(3, 2, 3, 1)),
    "deep linear": lambda: (*linear_layers((3, 2, 2, 3), 1), exact.deep_linear((3, 2, 2, 3), 1)),
}


def crossing(localization=1.0, nbeta=NBETA):
    r"""nbeta E[K] of K = (w1 w2^2)^2: given w2, w1 is normal with the precision a = gamma + 2 nbeta w2^4.

    What is left is :math:`\int t w_2^4a^{-3/2}\varphi(w_2) / \int a^{-1/2}\varphi(w_2)`, here over log w2.
    """
    w = np.exp(np.linspace(-25, 3, 20_001))
    a = localization + 2 * nbeta * w**4
    share = w * np.exp(-localization * w**2 / 2) / np.sqrt(a)
    return float((share * nbeta * w**4 / a).sum() / share.sum())


def test_the_crossing_s_integral():
    """At any localization the limit is 1/4; at 1 and this nbeta it is 0.2413."""
    assert crossing() == pytest.approx(0.2413, abs=5e-5)
    assert crossing(nbeta=1e24) == pytest.approx(0.25, abs=1e-5)
    # A scale of both parameters is one of nbeta.
    assert crossing(100.0, 1e6 * NBETA) == pytest.approx(crossing(), rel=1e-6)


def estimated(name, away=0.0, **how):
    with jax.enable_x64(True):
        loss, at, _ = TOYS[name]()
        at = jax.tree.map(lambda a: a + away * jax.random.normal(jax.random.key(5), a.shape), at)
        checks = ("step_size",) if isinstance(how.get("sampler"), SGLD) else ()
        return at_temperature(loss, at, n=N, key=jax.random.key(1), checks=checks, **({"localization": 1.0} | how))


@pytest.mark.parametrize(
    "name",
    [
        "crossing",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("quadratic", "reduced rank", "deep linear")),
    ],
)
def test_hamiltonian_chains_have_the_exact_value_and_nothing_to_warn_of(name):
    """Within 5 per cent of lambda - (m-1) / log nbeta, or 0.03 for the crossing; the error stated is below 2 and 4."""
    found, target = estimated(name), TOYS[name]()[2].at(NBETA)
    assert found.attrs["warnings"] == []
    near, error = (0.03, 0.04 * target) if name == "crossing" else (0.05 * target, 0.02 * target)
    assert abs(found["estimate"] - target) < near
    assert found["mcse"] < error
    if name == "crossing":
        # The prior counts: its integral is not yet 1/4. Langevin dynamics with a test, at 0.221, are four errors off.
        assert abs(found["estimate"] - crossing()) < 3 * found["mcse"]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_langevin_dynamics_have_the_biased_value_of_their_step(share):
    found = estimated("quadratic", sampler=SGLD(step_size=share / NBETA))
    wanted = quadratic_posterior.gaussian_coefficient(
        [1.0] * 10, nbeta=NBETA, localization=1.0, step_size=share / NBETA
    )
    assert found["mcse"] < 0.02 * wanted
    assert abs(found["estimate"] - wanted) < 3 * found["mcse"]
    warned = [w for w in found.attrs["warnings"] if "the step is too large" in w]
    assert len(warned) == (share == 1.0)
    assert len(found.attrs["warnings"]) == len(warned)


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        pytest.param("crossing", {"sampler": SGLD(step_size=0.1 / NBETA)}, "chains disagree", marks=pytest.mark.slow),
        pytest.param(
            "deep linear", {"sampler": SGLD(step_size=0.1 / NBETA)}, "chains disagree", marks=pytest.mark.slow
        ),
        pytest.param(
            "reduced rank", {"sampler": SGLD(step_size=1 / NBETA)}, "the step is too large", marks=pytest.mark.slow
        ),
        pytest.param("quadratic", {"away": 0.01}, "the gradient there is not zero", marks=pytest.mark.slow),
        pytest.param("deep linear", {"away": 0.01}, "the estimate is negative", marks=pytest.mark.slow),
        pytest.param(
            "crossing",
            {"sampler": SGLD(step_size=1e6 / NBETA, dispersion=3.0)},
            "ran to infinity",
            marks=pytest.mark.slow,
        ),
        ("quadratic", {"sampler": SGLD(step_size=1 / NBETA)}, "the step is too large"),
    ],
)
def test_bad_runs_say_so(name, how, said):
    assert any(said in sentence for sentence in estimated(name, **how).attrs["warnings"])


def test_terms_of_a_quadratic():
    r"""Terms in 6 and 4 separate directions: each is half of chi-squared, whose variance is half its directions.

    Sums are exact; means and covariances within four of their errors, which are below 5 and 15 per cent.
    """
    with jax.enable_x64(True):
        found = at_temperature(
            lambda w: jnp.stack([jnp.sum(w[:6] ** 2), jnp.sum(w[6:] ** 2)]) / 2,
            jnp.zeros(10),
            nbeta=1e6,
            key=jax.random.key(2),
            localization=1.0,
        )
    np.testing.assert_allclose(found["term_estimate"].sum(), found["estimate"], rtol=1e-12)
    assert (found["term_mcse"] < 0.05 * np.array([3.0, 2.0])).all()
    np.testing.assert_array_less(np.abs(found["term_estimate"] - np.array([3.0, 2.0])), 4 * found["term_mcse"])
    error = found["term_covariance_mcse"].values
    assert (error < 0.15 * np.array([[3, 2.5], [2.5, 2]])).all()
    np.testing.assert_array_less(np.abs(found["term_covariance"] - np.diag([3.0, 2.0])), 4 * error)
    assert found["hessian_share"] == pytest.approx(5 / float(found["estimate"]), rel=1e-4)
    assert found.attrs["warnings"] == []
    assert (found.attrs["sampler"], found.attrs["mode"]) == ("HMC", "vmap")
    assert "chains fit into 15 nominal seconds" in found.attrs["reason"]
    assert "n" not in found.attrs


@pytest.mark.slow
def test_starts_at_the_point_alone_do_not_see_that_they_are_wrong():
    """The deep linear network without a test: far below 3 with nothing to warn of, and warned of from both starts."""
    how = {"step_size": 0.1 / NBETA, "draws": 2000}
    alone = estimated("deep linear", sampler=SGLD(dispersion=1e-9, **how))
    assert alone.attrs["warnings"] == []
    assert alone["estimate"] < 3 - 4 * alone["mcse"]
    assert any(
        "chains disagree" in sentence for sentence in estimated("deep linear", sampler=SGLD(**how)).attrs["warnings"]
    )


@pytest.mark.slow
def test_batches_and_all_of_the_data_say_the_same():
    """A linear model with 600 samples: batches of 100 with the control variate, and Hamiltonian chains."""
    with jax.enable_x64(True):
        x = jax.random.normal(jax.random.key(0), (600, 4))
        y = x @ jnp.ones(4) + jax.random.normal(jax.random.key(1), (600,))
        at = {"w": jnp.linalg.lstsq(x, y)[0]}

        def loss(w, samples):
            return jnp.mean((samples[0] @ w["w"] - samples[1]) ** 2) / 2

        how = {"data": (x, y), "localization": 1.0, "key": jax.random.key(2)}
        whole = at_temperature(loss, at, sampler=HMC(), **how)
        some = at_temperature(loss, at, sampler=SGLD(batch=100, control_variate=True, draws=8000), **how)
        h, level = np.linalg.eigvalsh(x.T @ x / 600), float(loss(at, (x, y)))
    assert whole.attrs["n"] == some.attrs["n"] == 600
    assert some.attrs["batch"] == 100
    nbeta = 600 / np.log(600)
    exact_value = quadratic_posterior.gaussian_coefficient(h, nbeta=nbeta, localization=1.0)
    biased = quadratic_posterior.gaussian_coefficient(
        h, nbeta=nbeta, localization=1.0, step_size=float(some["step_size"])
    )
    for found, wanted in ((whole, exact_value), (some, biased)):
        assert found.attrs["warnings"] == []
        assert found["mcse"] < 0.02 * wanted
        assert abs(found["estimate"] - wanted) < 4 * found["mcse"]
        assert float(found["baseline"]) == pytest.approx(level, rel=1e-12)
    assert 0 < some["noise_bias"] < 0.1
    assert 0.9 < float(some["acceptance"]) <= 1


@pytest.mark.slow
def test_a_curve_over_temperatures():
    """Of a quadratic with curvatures 1 and 0.01 at localization 5: each value is theory's."""
    h, nbeta = np.array([1.0] * 4 + [1e-2] * 4), (30.0, 300.0, 3000.0, 30000.0)
    with jax.enable_x64(True):
        found = along(
            "nbeta",
            {
                beta: at_temperature(
                    lambda w: jnp.sum(jnp.asarray(h) * w**2) / 2,
                    jnp.zeros(8),
                    key=jax.random.fold_in(jax.random.key(0), i),
                    nbeta=beta,
                    localization=5.0,
                )
                for i, beta in enumerate(nbeta)
            },
        )
    wanted = [quadratic_posterior.gaussian_coefficient(h, nbeta=beta, localization=5.0) for beta in nbeta]
    assert wanted[0] < 2.1
    assert wanted[-1] > 3.9
    assert (found["mcse"] < 0.03 * np.array(wanted)).all()
    np.testing.assert_array_less(np.abs(found["estimate"] - wanted), 4 * found["mcse"])
    growth = with_growth(found)["growth_estimate"]
    assert (growth > found["estimate"])[1:3].all()  # where directions come into sight


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quadratic", "reduced rank", "deep linear"])
def test_the_no_u_turn_sampler_agrees(name):
    """The referee: blackjax, within three combined errors, each below 4 per cent."""
    pytest.importorskip("blackjax")
    ours, theirs = estimated(name), estimated(name, sampler=NUTS())
    error = float(np.hypot(ours["mcse"], theirs["mcse"]))
    assert theirs["mcse"] < 0.04 * ours["estimate"]
    assert abs(ours["estimate"] - theirs["estimate"]) < 3 * error


@pytest.mark.slow
def test_a_tree_of_parameters_is_the_vector_of_them():
    def of_tree(w):
        return w["a"] ** 2 * jnp.sum(w["b"] ** 2)

    def of_vector(w):
        return w[0] ** 2 * jnp.sum(w[1:] ** 2)

    how = {"n": 100.0, "localization": 1.0, "sampler": MALA(warm_up=20, draws=30)}
    one = at_temperature(of_tree, {"a": jnp.zeros(()), "b": jnp.zeros(2)}, key=jax.random.key(0), **how)
    two = at_temperature(of_vector, jnp.zeros(3), key=jax.random.key(0), **how)
    np.testing.assert_allclose(one["loss_trace"], two["loss_trace"], rtol=1e-5)
    assert np.unique(two["loss_trace"]).size > 100
    assert two.attrs["nbeta"] == pytest.approx(100 / np.log(100))
    assert two["chain_estimate"].mean() == pytest.approx(float(two["estimate"]), rel=1e-6)
    assert two.attrs["parameters"] == 3


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"n": 1.0}, "n: expected a finite number > 1, got 1.0"),
        ({"n": "100"}, "n: expected a finite number > 1, got '100'"),
        ({"key": 0}, "key: expected one random key of JAX, got 0; jax.random.key(0) makes one from a seed"),
        (
            {"sampler": "hmc"},
            "sampler: expected 'auto', HMC(), MALA(), SGLD(), RMSpropSGLD(), SGNHT(), NUTS() or SMC(), got 'hmc'",
        ),
        ({"sampler": SMC(), "checks": ()}, "checks: expected None with SMC, got ()"),
        ({"n": None}, "nbeta: expected a number, got None; or n, the number of samples"),
        (
            {"sampler": SGLD(control_variate=True)},
            "control_variate: expected more samples than a batch has, got '1 in batches of 256'",
        ),
        ({"nbeta": 0.0}, "nbeta: expected a finite number > 0, got 0.0"),
        ({"nbeta": (1.0, 2.0)}, "nbeta: expected one number, got (1.0, 2.0); free_energy takes several"),
        (
            {"loss": lambda w: jnp.outer(w, w)},
            "loss: expected a scalar, or a vector of terms whose sum it is, got (2, 2)",
        ),
        (
            {"loss": lambda w, x: (x @ w) ** 2, "data": jnp.ones((20, 2))},
            "loss: expected the same shape of all samples",
        ),
        (
            {"loss": lambda w, x: jnp.sum((x @ w) ** 2), "data": jnp.ones((20, 2))},
            "loss: expected the mean over samples",
        ),
        ({"localization": -1.0}, "localization: expected a finite number > 0, got -1.0"),
        ({"loss": lambda w: jnp.sum(w) / 0}, "loss: expected a finite number at the point given"),
    ],
)
def test_bad_questions(how, said):
    arguments = {"loss": lambda w: jnp.sum(w**2), "at": jnp.ones(2), "n": 10.0, "key": jax.random.key(0)} | how
    with unchecked(), pytest.raises(InputError) as error:
        ask(coefficient_at_temperature, **arguments)
    assert said in str(error.value)


def test_without_blackjax(monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(EnvironmentFault, match=r"nuts: expected blackjax, got none; .*pip install -e \S*\[singular\]"):
        estimated("crossing", sampler=NUTS(warm_up=10, draws=10))


def test_the_choice_of_the_localization_adds_its_error_in_quadrature(monkeypatch):
    def sampled(*arguments):
        names = {"estimate": 2.0, "mcse": 0.3, "localization_slope": 0.4, "localization_slope_error": 0.01}
        return xr.Dataset({name: ((), value) for name, value in names.items()}, attrs={"warnings": []})

    monkeypatch.setattr(temperature_estimates, "_by_chains", sampled)

    def error(localization):
        posterior = LocalPosterior(lambda w: jnp.sum(w**2), jnp.zeros(2), nbeta=30.0, localization=localization)
        return float(temperature_estimates.estimate_at_temperature(posterior, key=jax.random.key(3))["mcse"])

    assert error(None) == pytest.approx(math.hypot(0.3, 0.4), rel=1e-12)
    assert error(1.0) == 0.3


def test_the_spelling_of_before_is_answered_with_the_new_one():
    """Each old call ends in one line that names the constructor, the function or the argument."""
    with jax.enable_x64(True):
        posterior = LocalPosterior(lambda w: jnp.sum(w**2), jnp.zeros(2), nbeta=30.0, localization=1.0)
        draws = HMC(chains=4, warm_up=8, draws=8).sample(posterior, key=jax.random.key(0))
    functions = {"tilted": {"a": jnp.sum}, "observables": {"b": jnp.sum}}
    key = jax.random.key(0)
    for call, said in (
        (lambda: learning_coefficient(jnp.sum, jnp.zeros(2), n=9.0, key=key), "LocalPosterior.from_function("),
        (lambda: learning_coefficient(loss=jnp.sum, at=jnp.zeros(2), n=9.0, key=key), "LocalPosterior.from_function("),
        (lambda: posterior_draws(lambda prompt: prompt.y, TASK, key=key), "LocalPosterior.from_network("),
        (lambda: free_energy(lambda prompt: prompt.y, at=TASK, key=key), "LocalPosterior.from_network("),
        (lambda: HMC().sample(jnp.sum, jnp.zeros(2), nbeta=9.0, key=key), "LocalPosterior.from_function("),
        (lambda: learning_coefficient(draws), "coefficient_of_draws("),
        (lambda: susceptibility(draws, **functions), "susceptibility_of_draws("),
        (lambda: learning_coefficient(posterior, estimand="at_temperature", key=key), "coefficient_at_temperature("),
        (lambda: coefficient_at_temperature(posterior, nbeta=9.0, key=key), "an argument of LocalPosterior"),
        (lambda: learning_coefficient(posterior, zero_shot=3, key=key), "context_coefficients(posterior, ZeroShot"),
    ):
        with pytest.raises(InputError) as error:
            call()
        assert said in str(error.value)
        assert "\n" not in str(error.value)
