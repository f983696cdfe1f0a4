"""What is estimated by default: a limit where one temperature does not have it, and words where something is off."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from diagnostics.questions import ask

from icllab.core.errors import InputError
from icllab.diagnostics import HMC, SGLD, SMC, LocalPosterior, coefficient_at_temperature, learning_coefficient
from icllab.diagnostics.sampling import sgld as chains_of_batches
from icllab.diagnostics.sampling.local_loss import LocalLoss
from icllab.diagnostics.sampling.sampling_warnings import chain_warnings, pulled
from icllab.diagnostics.singular import coefficients, estimate_checks, limits
from icllab.diagnostics.singular.estimate_checks import Lowest, lowest_near, rows_of_halves, with_descent
from icllab.diagnostics.singular.temperature_estimates import OF_HESSIAN

N = 1e6
NBETA = N / np.log(N)
SHORT = HMC(warm_up=100, draws=200)


def narrow(w):
    """lambda = 1/6, far from reached: at this n nbeta E[K] is 0.138."""
    return w[0] ** 4 * w[1] ** 6


@pytest.fixture(scope="module")
def of_the_narrow():
    with jax.enable_x64(True):
        return ask(learning_coefficient, narrow, jnp.zeros(2), n=N, key=jax.random.key(0))


def said(found, what):
    return any(what in sentence for sentence in found.attrs["warnings"])


def test_the_limit_is_estimated_and_not_the_temperature(of_the_narrow):
    found = of_the_narrow
    low, high = found["interval"].values
    assert low < 1 / 6 < high < 0.3
    assert found["level"] + 3 * found["level_error"] < 1 / 6
    assert found["level"] + found["left"] == pytest.approx(float(found["estimate"]), abs=0.01)
    assert found["regular_probability"] == 0
    assert found.attrs["estimates"].startswith("the learning coefficient")
    assert found["multiplicity_probability"].sum() == pytest.approx(1)
    assert found["nbeta"].values[-1] == pytest.approx(NBETA)
    assert found["nbeta"].values[-1] / found["nbeta"].values[0] > 99
    # What chains have is there as it was.
    assert {"rhat", "ess", "chain_estimate", "loss_trace"} <= set(found.data_vars)


def test_the_curve_is_the_integral(of_the_narrow):
    """t E[K] at every temperature, from the density of log K under the prior: within 3.5 errors."""
    y, step = np.linspace(-400, 30, 20_001, retstep=True)

    def density(k):
        w = np.exp(np.clip(y / (2 * k), -300, 5))
        return step * np.sqrt(2 / np.pi) * np.exp(-(w**2) / 2) * w / (2 * k)

    both = np.fft.irfft(np.fft.rfft(density(2), 2 * len(y)) * np.fft.rfft(density(3), 2 * len(y)), 2 * len(y))
    level = 2 * y[0] + step * np.arange(2 * len(y))
    t = of_the_narrow["nbeta"].values[:, None]
    above = np.exp(np.minimum(np.log(t) + level, 10))
    weight = both * np.exp(-above)
    wanted = (weight * above).sum(1) / weight.sum(1)
    assert wanted[-1] == pytest.approx(0.138, abs=0.002)
    error = of_the_narrow["curve_error"].values
    assert (error < 0.02).all()
    np.testing.assert_array_less(np.abs(of_the_narrow["curve"].values - wanted), 3.5 * error)


def test_populations_alone():
    """SMC() has the limit too, and everything of the free energy."""
    with jax.enable_x64(True):
        sampler = SMC(particles=100, repeats=12)
        found = ask(learning_coefficient, narrow, jnp.zeros(2), n=N, key=jax.random.key(1), sampler=sampler)
    assert found["interval"][0] < 1 / 6 < found["interval"][1]
    assert {"free_energy", "route_gap", "localization_share"} <= set(found.data_vars)
    assert found.attrs["settings"] == repr(sampler)
    assert found.attrs["n"] == N


def test_a_point_beside_the_minimum():
    """A quadratic at a distance of 0.01: what is measured from there is nbeta |a|^2 / 2 too low, and not the limit."""
    with jax.enable_x64(True):
        at = 0.01 * jnp.ones(4) / 2
        found = ask(learning_coefficient, lambda w: jnp.sum(w**2) / 2, at, n=N, localization=1.0, key=jax.random.key(2))
    assert float(found["descent"]) == pytest.approx(NBETA * 1e-4 / 2, rel=1e-3)
    assert abs(found["mean_estimate"] + found["descent"] - 2) < 4 * found["mean_estimate_error"]
    assert found["interval"].values.tolist() == [2, 2]  # of all directions
    assert found["mcse"] < 0.05
    assert said(found, "no minimum of this loss")


def test_at_a_temperature_nothing_is_extrapolated():
    """Of chains at n / log n the slope of the curve is told."""
    with jax.enable_x64(True):
        how = {"sampler": SHORT, "localization": 1.0, "key": jax.random.key(3)}

        def product(w):
            return (w[0] * w[1]) ** 2 / 2 + (w[2] * w[3]) ** 2 / 2

        given = ask(coefficient_at_temperature, product, jnp.zeros(4), nbeta=1e3, **how)
        alone = ask(coefficient_at_temperature, product, jnp.zeros(4), n=7500.0, **how)
    for found in (given, alone):
        assert found.attrs["estimates"] == "nbeta (E[L] - L(w*)) at this nbeta"
        assert "interval" not in found
    assert "rise" not in given
    # Of each product 1/2 less 1/(log nbeta + 1.5), whose slope is the square of that.
    wanted = 2 / (np.log(8 * 7500 / np.log(7500)) - np.euler_gamma) ** 2
    assert abs(alone["rise"] - wanted) < 4 * alone["rise_error"]
    assert alone["rise_error"] < 0.1


@pytest.mark.slow
def test_halves_of_the_data():
    """Of a regular model they have the same coefficient: the shift is nothing, within its error."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(400, 3))
        y = x @ np.ones(3) + rng.normal(size=400)
        data, at = (jnp.asarray(x), jnp.asarray(y)), jnp.asarray(np.linalg.lstsq(x, y, rcond=None)[0])

        def loss(w, samples):
            return jnp.mean((samples[0] @ w - samples[1]) ** 2) / 2

        found = ask(
            coefficient_at_temperature, loss, at, data=data, sampler=SHORT, localization=1.0, key=jax.random.key(4)
        )
    assert found["half_estimate"].shape == (4,)
    assert np.unique(found["half_estimate"]).size == 4
    np.testing.assert_allclose(found["half_estimate"], 1.5, atol=0.25)
    assert float(found["shift"]) == pytest.approx(float(found["estimate"] - found["half_estimate"].mean()))
    assert abs(found["shift"]) < 3 * found["shift_error"]
    assert 0 < found["shift_error"] < 0.4
    assert float(found["descent"]) < 1e-3
    assert found.attrs["estimates"].endswith("with the empirical loss of the data for L")


