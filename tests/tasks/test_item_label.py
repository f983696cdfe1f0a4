"""The distribution of item-label prompts, their four test sets, and the exact levels of simple ways to answer."""

import dataclasses
import itertools

import equinox as eqx
import jax
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.tasks import ItemLabel, PromptMixture
from icllab.tasks.item_label_levels import levels_of

KEY = jax.random.key(1)
# Weighted sums of classes, labels, places and items of 64 prompts, by the code before novel classes could be shared.
STREAMS = {
    "float64": (
        (793, 1126, 314, 61.890922263476895),
        (919, 1185, 314, -89.23740192883785),
        (-2426, 1395, 261, -75.66665438683778),
    ),
    "float32": (
        (793, 1126, 314, -102.99293622217374),
        (919, 1185, 314, -60.77023405395448),
        (-2426, 1395, 261, -75.66658735455712),
    ),
}
DISTINCT, NOVEL = {"no_repeats": True}, {"classes": None}
SIZES = {"classes": 12, "labels": 4, "pairs": 4, "dim": 3, "key": KEY}


@eqx.filter_jit
def _drawn(task, count, key):
    return task.sample_many(count, key=key)


def drawn(task, count, key):
    """Prompts, as NumPy's arrays."""
    return jax.tree.map(np.asarray, _drawn(task, count, key))


def within(samples, wanted, errors=4.0, most=0.02):
    """The mean of samples is what is wanted, within standard errors that are small themselves."""
    samples = np.asarray(samples, float)
    error = samples.std(ddof=1) / len(samples) ** 0.5
    assert error < most
    assert abs(samples.mean() - wanted) <= errors * error + 1e-12, (samples.mean(), wanted, error)


ZIPF = ItemLabel.init(**SIZES, burstiness=2, zipf_exponent=1.0)
WITHOUT = ItemLabel.init(**SIZES, zipf_exponent=0.5, no_repeats=True)
SETS = {
    "in context": ZIPF.in_context(),
    "swapped": ZIPF.swapped_labels(),
    "in weights": ZIPF.in_weights(),
    "purged": ZIPF.in_weights(purged=True),
    "no repeats": WITHOUT.swapped_labels(),
    "shared novel": dataclasses.replace(ZIPF.in_context(), novel_classes=4),
    "code": dataclasses.replace(WITHOUT, zipf_without_repeats=False),
    "mixture": ItemLabel.init(**SIZES, burstiness=2, zipf_exponent=1.0, mixture=PromptMixture(0.5, 0.3)),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("in weights", "in context", "code") else ())
        for name in SETS
    ],
)
def test_the_levels_are_those_of_predictors_that_answer_so(name, getkey):
    """Each level against a predictor that looks at the prompts and nowhere else."""
    task = SETS[name]
    prompts, levels = drawn(task, 8000, getkey()), task.levels()
    target, known = prompts.labels[:, -1], prompts.classes[:, -1]
    rng = np.random.default_rng(0)
    guess = rng.integers(task.labels, size=len(target))
    slot = rng.integers(task.pairs, size=len(target))
    rows = np.arange(len(target))
    there = prompts.classes[:, :-1] == prompts.classes[:, -1:]
    looked_up = np.where(there.any(axis=1), prompts.labels[rows, there.argmax(axis=1)], guess)
    by_heart = np.where(known >= 0, known % task.labels, guess)
    within(guess == target, levels.chance)
    within(prompts.labels[rows, slot] == target, levels.context_label)
    within(looked_up == target, levels.in_context)
    within(by_heart == target, levels.in_weights)


def test_the_nearest_item_of_the_context_has_the_right_label(getkey):
    """By the vectors alone, where dimension is high and noise low: the level of who looks up is reached."""
    task = ItemLabel.init(classes=64, labels=16, pairs=4, dim=100, within_class_noise=0.1, key=getkey())
    law = task.swapped_labels()
    prompts = drawn(law, 2000, getkey())
    items, labels = prompts.items, prompts.labels
    nearest = np.argmax(np.einsum("nkd,nd->nk", items[:, :-1], items[:, -1]), axis=1)
    assert law.levels().in_context == 1
    assert np.mean(labels[np.arange(2000), nearest] == labels[:, -1]) == 1


def test_levels_in_words():
    """R pairs of different labels: naming any is right once in N; by heart, swapped labels are always wrong."""
    novel = ItemLabel.init(**(SIZES | {"classes": None}), no_repeats=True).levels()
    assert novel == (0.25, 0.25, 1.0, 0.25)
    assert WITHOUT.swapped_labels().levels()[1:] == (0.25, 1.0, 0.0)
    assert WITHOUT.in_weights(purged=True).levels().in_context == 0.25
    alike = ItemLabel.init(**SIZES).in_weights().levels()
    assert alike.context_label == pytest.approx(1 / 4)
    assert alike.in_context == pytest.approx(1 - (1 - 1 / 4) * (1 - 1 / 12) ** 4)


