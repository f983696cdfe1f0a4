"""Gradient descent on all entries of the vectors, as tensors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.induction.coopetition.claim import ALONE, FLOORS, LEARNED

VERSION = 1


def measure(point, *, key, shared=True, cost=None, exchanged=False, lower=None):
    """One cell: errors of both mechanisms along training, for every seed.

    ``shared``: without it the second mechanism has b and c of its own. ``cost``: another. ``exchanged``: the floors of
    the mechanisms. ``lower``: the lower of the two floors, in the setting that has two.
    """
    floors = FLOORS[point.setting][::-1] if exchanged else FLOORS[point.setting]
    floors = (floors[0], lower) if lower is not None else floors
    start, targets = zip(*[_draw(jax.random.fold_in(key, seed), point) for seed in point.seed], strict=True)
    start, targets = (jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees) for trees in (start, targets))
    rows = []
    for arrangement in point.arrangement:
        alone = arrangement == ALONE
        begin = start | {"d": jnp.zeros_like(start["d"])} if alone else start
        descend = functools.partial(
            _descend,
            names="dbc" if shared else "def",
            alone=alone,
            floors=floors,
            cost=point.cost if cost is None else cost,
            rate=point.rate,
            steps=max(point.step),
        )
        errors = np.asarray(jax.jit(jax.vmap(descend))(begin, targets))  # [seed, step, mechanism]
        rows.append(_measures(errors, begin, targets, point))
    axes = {"relative_error": ("step", "mechanism"), "learned_step": (), "least_error": ()}
    return {
        name: (("arrangement", "seed", *axes.get(name, ("vector",))), np.stack([row[name] for row in rows]))
        for name in rows[0]
    }


def _measures(errors, start, targets, point):
    """Errors at the recorded steps, when the first mechanism is learned, and the eight numbers of the start."""
    below = errors[:, :, 0] < LEARNED
    vectors, goals = (np.stack([tree[name] for name in "abcd"], axis=1).astype(float) for tree in (start, targets))
    squares = np.mean(goals**2, axis=-1)
    overlap = np.mean(vectors * goals, axis=-1) / squares
    return {
        "relative_error": errors[:, list(point.step)],
        "learned_step": np.where(below.any(axis=1), below.argmax(axis=1), max(point.step)).astype(float),
        "least_error": errors[:, :, 0].min(axis=1),
        "overlap": overlap,
        "size_beside": np.sqrt(np.mean((vectors - overlap[..., None] * goals) ** 2, axis=-1)),
        "target_square": squares,
    }


def _draw(key, point):
    """Start and targets, of mean square 1, of one seed. The second mechanism's own e and f have targets of b and c."""
    keys = jax.random.split(key, 10)
    drawn = {name: jax.random.normal(k, (point.dim,)) for name, k in zip("abcd", keys[:4], strict=True)}
    targets = {name: vector / jnp.sqrt(jnp.mean(vector**2)) for name, vector in drawn.items()}
    start = {name: point.std * jax.random.normal(k, (point.dim,)) for name, k in zip("abcdef", keys[4:], strict=True)}
    return start, targets | {"e": targets["b"], "f": targets["c"]}


def _descend(start, targets, *, names, alone, floors, cost, rate, steps):
    """Errors [step, mechanism] over those of a zero product, before each step and after the last."""
    first = functools.partial(_error, targets=targets, names="abc")
    second = functools.partial(_error, targets=targets, names=names)
    nulls = [error(jax.tree.map(jnp.zeros_like, start)) for error in (first, second)]

    def loss(vectors):
        both = jnp.mean(jnp.outer(vectors["a"], vectors["d"]) ** 2)
        return (first(vectors) + floors[0]) * (second(vectors) + floors[1]) + cost / 2 * both

    def step(vectors, _):
        gradient = jax.grad(loss)(vectors)
        errors = jnp.stack([first(vectors) / nulls[0], second(vectors) / nulls[1]])
        moved = jax.tree.map(lambda v, g: v - rate * g, vectors, gradient)
        return moved | ({"d": vectors["d"]} if alone else {}), errors

    return jax.lax.scan(step, start, length=steps + 1)[1]


def _error(vectors, *, targets, names):
    """Half the mean squared distance of a product of three vectors from that of their targets."""
    product, target = (jnp.einsum("i,j,k->ijk", *(tree[name] for name in names)) for tree in (vectors, targets))
    return jnp.mean((product - target) ** 2) / 2
