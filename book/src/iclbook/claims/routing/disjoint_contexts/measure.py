"""Overlap of the directions of the weights that contexts keep, before and after training."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from iclbook.claims.routing import _transformers
from icllab.core.grid import tabulated
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics import MapSolver, QuerySource, context_rank

VERSION = 2

OPTIMIZER = optax.adam(3e-3)
SOLVER = MapSolver(method="gauss_newton", steps=30, products=60)


def measure(point, *, key, independent=False, alike=False):
    """Every seed's overlaps on halves of the strings.

    ``independent``: of directions drawn at random. ``alike``: all programs do the same.
    """

    def of_seed(seed):
        of_task, of_network, of_prompts, of_losses = jax.random.split(jax.random.fold_in(key, seed), 4)
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_losses))])
        task = _transformers.task(point.programs, point, exponent=point.zipf_exponent, key=of_task)
        if alike:
            task = _transformers.alike(task)
        network = _transformers.transformer(task, point, key=of_network)
        contexts = [point.programs.index(name) for name in point.contexts]
        halves = halved_queries(task, rng)

        def at(stage):
            model, loss = network, np.nan
            if stage == "after":
                steps = (point.updates,)
                run = _transformers.train(task, network, point, optimizer=OPTIMIZER, steps=steps, key=of_prompts)
                model = run.members.member(0)
                losses = _transformers.program_losses(run, task, prompts=point.prompts, key=of_losses)
                loss = losses[contexts].max()

            def rank(context, half):
                prompt, queries = program_alone(task, context), QuerySource(half, point.length + 1)
                found = context_rank(model, task, prompt, subspace=None, queries=queries, solver=SOLVER, key=of_losses)
                return randomise(found, rng) if independent else found

            ranks = [[rank(context, half) for half in halves] for context in contexts]
            return summary(ranks) | {"largest_loss": loss}

        return tabulated(at, stage=point.stage)

    return tabulated(of_seed, seed=point.seed)


def program_alone(task, context):
    """The context of a program; the query begins with the string."""
    program = task.program_tokens()[context]
    return TokenPrompt(jnp.asarray([*program, 0, 0], jnp.int32))


def halved_queries(task, rng):
    """The strings in random order, cut into halves, and after each string the sign.

    A half has every string twice, since half of its queries are for the fit alone.
    """
    strings = np.array(list(itertools.product(range(task.symbols), repeat=max(task.lengths))))
    sign = np.full((len(strings), 1), task.vocabulary - 1)
    tokens = np.concatenate([rng.permutation(strings), sign, np.zeros_like(sign)], axis=1)  # the last is no query's
    size = len(tokens) // 2
    return [jax.vmap(TokenPrompt)(jnp.asarray(np.tile(t, (2, 1)), jnp.int32)) for t in (tokens[:size], tokens[-size:])]


def randomise(rank, rng):
    """Replace the directions by as many random ones."""
    return dataclasses.replace(rank, basis=np.linalg.qr(rng.normal(size=rank.basis.shape).T)[0].T)


def summary(ranks):
    """Mean overlaps between the halves, [context][half], of other contexts and of the same; and what is expected.

    A pair counts if both fits have converged; NaN where none does. ``converged_share`` is of all fits.
    """
    weights, fits = ranks[0][0].basis.shape[1], [rank for halves in ranks for rank in halves]
    others = pairs(ranks, [(c, d) for c, d in itertools.product(range(len(ranks)), repeat=2) if c != d])
    same = pairs(ranks, [(c, c) for c in range(len(ranks))])
    return {
        "overlap": _mean(first.overlap(second) for first, second in others),
        "ceiling": _mean(first.overlap(second) for first, second in same),
        "independent": _mean(max(first.rank, second.rank) / weights for first, second in others),
        "context_rank": float(np.mean([rank.rank for rank in fits])),
        "converged_share": float(np.mean([rank.converged for rank in fits])),
    }


def pairs(ranks, contexts):
    """The first context on the first half and the second on the second, if both fits have converged."""
    both = [(ranks[c][0], ranks[d][1]) for c, d in contexts]
    return [(first, second) for first, second in both if first.converged and second.converged]


def _mean(values):
    values = list(values)
    return float(np.mean(values)) if values else np.nan