def test_levels_of_a_law_are_means_over_its_kinds():
    fields = {"frequencies": np.ones(12), "labels": 4, "pairs": 4, "burstiness": 2, "no_repeats": False}
    fields |= {"swapped": False, "purged": False}
    kinds = [levels_of(**fields, p_bursty=b, p_novel=c) for b, c in ((0, 1), (1, 0), (0, 0))]
    mixed = levels_of(**fields, p_bursty=0.25, p_novel=0.2)
    np.testing.assert_allclose(mixed, np.array([0.2, 0.8 * 0.25, 0.8 * 0.75]) @ np.array(kinds), rtol=1e-12)


@pytest.mark.parametrize(
    ("classes", "burstiness"),
    [(None, 1), (12, 2), pytest.param(None, 2, marks=pytest.mark.slow), pytest.param(12, 1, marks=pytest.mark.slow)],
)
def test_items_have_unit_length_and_those_of_a_class_are_alike(classes, burstiness, getkey):
    """Second moments, where means are drawn and where they are left out: 1, and 1/(1 + eps^2) within a class."""
    fields = SIZES | {"classes": classes, "dim": 8, "key": getkey()}
    task = ItemLabel.init(**fields, burstiness=burstiness, within_class_noise=0.7).in_context()
    prompts = drawn(task, 4000, getkey())
    products = np.einsum("nid,njd->nij", prompts.items, prompts.items)
    same = prompts.classes[:, :, None] == prompts.classes[:, None]
    off = ~np.eye(5, dtype=bool)
    within(products[:, ~off].mean(axis=1), 1.0)
    within((products[:, -1] * same[:, -1])[:, :-1].sum(axis=1) / burstiness, 1 / 1.49)
    within(np.where(same, 0, products).sum(axis=(1, 2)) / (~same).sum(axis=(1, 2)), 0.0)
    assert np.all(same[:, -1, :-1].sum(axis=1) == burstiness)


def test_labels_vectors_and_places_are_what_they_should_be(getkey):
    task = ItemLabel.init(**SIZES, position_dim=12, burstiness=2, mixture=PromptMixture(0.5, 0.3))
    for law, offset in ((task, 0), (task.swapped_labels(), 1)):
        prompts = drawn(law, 2000, getkey())
        known = prompts.classes >= 0
        np.testing.assert_array_equal(prompts.labels[known], (prompts.classes[known] + offset) % 4)
        vectors = np.asarray(task.label_vectors)
        np.testing.assert_array_equal(prompts.label_vectors, vectors[prompts.labels[:, :-1]])
        assert np.all(known == known[:, :1])  # a prompt is novel throughout, or not at all
        counts = np.bincount(prompts.shift, minlength=4)
        assert len(counts) == 4  # 12 positions for 9 tokens
        assert np.sum((counts - 500) ** 2 / 500) < 3 + 4 * 6**0.5


def test_without_repeats_every_group_has_a_label_of_its_own_and_a_random_order(getkey):
    task = ItemLabel.init(**SIZES, burstiness=2, no_repeats=True, mixture=PromptMixture(p_novel=0.5))
    prompts = drawn(task, 2000, getkey())
    labels, classes = np.sort(prompts.labels[:, :-1], axis=1), prompts.classes[:, :-1]
    assert np.all(labels[:, 0] == labels[:, 1])
    assert np.all(labels[:, 2] == labels[:, 3])
    assert np.all(labels[:, 1] < labels[:, 2])
    within(classes[:, 0] == classes[:, 1], 1 / 3)


def test_classes_come_with_the_frequencies_of_their_rank(getkey):
    task = ItemLabel.init(**SIZES, zipf_exponent=1.5)
    p = np.arange(1, 13) ** -1.5
    np.testing.assert_allclose(task.frequencies, p / p.sum(), rtol=1e-6)
    wanted = 12_000 * p / p.sum()
    plain = task.in_weights()
    for law in (plain, dataclasses.replace(plain, mixture=PromptMixture())):  # one program for both
        first = drawn(law, 12_000, getkey()).classes[:, 0]
        assert np.sum((np.bincount(first, minlength=12) - wanted) ** 2 / wanted) < 11 + 4 * 22**0.5


