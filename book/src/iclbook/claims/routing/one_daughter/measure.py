"""The loss of each program along training, and the effective dimension of its answers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from iclbook.claims.routing import _answers, _transformers
from icllab.core.grid import tabulated

VERSION = 1

OPTIMIZER = optax.adam(3e-3)


def measure(point, *, key, lag=1):
    """Every seed's losses and effective dimensions, those after ``lag`` times as many updates."""

    def of_seed(seed):
        of_task, of_network, of_prompts, of_losses = jax.random.split(jax.random.fold_in(key, seed), 4)
        task = _transformers.task(point.program, point, exponent=point.zipf_exponent, key=of_task)
        task = eqx.tree_at(lambda t: t.noise, task, jnp.asarray(point.noise))
        network = _transformers.transformer(task, point, key=of_network)
        steps = sorted({*point.step, *(lag * step for step in point.step)})
        run = _transformers.train(task, network, point, optimizer=OPTIMIZER, steps=steps, key=of_prompts)
        losses = _transformers.program_losses(run, task, prompts=point.prompts, key=of_losses)
        losses = losses[:, [steps.index(step) for step in point.step]]
        prompts = _transformers.held_out(task, point.answered, jax.random.fold_in(of_losses, 1))

        def dimension(program, step):
            of_program = jax.tree.map(lambda leaf: leaf[program], prompts)
            at = run.trajectory.at(lag * step).member(0)
            return _answers.effective_dimension(at, task, of_program, resolution=point.resolution)

        dimensions = np.array([[dimension(c, step) for step in point.step] for c in range(len(point.program))])
        axes = ("program", "step")
        return {"program_loss": (axes, losses), "effective_dimension": (axes, dimensions)}

    return tabulated(of_seed, seed=point.seed)
