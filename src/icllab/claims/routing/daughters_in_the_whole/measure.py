"""Losses of programs and of the whole while one is learned that was left out before."""

import equinox as eqx
import jax
import numpy as np
import optax

from icllab.claims.routing import _transformers
from icllab.core.grid import tabulated

VERSION = 1

BEFORE, AFTER = optax.adam(3e-3), optax.adam(1e-3)


def measure(point, *, key, known=True, forgotten=False):
    """Every seed's losses from the step on at which the last program joins.

    ``known``: others are learned before. ``forgotten``: it is trained on alone.
    """

    def of_seed(seed):
        of_task, of_network, of_others, of_prompts, of_losses = jax.random.split(jax.random.fold_in(key, seed), 5)
        task = _transformers.task(point.program, point, exponent=point.zipf_exponent, key=of_task)
        network = _transformers.transformer(
            task, width=point.width, layers=point.layers, heads=point.heads, key=of_network
        )
        if known:
            earlier = task.only(*range(len(point.program) - 1))
            options = {"optimizer": BEFORE, "batch": point.batch, "steps": (point.updates,), "key": of_others}
            network = _transformers.trained(earlier, network, **options).members.member(0)
        options = {"optimizer": AFTER, "batch": point.batch, "steps": point.step, "key": of_prompts}
        run = _transformers.trained(task.only(len(point.program) - 1) if forgotten else task, network, **options)
        losses = _transformers.program_losses(run, task, prompts=point.prompts, key=of_losses)
        batch = jax.tree.map(lambda leaf: leaf[None], drawn(task, point.together, of_losses))
        whole = np.asarray(_transformers.kept_losses(run, task, batch))[:, 0] - task.answer_entropy()
        return {"program_loss": (("program", "step"), losses), "whole_loss": (("step",), whole)}

    return tabulated(of_seed, seed=point.seed)


@eqx.filter_jit
def drawn(task, count, key):
    """So many prompts of all programs, as often as they come."""
    return task.sample_many(count, key=key)
