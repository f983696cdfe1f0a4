"""The training set: every row is a function of its key and its index, whatever room was reserved."""

import jax
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.models.reduced.samples import Samples, capacity, rows_per_chunk, sample
from icllab.tasks import LinearRegression
from icllab.tasks.attention_features import sample_features

DIM, KEY = 6, jax.random.key(5)


@pytest.fixture(scope="module")
def task():
    return LinearRegression.from_scaling(dim=DIM, alpha=2.0, kappa=1.0, rho=0.1, key=KEY)


def flat(samples):
    return [part.reshape(-1, *part.shape[2:]) for part in (samples.query, samples.features, samples.label)]


def test_a_larger_set_begins_with_the_smaller_one_in_whatever_capacity(task):
    small, large = sample(task, prompts=30, key=KEY), sample(task, prompts=500, key=KEY)
    assert small.label.shape[0] < large.label.shape[0]
    for few, many in zip(flat(small), flat(large), strict=True):
        np.testing.assert_array_equal(few[:30], many[:30])
        assert np.all(few[29] != 0)
        assert not np.any(few[30:])
        assert not np.any(many[500:])
    assert (int(small.used), int(large.used)) == (1, 8)


def test_a_row_is_the_sampler_at_its_index(task):
    drawn = sample(task, prompts=100, key=KEY)
    row = sample_features(task, key=jax.random.fold_in(KEY, 77))
    query, features, label = flat(drawn)
    np.testing.assert_allclose(query[77], row.query, rtol=1e-5)
    np.testing.assert_allclose(features[77], row.features, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(label[77], row.label, rtol=1e-5, atol=1e-6)


def test_capacities_are_few_and_large_enough():
    for dim in (1, 2, 8, 40, 200):
        rows, parameters = rows_per_chunk(dim), dim * (dim + 1)
        levels = {n: capacity(n, dim) for n in set(np.geomspace(1, 10 * parameters, 60).astype(int).tolist())}
        assert all(chunks * rows >= n for n, chunks in levels.items())
        assert len(set(levels.values())) <= 5
        assert capacity(1, dim) == capacity(parameters, dim)


def test_shuffled_labels_are_the_same_labels_at_other_prompts(task):
    drawn = sample(task, prompts=100, key=KEY)
    shuffled = drawn.shuffled(key=jax.random.key(1))
    labels, others = flat(drawn)[2], flat(shuffled)[2]
    assert np.mean(labels[:100] == others[:100]) < 0.1
    np.testing.assert_array_equal(np.sort(labels[:100]), np.sort(others[:100]))
    assert not np.any(others[100:])
    np.testing.assert_array_equal(drawn.features, shuffled.features)


def test_rows_from_elsewhere_are_padded_like_ours(task):
    drawn = sample(task, prompts=100, key=KEY)
    again = Samples.from_rows(*(part[:100] for part in flat(drawn)))
    for ours, theirs in zip(jax.tree.leaves(drawn), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_bad_rows_are_refused_in_one_line():
    with pytest.raises(InputError, match=r"samples: expected query \[n, d\], .* got \[\(3, 2\), \(3, 2\), \(3,\)\]"):
        Samples.from_rows(np.ones((3, 2)), np.ones((3, 2)), np.ones(3))