def test_halves_move_the_weights_that_the_estimate_moves(monkeypatch):
    """Of a part of the weights: the others stay where they are in the halves too."""
    sizes = []

    def noted(posterior, **options):
        sizes.append((posterior.local_loss().centre.size, len(posterior.data), posterior.temperature))
        return xr.Dataset({"estimate": 1.0, "mcse": 0.1})

    monkeypatch.setattr(estimate_checks, "estimate_at_temperature", noted)
    rows = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    posterior = LocalPosterior(
        lambda w, x: jnp.mean((x @ w["a"]) ** 2) + jnp.sum(w["b"] ** 2),
        {"a": np.ones(2, np.float32), "b": np.zeros(3, np.float32)},
        rows,
        weights=lambda w: w["b"],
    )
    estimate = xr.Dataset({"estimate": 1.5, "mcse": 0.1}, attrs={"nbeta": 9.0, "n": 20.0, "warnings": []})
    shifted = estimate_checks.with_shift(
        estimate, posterior.local_loss(), posterior, sampler=SHORT, key=jax.random.key(0)
    )
    assert sizes == [(3, 10, 9.0)] * 4
    assert float(shifted["shift"]) == 0.5


def test_halves_are_disjoint_and_splits_differ():
    rows = rows_of_halves(11, np.random.default_rng(0))
    assert [len(some) for some in rows] == [5] * 4
    for one, other in (rows[:2], rows[2:]):
        assert len({*one.tolist(), *other.tolist()}) == 10
    assert set(rows[0].tolist()) not in ({*rows[2].tolist()}, {*rows[3].tolist()})


