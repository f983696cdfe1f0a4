"""The loss of each program in runs where all programs count, and in runs where it counts alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from iclbook.claims.routing import _transformers
from icllab.core.grid import tabulated

VERSION = 1

OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def measure(point, *, key, apart=False, alike=False):
    """Every seed's losses. ``apart``: in no run does a program count for another. ``alike``: all do the same."""

    def of_seed(seed):
        of_task, of_network, of_prompts, of_losses = jax.random.split(jax.random.fold_in(key, seed), 4)
        task = _transformers.task(point.program, point, exponent=point.zipf_exponent, key=of_task)
        # Functions that replace symbols and turn no strings.
        task = eqx.tree_at(lambda t: t.turns, task, jnp.zeros_like(task.turns))
        if alike:
            task = _transformers.alike(task)
        network = _transformers.transformer(task, point, key=of_network)

        def losses(weights):
            counted = _transformers.Counted(task, jnp.asarray(weights))
            run = _transformers.train(counted, network, point, optimizer=OPTIMIZER, steps=point.step, key=of_prompts)
            return _transformers.program_losses(run, task, prompts=point.prompts, key=of_losses)

        units = np.eye(len(point.program), dtype=np.float32)
        single = np.stack([losses(weights)[c] for c, weights in enumerate(units)])
        runs = {"alone": single, "together": single if apart else losses(units.sum(axis=0))}
        return {"program_loss": (("training", "program", "step"), np.stack([runs[kind] for kind in point.training]))}

    return tabulated(of_seed, seed=point.seed)
