"""Maps of two programs along training, at multiples of the time at which each is learned."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr

from icllab.claims.routing import _small_transformers, _times
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics import MapSolver, context_map
from icllab.diagnostics.contexts.distances import divergence
from icllab.diagnostics.contexts.queries import answers_after, answers_alone
from icllab.tasks.string_programs import power_law

VERSION = 1

OPTIMIZER = optax.adam(5e-3)
SOLVER = MapSolver(method="gauss_newton", steps=25, products=50)
HELD_OUT = 5  # one of so many strings
TESTS = {"gap": "prediction", "derivative": "derivative"}


def measure(point, *, key, trained=True):
    """Every seed's maps. Not ``trained``: of the networks at the start, whatever the time."""
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
            return tested(family.network(w), task, c, strings, point, key=of_map)

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
    """Effect of the program on answers and tests of its map, with the least of each null; name -> axes, value.

    The map is fitted on all strings but a fifth, the last ones. The losses are those of the program's first symbol
    after these, answered with the program, by the map's weights without it, or by the network without it.
    """
    held_out = strings[-(len(strings) // HELD_OUT) :]
    program = TokenPrompt(jnp.asarray([*task.program_tokens()[context], 0, 0], jnp.int32))
    last = asked(task, held_out)
    last = jax.vmap(lambda prompt: prompt.alone(prompt.positions - 1, size=point.length + 1))(last)
    answers = {"program": answers_after(network, program, last), "neither": answers_alone(network, last)}
    row = {"effect": ((), float(jnp.mean(divergence("logits", answers["program"], answers["neither"]))))}
    if point.directions:
        # As many rows are held out as are fitted: the others stand there several times.
        training = strings[: -len(held_out)]
        strings_all = np.concatenate([training, np.resize(held_out, training.shape)])
        settings = {"directions": point.directions, "draws": point.draws, "query_length": point.length + 1}
        settings |= {"queries": asked(task, strings_all), "solver": SOLVER}
        result = context_map(network, task, program, subspace=None, key=key, **settings)
        answers["map"] = answers_alone(result.weights, last)
        for name, ours in TESTS.items():
            row[ours] = (), float(result.dataset[name])
            row[f"null_{ours}"] = ("null",), result.dataset[f"null_{name}"].min("draw").values  # pyright: ignore[reportArgumentType]
        row["converged"] = (), float(result.converged)
    right = first_symbols(task, context, held_out)
    by = [name for name in point.answered_by if name in answers]
    losses = [-float(np.mean(jax.nn.log_softmax(answers[name])[np.arange(len(right)), right])) for name in by]
    return row | {"answer_loss": (("answered_by",), np.array(losses))}


def first_symbols(task, context, strings):
    """First symbols of the program's answers."""
    answers = np.asarray(_small_transformers.every_prompt(task))[context]
    place = {tuple(row[task.slots : -max(task.lengths) - 1]): row[-max(task.lengths)] for row in answers.tolist()}
    return np.array([place[tuple(string)] for string in strings.tolist()])
