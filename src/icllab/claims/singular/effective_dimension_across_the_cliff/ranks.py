r"""Linear attention :math:`x^\top AB^\top h`, :math:`h = \frac1\ell\sum_ix_iy_i`, that learns one rank after the other.

The loss is half the mean square over all prompts of a finite distribution: inputs along the axes, a few tasks.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

SIZES = (1.0, 0.5, 0.25)  # of the tasks, which make singular values apart
START = 1e-12  # standard deviation of the weights at the start
RATE, STEPS, RECORDS = 0.15, 7000, 1000
RANKED = 0.1  # of the least singular value that is to be learned: from which on one is


class Machine(eqx.Module):
    """Answers to all prompts as a function of ``queries`` and ``keys``, [dim, width]."""

    query: jax.Array
    context: jax.Array
    label: jax.Array

    @classmethod
    def drawn(cls, dim, length, width, *, equal=False):
        """Every prompt once: ``length`` inputs of the axes and a query, ``width`` orthogonal tasks."""
        inputs = np.sqrt(dim) * np.eye(dim)
        sizes = np.full(width, SIZES[0]) if equal else np.asarray(SIZES[:width])
        axes = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, dim)))[0][:width]
        tasks = (sizes * np.sqrt(width))[:, None] * axes
        every = list(itertools.product(*(range(dim),) * (length + 1), range(width)))
        x = np.stack([inputs[list(drawn)] for *drawn, _ in every])
        y = np.einsum("pid,pd->pi", x, np.stack([tasks[t] for *_, t in every]))
        context = np.einsum("pid,pi->pd", x[:, :-1], y[:, :-1]) / length
        return cls(*(jnp.asarray(one) for one in (x[:, -1], context, y[:, -1])))

    def __call__(self, w):
        """Answers, [prompt]."""
        return jnp.sum((self.query @ w["queries"]) * (self.context @ w["keys"]), axis=1)

    def loss(self, w):
        """Half the mean square."""
        return jnp.mean((self(w) - self.label) ** 2) / 2

    def plateau_losses(self, width):
        """The losses of the best matrices of rank 0, 1, ..., width, and their singular values."""
        moments = self.context.T @ self.context / len(self.context)
        best = np.linalg.solve(moments, np.asarray(self.context.T @ (self.query * self.label[:, None]))).T
        best = best / len(self.context)
        value, vector = np.linalg.eigh(moments)
        singular = np.linalg.svd(best @ (vector * np.sqrt(value)) @ vector.T)[1][:width]
        full = np.mean((np.sum((self.query @ best) * self.context, axis=1) - self.label) ** 2) / 2
        return full + np.array([np.sum(singular[rank:] ** 2) / 2 for rank in range(width + 1)]), singular


class Divergence(eqx.Module):
    """Half the mean square between the answers and given ones: in nats, of answers with unit noise."""

    machine: Machine
    own: jax.Array

    def __call__(self, w):
        """One number."""
        return jnp.mean((self.machine(w) - self.own) ** 2) / 2


def small(key, dim, width):
    """Weights near zero."""
    drawn = START * jax.random.normal(key, (2, dim, width))
    return {"queries": drawn[0], "keys": drawn[1]}


@eqx.filter_jit
def descended(machine, start):
    """Weights and losses along gradient descent, at evenly spaced steps."""

    def step(w, _):
        slope = jax.grad(machine.loss)(w)
        return jax.tree.map(lambda a, b: a - RATE * b, w, slope), None

    def record(w, _):
        later, _ = jax.lax.scan(step, w, None, length=STEPS // RECORDS)
        return later, (w, machine.loss(w))

    return jax.lax.scan(record, start, None, length=RECORDS)[1]


def plateaus(machine, path, width):
    """Of each number of ranks: weights and loss of the record whose loss is nearest to that of the best such matrix,
    and how many singular values it has."""
    weights, losses = path
    exact, singular = machine.plateau_losses(width)
    found = []
    for level in exact:
        i = int(np.argmin(np.abs(np.asarray(losses) - level)))
        w = jax.tree.map(lambda leaf, i=i: leaf[i], weights)
        own = np.linalg.svd(np.asarray(w["queries"] @ w["keys"].T))[1]
        found.append((w, float(losses[i]), int(np.sum(own > RANKED * singular[-1]))))
    return found
