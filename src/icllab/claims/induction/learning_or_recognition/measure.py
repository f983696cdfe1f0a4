"""Item-label networks trained on some relations, and asked new relations and unseen items."""

import jax
import numpy as np

from icllab.claims.induction import _accuracy, _networks
from icllab.claims.induction.learning_or_recognition.claim import TESTS
from icllab.core.grid import tabulated
from icllab.tasks import LabelRelations

VERSION = 1


def measure(point, *, key, fresh=False, leaked=False):
    """Accuracies of every seed, and that of task recognition on the same prompts.

    ``fresh``: every training prompt has a relation of its own; ``leaked``: the new relations are those of training.
    """
    sizes = {"classes": point.classes, "labels": point.label_count, "pairs": point.pairs, "dim": point.dim}

    def asked(seed):
        begin = _networks.start(seed, key=key, **sizes)
        _, of_table, of_prompts, of_tests = jax.random.split(jax.random.fold_in(key, seed), 4)
        task = LabelRelations.drawn(begin.task, point.relations, rows=point.rows, key=of_table)
        networks, last = {0: begin.network}, max(point.step)
        if last > 0:
            how = {"loss": point.loss, "memory": 100, "steps": last, "key": of_prompts}
            training = task.new_relations() if fresh else task
            networks[last] = _accuracy.trained_until(training, begin.network, **how).member(0)
        tests = dict(zip(TESTS, (task, task if leaked else task.new_relations(), task.unseen_items()), strict=True))

        def prompts_of(name):
            return {"key": jax.random.fold_in(of_tests, point.test_set.index(name)), "prompts": point.prompts}

        def accuracy(test_set, step):
            return {"accuracy": _accuracy.accuracy(networks[step], tests[test_set], **prompts_of(test_set))}

        shown = jax.tree.map(np.asarray, _accuracy.drawn(tests[TESTS[1]], **prompts_of(TESTS[1])))
        recognition = recognised(np.asarray(task.table)[: point.relations], shown, seed)
        return {"recognition_accuracy": recognition, **tabulated(accuracy, test_set=point.test_set, step=point.step)}

    return tabulated(asked, seed=point.seed)


def recognised(table, prompts, seed):
    """The accuracy of answering by a relation of the table that agrees with the most pairs, any one of several."""
    items, ties = prompts.classes % table.shape[1], np.random.default_rng(seed)
    right = []
    for shown, asked in zip(prompts.labels, items, strict=True):
        agreed = (table[:, asked[:-1]] == shown[:-1]).sum(axis=1)
        right.append(table[ties.choice(np.flatnonzero(agreed == agreed.max())), asked[-1]] == shown[-1])
    return np.mean(right)
