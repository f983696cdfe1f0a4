"""Transformers trained on fresh chains, and how far they are from uniform and from counts along training."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

import icllab as icl
from iclbook.claims.induction import _chains
from iclbook.claims.induction.plateaus_are_ngrams.claim import NAMES
from icllab.algorithms import markov_strategies
from icllab.core.grid import tabulated
from icllab.lab.networks import require_answers
from icllab.models.torch_derivatives import with_autograd
from icllab.tasks import MarkovPool

VERSION = 1
MANY = 4096  # doubly stochastic chains, of which every sequence draws one


def measure(point, *, key, chains="fresh", layers=2, sliding=False, network=None):
    """One cell of networks of all seeds.

    ``chains``: ``"fresh"``; ``"urns"``, whose rows are equal; or ``"balanced"``, doubly stochastic ones. ``layers``: of
    the network. ``sliding``: predictions go from uniform over unigrams to bigrams at one rate in the logarithm of the
    step, without any network. ``network``: a user's networks by step.
    """
    of_chains, of_training, of_prompts = jax.random.split(key, 3)
    task = task_of(point, chains, key=of_chains)
    strategies = markov_strategies(
        task_of(point, "fresh", key=of_chains), unigram_concentration=point.states * point.concentration
    )
    predictors = dict(zip(NAMES, (strategies[name] for name in ("uniform", "Uni-G", "Bi-G")), strict=True))
    of_networks, of_batches = (jax.random.fold_in(of_training, i) for i in (1, 2))
    networks = icl.ensemble(
        lambda *, key: _chains.transformer(task, layers=layers, width=point.width, std=point.std, key=key),
        seeds=point.seed,
        key=of_networks,
    )
    run = None if sliding or network is not None else _chains.train(task, networks, point, key=of_batches)
    if network is not None:
        require_answers(network[point.step[0]], task)

    def measure_seed(seed):
        prompts = _chains.sample(task, point.prompts, key=jax.random.fold_in(of_prompts, seed))
        references = {name: _chains.log_probabilities(law, prompts) for name, law in predictors.items()}
        if sliding:
            answers = slide(references, point.step)
        elif network is not None:
            members = [with_autograd(network[step]) for step in point.step]
            answers = np.stack([_chains.log_probabilities(member, prompts) for member in members])
        else:
            answers = _chains.trained_log_probabilities(run, point.seed.index(seed), prompts)  # pyright: ignore[reportArgumentType]
        return {
            "loss_curve": (("step",), _chains.losses(answers, prompts)),
            "predictor_divergence": (("step", "predictor"), _chains.divergences(references, answers)),
            "predictor_loss": (("predictor",), [_chains.losses(p, prompts) for p in references.values()]),
        }

    return tabulated(measure_seed, seed=point.seed)


def task_of(point, chains, *, key):
    """Chains of the claim, urns, or a pool of many doubly stochastic chains: cyclic shifts of one Dirichlet vector."""
    task = MarkovPool(point.states, point.tokens, 0 if chains == "urns" else 1, point.concentration)
    if chains != "balanced":
        return task
    rows = jax.random.dirichlet(key, jnp.full(point.states, point.concentration), (MANY,))
    return replace(task, pool=jnp.stack([jnp.roll(rows, shift, axis=1) for shift in range(point.states)], axis=1))


def slide(references, steps):
    """Log probabilities between the three references, at places that go evenly with the logarithm of the step."""
    place = np.log1p(steps) / np.log1p(max(steps)) * (len(references) - 1)
    p = np.exp(np.stack(list(references.values())))
    return np.log(np.stack([(1 - x % 1) * p[int(x)] + x % 1 * p[min(int(x) + 1, len(p) - 1)] for x in place]))
