"""Relations of items to labels: what a prompt shows, and what task recognition reaches on it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.tasks import ItemLabel, LabelRelations
from icllab.theory import label_relations as theory

KEY = jax.random.key(3)
PROMPTS, ROWS = 4000, 40


def items(**fields):
    given = {"classes": 12, "labels": 6, "pairs": 3, "dim": 4, "no_repeats": True}
    return ItemLabel.init(**(given | fields), key=KEY)


def related(relations):
    """Relations in tables of one shape, so that programs are shared."""
    return LabelRelations.init(items(), relations, rows=ROWS if relations else 0, key=KEY)


@eqx.filter_jit
def compiled(task, key):
    return task.sample_many(PROMPTS, key=key)


def drawn(task, key=KEY):
    return jax.tree.map(np.asarray, compiled(task, key))


@pytest.mark.parametrize("relations", [4, *(pytest.param(m, marks=pytest.mark.slow) for m in (1, None))])
def test_labels_of_a_prompt_go_through_one_permutation(relations):
    task = related(relations)
    found = drawn(task)
    before = found.classes % 6
    assert (np.sort(found.labels[:, :3], axis=1)[:, 1:] != np.sort(found.labels[:, :3], axis=1)[:, :-1]).all()
    slot = (before[:, :3] == before[:, 3:]).argmax(axis=1)
    np.testing.assert_array_equal(found.labels[:, 3], found.labels[np.arange(PROMPTS), slot])
    np.testing.assert_array_equal(found.label_vectors, np.asarray(task.items.label_vectors)[found.labels[:, :3]])
    if task.table is not None:
        known = np.asarray(task.table)[:, before]  # [relation, prompt, position]
        assert (known == found.labels).all(axis=2).any(axis=0).all()


def test_a_prompt_of_its_own_relation_has_every_label_equally_often():
    found = drawn(related(None))
    for item in range(6):
        count = np.bincount(found.labels[:, 0][found.classes[:, 0] % 6 == item], minlength=6)
        expected = count.sum() / 6
        assert ((count - expected) ** 2 / expected).sum() < 25.7  # chi squared of 5 degrees of freedom: p = 1e-4


def test_an_unseen_item_is_none_of_the_context_and_any_other():
    task = related(2).unseen_items()
    found = drawn(task)
    assert (found.classes[:, :3] % 6 != found.classes[:, 3:] % 6).all()
    count = np.bincount(found.classes[:, 3], minlength=12)
    assert ((count - PROMPTS / 12) ** 2 / (PROMPTS / 12)).sum() < 37.4  # 11 degrees of freedom: p = 1e-4
    means = np.asarray(task.items.means)[found.classes[:, 3]]
    noise = found.items[:, 3] * np.sqrt(1.01) - means  # within-class noise of 0.1 N(0, I/4)
    np.testing.assert_allclose(np.mean(noise**2), 0.01 / 4, rtol=5 * np.sqrt(2 / noise.size))
    known = np.asarray(task.table)[:, found.classes % 6]
    assert (known == found.labels).all(axis=2).any(axis=0).all()


@pytest.mark.parametrize("relations", [5, *(pytest.param(m, marks=pytest.mark.slow) for m in (1, 40))])
@pytest.mark.parametrize("unseen", [False, True])
def test_task_recognition_is_as_often_right_as_the_closed_form_says(relations, unseen):
    """:func:`recognition_on_a_new_relation` and :func:`recognition_on_an_unseen_item`, over tables drawn afresh."""
    rng, right = np.random.default_rng(0), []
    base = items()
    for number in range(20):
        task = LabelRelations.init(base, relations, rows=ROWS, key=jax.random.key(number))
        table = np.asarray(task.table)
        asked = task.unseen_items() if unseen else task.new_relations()
        found = drawn(asked, jax.random.key(100 + number))
        answers = table[:, found.classes % 6]
        agreed = (answers[..., :3] == found.labels[:, :3]).sum(axis=2)
        chosen = np.argmax(agreed + rng.random(agreed.shape), axis=0)
        right.append(np.mean(answers[chosen, np.arange(PROMPTS), 3] == found.labels[:, 3]))
    formula = theory.recognition_on_an_unseen_item if unseen else theory.recognition_on_a_new_relation
    error = max(np.std(right, ddof=1) / np.sqrt(20), 1e-9)
    assert error < 0.03
    assert abs(np.mean(right) - formula(relations, pairs=3, labels=6)) < 4 * error


def test_more_rows_are_the_same_relations():
    few, many = (LabelRelations.init(items(), 2, rows=rows, key=KEY).table for rows in (0, 8))
    np.testing.assert_array_equal(np.asarray(many), np.tile(np.asarray(few), (4, 1)))
    longer = LabelRelations.init(items(), 5, key=KEY).table
    np.testing.assert_array_equal(np.asarray(longer)[:2], np.asarray(few))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: LabelRelations.init(items(classes=None), 2, key=KEY),
            "items: expected a task of finitely many classes, got 'infinitely many'; give classes=",
        ),
        (
            lambda: LabelRelations.init(items(no_repeats=False), 2, key=KEY),
            "items: expected a task with no_repeats, burstiness 1, and labels not swapped, got 'another'",
        ),
        (lambda: LabelRelations.init(items(), 0, key=KEY), "relations: expected an integer of at least 1, got 0"),
        (
            lambda: LabelRelations.init(items(), 3, rows=8, key=KEY),
            "rows: expected a multiple of the 3 relations, got 8",
        ),
        (lambda: LabelRelations(items(), jnp.zeros((2, 5), int)), "table: expected 6 labels in every row, got 5"),
        (
            lambda: LabelRelations.init(items(labels=3), 2, key=KEY).unseen_items(),
            "labels: expected more than the 3 pairs, got 3; an unseen query needs one more item",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, message):
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == message


def test_relations_are_of_labels():
    with pytest.raises(InputError, match=r"table at \[0, 3\]: expected an id from 0 to \d+, .* got 99"):
        LabelRelations(items(), jnp.arange(items().labels)[None].at[0, 3].set(99))


@pytest.mark.parametrize("relations", [4, None])
def test_a_symmetric_relation_answers_the_converse_of_a_pair(relations):
    """The label of a converse's query is an item of the context whose label is the query's item."""
    task = LabelRelations.init(items(), relations, rows=ROWS if relations else 0, symmetric=True, key=KEY).converses()
    found = drawn(task)
    before = found.classes % 6
    paired = (before[:, :3] == found.labels[:, 3:]) & (found.labels[:, :3] == before[:, 3:])
    assert paired.any(axis=1).all()
    assert (before != found.labels).all()
    partners = np.count_nonzero((before[:, :3] == before[:, 3:]).any(axis=1)) / PROMPTS
    assert abs(partners - 2 / 5) < 5 * np.sqrt(0.24 / PROMPTS)  # both of a couple are items of the context
    if task.table is not None:
        table = np.asarray(task.table)
        np.testing.assert_array_equal(
            np.take_along_axis(table, table, axis=1), np.broadcast_to(np.arange(6), (ROWS, 6))
        )
        assert len(np.unique(table, axis=0)) > 1


def test_couples_need_an_even_number_of_labels_and_a_query_that_is_seen():
    odd = items(classes=10, labels=5)
    with pytest.raises(InputError, match="expected an even number, for couples, got 5"):
        LabelRelations.init(odd, None, symmetric=True, key=KEY)
    for task in (related(2), LabelRelations.init(items(), 2, symmetric=True, key=KEY).unseen_items()):
        with pytest.raises(InputError, match="unless relations are symmetric and queries seen"):
            task.converses()