def test_labels_without_repeats_are_drawn_one_after_the_other_by_weight(getkey):
    """Every unordered pair of labels against p_a p_b (1/(1 - p_a) + 1/(1 - p_b)), by enumeration."""
    task = ItemLabel.init(**(SIZES | {"pairs": 2, "classes": 8}), zipf_exponent=1.0, no_repeats=True)
    prompts = drawn(task.swapped_labels(), 12_000, getkey())
    p = np.arange(1, 9) ** -1.0
    q = (p / p.sum()).reshape(2, 4).sum(axis=0)
    pairs = list(itertools.combinations(range(4), 2))
    wanted = np.array([q[a] * q[b] * (1 / (1 - q[a]) + 1 / (1 - q[b])) for a, b in pairs])
    assert wanted.sum() == pytest.approx(1)
    found = np.sort(prompts.classes[:, :2] % 4, axis=1)
    counts = np.array([np.sum(np.all(found == pair, axis=1)) for pair in pairs])
    assert np.sum((counts - 12_000 * wanted) ** 2 / (12_000 * wanted)) < 5 + 4 * 10**0.5
    among = prompts.classes[:, 0]
    within(among[among % 4 == 0] == 0, p[0] / (p[0] + p[4]), most=0.03)


def test_purged_contexts_never_show_the_class_and_keep_the_odds_of_the_others(getkey):
    task = ItemLabel.init(**SIZES, zipf_exponent=1.0).in_weights(purged=True)
    classes = drawn(task, 12_000, getkey()).classes
    assert not np.any(classes[:, :-1] == classes[:, -1:])
    p = np.arange(1, 13) ** -1.0 / np.sum(np.arange(1, 13) ** -1.0)
    others = classes[classes[:, -1] == 0, 0]
    within(others == 1, p[1] / (1 - p[0]))


def test_one_key_has_the_same_label_vectors_whatever_the_classes(getkey):
    key = getkey()
    tasks = [ItemLabel.init(**(SIZES | {"classes": k, "key": key})) for k in (None, 4, 8)]
    for task in tasks[1:]:
        np.testing.assert_array_equal(task.label_vectors, tasks[0].label_vectors)
    assert (tasks[0].classes, tasks[1].classes, tasks[0].tokens, tasks[0].width) == (None, 4, 9, 12)


@pytest.mark.parametrize("precision", STREAMS)
def test_the_stream_of_the_stated_distribution_stays(precision):
    """Classes, labels and places to the integer, and sums of items, as they were before classes could be shared."""
    mixture = PromptMixture(0.5, 0.3)
    fields = {"burstiness": 2, "zipf_exponent": 1.0, "mixture": mixture}
    with jax.enable_x64(precision == "float64"):
        for change, wanted in zip((fields, fields | DISTINCT, DISTINCT | NOVEL), STREAMS[precision], strict=True):
            task = ItemLabel.init(**(SIZES | {"position_dim": 12, "key": jax.random.key(1)} | change))
            prompts = drawn(task, 64, jax.random.key(2))
            weights = np.arange(320).reshape(64, 5) % 7
            sums = [int(np.sum(weights * part)) for part in (prompts.classes, prompts.labels)]
            assert (*sums, int(np.sum(weights[:, 0] * prompts.shift))) == wanted[:3]
            assert np.sum(weights[:, :, None] * prompts.items) == pytest.approx(wanted[3], rel=1e-4)


def test_novel_classes_of_the_code_collide(getkey):
    """Two groups of B = 2 slots are one class with 1/4: 2 (1 + 1/4) slots; all of one class have one mean and label."""
    task = ItemLabel.init(**(SIZES | {"dim": 8}), burstiness=2, within_class_noise=0.7)
    shared = dataclasses.replace(task.in_context(), novel_classes=4)
    prompts = drawn(shared, 4000, getkey())
    same = prompts.classes[:, :, None] == prompts.classes[:, None]
    within(same[:, -1, :-1].sum(axis=1), 2.5)
    assert np.all((prompts.labels[:, :, None] == prompts.labels[:, None]) | ~same)
    counts = np.bincount(prompts.labels[:, 0], minlength=4)
    assert np.sum((counts - 1000) ** 2 / 1000) < 3 + 4 * 6**0.5
    products = np.einsum("nid,njd->nij", prompts.items, prompts.items)
    off = same & ~np.eye(5, dtype=bool)
    within(np.where(off, products, 0).sum(axis=(1, 2)) / off.sum(axis=(1, 2)), 1 / 1.49)
    within(np.where(same, 0, products).sum(axis=(1, 2)) / np.maximum((~same).sum(axis=(1, 2)), 1), 0.0)
    mixed = dataclasses.replace(shared, mixture=PromptMixture(p_novel=0.5))  # known classes collide as before
    known = drawn(mixed, 8000, getkey()).classes
    known = known[known[:, 0] >= 0]
    within(np.sum(known[:, :-1] == known[:, -1:], axis=1), 2 * (1 + 1 / 12))
    infinite = ItemLabel.init(**(SIZES | {"classes": None, "dim": 8}), within_class_noise=0.7)  # B = 1
    prompts = drawn(dataclasses.replace(infinite, novel_classes=4), 4000, getkey())
    same = prompts.classes[:, :-1, None] == prompts.classes[:, None, :-1]
    within(np.sum(prompts.classes[:, :-1] == prompts.classes[:, -1:], axis=1), 1 + 3 / 4)
    products = np.einsum("nid,njd->nij", prompts.items[:, :-1], prompts.items[:, :-1])
    within((products[:, 0, 1] - 1 / 1.49)[same[:, 0, 1]], 0.0)


