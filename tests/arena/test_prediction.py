"""Log scores, coverage and fits of log-normal values, some of them censored."""

import numpy as np
import pytest
import xarray as xr
from scipy.stats import lognorm, norm

from icllab.arena import Prediction, fit_log_linear, log_likelihood, predict_log_linear
from icllab.arena.prediction import coverage, distances, log_scores
from icllab.core.errors import InputError

END = 3.0


def drawn(location, scale, never=0.0, seeds=1, end=END, seed=0):
    """Values and censoring, [cell, seed]: lower bounds where they are larger than ``end``, or infinite."""
    rng = np.random.default_rng(seed)
    shape = (len(location), seeds)
    value = np.exp(location[:, None] + scale * rng.standard_normal(shape))
    value[rng.uniform(size=shape) < never] = np.inf
    return np.minimum(value, end), value > end


def test_a_log_score_is_the_density_of_the_logarithm_or_the_survival():
    value, censored = np.array([[0.5], [2.0], [3.0]]), np.array([[False], [False], [True]])
    scores = log_scores(Prediction(0.4, [0.7, 0.7, 0.9], [0.0, 0.25, 0.25]), value, censored)
    density = lognorm(0.7, scale=np.exp(0.4))
    survival = 0.25 + 0.75 * lognorm(0.9, scale=np.exp(0.4)).sf(3.0)
    # The density of ln v is v times that of v.
    expected = np.log([0.5 * density.pdf(0.5), 0.75 * 2.0 * density.pdf(2.0), survival])
    np.testing.assert_allclose(scores[:, 0], expected, rtol=1e-12)


def test_the_score_of_the_truth_is_minus_its_entropy_and_the_highest():
    value, censored = drawn(np.zeros(4000), 0.7, end=np.inf)

    def mean(location, scale):
        scores = log_scores(Prediction(location, scale), value, censored)
        return scores.mean(), scores.std() / len(scores) ** 0.5

    truth, error = mean(0.0, 0.7)
    assert abs(truth + np.log(2 * np.pi * np.e * 0.49) / 2) < 4 * error < 0.06
    assert all(mean(*wrong)[0] < truth - 4 * error for wrong in ((0.5, 0.7), (-0.5, 0.7), (0.0, 1.2), (0.0, 0.4)))


@pytest.mark.parametrize(("never", "end"), [(0.0, np.inf), (0.0, 1.3), (0.3, 3.0)])
def test_intervals_of_the_truth_cover_what_they_say(never, end):
    value, censored = drawn(np.zeros(6000), 0.7, never, end=end, seed=1)
    for level in (0.5, 0.9):
        inside = coverage(Prediction(0.0, 0.7, never), value, censored, level)
        assert abs(inside.mean() - level) < 4 * inside.std() / len(inside) ** 0.5 < 0.03
        if end == np.inf:
            assert coverage(Prediction(0.0, 1.4), value, censored, level).mean() > level + 0.08
            assert coverage(Prediction(0.0, 0.35), value, censored, level).mean() < level - 0.15


def test_a_fit_takes_censoring_into_account():
    x = np.linspace(-1.0, 1.0, 400)
    value, censored = drawn(1.0 + 0.8 * x, 0.5, seeds=5)
    assert 0.3 < censored.mean() < 0.6
    train = xr.Dataset({"value": (("cell", "seed"), value), "censored": (("cell", "seed"), censored * 1.0)})
    numbers = fit_log_linear(train, {"x": x})
    truth = {"constant": 1.0, "x": 0.8, "scale": 0.5}
    errors = {"constant": 0.0125, "x": 0.022, "scale": 0.011}  # 1/sqrt of half the information without censoring
    assert list(numbers) == list(truth)
    for name, number in truth.items():
        assert abs(numbers[name] - number) < 4 * 2**0.5 * errors[name], name
    ignored = fit_log_linear(train.assign(censored=0 * train["censored"]), {"x": x})
    assert ignored["constant"] < 0.9
    best = log_likelihood(train, predict_log_linear(numbers, {"x": x}))
    for name in truth:
        for step in (-0.02, 0.02):
            moved = predict_log_linear({**numbers, name: numbers[name] + step}, {"x": x})
            assert log_likelihood(train, moved) < best


def test_an_offset_is_no_coefficient():
    x = np.linspace(0.0, 2.0, 60)
    value, censored = drawn(3.0 * x, 0.1, end=np.inf)
    train = xr.Dataset({"value": (("cell", "seed"), value), "censored": (("cell", "seed"), censored * 1.0)})
    numbers = fit_log_linear(train, {}, 3.0 * x, constant=False)
    assert list(numbers) == ["scale"]
    assert abs(numbers["scale"] - 0.1) < 4 * 0.1 / 120**0.5
    m, s, _ = predict_log_linear(numbers, {}, 3.0 * x[:5], constant=False).arrays(5)
    np.testing.assert_allclose(m[:, 0], 3.0 * x[:5])
    assert (s == numbers["scale"]).all()
    with_constant = fit_log_linear(train, {}, 3.0 * x + 1.0)
    assert abs(with_constant["constant"] + 1.0) < 4 * 0.1 / 60**0.5


@pytest.mark.parametrize("prediction", [(0.0, 0.0), (0.0, -1.0), (np.nan, 1.0), (0.0, 1.0, 1.0), (np.zeros(3), 1.0)])
def test_what_is_no_distribution_is_refused(prediction):
    with pytest.raises(InputError, match="prediction: expected"):
        Prediction(*prediction).arrays(2)


def test_a_distance_is_the_largest_difference_of_distribution_functions():
    """Of a shift by d scales it is 2 Phi(d/2) - 1, and of two probabilities of never their difference."""
    first = Prediction([1.0, 1.0, 1.0, 1.0], [0.5, 0.5, 0.5, 1e-3], [0.0, 0.0, 0.1, 0.0])
    second = Prediction([1.2, 1.0, 1.0, 9.0], [0.5, 1.0, 0.5, 1e3], [0.0, 0.0, 0.35, 0.0])
    z = np.sqrt(8 * np.log(2) / 3)  # where the densities of scales 1 and 2 are equal
    apart = norm.cdf(-9.0 / 1e3 + 1.0 / 1e3)  # a step within a wide distribution
    truth = [2 * norm.cdf(0.2) - 1, norm.cdf(z) - norm.cdf(z / 2), 0.25, 1 - apart]
    np.testing.assert_allclose(distances(first, second, 4), truth, atol=1e-4)
    np.testing.assert_allclose(distances(second, first, 4), truth, atol=1e-4)
