"""The share of a mean that its largest terms carry, of distributions for which it is known."""

import numpy as np
import pytest
from scipy.stats import norm

from icllab.diagnostics import heaviest_share
from icllab.diagnostics.behaviour.answers import heavy_tail_warning


def test_equal_terms_and_no_terms():
    assert heaviest_share(np.full(200, 0.3)) == pytest.approx(10 / 200, rel=1e-12)
    np.testing.assert_array_equal(heaviest_share(np.zeros((50, 2))), [0, 0])
    assert heaviest_share(np.array([1.0, np.inf, 2.0])) == 1
    one_of_many = np.where(np.arange(200)[:, None] == [7, -1], np.nan, 1.0)
    np.testing.assert_allclose(heaviest_share(one_of_many), [1, 10 / 200], rtol=1e-12)


def test_squares_of_normal_numbers():
    """With q the point that a share K/N exceeds, E z² 1(|z| > q) = 2 (q φ(q) + 1 - Φ(q))."""
    n, k = 100_000, 1000
    q = norm.isf(k / n / 2)
    exact = 2 * (q * norm.pdf(q) + norm.sf(q))
    share = heaviest_share(np.random.default_rng(0).normal(size=(n, 8)) ** 2, largest=k)
    error = share.std(ddof=1) / np.sqrt(8)
    assert error < 0.01 * exact
    assert abs(share.mean() - exact) < 4 * error
    # What the docstring says of ten of a thousand.
    small = heaviest_share(np.random.default_rng(1).normal(size=(1000, 100)) ** 2)
    assert 0.075 < small.mean() < 0.1


def test_a_law_without_a_mean_is_carried_by_few_and_said_to_be():
    """The squares of Cauchy numbers have tails of exponent 1/2: however many, ten carry most of their sum."""
    share = float(heaviest_share(np.random.default_rng(0).standard_cauchy(100_000) ** 2))
    assert share > 0.5
    message = heavy_tail_warning("the loss", share, 100_000)
    assert message.startswith("10 of 100000 prompts carry ")
    assert "of the loss" in message
    assert heavy_tail_warning("the loss", 0.1, 1000) == ""
