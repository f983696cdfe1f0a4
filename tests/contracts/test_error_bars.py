"""Every stated standard error is the scatter over repetitions, and every stated interval holds as often as it says.

An error that is too small passes a test of the kind ``|estimate - truth| < 4 error``, and one that is too large passes
it all the more. So both sides are bounded here, on made-up data with hundreds of repetitions.
"""

import numpy as np
import pytest
import xarray as xr
from contracts.calibration import FEWER, REPEATS, assert_calibrated, autoregressive, censored, repeated

from icllab.core.statistics import crossed_mean_and_error, extrapolate, mean_and_error
from icllab.diagnostics.behaviour.answers import mean_over_prompts, means_and_errors
from icllab.diagnostics.behaviour.length_gradients import _shares
from icllab.diagnostics.curves.survival import delay, kaplan_meier
from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.chain_statistics import difference, statistics
from icllab.diagnostics.sampling.chains import Chains
from icllab.diagnostics.singular.free_energies import _jackknifed, _pooled, free_energy_slope
from icllab.diagnostics.singular.phases import phase_weights, sampled_crossings
from icllab.lab import estimates
from icllab.lab.estimates import Estimate

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


def group(rng, scale, unit=1.0):
    times, observed = censored(rng, scale)
    return xr.Dataset({"observed_time": ("member", unit * times), "crossed": ("member", observed)})


def test_restricted_means_of_event_times():
    def measure(rng):
        table = kaplan_meier(*censored(rng), until=1.5)
        return float(table["restricted_mean"]), float(table["restricted_mean_error"])

    assert_calibrated(*repeated(measure))


def test_delays(monkeypatch):
    monkeypatch.setattr("icllab.diagnostics.curves.survival._exact_p_value", lambda *_: np.nan)  # 20 000 divisions

    def measure(rng):
        table = delay(group(rng, 1.0, 50.0), group(rng, 1.5, 50.0), until=75.0)  # in steps: means far from 1
        names = "restricted_difference", "log_ratio"
        return [float(table[name]) for name in names], [float(table[f"{name}_error"]) for name in names]

    assert_calibrated(*repeated(measure, FEWER))


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


def phase(rng, energies, errors, nbeta, correlation=1.0):
    common, own = (
        np.sqrt(correlation),
        np.sqrt(1 - correlation),
    )  # free energies of neighbouring temperatures err together
    noise = np.asarray(errors) * (common * rng.normal() + own * rng.normal(size=len(nbeta)))
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


def crossings(correlation):
    """Values and errors of the crossing, half-way between two temperatures."""
    nbeta = np.geomspace(10, 1000, 5)
    middle = np.log(nbeta[1:3]).mean()

    def measure(rng):
        first = phase(rng, 0.4 * (np.log(nbeta) - middle), np.full(5, 0.05), nbeta, correlation)
        second = phase(rng, np.zeros(5), np.full(5, 0.03), nbeta, correlation)
        table = sampled_crossings(first, second)
        assert table.sizes["crossing"] == 1
        return float(table["crossing_n"][0]), float(table["crossing_n_error"][0])

    return repeated(measure)


@pytest.mark.parametrize("correlation", [0.8, 1.0])
def test_crossings_of_phases(correlation):
    assert_calibrated(*crossings(correlation))


def test_crossings_of_phases_whose_errors_are_independent_have_an_error_that_is_too_large():
    values, errors = crossings(0.0)
    assert 1.0 < np.sqrt((errors**2).mean()) / values.std(ddof=1) < 1.1 * 2**0.5


def test_the_assertion_itself_notices_both_sides():
    values, errors = repeated(lambda rng: (rng.normal(), 1.0))
    assert_calibrated(values, errors)
    for factor in (1 / 3, 1 / 1.4, 1.4, 3.0):
        with pytest.raises(AssertionError):
            assert_calibrated(values, factor * errors)
