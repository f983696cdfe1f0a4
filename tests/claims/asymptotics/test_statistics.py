"""A choice by the other seeds: unbiased, in every row of its own."""

import numpy as np

from icllab.claims.asymptotics._statistics import best_for_others


def test_a_choice_by_the_other_seeds_is_not_biased():
    """Of many rows of pure noise the largest has a mean of over 1; the one that others choose has mean 0."""

    def chosen(values):
        return values[best_for_others(values), np.arange(values.shape[1])]

    rng = np.random.default_rng(2)
    means = [chosen(rng.normal(size=(30, 4))).mean() for _ in range(400)]
    error = np.std(means, ddof=1) / 20
    assert error < 0.04
    assert abs(np.mean(means)) < 4 * error


def test_leading_axes_choose_on_their_own_and_a_single_seed_for_itself():
    values = np.random.default_rng(3).normal(size=(2, 5, 4))
    both = best_for_others(values)
    assert both.shape == (2, 4)
    np.testing.assert_array_equal(both[1], best_for_others(values[1]))
    np.testing.assert_array_equal(best_for_others(values[..., :1])[:, 0], values[..., 0].argmax(1))
