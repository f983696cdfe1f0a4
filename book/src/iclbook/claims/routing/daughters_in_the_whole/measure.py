"""Losses of programs and of the whole while one joins that was left out before, and where its loss alone counts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from iclbook.claims.routing import _transformers
from iclbook.claims.routing.daughters_in_the_whole.claim import ALONE, FRESH, TOGETHER
from icllab.core.grid import tabulated

VERSION = 2

BEFORE, AFTER = optax.adam(3e-3), optax.sgd(0.01, momentum=0.9)


def measure(point, *, key, taught=True):
    """Every seed's losses from the step on at which the last program joins, together with the others and alone.

    Not ``taught``: alone it starts from another network that has learned nothing.
    """

    def of_seed(seed):
        of_task, of_network, of_others, of_prompts, of_losses = jax.random.split(jax.random.fold_in(key, seed), 5)
        task = _transformers.task(point.program, point, exponent=point.zipf_exponent, key=of_task)
        start = _transformers.transformer(task, point, key=of_network)
        joins = len(point.program) - 1
        others = task.only(*range(joins))
        run = _transformers.train(others, start, point, optimizer=BEFORE, steps=(point.updates,), key=of_others)
        mother = run.members.member(0)
        stranger = _transformers.transformer(task, point, key=of_others)
        networks = {TOGETHER: mother, ALONE: mother if taught else stranger, FRESH: start}
        batch = jax.tree.map(lambda leaf: leaf[None], _transformers.sample(task, point.together, of_losses))

        def at(training):
            weights = np.ones(joins + 1) if training == TOGETHER else np.eye(joins + 1)[joins]
            counted = _transformers.Counted(task, jnp.asarray(weights, jnp.float32))
            options = {"optimizer": AFTER, "steps": point.step, "key": of_prompts}
            run = _transformers.train(counted, networks[training], point, **options)
            losses = _transformers.program_losses(run, task, prompts=point.prompts, key=of_losses)
            whole = np.asarray(_transformers.kept_losses(run, task, batch))[:, 0] - task.answer_entropy()
            return {"program_loss": (("program", "step"), losses), "whole_loss": (("step",), whole)}

        return tabulated(at, training=point.training)

    return tabulated(of_seed, seed=point.seed)
