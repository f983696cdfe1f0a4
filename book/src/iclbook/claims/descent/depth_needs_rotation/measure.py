"""Matrices of linear attention trained where the covariance is fixed or rotates, and their errors on fresh contexts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from iclbook.claims.descent.depth_needs_rotation.claim import ROTATED, SHARED, eigenvalues
from icllab.core.grid import tabulated

VERSION = 1

RISE = 0.05  # fraction of the training in which the rate rises


def measure(point, *, key, rotating=(ROTATED, SHARED), acting=None, symmetric=False):
    """One cell: networks of one dimension and depth.

    ``rotating``: the settings whose covariance rotates. ``acting``: layers that act, None for all. ``symmetric``:
    matrices are kept symmetric.
    """
    spectrum = jnp.asarray(eigenvalues(point.dim, point.condition), jnp.float32)
    acts = jnp.asarray(np.arange(point.layers) < (acting or point.layers), jnp.float32)
    shape, training = (point.dim, point.dim), point.steps * point.batch

    def split(draws):
        """Draws for each step of the training, and those for the test."""
        batches, fresh = np.split(draws, [training])
        return jnp.asarray(batches.reshape(point.steps, point.batch, *shape)), jnp.asarray(fresh)

    def measure_contexts(seed, alpha):
        of_start, of_draws = jax.random.split(jax.random.fold_in(key, seed))
        rng = np.random.default_rng([*np.asarray(jax.random.key_data(of_draws)).tolist(), round(alpha * point.dim)])
        start = point.std * jax.random.normal(of_start, (point.layers, *shape))
        turns = split(rotations(rng, training + point.contexts, point.dim))
        samples = split(wisharts(rng, training + point.contexts, point.dim, round(alpha * point.dim)))

        def measure_network(setting):
            turn = setting in rotating
            options = {"rotates": turn, "shared": setting == SHARED, "symmetric": symmetric}
            flags = {name: jnp.asarray(value) for name, value in options.items()}
            matrices, errors = trained(start, samples, turns, spectrum, acts, jnp.float32(point.rate), **flags)
            matrices = np.asarray(matrices, float)
            skew = np.linalg.norm(matrices - np.swapaxes(matrices, 1, 2)) / 2
            return {"test_loss": np.mean(np.asarray(errors, float)), "skewness": skew / np.linalg.norm(matrices)}

        return tabulated(measure_network, setting=point.setting)

    return tabulated(measure_contexts, seed=point.seed, alpha=point.alpha)


def wisharts(rng, count, dim, length):
    """Sample covariances of ``length`` standard normal inputs, by Bartlett's decomposition: [count, dim, dim]."""
    roots, diagonal = np.tril(rng.standard_normal((count, dim, dim), np.float32), -1), np.arange(dim)
    roots[:, diagonal, diagonal] = np.sqrt(rng.chisquare(length - diagonal, size=(count, dim)))
    return roots @ np.swapaxes(roots, 1, 2) / np.float32(length)


def rotations(rng, count, dim):
    """Orthogonal matrices whose axes are uniform, up to the axes' signs: [count, dim, dim]."""
    return np.linalg.qr(rng.standard_normal((count, dim, dim), np.float32))[0]


def context_errors(matrices, samples, turns, spectrum):
    r"""Errors over tasks and queries given the inputs, one for each context.

    .. math:: \mathrm{tr}_d\,\Omega P^\top\Sigma P, \qquad P = \prod_l(I - A_lS), \qquad
              \Sigma = O\Lambda O^\top = \Omega^{-1}

    with the sample covariance S of inputs :math:`O\Lambda^{1/2}g`, whose g have the sample covariances ``samples``.
    """
    root, back = jnp.sqrt(spectrum)[None, None, :], jnp.swapaxes(turns, 1, 2)
    factor = turns * root
    sample, left = (
        factor @ samples @ jnp.swapaxes(factor, 1, 2),
        jnp.broadcast_to(jnp.eye(len(spectrum)), samples.shape),
    )
    for matrix in matrices:
        left = left - matrix[None] @ (sample @ left)
    along = (back @ left @ turns) * jnp.swapaxes(root, 1, 2) / root
    return jnp.sum(along**2, axis=(1, 2)) / len(spectrum)


@jax.jit
def trained(start, samples, turns, spectrum, acts, rate, *, rotates, shared, symmetric):
    """Matrices after Adam on the error of one batch a step, and errors on fresh contexts."""
    steps = len(samples[0])

    def admitted(matrices):
        matrices = jnp.where(shared, jnp.broadcast_to(matrices.mean(0, keepdims=True), matrices.shape), matrices)
        matrices = jnp.where(symmetric, (matrices + jnp.swapaxes(matrices, 1, 2)) / 2, matrices)
        return matrices * acts[:, None, None]

    def errors(matrices, samples, turns):
        identity = jnp.broadcast_to(jnp.eye(len(spectrum)), turns.shape)
        return context_errors(matrices, samples, jnp.where(rotates, turns, identity), spectrum)

    with jax.numpy_dtype_promotion("standard"):
        schedule = optax.warmup_cosine_decay_schedule(0.0, 1.0, round(RISE * steps), steps)
        rise_and_fall = optax.scale_by_schedule(schedule)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b1=0.9, b2=0.99), rise_and_fall)

    def step(state, batch):
        matrices, moments = state
        gradient = admitted(jax.grad(lambda values: errors(values, *batch).mean())(matrices))
        with jax.numpy_dtype_promotion("standard"):
            updates, moments = optimizer.update(gradient, moments)
        return (matrices - rate * updates, moments), None

    start = admitted(start)
    (matrices, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), (samples[0], turns[0]))
    return matrices, errors(matrices, samples[1], turns[1])
