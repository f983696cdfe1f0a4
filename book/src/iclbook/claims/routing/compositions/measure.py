"""Transformers trained on functions and compositions, and the loss of each program along training."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from iclbook.claims.routing import _transformers
from iclbook.claims.routing.compositions.claim import ASKED, IDLE, strangers
from icllab.core.grid import tabulated

VERSION = 1

OPTIMIZER = optax.adam(3e-3)


def measure(point, *, key, by_data=True, reversed=False, idle=False):
    """Every seed's losses, where parts are asked alone and where strangers are.

    Not ``by_data``: the machine is a group. ``reversed``: the last program comes most often. ``idle``: the functions of
    a composition after its first do nothing.
    """

    def of_seed(seed):
        of_task, of_network, of_prompts, of_losses = jax.random.split(jax.random.fold_in(key, seed), 4)

        def at(parts):
            task = machine(point, parts, by_data=by_data, idle=idle, key=of_task)
            if reversed:
                task = eqx.tree_at(lambda t: t.frequencies, task, task.frequencies[::-1])
            network = _transformers.transformer(task, point, key=of_network)
            run = _transformers.train(task, network, point, optimizer=OPTIMIZER, steps=point.step, key=of_prompts)
            return {
                "program_loss": (
                    ("program", "step"),
                    _transformers.program_losses(run, task, prompts=point.prompts, key=of_losses),
                ),
                "guess_loss": (("program",), task.guessing_losses()),
                "nearest_error": (("program",), np.array([task.nearest_function_error(p) for p in task.programs])),
            }

        return tabulated(at, parts=point.parts)

    return tabulated(of_seed, seed=point.seed)


def machine(point, parts, *, by_data, idle, key):
    """The programs with their parts asked alone, or with strangers; the same functions for one key."""
    names = point.program if parts == ASKED else strangers(point.program)
    task = _transformers.task(names, point, exponent=point.zipf_exponent, by_data=by_data, key=key)
    if not idle:
        return task
    nothing = ord(IDLE) - ord("a")
    programs = tuple((program[0], *(nothing for _ in program[1:])) for program in task.programs)
    tables = task.tables.at[nothing].set(jnp.arange(task.symbols, dtype=task.tables.dtype))
    return dataclasses.replace(task, programs=programs, tables=tables, turns=task.turns.at[nothing].set(0))
