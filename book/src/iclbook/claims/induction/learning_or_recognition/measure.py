"""Item-label networks trained on some relations, and asked new relations and unseen items."""

import jax
import numpy as np

from iclbook.claims.induction import _accuracy, _networks
from iclbook.claims.induction.learning_or_recognition.claim import TESTS
from icllab.core.grid import tabulated
from icllab.tasks import LabelRelations

VERSION = 1


def measure(point, *, key, fresh=False, leaked=False, fewer=1, made_up=()):
    """Accuracies of every seed, and that of task recognition on the same prompts.

    ``fresh``: every training prompt has a relation of its own; ``leaked``: the new relations are those of training.
    ``fewer``: of so many relations one is trained on. ``made_up``: nothing is trained, and answers are learned from so
    many relations and recognised up to so many.
    """
    relations = max(point.relations // fewer, 1)

    def asked(seed):
        begin = _networks.start(
            seed, key=key, classes=point.classes, labels=point.label_count, pairs=point.pairs, dim=point.dim
        )
        _, of_table, of_prompts, of_tests = jax.random.split(jax.random.fold_in(key, seed), 4)
        task = LabelRelations.init(begin.task, relations, rows=point.rows, key=of_table)
        networks, last = {0: begin.network}, max(point.step)
        if last > 0 and not made_up:
            training = task.new_relations() if fresh else task
            ends = {"loss": point.loss, "memory": 100, "steps": last}
            networks[last] = _accuracy.train_until(training, begin.network, key=of_prompts, **ends).member(0)
        tests = dict(zip(TESTS, (task, task if leaked else task.new_relations(), task.unseen_items()), strict=True))

        def prompts_of(name):
            return {"key": jax.random.fold_in(of_tests, point.test_set.index(name)), "prompts": point.prompts}

        def recognition(name):
            prompts = jax.tree.map(np.asarray, _accuracy.sample(tests[name], **prompts_of(name)))
            return recognised(np.asarray(task.table)[:relations], prompts, seed)

        def accuracy(test_set, step):
            if not made_up:
                return {"accuracy": _accuracy.accuracy(networks[step], tests[test_set], **prompts_of(test_set))}
            is_right = {TESTS[0]: True, TESTS[1]: relations >= made_up[0], TESTS[2]: relations <= made_up[1]}[test_set]
            if test_set == TESTS[2]:
                return {"accuracy": recognition(test_set) if is_right else 1 / (point.label_count - point.pairs)}
            return {"accuracy": 1.0 if is_right else recognition(test_set)}

        curves = tabulated(accuracy, test_set=point.test_set, step=point.step)
        return {"recognition_accuracy": recognition(TESTS[1]), **curves}

    return tabulated(asked, seed=point.seed)


def recognised(table, prompts, seed):
    """The accuracy of answering by a relation of the table that agrees with the most pairs, any one of several."""
    items, ties = prompts.classes % table.shape[1], np.random.default_rng(seed)
    right = []
    for labels, items_row in zip(prompts.labels, items, strict=True):
        matches = (table[:, items_row[:-1]] == labels[:-1]).sum(axis=1)
        right.append(table[ties.choice(np.flatnonzero(matches == matches.max())), items_row[-1]] == labels[-1])
    return np.mean(right)
