"""Loss and sampled learning coefficient of a head of linear attention over all prompts of a finite distribution."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.singular._linear_attention import all_prompts, estimate_row
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics import HMC, LocalPosterior, coefficient_at_temperature
from icllab.models import Attention, Joined

VERSION = 1

TRIED = 5  # random weights at which the two losses are compared


class Head(eqx.Module):
    """Population loss of a head whose value is a token's label, as a function of its keys and queries."""

    embedding: Joined
    head: Attention
    prompts: RegressionPrompt

    def __call__(self, weights):
        """Half the mean squared error over all prompts."""
        inputs_alone = [jnp.pad(weights[name], ((0, 1), (0, 0)))[:, None] for name in ("queries", "keys")]
        head = eqx.tree_at(lambda a: (a.query, a.key), self.head, tuple(inputs_alone))
        layout, last = self.embedding.layout(self.prompts.y.shape[1]), slice(-1, None)
        answers = jax.vmap(lambda p: head(self.embedding.tokens(p), layout, rows=last)[0, -1])(self.prompts)
        return jnp.mean((answers - self.prompts.y[:, -1]) ** 2) / 2


def measure(point, *, key, weighting="linear", wider=0):
    """One cell: distance of the two losses at random weights, and the sampled coefficient.

    ``wider``: number of key dimensions beyond those of the axis.
    """
    dim, width = point.dim, point.key_width + wider
    directions = np.linalg.qr(np.random.default_rng(point.seed_of_law).normal(size=(dim, dim)))[0][: point.task_rank]
    x, y, context, task = all_prompts(point.length, np.sqrt(point.task_rank) * directions)
    of_head, of_weights, of_chains = jax.random.split(key, 3)
    embedding = Joined(answers="last", causal=False, query_is_key=False)
    head = Attention(dim + 1, 1, dim=width, weighting=weighting, scale=1.0, normalisation="examples", key=of_head)
    value = jnp.zeros((dim + 1, 1, width)).at[dim, 0, 0].set(1)  # of a token: its label
    head = eqx.tree_at(lambda a: (a.value, a.output), head, (value, jnp.moveaxis(value, 0, -1)))
    prompts = jax.vmap(lambda x, y: RegressionPrompt(x=x, y=y))(jnp.asarray(x), jnp.asarray(y))
    loss = Head(embedding, head, prompts)

    moments = context.T @ context / len(context)
    best = np.linalg.solve(moments, context.T @ task / len(task)).T
    u, s, v = np.linalg.svd(best)
    rank = min(width, dim)
    at = {
        name: jnp.zeros((dim, width)).at[:, :rank].set(side[:, :rank] * np.sqrt(s[:rank]) * (s[:rank] > 1e-9))
        for name, side in (("queries", u), ("keys", v.T))
    }
    least = np.mean(np.sum((context @ best.T - task) ** 2, axis=1)) / 2

    def mismatch(key):
        pair = jax.random.normal(key, (2, dim, width))
        difference = np.asarray(pair[0] @ pair[1].T) - best
        target = np.sum((difference @ moments) * difference) / 2
        return abs(float(loss({"queries": pair[0], "keys": pair[1]})) - least - target) / target

    worst = max(map(mismatch, jax.random.split(of_weights, TRIED)))
    sampler = HMC(chains=point.chains, warm_up=point.warm_up, draws=point.draws)
    posterior = LocalPosterior.from_function(loss, at, n=point.samples, localization=1.0)
    chains = coefficient_at_temperature(posterior, checks=(), key=of_chains, sampler=sampler)
    return {name: ((), value) for name, value in (estimate_row(chains) | {"loss_mismatch": worst}).items()}
