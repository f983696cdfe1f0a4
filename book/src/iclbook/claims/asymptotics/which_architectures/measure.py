"""Train networks of one kind, as wide as a number of parameters allows, at several rates; their excess over ridge."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import icllab as icl
from iclbook.claims.asymptotics._transformers import train, transformer
from iclbook.claims.asymptotics.which_architectures.claim import BLOCKS
from icllab import algorithms
from icllab.core.grid import tabulated
from icllab.core.protocols import AbstractPredictor
from icllab.models import DeepSets, PromptPerceptron, Recurrent
from icllab.models.networks.parameters import parameter_count, width_for
from icllab.tasks import LinearRegression

VERSION = 1

REFERENCES = {"no examples": lambda prompt: jnp.zeros_like(prompt.y), "least squares": algorithms.LeastSquares()}


def measure(point, *, key, updates=None, blind=False):
    """Excess error of one kind of network over ridge's; ``blind``: attention sees no labels."""
    dim, length, name = point.dim, round(point.alpha * point.dim), point.predictor
    task = LinearRegression.convention("raventos", dim=dim, length=length)
    of_weights, of_prompts, of_test = jax.random.split(key, 3)

    def build(width, key):
        network = build_network(name, width, dim=dim, length=length, key=key)
        return Blind(network) if blind and name in BLOCKS else network

    if name in REFERENCES:
        parameters, members = 0, [REFERENCES[name]] * len(point.rate) * len(point.seed)
    else:
        width = width_for(lambda width: build(width, of_weights), point.parameters)
        run = train(
            icl.ensemble(lambda key: build(width, key), seeds=point.seed, key=of_weights),
            task,
            point,
            key=of_prompts,
            updates=updates,
        )
        members = [run.member(i) for i in range(run.size)]  # the seed slowest
        parameters = parameter_count(members[0])

    def test_seed(seed):
        keys = jax.random.split(jax.random.fold_in(of_test, seed), point.prompts)
        first = point.seed.index(seed) * len(point.rate)
        errors = [_excess(member, task, keys) for member in members[first : first + len(point.rate)]]
        return {"excess": (("rate", "position"), np.stack(errors)[:, list(point.position)])}

    return {**tabulated(test_seed, seed=point.seed), "parameter_count": ((), float(parameters))}


class Blind(AbstractPredictor):
    """A network that sees 0 for every label."""

    network: Any

    def __call__(self, prompt):
        """Answers, which cannot depend on the task."""
        return self.network(eqx.tree_at(lambda prompt: prompt.y, prompt, jnp.zeros_like(prompt.y)))


def build_network(name, width, *, dim, length, key):
    """Build a network of one kind and width; all heads of attention together have the whole width."""
    if name == "MLP":
        hidden = (width, width)
        return PromptPerceptron(dim=dim, length=length, hidden=hidden, answers="every", nonlinearity="gelu", key=key)
    if name == "recurrent":
        return Recurrent(dim=dim, width=width, hidden=(width,), nonlinearity="gelu", key=key)
    if name == "DeepSets":
        return DeepSets(dim=dim, width=width, hidden=(width, width), pool="sum", nonlinearity="gelu", key=key)
    layers, heads = BLOCKS[name]
    return transformer(dim=dim, width=width, layers=layers, heads=heads, head_dim=max(1, width // heads), key=key)


@eqx.filter_jit
def _excess(predictor, task, keys):
    ridge = algorithms.bayes_optimal(task)

    def squared_excess(key):
        prompt = task.sample(key=key)
        return (predictor(prompt) - ridge(prompt)) ** 2

    return jnp.mean(jax.lax.map(squared_excess, keys, batch_size=256), axis=0)