def test_a_descent_ends_at_the_minimum_and_leaves_what_is_one():
    with jax.enable_x64(True):

        def valley(w):
            return (w[0] - 1) ** 2 / 2 + 50 * (w[1] - w[0] ** 2) ** 2 + 3

        beside = lowest_near(LocalLoss.from_loss(valley, jnp.array([0.5, 0.3]), None, block=8), 1e4)
        there = lowest_near(LocalLoss.from_loss(valley, jnp.ones(2), None, block=8), 1e4)
    assert 1e4 * (beside.loss - 3) < 0.01
    np.testing.assert_allclose(beside.place, 1, atol=2e-3)
    assert beside.level == pytest.approx(valley(np.array([0.5, 0.3])))
    assert there.loss == there.level == 3


@pytest.mark.parametrize(("short", "error", "told"), [(0.06, 0.001, True), (0.06, 0.04, False), (0.02, 0.001, False)])
def test_a_descent_is_told_where_it_is_much(short, error, told):
    """Beyond twice the error, and three per cent of the estimate are much, one is little."""
    estimate = xr.Dataset({"estimate": 2.0, "mcse": error}, attrs={"warnings": []})
    found = with_descent(estimate, Lowest(3.0, 3.0 - short / 1e3, jnp.zeros(2)), 1e3)
    assert float(found["descent"]) == pytest.approx(short, rel=1e-6)
    assert said(found, "lowers the loss by") is told


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"checks": ()}, "checks: expected None with SMC"),
        ({"nbeta": (10.0, 20.0, 30.0, 40.0)}, "nbeta: expected one number, got"),
        ({"n": 0.5}, "n: expected a finite number > 1"),
        ({"localization": 0.0}, "localization: expected a finite number > 0"),
    ],
)
def test_what_populations_have_no_use_for(how, words):
    with pytest.raises(InputError) as error:
        ask(learning_coefficient, narrow, jnp.zeros(2), key=jax.random.key(0), sampler=SMC(), **({"n": N} | how))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("gradient", "cheap"),
    [(4e-6, True), (6e-6, False), (1.5e-3, False)],
)
def test_populations_take_nominally_a_minute_at_most(monkeypatch, gradient, cheap):
    monkeypatch.setattr(LocalLoss, "seconds", gradient)
    here = LocalLoss.from_loss(narrow, jnp.zeros(2), None, block=8)
    assert limits.populations_are_cheap(here) is cheap


def test_a_limit_is_refused_if_its_gradients_are_too_expensive_for_a_curve(monkeypatch):
    """Without a sampler, and with batches as the choice; chains at one temperature are the way out."""
    monkeypatch.setattr(LocalLoss, "seconds", 1.0)
    data = jnp.ones((300, 2))
    with pytest.raises(InputError, match=r"cheap enough for a curve, got .*; coefficient_at_temperature"):
        ask(learning_coefficient, lambda w, x: jnp.mean((x @ w) ** 2), jnp.zeros(2), data=data, key=jax.random.key(0))


def test_the_limit_and_one_temperature_are_two_questions():
    """Of a crossing, lambda is 1/2 with m = 2; at one temperature chains have less."""
    how = {"n": 1e6, "sampler": SHORT, "key": jax.random.key(3)}
    with jax.enable_x64(True):
        at, limit = (
            ask(question, lambda w: (w[0] * w[1]) ** 2, jnp.zeros(2), **how)
            for question in (coefficient_at_temperature, learning_coefficient)
        )
    assert [found.attrs["estimand"] for found in (at, limit)] == ["at_temperature", "limit"]
    assert limit["estimate"] == pytest.approx(0.5, abs=0.06)
    assert at["estimate"] < 0.45


@pytest.mark.parametrize(
    ("misfit", "regular", "told"), [(1e-4, 0.0, True), (1e-2, 0.0, False), (1e-4, 0.95, False), (1e-4, 0.5, True)]
)
def test_a_curve_that_does_not_fit_is_told_unless_the_point_is_regular(monkeypatch, misfit, regular, told):
    zeros = (("repeat", "nbeta"), np.zeros((4, limits.POINTS)))
    free = {"repeat_free_energy": zeros, "repeat_mean_loss": zeros, "least_loss": 0.0}
    limit = {"value": 1.0, "error": 0.1, "interval": (0.8, 1.2), "level": 0.9, "level_error": 0.01, "misfit": misfit}
    limit |= {"left": 0.1, "left_error": 0.01, "multiplicities": [1.0], "regular": regular, "seen": 0.9}
    grid = np.arange(float(limits.POINTS))
    energies = xr.Dataset(free, {"nbeta": grid}, attrs={"warnings": []})
    monkeypatch.setattr(limits, "free_energy_of_populations", lambda populations: energies)
    particles = SimpleNamespace(last=np.zeros((4, limits.RAYS, 2)))
    monkeypatch.setattr(SMC, "sample", lambda self, posterior, key: particles)
    monkeypatch.setattr(limits, "extrapolated", lambda *_, **how: SimpleNamespace(**limit))
    here = LocalLoss.from_loss(narrow, jnp.zeros(2), None, block=8)
    lowest = Lowest(0.0, 0.0, here.centre)
    found = limits.annealed_limit(here, 1e4, lowest=lowest, key=jax.random.key(0), sampler=SMC())
    assert said(found, "no curve that is considered fits") is told


