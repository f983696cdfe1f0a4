"""A head of linear attention over all prompts of a finite distribution: its loss, and its sampled coefficient."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics import HMC, learning_coefficient
from icllab.models import Attention, Joined

VERSION = 1

TRIED = 5
"""Random weights at which the two losses are compared."""


class Head(eqx.Module):
    """The population loss of a head whose value is a token's label, as a function of its keys and queries."""

    joined: Joined
    head: Attention
    prompts: RegressionPrompt

    def __call__(self, weights):
        """Half the mean squared error over all prompts."""
        inputs_alone = [jnp.pad(weights[name], ((0, 1), (0, 0)))[:, None] for name in ("queries", "keys")]
        own = eqx.tree_at(lambda a: (a.query, a.key), self.head, tuple(inputs_alone))
        layout = self.joined.layout(self.prompts.y.shape[1])
        last = slice(-1, None)
        answer = jax.vmap(lambda one: own(self.joined.tokens(one), layout, rows=last)[0, -1])(self.prompts)
        return jnp.mean((answer - self.prompts.y[:, -1]) ** 2) / 2


def measure(point, *, key, weighting="linear"):
    """One cell: the distance of the two losses at random weights, and the sampled coefficient."""
    dim, width = point.dim, point.key_width
    x, y, context, task = all_prompts(dim, point.length, point.task_rank, np.random.default_rng(point.seed_of_law))
    of_head, of_weights, of_chains = jax.random.split(key, 3)
    joined = Joined(answers="last", causal=False, query_is_key=False)
    head = Attention(dim + 1, 1, dim=width, weighting=weighting, scale=1.0, normalisation="examples", key=of_head)
    value = jnp.zeros((dim + 1, 1, width)).at[dim, 0, 0].set(1)  # of a token: its label
    head = eqx.tree_at(lambda a: (a.value, a.output), head, (value, jnp.moveaxis(value, 0, -1)))
    prompts = jax.vmap(lambda x, y: RegressionPrompt(x=x, y=y))(jnp.asarray(x), jnp.asarray(y))
    loss = Head(joined, head, prompts)

    moments = context.T @ context / len(context)
    best = np.linalg.solve(moments, context.T @ task / len(task)).T
    u, s, v = np.linalg.svd(best)
    some = min(width, dim)
    at = {
        name: jnp.zeros((dim, width)).at[:, :some].set(side[:, :some] * np.sqrt(s[:some]) * (s[:some] > 1e-9))
        for name, side in (("queries", u), ("keys", v.T))
    }
    least = np.mean(np.sum((context @ best.T - task) ** 2, axis=1)) / 2

    def mismatch(key):
        found = jax.random.normal(key, (2, dim, width))
        apart = np.asarray(found[0] @ found[1].T) - best
        wanted = np.sum((apart @ moments) * apart) / 2
        return abs(float(loss({"queries": found[0], "keys": found[1]})) - least - wanted) / wanted

    worst = max(mismatch(one) for one in jax.random.split(of_weights, TRIED))
    sampler = HMC(chains=point.chains, warm_up=point.warm_up, draws=point.draws)
    found = learning_coefficient(
        loss, at, n=point.samples, localization=1.0, key=of_chains, sampler=sampler, estimand="at_temperature"
    )
    return {
        "loss_mismatch": ((), worst),
        "learning_coefficient": ((), float(found["estimate"])),
        "learning_coefficient_error": ((), float(found["mcse"])),
        "sampler_rhat": ((), float(found["rhat"])),
        "sampler_warnings": ((), len(found.attrs["warnings"])),
    }


def all_prompts(dim, length, rank, rng):
    """Every prompt of the distribution, equally likely: inputs, labels, and of each its h and its task."""
    inputs = np.sqrt(dim) * np.eye(dim)
    tasks = np.sqrt(rank) * np.linalg.qr(rng.normal(size=(dim, dim)))[0][:rank]
    every = list(itertools.product(*(range(dim),) * (length + 1), range(rank)))
    x = np.stack([inputs[list(drawn)] for *drawn, _ in every])
    task = np.stack([tasks[t] for *_, t in every])
    y = np.einsum("pid,pd->pi", x, task)
    return x, y, np.einsum("pid,pi->pd", x[:, :-1], y[:, :-1]) / length, task
