"""Transformers trained on programs of different frequency, and the loss of each program along training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from iclbook.claims.routing import _transformers
from icllab.core.errors import expected
from icllab.core.grid import tabulated
from icllab.lab.networks import require_answers
from icllab.tasks import StringPrograms

VERSION = 2

OPTIMIZER = optax.adam(3e-3)


def measure(point, *, key, reversed=False, discount=0.0, network=None, task=None):
    """Every seed's losses.

    ``reversed``: the last program comes most often. ``discount``: a program's loss counts with this power of its
    frequency over the largest. ``network`` and ``task``: a user's networks by step, and their string programs.
    """
    if network is not None:
        return of_run(point, network, task, key=key)

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


def of_run(point, networks, task, *, key):
    """Losses of a user's networks by step, on prompts of each seed."""
    own = _transformers.task(point.program, point, exponent=point.zipf_exponent, key=key)
    if not isinstance(task, StringPrograms) or len(task.programs) != len(point.program):
        raise expected("--task", f"file.py:task, StringPrograms with {len(point.program)} programs", task)
    if not np.allclose(task.frequencies, own.frequencies, rtol=1e-3):
        raise expected("frequencies of the task", f"1/rank to the power {point.zipf_exponent:g}", task.frequencies)
    require_answers(networks[point.step[0]], task)

    def of_seed(seed):
        prompts = _transformers.held_out(task, point.prompts, jax.random.fold_in(key, seed))
        rows = [_transformers.losses_of(networks[step], task, prompts) for step in point.step]
        losses = np.stack(rows, axis=1) - np.asarray(task.answer_entropy())
        return {"program_loss": (("program", "step"), losses)}

    return tabulated(of_seed, seed=point.seed)
