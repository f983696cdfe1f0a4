"""How far a flag, and functions of equal effect that no context asks for, move the weights of trained transformers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.context_map import _flagged
from icllab.core.grid import tabulated
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics import MapSolver
from icllab.diagnostics.contexts import nulls
from icllab.diagnostics.contexts.distances import divergence
from icllab.diagnostics.contexts.map_tests import fit_map
from icllab.diagnostics.contexts.queries import answers_after, answers_alone
from icllab.diagnostics.contexts.subspaces import norm, subtract

VERSION = 2

SUBSPACES = {
    "transformer": lambda network: [block.mlp for block in network.blocks],
    "fast_weights": lambda network: network.slow,
}
SOLVER = MapSolver(method="gauss_newton", steps=60, products=80, tolerance=1e-2)


def measure(point, *, key, factor=-1.0, effect=1.0, linear=False):
    """Every seed's norms of the flag's change and of those for other targets.

    ``factor``: what labels are multiplied with after the flag. ``effect``: effect of the other targets, over what it
    should be. ``linear``: every network is fast weights.
    """
    exact = linear or point.family == "fast_weights"
    subspace = SUBSPACES["fast_weights" if exact else point.family]

    def of_seed(seed):
        of_network, of_maps = jax.random.split(jax.random.fold_in(key, seed))
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_maps))])
        base = _flagged.base_task(rng, point.dim)
        task = _flagged.FlaggedRegression(jnp.asarray(base, jnp.float32), jnp.asarray(factor), point.length + 1)
        network = _flagged.fast_weights(task) if exact else _flagged.transformer(task, point, key=of_network)
        x = _flagged.padded(rng.normal(size=(2 * point.queries, 1, point.dim)))
        queries = jax.vmap(RegressionPrompt)(jnp.asarray(x), jnp.asarray(np.zeros(x.shape[:2], np.float32)))
        flag, right = _flagged.flag(point.dim), x[:, 0, :-1] @ base
        settings = {"subspace": subspace, "queries": queries, "size": 1, "key": of_maps}
        case, query_set = nulls.context_case(network, task, flag, **settings)
        directions = {"the flip": -base, "across": _flagged.across(base)}

        def asked(target, scale):
            return summary(linear_case(case, query_set, directions[target], effect * scale), query_set)

        scores = {
            "zero_shot": explained(answers_alone(network, queries), right),
            "flipped": explained(answers_after(network, flag, queries), -right),
        }
        of_flag = {f"flag_{name}": value for name, value in summary(case, query_set).items()}
        return scores | of_flag | tabulated(asked, target=point.target, scale=point.scale)

    return tabulated(of_seed, seed=point.seed)


def linear_case(case, queries, direction, scale):
    r"""A case whose target is the answers without a context plus a linear function of the query.

    .. math:: t(x) = T_w(x) + a\,u \cdot x, \qquad E\,|a\,u \cdot x|^2 = s^2\,E\,|T_w(c, x) - T_w(x)|^2

    over the fitted queries; ``scale``: s, the effect over that of the context c of the case.
    """
    bases = [answers_alone(case.fit.model, part) for part in (queries.fitted, queries.held_out)]
    functions = [
        part.x[:, -1, :-1] @ jnp.asarray(direction, jnp.float32) for part in (queries.fitted, queries.held_out)
    ]
    effect = jnp.mean((case.fit.targets - bases[0]) ** 2)
    factor = scale * jnp.sqrt(effect / jnp.mean(functions[0] ** 2))
    targets, held_out = (base + factor * values[:, None] for base, values in zip(bases, functions, strict=True))
    fit = eqx.tree_at(lambda f: f.targets, case.fit, targets)
    return nulls.MapCase(fit, held_out, case.mover, None)


def summary(case, queries):
    """Norm of the change over that of the weights, effect, and gap; NaN where the fit has not converged."""
    result = fit_map(case, SOLVER)
    start, answers = (answers_alone(model, queries.held_out) for model in (case.fit.model, result.model))
    before, after = (float(jnp.mean(divergence(case.fit.kind, case.held_out, z))) for z in (start, answers))
    moved = norm(subtract(result.solution.free, case.fit.free)) / norm(case.fit.free)
    row = {"moved": moved, "effect": (2 * before) ** 0.5, "map_gap": after / before}
    row = row if result.converged else dict.fromkeys(row, np.nan)
    return row | {"unconverged": float(not result.converged)}


def explained(answers, right):
    """The fraction of the mean square that is explained."""
    return float(1 - np.mean((np.asarray(answers)[:, 0] - right) ** 2) / np.mean(right**2))
