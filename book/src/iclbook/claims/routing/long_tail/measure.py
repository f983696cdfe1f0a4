"""Networks trained on functions by examples, of pools and lengths that differ, and what they answer."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from iclbook.claims.routing import _examples, _transformers
from iclbook.claims.routing.long_tail.claim import POOLS
from icllab.core.grid import tabulated
from icllab.tasks.string_programs import power_law
from icllab.training import Record

VERSION = 1

OPTIMIZER = optax.adam(3e-3)


def measure(point, *, key, shown=None, leaked=False, shuffled=False):
    """Every seed's accuracies on all tests along training, and those of recall.

    ``shown``: another fraction of queries among the items shown; ``leaked``: tests of functions of the training
    throughout; ``shuffled``: labels that are asked for at random.
    """

    def of_seed(seed):
        of_pool, of_network, of_prompts, of_tests = jax.random.split(jax.random.fold_in(key, seed), 4)
        task = pool(point, of_pool)
        tests = tests_of(task, leaked=leaked, shuffled=shuffled)
        task = eqx.tree_at(lambda t: t.shown, task, jnp.asarray(point.shown if shown is None else shown))
        keys = {name: jax.random.fold_in(of_tests, i) for i, name in enumerate(tests)}
        prompts = {name: _transformers.sample(tests[name], point.prompts, keys[name]) for name in point.test_set}
        batch = jax.tree.map(lambda *parts: jnp.stack(parts), *prompts.values())
        network = _transformers.transformer(task, point, key=of_network)

        def at(lengths):
            all_lengths = tuple(range(1, point.pairs + 1))
            training = dataclasses.replace(
                task, shuffled=shuffled, lengths=all_lengths if lengths == "several" else all_lengths[-1:]
            )
            record = Record([0], keep=point.step, progress=False)
            ends = {"steps": max(point.step), "batch": point.batch, "positions": "last"}
            run = icl.fit(network, training, key=of_prompts, record=record, optimizer=OPTIMIZER, **ends)
            return {"accuracy": (("step", "test_set"), _examples.accuracies(run, batch))}

        recall = np.array([_examples.recalled(task, prompts[name]) for name in point.test_set])
        return tabulated(at, lengths=point.lengths) | {"recall_accuracy": (("test_set",), recall)}

    return tabulated(of_seed, seed=point.seed)


def pool(point, key):
    """Contexts of N pairs, of functions with uniform labels."""
    count, has_tail = POOLS[point.pool]
    table = jax.random.randint(key, (count, point.items), 0, point.label_count, jnp.int32)
    frequencies = jnp.asarray(power_law(count, point.zipf_exponent if has_tail else 0.0), float)
    sizes = {"lengths": (point.pairs,), "items": point.items, "labels": point.label_count}
    return _examples.ShownFunctions(table, frequencies, jnp.asarray(point.shown), **sizes)


def tests_of(task, *, leaked, shuffled):
    """Build the tests, with N pairs in every context."""
    present, unseen = (eqx.tree_at(lambda t: t.shown, task, jnp.asarray(p)) for p in (1.0, 0.0))
    tests = {
        "known": present,
        "unseen": unseen,
        "new": present if leaked else dataclasses.replace(present, table=None),
        "edited": dataclasses.replace(present, edited=not leaked),
    }
    return {name: dataclasses.replace(test, shuffled=shuffled) for name, test in tests.items()}