def test_the_code_ignores_the_exponent_where_classes_do_not_repeat(getkey):
    """Uniform classes; and p(k) where classes may repeat."""
    p = np.arange(1, 13) ** -1.5 / np.sum(np.arange(1, 13) ** -1.5)
    for repeats, wanted in ((False, np.full(12, 1 / 12)), (True, p)):
        stated = ItemLabel.init(**SIZES, zipf_exponent=1.5, no_repeats=not repeats)
        task = dataclasses.replace(stated, zipf_without_repeats=False)
        first = drawn(task, 12_000, getkey()).classes[:, 0]
        counts = 12_000 * wanted
        assert np.sum((np.bincount(first, minlength=12) - counts) ** 2 / counts) < 11 + 4 * 22**0.5


def test_conventions_are_the_published_size(getkey):
    stated, code = (ItemLabel.convention(name, classes=64, key=KEY) for name in ("reddy", "reddy_code"))
    for task in (stated, code):
        assert (task.pairs, task.labels, task.dim, task.position_dim, task.classes) == (8, 32, 63, 65, 64)
    assert (stated.novel_classes, stated.zipf_without_repeats) == (None, True)
    assert (code.novel_classes, code.zipf_without_repeats) == (128, False)
    np.testing.assert_array_equal(stated.means, code.means)
    with pytest.raises(InputError, match="unknown convention 'redy'; did you mean 'reddy'"):
        ItemLabel.convention("redy", classes=64, key=KEY)
    with pytest.raises(InputError, match="novel_classes: expected a multiple of the 32 labels, got 100"):
        dataclasses.replace(code, novel_classes=100)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"classes": 10}, "classes: expected a multiple of the 4 labels, got 10"),
        ({"burstiness": 3}, "burstiness: expected a divisor of the 4 pairs, below 4, got 3"),
        ({"burstiness": 4}, "burstiness: expected a divisor of the 4 pairs, below 4, got 4; a context of one class"),
        ({"position_dim": 8}, "position_dim: expected at least 9, a position for every token, got 8"),
        ({"pairs": 6, "no_repeats": True}, "labels: expected at least 6, one for each class of a context"),
        ({"labels": 1, "classes": 3}, "labels: expected an integer of at least 2, got 1"),
        ({"zipf_exponent": -1.0}, "zipf_exponent: expected a finite number >= 0, got -1.0"),
        (
            {"classes": None, "mixture": PromptMixture(p_novel=0.5)},
            "p_novel: expected 1 if the number of classes is infinite, got 0.5",
        ),
        ({"dim": 0}, "dim: expected an integer of at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(fields, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")) as error:
        ItemLabel.init(**(SIZES | fields))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["p_bursty", "p_novel"])
def test_a_share_of_prompts_is_a_probability(name):
    assert (float(PromptMixture().p_bursty), float(PromptMixture().p_novel)) == (1, 0)
    with pytest.raises(InputError, match=f"{name}: expected a number from 0 to 1, got 1.5"):
        PromptMixture(**{name: 1.5})


def test_without_a_mixture_prompts_are_bursty_or_novel():
    """Bursty where classes are known, novel where there are infinitely many."""
    for classes, novel in ((12, 0.0), (None, 1.0)):
        mixture = ItemLabel.init(**(SIZES | {"classes": classes})).mixture
        assert (float(mixture.p_bursty), float(mixture.p_novel)) == (1.0, novel)


@pytest.mark.parametrize("which", ["swapped_labels", "in_weights"])
def test_what_needs_known_classes_is_refused_where_there_are_none(which):
    task = ItemLabel.init(**(SIZES | {"classes": None}))
    with pytest.raises(InputError, match="classes: expected a finite number, got None"):
        getattr(task, which)()
