"""Patches of transformers for many contexts: how much of a context they hold at their own query and at others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.claims.context_map._regression_transformers import double, networks, sample_prompts
from icllab.core.grid import tabulated
from icllab.models import best_patch, rank_one_patch
from icllab.models.contexts.patches import patch_errors

VERSION = 1


def measure(point, *, key, distance=None, overshoot=1.0):
    """Errors of the patches of every seed before and after training.

    ``distance``: how far other queries are from the first; None: they are drawn independently. ``overshoot``: factor of
    the rank-one patch.
    """

    def of_seed(seed):
        of_networks, of_prompts = jax.random.split(key)
        stages = networks(seed, point.step, point, key=of_networks)
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_prompts))])
        with jax.enable_x64(True):
            prompts = sample_prompts(
                rng, point.contexts, 1 + 2 * point.queries, dim=point.dim, length=point.length, examples=0
            )
            if distance is not None:
                first = prompts.x[:, :1, -1]
                near = first + distance * (prompts.x[:, :, -1] - first)
                prompts = eqx.tree_at(lambda p: p.x, prompts, prompts.x.at[:, :, -1].set(near))
            results = [_errors(double(network), prompts, overshoot) for network in stages]
            error, ratio = (np.stack([np.asarray(row[i]) for row in results]) for i in range(2))
        return {"patch_error": (("step", "patch"), error), "participation": (("step",), ratio)}

    return tabulated(of_seed, seed=point.seed)


@eqx.filter_jit
def _errors(model, prompts, overshoot):
    """Root mean squares over contexts and queries, relative to those without a patch; and the rank of the best patch.

    The first query has the patch, the first half of the others is what the best ones are fitted to.
    """
    queries = prompts.y.shape[1] // 2
    first, fitted_rows, tested_rows = slice(0, 1), slice(1, 1 + queries), slice(1 + queries, None)

    def of_context(prompts):
        without_context = jax.vmap(lambda prompt: prompt.alone(prompt.length))(prompts)

        def part(rows):
            return tuple(jax.tree.map(lambda leaf: leaf[rows], batch) for batch in (prompts, without_context))

        exact = rank_one_patch(model, *part(0))
        exact = jax.tree.map(lambda leaf: overshoot * leaf, exact)
        linear, affine = (best_patch(model, *part(fitted_rows), affine=affine) for affine in (False, True))
        tests = [(exact, first), (exact, tested_rows), (linear, tested_rows), (affine, tested_rows)]
        squares = [jnp.mean(jnp.square(jnp.stack(patch_errors(model, patch, *part(rows)))), 1) for patch, rows in tests]
        spectra = jnp.stack([change.singular_values**2 for change in affine.first])
        return jnp.stack(squares), jnp.sum(spectra, axis=1) ** 2 / jnp.sum(spectra**2, axis=1)

    squares, participation = jax.lax.map(of_context, prompts)
    with_patch, plain = jnp.mean(squares, axis=0).T
    return jnp.sqrt(with_patch / plain), jnp.mean(participation)
