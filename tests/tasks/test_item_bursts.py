"""Bursts with distractors: every probability against its value by hand, and what does not fit together."""

import dataclasses
import itertools

import equinox as eqx
import jax
import numpy as np
import pytest
from refusals import assert_refused
from tasks.test_item_label import drawn, within

from icllab.tasks import ItemBursts

K, COUNT = 6, 8000
P = np.arange(1, K + 1) ** -1.0 / np.sum(np.arange(1, K + 1) ** -1.0)
ROWS = np.random.default_rng(0).normal(size=(K, 2, 3)).astype(np.float32)


def task(**fields):
    """N = 8 pairs, K = 6 classes of two exemplars."""
    fields = {"burstiness": 2, "distractors": 1, "zipf_exponent": 1.0} | fields
    return ItemBursts(jax.numpy.asarray(ROWS), jax.numpy.asarray(ROWS[:, 0]), pairs=fields.pop("pairs", 8), **fields)


def slots(prompts):
    """How often the query's class is in the context."""
    return np.sum(prompts.classes[:, :-1] == prompts.classes[:, -1:], axis=1)


def chi_square(counts, wanted):
    """Whether counts have the frequencies, at most four standard deviations above the mean of their chi-square."""
    counts, wanted = np.asarray(counts, float), np.asarray(wanted, float)
    expected = counts.sum() * wanted / wanted.sum()
    freedom = len(counts) - 1
    return np.sum((counts - expected) ** 2 / expected) < freedom + 4 * (2 * freedom) ** 0.5


def test_slots_of_the_query_class(getkey):
    """B in its burst, and N - B(1 + M) others that are of its class with p_k, or never."""
    others = drawn(task(), COUNT, getkey())
    within(slots(others), 2 + 4 * np.sum(P**2), most=0.03)
    within(others.classes[:, -1] == 0, P[0])
    assert np.all(slots(drawn(task(remainder="apart"), 500, getkey())) == 2)
    without = drawn(task(burstiness=0, distractors=0), COUNT, getkey())
    within(slots(without), 8 * np.sum(P**2), most=0.03)
    assert np.all(slots(drawn(task(burstiness=0, distractors=0, remainder="apart"), 500, getkey())) == 0)


def test_distractors_are_drawn_from_what_is_left_and_come_as_often_as_the_query_class(getkey):
    """Both classes of a context of two bursts against p_a p_b / (1 - p_a), by enumeration."""
    classes = drawn(task(pairs=4), COUNT, getkey()).classes
    query = classes[:, -1]
    distractor = np.where(classes[:, :-1] == query[:, None], -1, classes[:, :-1]).max(axis=1)
    assert np.all(np.sum(classes[:, :-1] == distractor[:, None], axis=1) == 2)
    pairs = list(itertools.permutations(range(K), 2))
    counts = [np.sum((query == a) & (distractor == b)) for a, b in pairs]
    assert chi_square(counts, [P[a] * P[b] / (1 - P[a]) for a, b in pairs])
    assert chi_square(np.bincount(np.argmax(classes == query[:, None], axis=1)), [1 / 2, 1 / 3, 1 / 6])


@pytest.mark.parametrize("others", ["apart", "distinct"])
def test_others_are_neither_the_query_class_nor_a_distractor(others, getkey):
    """The class of a single other slot: the sum of p_q p_d / (1 - p_q) p_c / (1 - p_q - p_d) over q and d."""
    single = drawn(task(pairs=3, burstiness=1, remainder=others), COUNT, getkey()).classes
    wanted = np.zeros((K, K))  # of the query and of the slot that is not
    for q, d, c in itertools.permutations(range(K), 3):
        wanted[q, [d, c]] += P[q] * P[d] / (1 - P[q]) * P[c] / (1 - P[q] - P[d]) / 2
    query, slot = single[:, -1], np.array([row[row != row[-1]][0] for row in single])
    pairs = list(itertools.permutations(range(K), 2))
    assert chi_square([np.sum((query == a) & (slot == b)) for a, b in pairs], [wanted[pair] for pair in pairs])


def test_distinct_others_come_once(getkey):
    classes = drawn(task(pairs=6, remainder="distinct"), 500, getkey()).classes[:, :-1]
    times = np.sort([np.bincount(row, minlength=K) for row in classes], axis=1)
    assert np.all(times == [0, 0, 1, 1, 2, 2])


def test_random_labels_are_different_and_uniform_and_others_keep_theirs(getkey):
    """Every ordered pair of labels alike; a third class in the context has its own."""
    prompts = drawn(task(labelling="random", burstiness=1, pairs=2), COUNT, getkey())
    target = prompts.labels[:, -1]
    query = prompts.classes[:, :-1] == prompts.classes[:, -1:]
    np.testing.assert_array_equal(np.sum(np.where(query, prompts.labels[:, :-1], 0), axis=1), target)
    other = np.sum(np.where(query, 0, prompts.labels[:, :-1]), axis=1)
    pairs = list(itertools.permutations(range(K), 2))
    assert chi_square([np.sum((target == a) & (other == b)) for a, b in pairs], np.ones(len(pairs)))
    wide = drawn(task(labelling="random", remainder="distinct", pairs=6), 500, getkey())
    times = np.sum(wide.classes[:, :-1, None] == wide.classes[:, None, :-1], axis=2)
    np.testing.assert_array_equal(wide.labels[:, :-1][times == 1], wide.classes[:, :-1][times == 1])
    np.testing.assert_array_equal(wide.label_vectors, ROWS[wide.labels[:, :-1], 0])


