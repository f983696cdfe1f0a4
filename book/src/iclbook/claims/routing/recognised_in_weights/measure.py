"""Maps of two programs along training, at multiples of the time at which each is learned."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr

from iclbook.claims.routing import _small_transformers, _times
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics import MapSolver
from icllab.diagnostics.contexts.distances import divergence
from icllab.diagnostics.contexts.laws import LawProblem, fractions_left
from icllab.diagnostics.contexts.queries import Queries, answers_after, answers_alone
from icllab.diagnostics.contexts.subspaces import parameter_mask
from icllab.tasks.string_programs import power_law

VERSION = 2

OPTIMIZER = optax.adam(5e-3)
SOLVER = MapSolver(method="dense", steps=50)
HELD_OUT = 5  # one of so many strings
TESTS = 2  # effect and change: a program of one token cannot be cut, so that its composition is not asked


def measure(point, *, key, trained=True, swapped=False):
    """Every seed's maps. Not ``trained``: of the networks at the start, whatever the time.

    ``swapped``: what the map of another program leaves is given as what the program's own leaves.
    """
    of_networks, of_batches, of_maps = (jax.random.fold_in(key, i) for i in range(3))
    tasks, family = _small_transformers.sample_family(point.seed, point, key=of_networks)
    frequencies = np.tile(power_law(len(point.program), point.zipf_exponent), (point.updates, 1))
    digits = np.asarray(jax.random.key_data(of_batches)).ravel().tolist()
    rngs = [np.random.default_rng([seed, *digits]) for seed in point.seed]
    batches = [
        _small_transformers.Batches.from_frequencies(frequencies, family, batch=point.batch, rng=rng) for rng in rngs
    ]
    path = _small_transformers.descended(family, batches, optimizer=OPTIMIZER, every=point.every)
    times = learned(np.asarray(_small_transformers.losses_along(family, path)), point)

    def of_seed(i):
        task, strings = tasks[i], rngs[i].permutation(every_string(tasks[i]))
        of_map = jax.random.fold_in(of_maps, point.seed[i])

        def at(context, multiple):
            c = point.program.index(context)
            step = multiple * times[i, c]
            if not step <= point.updates:
                return None
            w = path[i, max(round(step / point.every), 1) - 1] if trained else family.weights[i]
            row = tested(family.network(w), task, c, strings, point, key=of_map)
            return mistaken(row) if swapped else row

        return [[at(context, multiple) for multiple in point.multiple] for context in point.context]

    rows = [of_seed(i) for i in range(len(tasks))]
    contexts = [point.program.index(context) for context in point.context]
    sample = next(cell for row in rows for of_context in row for cell in of_context if cell is not None)
    columns = {"transition_time": (("seed", "context"), times[:, contexts])}
    for name, (axes, shape) in {name: (axes, np.shape(value)) for name, (axes, value) in sample.items()}.items():
        empty = np.full(shape, np.nan)
        values = [[[empty if cell is None else cell[name][1] for cell in of] for of in row] for row in rows]
        columns[name] = (("seed", "context", "multiple", *axes), np.array(values))  # pyright: ignore[reportArgumentType]
    return columns


def learned(losses, point):
    """Times [seed, program] at which losses [seed, record, program] reach half that of guessing; NaN for never."""
    steps = point.every * np.arange(1, losses.shape[1] + 1)
    coords = {"seed": list(point.seed), "step": steps, "program": list(point.program)}
    curves = xr.DataArray(losses, coords=coords, dims=("seed", "step", "program"))
    halving = _times.times(curves, plateau=float(np.log(point.symbols)))["transition_time"]
    return halving.sel(program=list(point.program)).transpose("seed", "program").values


def every_string(task):
    """List all strings."""
    return np.array(list(itertools.product(range(task.symbols), repeat=max(task.lengths))))


def asked(task, strings):
    """Prompts of strings and the sign, without a program; their answers do not count."""
    sign = np.full((len(strings), 1), task.vocabulary - 1)
    return jax.vmap(TokenPrompt)(jnp.asarray(np.concatenate([strings, sign, 0 * sign], axis=1), jnp.int32))


def tested(network, task, context, strings, point, *, key):
    """Effect of the program on answers, and what its map leaves of it and of its changes; name -> axes, value.

    The map is fitted on all strings but a fifth, the last ones. The null is the map of the next program. The losses are
    those of the program's first symbol after held-out strings, answered with the program, or by the network without it.
    """
    training, held_out = np.split(strings, [len(strings) - len(strings) // HELD_OUT])
    fitted, last = (
        jax.vmap(lambda prompt: prompt.alone(prompt.positions - 1, size=point.length + 1))(asked(task, part))
        for part in (training, held_out)
    )
    tokens = task.program_tokens()
    pair = [[*tokens[c % len(tokens)], 0, 0] for c in (context, context + 1)]
    programs = jax.vmap(TokenPrompt)(jnp.asarray(pair, jnp.int32))
    program = jax.tree.map(lambda leaf: leaf[0], programs)
    answers = {"program": answers_after(network, program, last), "neither": answers_alone(network, last)}
    row: dict[str, Any] = {
        "effect": ((), float(jnp.mean(divergence("logits", answers["program"], answers["neither"]))))
    }
    if point.directions:
        queries = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), Queries(fitted, last, {}))
        problem = LawProblem(network, parameter_mask(network, None), SOLVER, "logits")
        result = _fractions_left(problem, programs, queries, point.directions, key)
        for name, values in zip(("left", "converged"), result, strict=True):
            row[name] = ("world", "test"), np.asarray(values[0, :, :TESTS], float)
    right = first_symbols(task, context, held_out)
    by = [name for name in point.answered_by if name in answers]
    losses = [-float(np.mean(jax.nn.log_softmax(answers[name])[np.arange(len(right)), right])) for name in by]
    return row | {"answer_loss": (("answered_by",), np.array(losses))}


def mistaken(row):
    """The row with what the other map leaves in the place of what the program's own leaves."""
    axes, left = row["left"]
    return row | {"left": (axes, left[[1, 1, 2]])}


@eqx.filter_jit
def _fractions_left(problem, programs, queries, directions, key):
    return fractions_left(problem, programs, queries, directions=directions, key=key)


def first_symbols(task, context, strings):
    """First symbols of the program's answers."""
    answers = np.asarray(_small_transformers.every_prompt(task))[context]
    place = {tuple(row[task.slots : -max(task.lengths) - 1]): row[-max(task.lengths)] for row in answers.tolist()}
    return np.array([place[tuple(string)] for string in strings.tolist()])
