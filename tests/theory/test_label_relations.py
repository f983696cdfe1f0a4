"""One who knows M relations by heart: against counting over all permutations, and limits."""

import itertools
import math

import numpy as np
import pytest

from icllab.theory import label_relations as theory


def counted(pairs, labels):
    """How many of the first ``pairs`` entries each permutation leaves in place."""
    return [sum(p[k] == k for k in range(pairs)) for p in itertools.permutations(range(labels))]


@pytest.mark.parametrize(("pairs", "labels"), [(1, 1), (1, 4), (2, 2), (3, 5), (4, 6), (5, 5)])
def test_agreements_are_those_of_all_permutations(pairs, labels):
    found = np.bincount(counted(pairs, labels), minlength=pairs + 1) / math.factorial(labels)
    np.testing.assert_allclose(theory.agreements(pairs=pairs, labels=labels), found, rtol=1e-14, atol=0)


@pytest.mark.parametrize("pairs", [1, 3, 8])
def test_agreements_are_a_law_with_the_mean_of_labels_that_meet_by_chance(pairs):
    law = theory.agreements(pairs=pairs, labels=16)
    np.testing.assert_allclose([law.sum(), law @ np.arange(pairs + 1)], [1, pairs / 16], rtol=1e-13)


def test_recognition_on_a_new_relation_is_the_mean_over_all_pairs_of_relations():
    """Two relations among all of 4 labels: every one of 24 squared pairs, enumerated."""
    counts = np.array(counted(2, 4))
    best = np.maximum(counts[:, None], counts).mean() / 2
    np.testing.assert_allclose(theory.recognition_on_a_new_relation(2, pairs=2, labels=4), best, rtol=1e-13)


def test_recognition_on_a_new_relation_goes_from_chance_to_certainty():
    found = np.asarray(theory.recognition_on_a_new_relation([1, 2, 64, 1e9], pairs=4, labels=16))
    np.testing.assert_allclose(found[0], 1 / 16, rtol=1e-12)
    assert (np.diff(found) > 0).all()
    np.testing.assert_allclose(found[-1], 1, rtol=1e-12)
    assert theory.recognition_on_a_new_relation(3, pairs=1, labels=1) == 1.0


def test_recognition_on_an_unseen_item_by_enumeration():
    """Three relations, the first of them right: all triples of permutations of 3 labels, with one pair shown."""
    permutations = list(itertools.permutations(range(3)))
    right = []
    for other in itertools.product(permutations, repeat=2):
        agreeing = [permutations[0], *(p for p in other if p[0] == permutations[0][0])]
        right.append(np.mean([p[1] == permutations[0][1] for p in agreeing]))
    found = theory.recognition_on_an_unseen_item(3, pairs=1, labels=3)
    np.testing.assert_allclose(found, np.mean(right), rtol=1e-13)


def test_recognition_on_an_unseen_item_goes_from_certainty_to_a_guess():
    found = np.asarray(theory.recognition_on_an_unseen_item([1, 100, 1e12], pairs=4, labels=16))
    assert found[0] == 1.0
    assert 0.99 < found[1] < 1
    np.testing.assert_allclose(found[2], 1 / 12, rtol=1e-6)
