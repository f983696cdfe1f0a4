"""Every stated standard error is the scatter over repetitions, and every stated interval holds as often as it says.

An error that is too small passes a test of the kind ``|estimate - truth| < 4 error``, and one that is too large passes
it all the more. So both sides are bounded here, on made-up data with hundreds of repetitions.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from icllab import algorithms
from icllab.core.statistics import crossed_mean_and_error, extrapolate, mean_and_error
from icllab.diagnostics.behaviour.answers import mean_over_prompts, means_and_errors
from icllab.diagnostics.behaviour.length_gradients import _shares
from icllab.diagnostics.behaviour.lengths import accuracy, per_length
from icllab.diagnostics.behaviour.scores import icl_scores
from icllab.diagnostics.curves.survival import delay, kaplan_meier
from icllab.diagnostics.curves.transition_times import transitions
from icllab.diagnostics.identification.layer_probe import _r_squared
from icllab.diagnostics.identification.verdicts import resamplings
from icllab.diagnostics.identification.weights import interpolate
from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.chain_statistics import difference, statistics
from icllab.diagnostics.sampling.chains import Chains
from icllab.diagnostics.sampling.hmc import HMC
from icllab.diagnostics.sampling.smc import SMC
from icllab.diagnostics.singular.coefficients import learning_coefficient
from icllab.diagnostics.singular.fluctuations import singular_fluctuation
from icllab.diagnostics.singular.free_energies import _jackknifed, _pooled, free_energy, free_energy_slope
from icllab.diagnostics.singular.phases import phase_weights, sampled_crossings
from icllab.diagnostics.susceptibilities.tilts import susceptibility
from icllab.lab import estimates
from icllab.lab.estimates import Estimate
from icllab.models import LinearAttention
from icllab.tasks import HigherOrderChain, LinearRegression

RATIO = 1.25  # largest ratio of a stated error to the scatter, either way
REPEATS, FEWER = 600, 250


def repeated(measure, repeats=REPEATS, seed=0):
    """Values and errors of independent repetitions, [repeat, ...]."""
    rng = np.random.default_rng(seed)
    values, errors = zip(*(measure(rng) for _ in range(repeats)), strict=True)
    return np.array(values, float), np.array(errors, float)


def assert_calibrated(values, errors):
    """The root mean square of the stated errors is the standard deviation of the values, within a quarter."""
    assert np.isfinite(values).all()
    assert np.isfinite(errors).all()
    ratio = np.sqrt((errors**2).mean(0)) / values.std(0, ddof=1)
    assert (ratio < RATIO).all(), ratio
    assert (ratio > 1 / RATIO).all(), ratio


def autoregressive(rng, shape, share=0.8):
    """Chains whose neighbours have this correlation and whose variance is 1, along the last axis."""
    noise = rng.normal(size=shape)
    chains = np.empty(shape)
    chains[..., 0] = noise[..., 0]
    for i in range(1, shape[-1]):
        chains[..., i] = share * chains[..., i - 1] + np.sqrt(1 - share**2) * noise[..., i]
    return chains


# --- means, limits, and what is computed from them -------------------------------------------------------------------


def some_missing(rng):
    samples = rng.exponential(size=12)
    samples[:3] = np.nan
    return mean_and_error(samples)


def crossed(rng):
    networks, draws = rng.normal(size=(8, 1)), 2 * rng.normal(size=(1, 10))
    return crossed_mean_and_error(networks + draws + 0.3 * rng.normal(size=(8, 10)))


def extrapolated(rng):
    sizes, errors = np.array([8.0, 16.0, 32.0, 64.0]), np.array([0.1, 0.2, 0.1, 0.3])
    return extrapolate(sizes, 2.0 + 3.0 / sizes + errors * rng.normal(size=4), errors)


def array(values, name):
    """Made-up numbers over an axis, and over independent repetitions."""
    return xr.DataArray(values, dims=("repeat", name), coords={name: np.arange(values.shape[1])})


def samples(rng, mean, spread, count=20):
    return estimates.mean(array(mean + spread * rng.normal(size=(REPEATS, count)), "seed"))


def geometric(rng, spread, count):
    return estimates.geometric_mean(array(np.exp(spread * rng.normal(size=(REPEATS, count))), "seed"))


def known(rng, errors):
    errors = np.broadcast_to(errors, (REPEATS, len(errors)))
    return Estimate(array(errors * rng.normal(size=errors.shape), "at"), array(errors, "at"))


def finite_sizes(rng):
    sizes = np.array([8, 16, 32])
    values = 1 + 2 / sizes + 0.1 * rng.normal(size=(REPEATS, 3))
    coords = {"dim": sizes}
    value, error = (
        xr.DataArray(a, dims=("repeat", "dim"), coords=coords) for a in (values, np.full(values.shape, 0.1))
    )
    return Estimate(value, error)


WEIGHTS = xr.DataArray([1.0, -2.0, 3.0], dims="at", coords={"at": np.arange(3)})
ESTIMATES = {
    "difference": lambda rng: samples(rng, 3.0, 1.0) - samples(rng, 2.0, 2.0),
    "sum": lambda rng: samples(rng, 3.0, 1.0) + samples(rng, 2.0, 2.0),
    "ratio": lambda rng: samples(rng, 9.0, 1.0) / samples(rng, 12.0, 4.0),
    "logarithm": lambda rng: samples(rng, 9.0, 3.0).log(),
    "number of a logarithm": lambda rng: samples(rng, 9.0, 3.0).log().number(),
    "geometric mean": lambda rng: geometric(rng, 0.3, 20),
    "ratio of geometric means": lambda rng: geometric(rng, 0.3, 20) / geometric(rng, 0.6, 10),
    "average": lambda rng: known(rng, np.array([1.0, 2.0, 3.0, 4.0])).average("at"),
    "combination": lambda rng: known(rng, np.ones(3)).combined(WEIGHTS, "at"),
    "limit": lambda rng: estimates.limit(finite_sizes(rng), order=1),
}


@pytest.mark.parametrize("measure", [some_missing, crossed, extrapolated])
def test_means_and_limits(measure):
    assert_calibrated(*repeated(measure))


@pytest.mark.parametrize("name", ESTIMATES)
def test_estimates(name):
    estimate = ESTIMATES[name](np.random.default_rng(0))
    assert_calibrated(estimate.value.values, estimate.error.values)


def test_means_over_prompts():
    assert_calibrated(*repeated(lambda rng: mean_over_prompts(rng.exponential(size=(50, 3)))))

    def of_names(rng):
        table = means_and_errors({"loss": rng.exponential(size=(50, 3))})
        return table["loss"], table["loss_error"]

    assert_calibrated(*repeated(of_names))


def test_shares_of_a_gradient():
    """Groups of prompts, whose gradients have a mean of their own at each length."""
    means = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, 1.0]])

    def measure(rng):
        gradients = means + rng.normal(size=(16, 2, 3))  # [group, length, weight]
        table = _shares(np.einsum("gpw,hw->pgh", gradients, gradients.sum(1)))
        rows = ("gradient_share", "gradient_square")
        values, errors = ([table[f"{name}{end}"] for name in rows] for end in ("", "_error"))
        return np.append(values[0], values[1]), np.append(errors[0], errors[1])

    assert_calibrated(*repeated(measure))


# --- event times -----------------------------------------------------------------------------------------------------


def censored(rng, scale=1.0, members=40):
    """Exponential times, of which those above 2 are not seen."""
    times = scale * rng.exponential(size=members)
    return np.minimum(times, 2.0), times < 2.0


def group(rng, scale):
    times, observed = censored(rng, scale)
    return xr.Dataset({"observed_time": ("member", times), "crossed": ("member", observed)})


def test_restricted_means_of_event_times():
    def measure(rng):
        table = kaplan_meier(*censored(rng), until=1.5)
        return float(table["restricted_mean"]), float(table["restricted_mean_error"])

    assert_calibrated(*repeated(measure))


def test_delays(monkeypatch):
    monkeypatch.setattr("icllab.diagnostics.curves.survival._exact_p_value", lambda *_: np.nan)  # 20 000 divisions

    def measure(rng):
        table = delay(group(rng, 1.0), group(rng, 1.5), until=1.5)
        names = "restricted_difference", "log_ratio"
        return [float(table[name]) for name in names], [float(table[f"{name}_error"]) for name in names]

    assert_calibrated(*repeated(measure, FEWER))


def test_intervals_of_event_times_hold_as_often_as_they_say():
    rng, median, at = np.random.default_rng(1), np.log(2), 0.9
    holds = []
    for _ in range(REPEATS):
        table = kaplan_meier(*censored(rng), confidence=0.9)
        low, high = table["median_time_interval"].values
        bounds = table["survival_interval"].sel(time=at, method="ffill").values
        holds.append([low <= median <= high, bounds[0] <= np.exp(-at) <= bounds[1]])
    assert_coverage(np.mean(holds, axis=0), 0.9)


def assert_coverage(share, confidence, repeats=REPEATS):
    """Coverage within four binomial standard errors, and two points for what holds at infinitely many members only."""
    slack = 4 * np.sqrt(confidence * (1 - confidence) / repeats) + 0.02
    assert (np.abs(share - confidence) < slack).all(), share


@pytest.mark.parametrize("members", [3, 8])
def test_the_interval_of_a_plateau_holds_as_often_as_it_says(members):
    """Members on plateaus of their own: what is stated is an interval of their mean."""
    rng, step = np.random.default_rng(2), np.arange(0, 101, 10.0)
    holds = []
    for _ in range(FEWER):
        levels = 1 + 0.1 * rng.normal(size=members)
        curves = np.where(step < 70, levels[:, None], 0.0)
        table = transitions(xr.DataArray(curves, dims=("seed", "step"), coords={"step": step}), plateau=1.0, end=0.0)
        low, high = table["plateau_interval"].values
        holds.append(low <= 1.0 <= high)
    assert_coverage(np.mean(holds), 0.95, FEWER)


# --- chains ----------------------------------------------------------------------------------------------------------


def test_means_of_chains():
    def measure(rng):
        return convergence.mean_and_mcse(autoregressive(rng, (4, 300)))

    assert_calibrated(*repeated(measure, 300))


def test_differences_of_chains():
    def measure(rng):
        return difference(autoregressive(rng, (2, 300)), 1 + autoregressive(rng, (2, 300)))

    assert_calibrated(*repeated(measure, 300))


def test_what_is_stated_of_chains():
    """The estimate, its terms, each chain by itself, the drift, and the gap of starts; losses of two terms."""
    baseline, far, nbeta = np.array([0.3, 0.2]), np.array([True, False, True, False]), 50.0

    def measure(rng):
        terms = (1 + 0.1 * autoregressive(rng, (2, 4, 300))).transpose(1, 2, 0)
        distance = 1 + 0.1 * rng.normal(size=(4, 300))
        chains = Chains(terms, distance, np.ones(4), np.array(0.1), np.zeros((4, 1)))
        table = statistics(chains, baseline, nbeta, far)
        pairs = [("estimate", "mcse"), ("drift", "drift_error"), ("start_gap", "start_gap_error")]
        values, errors = ([float(table[pair[i]]) for pair in pairs] for i in (0, 1))
        for name in ("chain_estimate", "chain_mcse"), ("term_estimate", "term_mcse"):
            values += list(table[name[0]][1])
            errors += list(table[name[1]][1])
        entries = np.triu_indices(2)
        values += list(table["term_covariance"][1][entries])
        errors += list(table["term_covariance_mcse"][1][entries])
        return values, errors

    assert_calibrated(*repeated(measure, 200))


# --- free energies ---------------------------------------------------------------------------------------------------


def test_pooled_repeats():
    """Minus the logarithm of a mean of weights, over sixteen repeats of a third of a nat."""

    def measure(rng):
        return _jackknifed(*_pooled(0.3 * rng.normal(size=(2, 16))))

    assert_calibrated(*repeated(measure))


def test_the_slope_of_a_free_energy():
    nbeta = np.geomspace(10, 1e4, 7)

    def measure(rng):
        energies = 0.5 * np.log(nbeta) + np.cumsum(0.1 * rng.normal(size=(12, 7)), axis=1)
        table = free_energy_slope(
            xr.Dataset({"repeat_free_energy": (("repeat", "nbeta"), energies)}, coords={"nbeta": nbeta})
        )
        return table["slope"].values, table["slope_error"].values

    assert_calibrated(*repeated(measure))


def phase(rng, energies, errors, nbeta):
    noise = np.asarray(errors) * rng.normal()  # free energies of neighbouring temperatures err together
    return xr.Dataset(
        {"free_energy": ("nbeta", energies + noise), "free_energy_error": ("nbeta", np.asarray(errors, float))},
        coords={"nbeta": nbeta},
    )


def test_weights_of_phases():
    nbeta = np.array([10.0, 100.0])

    def measure(rng):
        table = phase_weights(
            {
                "a": phase(rng, np.array([1.0, 3.0]), [0.1, 0.2], nbeta),
                "b": phase(rng, np.array([1.5, 2.5]), [0.2, 0.1], nbeta),
                "c": phase(rng, np.array([2.0, 2.0]), [0.1, 0.1], nbeta),
            }
        )
        return table["weight"].values.ravel(), table["weight_error"].values.ravel()

    assert_calibrated(*repeated(measure))


def test_crossings_of_phases():
    nbeta = np.geomspace(10, 1000, 5)

    def measure(rng):
        first = phase(rng, 0.5 * np.log(nbeta), np.full(5, 0.05), nbeta)
        second = phase(rng, 2.0 + 0.1 * np.log(nbeta), np.full(5, 0.03), nbeta)
        table = sampled_crossings(first, second)
        assert table.sizes["crossing"] == 1
        return float(table["crossing_n"][0]), float(table["crossing_n_error"][0])

    assert_calibrated(*repeated(measure))


# --- diagnostics, over their keys ------------------------------------------------------------------------------------

KEYS = 100
REGRESSION = LinearRegression.convention("raventos", dim=2, length=4)


def over_keys(measure, pairs, keys=KEYS):
    """Values and errors of a diagnostic at each key, all pairs of names side by side."""
    tables = [measure(key) for key in jax.random.split(jax.random.key(5), keys)]
    return tuple(
        np.array([np.concatenate([np.ravel(table[pair[i]].values) for pair in pairs]) for table in tables])
        for i in (0, 1)
    )


def with_error(*names):
    return [(name, f"{name}_error") for name in names]


def test_losses_of_each_length():
    predictors = {"ridge": algorithms.Ridge(0.5), "least squares": algorithms.Ridge(2.0)}
    measure = functools.partial(per_length, predictors, REGRESSION, against="ridge", prompts=60)
    pairs = [("loss", "standard_error"), *with_error("loss_sum", "loss_mean")]
    assert_calibrated(*over_keys(lambda key: measure(key=key), pairs))
    pairs = with_error("difference", "difference_mean")
    apart = over_keys(lambda key: measure(key=key).isel(predictor=1).isel(position=slice(1, None)), pairs)
    assert_calibrated(*apart)


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
    at = {"at": jnp.zeros(3), "n": 1e3, "nbeta": 50.0, "localization": 1.0, "sampler": CHAINS}
    measure = functools.partial(learning_coefficient, quadratic, estimand="at_temperature", **at)
    assert_calibrated(*over_keys(lambda key: measure(key=key), [("estimate", "mcse")], 60))


def test_susceptibilities_by_chains():
    functions = {"tilted": {"more": tilted}, "observables": {"first": lambda w: w[0] ** 2, "loss": quadratic}}
    at = {"nbeta": 50.0, "localization": 1.0, "route": CHAINS}
    measure = functools.partial(susceptibility, quadratic, jnp.zeros(3), **functions, **at)
    assert_calibrated(*over_keys(lambda key: measure(key=key), with_error("susceptibility", "mean"), 120))


def test_fluctuations_by_chains():
    data = np.random.default_rng(0).normal(size=(6, 2))

    def loss(w, sample):
        return 0.5 * jnp.mean(jnp.sum((sample - w[None]) ** 2, axis=1))

    def measure(key):
        at = {"data": jnp.asarray(data, jnp.float32), "nbeta": 6.0, "localization": 1.0}
        return singular_fluctuation(CHAINS.sample(loss, jnp.zeros(2), key=key, **at))

    assert_calibrated(*over_keys(measure, with_error("fluctuation", "training_loss", "waic", "estimate"), 60))


def test_free_energies_of_populations():
    def measure(key):
        at = {"nbeta": [10.0, 100.0], "localization": 1.0, "sampler": SMC(particles=40, repeats=12)}
        return free_energy(quadratic, jnp.zeros(3), key=key, **at)

    names = with_error("free_energy", "integrated", "mean_loss")
    assert_calibrated(*over_keys(measure, names, 60))


def test_the_assertion_itself_notices_both_sides():
    values, errors = repeated(lambda rng: (rng.normal(), 1.0))
    assert_calibrated(values, errors)
    for factor in (1 / 3, 1 / 1.4, 1.4, 3.0):
        with pytest.raises(AssertionError):
            assert_calibrated(values, factor * errors)
