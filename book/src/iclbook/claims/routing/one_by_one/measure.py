"""Transformers trained on programs of different frequency, and the loss of each program along training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from iclbook.claims.routing import _transformers
from icllab.core.grid import tabulated

VERSION = 2

OPTIMIZER = optax.adam(3e-3)


def measure(point, *, key, reversed=False, discount=0.0):
    """Every seed's losses.

    ``reversed``: the last program comes most often. ``discount``: a program's loss counts with this power of its
    frequency over the largest.
    """

    def of_seed(seed):
        of_task, of_network, of_prompts, of_losses = jax.random.split(jax.random.fold_in(key, seed), 4)
        task = _transformers.task(point.program, point, exponent=point.zipf_exponent, key=of_task)
        if reversed:
            task = eqx.tree_at(lambda t: t.frequencies, task, task.frequencies[::-1])
        network = _transformers.transformer(task, point, key=of_network)
        weights = (task.frequencies / jnp.max(task.frequencies)) ** discount
        counted = _transformers.Counted(task, weights) if discount else task
        run = _transformers.train(counted, network, point, optimizer=OPTIMIZER, steps=point.step, key=of_prompts)
        losses = _transformers.program_losses(run, task, prompts=point.prompts, key=of_losses)
        return {"program_loss": (("program", "step"), losses)}

    return tabulated(of_seed, seed=point.seed)
