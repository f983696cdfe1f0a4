"""How far a flag and ordinary contexts move the weights of trained transformers, and of fast weights."""

import jax
import jax.numpy as jnp
import numpy as np

from icllab.claims.context_map import _flagged
from icllab.core.grid import tabulated
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics import MapSolver, context_map
from icllab.diagnostics.contexts.queries import answers_after, answers_alone

VERSION = 1

SUBSPACES = {
    "transformer": lambda network: [block.mlp for block in network.blocks],
    "fast_weights": lambda network: network.slow,
}
SOLVER = MapSolver(method="gauss_newton", steps=30, products=60)


def measure(point, *, key, factor=-1.0):
    """Every seed's maps of all kinds of contexts. ``factor``: what labels are multiplied with after the flag."""

    def of_seed(seed):
        of_network, of_maps = jax.random.split(jax.random.fold_in(key, seed))
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_maps))])
        base = _flagged.base_task(rng, point.dim)
        task = _flagged.FlaggedRegression(jnp.asarray(base, jnp.float32), jnp.asarray(factor), point.length + 1)
        exact = point.family == "fast_weights"
        network = _flagged.fast_weights(task) if exact else _flagged.transformer(task, point, key=of_network)
        x = _flagged.padded(rng.normal(size=(2 * point.queries, 1, point.dim)))
        queries = jax.vmap(RegressionPrompt)(jnp.asarray(x), jnp.asarray(np.zeros(x.shape[:2], np.float32)))
        settings = {"queries": queries, "subspace": SUBSPACES[point.family], "solver": SOLVER, "key": of_maps}
        settings |= {"directions": point.directions, "draws": point.draws}
        contexts, right = contexts_of(rng, base, point), x[:, 0, :-1] @ base

        def of_kind(kind):
            return summary([context_map(network, task, context, **settings) for context in contexts[kind]])

        explained_flipped = explained(answers_after(network, contexts["flag"][0], queries), -right)
        scores = {"zero_shot": explained(answers_alone(network, queries), right), "flipped": explained_flipped}
        return scores | tabulated(of_kind, kind=point.kind)

    return tabulated(of_seed, seed=point.seed)


def contexts_of(rng, base, point):
    """The flag alone; contexts of one and of several examples of ordinary tasks; and of the task that is flipped."""
    tasks = [base + rng.normal(size=point.dim) for _ in range(point.contexts)]
    return {
        "flag": [_flagged.flag(point.dim)],
        "one example": [_flagged.examples(rng, w, 1) for w in tasks],
        "ordinary": [_flagged.examples(rng, w, point.length) for w in tasks],
        "flipped": [_flagged.examples(rng, -base, point.length) for _ in tasks],
    }


def summary(maps):
    """Root mean squares over contexts of norm and effect; means of the tests, and of the least of their nulls."""
    data = [result.dataset for result in maps]

    def over(name, reduce=np.mean):
        return float(np.mean([reduce(row[name].values) for row in data]))

    return {
        "moved": float(np.sqrt(np.mean([result.norm**2 for result in maps]))),
        "effect": float(np.sqrt(2 * over("divergence"))),
        "map_gap": over("gap"),
        "null_gap": over("null_gap", np.min),
        "map_derivative": over("derivative"),
        "null_derivative": over("null_derivative", np.min),
        "null_norm": float(np.sqrt(np.mean([row["null_norm"].sel(null="unrelated") ** 2 for row in data]))),
        "unconverged": 1 - over("converged"),
    }


def explained(answers, right):
    """The fraction of the mean square that is explained."""
    return float(1 - np.mean((np.asarray(answers)[:, 0] - right) ** 2) / np.mean(right**2))