def chains_and_populations(gap, *, regular=0.0, start_gap=0.0, populations=True):
    """Made-up estimates of chains and of a curve, ``gap`` apart at the last temperature."""
    numbers = {"estimate": 2.0 + gap, "mcse": 0.01, "descent": 0.0, "rhat": 1.0, "ess": 1e3, "baseline": 0.0}
    numbers |= {"least_loss": 0.0, "slope": 0.0, "start_gap": start_gap, "start_gap_error": 0.01}
    numbers |= {"drift": 0.0, "drift_error": 0.01, "localization_slope": -0.4, "localization_slope_error": 0.01}
    by_chain = {name: ("chain", np.full(4, value)) for name, value in (("chain_estimate", 2.0), ("chain_mcse", 0.1))}
    chains = xr.Dataset(numbers | by_chain, attrs={"nbeta": 1e3})
    chains = chains.assign_attrs(warnings=[*chain_warnings(chains), *pulled(2.0 + gap, -0.4, 0.01)])
    curve = dict.fromkeys(limits.OF_LIMIT, 1.0) | {"level": 2.0, "level_error": 0.01, "regular_probability": regular}
    curve |= {"free_energy": 0.0} if populations else {}
    return limits.with_limit(chains, xr.Dataset(curve, attrs={"warnings": ["of the curve"]}))


def test_warnings_of_a_limit_are_those_of_its_curve():
    """Of chains that did not mix, beside populations, they are chain_warnings; the gap is told where both are sound."""
    sound = chains_and_populations(0.02)
    assert sound.attrs["warnings"] == ["of the curve"]
    assert any("the localization decides" in text for text in sound.attrs["chain_warnings"])
    assert said(chains_and_populations(0.2), "chains have 2.2 where annealed populations have 2")
    assert not said(chains_and_populations(0.2, regular=0.95), "chains have")
    stuck = chains_and_populations(0.2, start_gap=0.5)
    assert stuck.attrs["warnings"] == ["of the curve"]
    assert any("run longer chains" in text for text in stuck.attrs["chain_warnings"])
    alone = chains_and_populations(0.2, start_gap=0.5, populations=False)
    assert said(alone, "run longer chains")
    assert not said(alone, "the localization decides")


@pytest.mark.slow
def test_the_limit_of_expensive_losses_is_that_of_chains():
    """Reduced-rank regression without noise, at rank 1, of 200 samples: lambda is 2, with m = 1 and nothing beside."""
    with jax.enable_x64(True):
        x = jax.random.normal(jax.random.key(0), (200, 2))
        at = [jnp.array([[1.0, 0.0]] * 1), jnp.array([[1.0], [0.0]])]

        def loss(w, samples):
            return jnp.mean(jnp.sum((samples @ w[0].T @ w[1].T - samples @ at[0].T @ at[1].T) ** 2, 1)) / 2

        found = ask(learning_coefficient, loss, at, data=x, localization=1.0, n=1000.0, key=jax.random.key(1))
    assert found.attrs["estimand"] == "limit"
    assert found["curve"].size == limits.POINTS_OF_CHAINS
    assert found["interval"][0] <= 1.5 <= found["interval"][1]
    assert found["regular_probability"] > 0.9
    # The last point of the curve is the chains' own estimate.
    assert found["curve"][-1] == pytest.approx(float(found["mean_estimate"]), abs=1e-6)


def unbounded(w):
    return -jnp.sum(w**2)


