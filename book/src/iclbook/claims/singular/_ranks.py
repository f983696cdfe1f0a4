r"""Linear attention :math:`x^\top AB^\top h`, :math:`h = \frac1\ell\sum_ix_iy_i`, that learns its ranks in sequence.

The loss is half the mean squared error over all prompts of a finite distribution: inputs along the axes, a few tasks.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.singular._linear_attention import all_prompts

START = 1e-12  # standard deviation of the weights at the start
RATE, STEPS, RECORDS = 0.15, 7000, 1000
RANKED = 0.1  # over the least singular value to be learned: least size of one that counts


class Machine(eqx.Module):
    """Answers to all prompts as a function of ``queries`` and ``keys``, [dim, width]."""

    query: jax.Array
    context: jax.Array
    label: jax.Array

    @classmethod
    def init(cls, dim, length, sizes):
        """Make a machine of every prompt once: ``length`` examples and a query, orthogonal tasks of some ``sizes``."""
        axes = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, dim)))[0][: len(sizes)]
        x, y, context, _ = all_prompts(length, (np.asarray(sizes) * np.sqrt(len(sizes)))[:, None] * axes)
        return cls(*(jnp.asarray(array) for array in (x[:, -1], context, y[:, -1])))

    def __call__(self, w):
        """Answers, [prompt]."""
        return jnp.sum((self.query @ w["queries"]) * (self.context @ w["keys"]), axis=1)

    def loss(self, w):
        """Half the mean squared error."""
        return jnp.mean((self(w) - self.label) ** 2) / 2

    def plateau_losses(self, width):
        """Losses of the best matrices of rank 0, 1, ..., width, and their singular values."""
        moments = self.context.T @ self.context / len(self.context)
        best = np.linalg.solve(moments, np.asarray(self.context.T @ (self.query * self.label[:, None]))).T
        best = best / len(self.context)
        value, vector = np.linalg.eigh(moments)
        singular = np.linalg.svd(best @ (vector * np.sqrt(value)) @ vector.T)[1][:width]
        full = np.mean((np.sum((self.query @ best) * self.context, axis=1) - self.label) ** 2) / 2
        return full + np.array([np.sum(singular[rank:] ** 2) / 2 for rank in range(width + 1)]), singular


class Divergence(eqx.Module):
    """Half the mean squared distance of answers from a reference: the divergence in nats if noise has variance 1."""

    machine: Machine
    reference: jax.Array

    def __call__(self, w):
        """The divergence at weights w, a scalar."""
        return jnp.mean((self.machine(w) - self.reference) ** 2) / 2


def small_weights(key, dim, width, start=START):
    """Random weights of a standard deviation."""
    weights = start * jax.random.normal(key, (2, dim, width))
    return {"queries": weights[0], "keys": weights[1]}


@eqx.filter_jit
def descend(machine, start):
    """Weights and losses along gradient descent, at evenly spaced steps."""

    def step(w, _):
        slope = jax.grad(machine.loss)(w)
        return jax.tree.map(lambda a, b: a - RATE * b, w, slope), None

    def record(w, _):
        later, _ = jax.lax.scan(step, w, None, length=STEPS // RECORDS)
        return later, (w, machine.loss(w))

    return jax.lax.scan(record, start, None, length=RECORDS)[1]


def plateaus(machine, path, width):
    """Weights, loss and rank of the record whose loss is nearest to that of the best matrix of each rank."""
    weights, losses = path
    exact, singular = machine.plateau_losses(width)
    rows = []
    for level in exact:
        i = int(np.argmin(np.abs(np.asarray(losses) - level)))
        w = jax.tree.map(lambda leaf, i=i: leaf[i], weights)
        values = np.linalg.svd(np.asarray(w["queries"] @ w["keys"].T))[1]
        rows.append((w, float(losses[i]), int(np.sum(values > RANKED * singular[-1]))))
    return rows
