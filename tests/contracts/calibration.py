"""Stated errors held against the scatter over repetitions, and stated intervals against what they should hold."""

import numpy as np

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


def assert_coverage(share, confidence, repeats=REPEATS):
    """Coverage within four binomial standard errors, and two points for what holds at infinitely many members only."""
    slack = 4 * np.sqrt(confidence * (1 - confidence) / repeats) + 0.02
    assert (np.abs(share - confidence) < slack).all(), share


def censored(rng, scale=1.0, members=40):
    """Exponential times, of which those above 2 are not seen."""
    times = scale * rng.exponential(size=members)
    return np.minimum(times, 2.0), times < 2.0