def test_flipped_labels_are_those_of_the_other_burst(getkey):
    prompts = drawn(task(labelling="flipped", remainder="distinct", pairs=6), 500, getkey())
    for classes, labels in zip(prompts.classes, prompts.labels, strict=True):
        times = np.bincount(classes[:-1], minlength=K)
        distractor = next(k for k in range(K) if times[k] == 2 and k != classes[-1])
        exchanged = {classes[-1]: distractor, distractor: classes[-1]}
        np.testing.assert_array_equal(labels, [exchanged.get(k, k) for k in classes])


def test_items_are_exemplars_with_noise(getkey):
    """Uniform over the exemplars of a class; matched, one for a burst and the query; noise adds its variance."""
    plain, matched = (drawn(task(matched=flag, pairs=4), COUNT, getkey()) for flag in (False, True))
    for prompts in (plain, matched):
        which = np.argmin(np.abs(prompts.items[:, :, None] - ROWS[prompts.classes]).sum(axis=3), axis=2)
        np.testing.assert_array_equal(prompts.items, ROWS[prompts.classes, which])
        within(which[:, -1], 0.5)
        same = prompts.classes[:, :-1] == prompts.classes[:, -1:]
        equal = np.sum(same & (which[:, :-1] == which[:, -1:]), axis=1) / 2
        within(equal, 0.5) if prompts is plain else np.testing.assert_array_equal(equal, 1)
    noisy = drawn(task(noise_variance=0.3, matched=True), COUNT, getkey())
    residual = noisy.items - np.mean(ROWS[noisy.classes], axis=2)
    spread = np.mean((ROWS[:, 0] - ROWS[:, 1]) ** 2 / 4, axis=1)
    within(np.mean(residual**2, axis=(1, 2)) - np.mean(spread[noisy.classes], axis=1), 0.3)


def test_labels_are_classes_modulo_their_number(getkey):
    small = dataclasses.replace(task(), label_vectors=jax.numpy.asarray(ROWS[:4, 0]))
    prompts = drawn(small, 100, getkey())
    np.testing.assert_array_equal(prompts.labels, prompts.classes % 4)
    assert (small.labels, small.class_count, small.length, small.position_dim) == (4, 4, 8, 17)


def test_the_zipf_exponent_may_be_swept(getkey):
    exponents = jax.numpy.array([0.0, 2.0])

    def first(exponent):
        swept = eqx.tree_at(lambda t: t.zipf_exponent, task(), exponent)
        return jax.numpy.mean(swept.sample_many(2000, key=key).classes[:, -1] == 0)

    key = getkey()
    level = np.asarray(jax.jit(jax.vmap(first))(exponents))
    p = np.arange(1, K + 1) ** -2.0
    np.testing.assert_allclose(level, [1 / 6, p[0] / p.sum()], atol=4 * 0.011)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"burstiness": 5}, "burstiness: expected at most 4, for 2 bursts in 8 pairs, got 5"),
        (
            {"burstiness": 0},
            "burstiness: expected at least 1 with distractors, or with labels drawn for each context, got 0",
        ),
        ({"burstiness": 0, "distractors": 0, "labelling": "random"}, "burstiness: expected at least 1 with distr"),
        (
            {"distractors": 2, "labelling": "flipped"},
            "distractors: expected 1 (the query's class gets its label), got 2",
        ),
        (
            {"burstiness": 1, "distractors": 6},
            "exemplars: expected exemplars of at least 7 different classes, got '6 ",
        ),
        (
            {"burstiness": 1, "distractors": 5, "remainder": "apart"},
            "exemplars: expected exemplars of at least 7 d",
        ),
        ({"remainder": "distinct", "pairs": 9}, "exemplars: expected exemplars of at least 7 different classes"),
        ({"remainder": "apert"}, "unknown remainder 'apert'; did you mean 'apart'?"),
        ({"labelling": "flip"}, "unknown labelling 'flip'; did you mean 'flipped'?"),
        ({"noise_variance": -1.0}, "noise_variance: expected a finite number >= 0, got -1.0"),
        ({"matched": 1}, "matched: expected True or False, got 1"),
        ({"pairs": 0}, "pairs: expected an integer of at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(fields, message):
    assert_refused(lambda: task(**fields), message)


def test_exemplars_and_labels_have_one_dimension():
    rows, wanted = jax.numpy.asarray(ROWS), "exemplars: expected an array [class, exemplar, 2], got 'shape (6, 2, 3)'"
    assert_refused(lambda: ItemBursts(rows, rows[:, 0, :2], pairs=2), wanted)
    single = {"pairs": 2, "distractors": 1, "labelling": "random"}
    wanted = "labels: expected at least 2, one for each burst, got 1"
    assert_refused(lambda: ItemBursts(rows, rows[:1, 0], **single), wanted)
