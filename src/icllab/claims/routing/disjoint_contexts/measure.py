"""Overlap of the directions of the weights that contexts keep, before and after training."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from icllab.claims.routing import _transformers
from icllab.core.grid import tabulated
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics import MapSolver, context_rank

VERSION = 1

OPTIMIZER = optax.adam(3e-3)
SOLVER = MapSolver(method="gauss_newton", steps=30, products=60)


def measure(point, *, key, independent=False, trained=True):
    """Every seed's overlaps. ``independent``: of directions drawn at random; not ``trained``: after one update."""

    def of_seed(seed):
        of_task, of_network, of_prompts, of_losses = jax.random.split(jax.random.fold_in(key, seed), 4)
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_losses))])
        task = _transformers.task(point.programs, point, exponent=point.zipf_exponent, key=of_task)
        network = _transformers.transformer(task, point, key=of_network)
        contexts, batch = [point.programs.index(name) for name in point.contexts], queries(task, rng)

        def at(stage):
            model, loss = network, np.nan
            if stage == "after":
                steps = (point.updates if trained else 1,)
                run = _transformers.train(task, network, point, optimizer=OPTIMIZER, steps=steps, key=of_prompts)
                model = run.members.member(0)
                losses = _transformers.program_losses(run, task, prompts=point.prompts, key=of_losses)
                loss = losses[contexts].max()
            options = {"subspace": None, "queries": batch, "query_length": point.length + 1, "solver": SOLVER}
            ranks = [context_rank(model, task, program_alone(task, c), **options, key=of_losses) for c in contexts]
            return summary([randomise(rank, rng) for rank in ranks] if independent else ranks) | {"largest_loss": loss}

        return tabulated(at, stage=point.stage)

    return tabulated(of_seed, seed=point.seed)


def program_alone(task, context):
    """The context of a program; the query begins with the string."""
    program = task.program_tokens()[context]
    return TokenPrompt(jnp.asarray([*program, 0, 0], jnp.int32))


def queries(task, rng):
    """Every string once, in random order, and after it the sign; twice, since half are for the fit alone."""
    strings = np.array(list(itertools.product(range(task.symbols), repeat=max(task.lengths))))
    strings = rng.permutation(strings)
    sign = np.full((len(strings), 1), task.vocabulary - 1)
    tokens = np.concatenate([strings, sign, np.zeros_like(sign)], axis=1)  # the last is no part of a query
    return jax.vmap(TokenPrompt)(jnp.asarray(np.tile(tokens, (2, 1)), jnp.int32))


def randomise(rank, rng):
    """Replace the directions by as many random ones."""
    return dataclasses.replace(rank, basis=np.linalg.qr(rng.normal(size=rank.basis.shape).T)[0].T)


def summary(ranks):
    """Means over pairs of contexts of the overlap, and of what independent directions would have; and over contexts."""
    pairs = list(itertools.combinations(ranks, 2))
    weights = ranks[0].basis.shape[1]
    return {
        "overlap": float(np.mean([rank.overlap(second) for rank, second in pairs])),
        "independent": float(np.mean([max(rank.rank, second.rank) / weights for rank, second in pairs])),
        "context_rank": float(np.mean([rank.rank for rank in ranks])),
        "converged": float(all(rank.converged for rank in ranks)),
    }
