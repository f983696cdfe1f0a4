"""Losses of programs and of the whole while one is learned that was left out before."""

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
        network = _transformers.transformer(task, point, key=of_network)
        if known:
            earlier = task.only(*range(len(point.program) - 1))
            steps = (point.updates,)
            run = _transformers.train(earlier, network, point, optimizer=BEFORE, steps=steps, key=of_others)
            network = run.members.member(0)
        programs = task.only(len(point.program) - 1) if forgotten else task
        run = _transformers.train(programs, network, point, optimizer=AFTER, steps=point.step, key=of_prompts)
        losses = _transformers.program_losses(run, task, prompts=point.prompts, key=of_losses)
        batch = jax.tree.map(lambda leaf: leaf[None], _transformers.sample(task, point.together, of_losses))
        whole = np.asarray(_transformers.kept_losses(run, task, batch))[:, 0] - task.answer_entropy()
        return {"program_loss": (("program", "step"), losses), "whole_loss": (("step",), whole)}

    return tabulated(of_seed, seed=point.seed)