@pytest.mark.parametrize("sampler", ["auto", HMC(chains=4, warm_up=200), SMC(particles=50, repeats=2)])
def test_a_loss_without_a_lower_bound_is_refused(sampler):
    question = coefficient_at_temperature if isinstance(sampler, HMC) else learning_coefficient
    with pytest.raises(InputError, match="loss: expected a function with a lower bound near the point, where"):
        ask(question, unbounded, jnp.full(2, 0.1), n=1e4, sampler=sampler, key=jax.random.key(0))


def of_rows(w, rows):
    return jnp.mean((rows @ w) ** 2) / 2


ROWS = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("checks", "made"),
    [
        ((), ""),
        (("step_size",), "step_size"),
        (("hessian", "minimum"), "hessian, minimum"),
        (None, "hessian, step_size"),
    ],
)
def test_checks_are_made_by_name_and_told(checks, made):
    """Whatever is checked, the estimate is the same."""
    options = {"data": ROWS, "nbeta": 50.0, "localization": 1.0, "key": jax.random.key(3)}
    sampler = SGLD(chains=4, warm_up=20, draws=40, batch=16)
    estimate = ask(
        coefficient_at_temperature, of_rows, np.zeros(3, np.float32), sampler=sampler, checks=checks, **options
    )
    bare = ask(coefficient_at_temperature, of_rows, np.zeros(3, np.float32), sampler=sampler, checks=(), **options)
    assert estimate.attrs["checks"] == made + (", minimum" if checks is None else "")
    missing = set(estimate.attrs["unchecked"].split(", "))
    assert missing == {"minimum", "hessian", "step_size", "data", "limit"} - set(estimate.attrs["checks"].split(", "))
    for name, variable in (("hessian", "hessian_share"), ("step_size", "halved_gap"), ("minimum", "descent")):
        assert (variable in estimate) == (name not in missing)
    for name in ("estimate", "mcse", "loss_trace"):
        np.testing.assert_array_equal(estimate[name], bare[name])


def test_an_unknown_check_is_refused():
    with pytest.raises(InputError, match="unknown check 'minimun'; did you mean 'minimum'"):
        ask(coefficient_at_temperature, of_rows, np.zeros(3), data=ROWS, key=jax.random.key(0), checks=("minimun",))
    with pytest.raises(InputError, match=r"checks: expected a tuple of names, of minimum, .* got 'minimum'"):
        ask(coefficient_at_temperature, of_rows, np.zeros(3), data=ROWS, key=jax.random.key(0), checks="minimum")


def test_checks_by_default_take_no_longer_than_the_chains(monkeypatch):
    """By the gradients that are counted: those of half the step, and of products with the Hessian."""
    moves, turns = [], chains_of_batches._turns

    def counted(loop, carry, first, end):
        moves.append(int(end) - int(first))
        return turns(loop, carry, first, end)

    monkeypatch.setattr(chains_of_batches, "_turns", counted)
    options = {"data": ROWS, "nbeta": 50.0, "localization": 1.0, "key": jax.random.key(3)}
    sampler = SGLD(chains=4, warm_up=20, draws=40, batch=16, mode="vmap")
    ask(coefficient_at_temperature, of_rows, np.zeros(3, np.float32), sampler=sampler, **options)
    assert 60 < sum(moves) <= (2 - OF_HESSIAN) * 60


def test_far_from_a_minimum_it_is_told_before_anything_is_sampled(monkeypatch):
    """And checks that presume one are left out."""
    events = []
    monkeypatch.setattr(coefficients, "warn_at_once", events.append)
    estimate_at_temperature = coefficients.estimate_at_temperature

    def sampled(*arguments, **options):
        events.append("sampled")
        return estimate_at_temperature(*arguments, **options)

    monkeypatch.setattr(coefficients, "estimate_at_temperature", sampled)
    monkeypatch.setattr(coefficients, "populations_are_cheap", lambda local: False)
    sampler = HMC(chains=4, warm_up=20, draws=40)
    estimate = ask(
        coefficient_at_temperature, of_rows, np.full(3, 2.0), data=ROWS, sampler=sampler, key=jax.random.key(0)
    )
    assert events[1:] == ["sampled"]
    assert events[0].startswith("the point is no minimum of this loss: a descent from it lowers the loss by ")
    assert events[0] in estimate.attrs["warnings"]
    assert {"data", "limit"} < set(estimate.attrs["unchecked"].split(", "))
    near = ask(coefficient_at_temperature, of_rows, np.zeros(3), data=ROWS, sampler=sampler, key=jax.random.key(0))
    assert events[2:] == ["sampled"]
    assert near.attrs["unchecked"] == "step_size"
