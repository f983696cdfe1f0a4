"""Transformers trained on pools of chains, as mixtures of memorised and in-context unigrams and bigrams."""

import jax
import numpy as np
from scipy.optimize import minimize

from icllab.algorithms import markov_strategies
from icllab.claims.induction import _chains
from icllab.core.grid import tabulated
from icllab.tasks import MarkovPool

VERSION = 1


def measure(point, *, key, trained=True, other=False, planted=None):
    """One number of chains; pools, networks and sequences of every seed are drawn for it alone.

    ``trained``: without it networks stay at their start. ``other``: memorised strategies are those of another pool.
    ``planted``: a strategy that answers in the networks' place.
    """
    curves = tabulated(
        lambda seed: _of_seed(point, jax.random.fold_in(key, seed), trained, other, planted), seed=point.seed
    )
    return curves


def _of_seed(point, key, trained, other, planted):
    of_pool, of_other, of_training, of_prompts = jax.random.split(key, 4)
    task, unrelated = (pool_of(point, key=k) for k in (of_pool, of_other))
    laws = strategies_of(point, task)
    compared = (
        laws | {name: law for name, law in strategies_of(point, unrelated).items() if name.endswith("M")}
        if other
        else laws
    )
    run = None if planted else _chains.train(task, point, seeds=(0,), key=of_training)
    rows = []
    for source, sequences in zip(point.distribution, (task, task.fresh()), strict=True):
        prompts = _chains.sample(sequences, point.prompts, key=jax.random.fold_in(of_prompts, source == "fresh"))
        references = np.stack([_chains.log_probabilities(compared[name], prompts) for name in point.strategy])
        if planted:
            answers = np.broadcast_to(
                _chains.log_probabilities(laws[planted], prompts), (len(point.step), *references.shape[1:])
            )
        else:
            answers = _chains.trained_log_probabilities(run, 0, prompts)
            answers = answers if trained else np.broadcast_to(answers[:1], answers.shape)
        rows.append([fit(references, answer) for answer in answers])
    names = ("strategy_weight", "strategy_divergence", "mixture_divergence")
    axes = [("distribution", "step", *inner) for inner in (("strategy",), ("strategy",), ())]
    arrays = [np.array([[step[i] for step in row] for row in rows]) for i in range(3)]
    return {name: (dims, array) for name, dims, array in zip(names, axes, arrays, strict=True)}


def pool_of(point, *, key):
    """A pool of K chains."""
    return MarkovPool.init(
        chains=point.pool_size, vocabulary=point.states, tokens=point.tokens, concentration=point.concentration, key=key
    )


def strategies_of(point, task):
    """The four strategies by name."""
    return markov_strategies(task, unigram_concentration=point.states * point.concentration)


def fit(references, answers):
    r"""Weights of the mixture nearest to the answers, the divergence from each strategy and from the mixture.

    Minimises :math:`\mathrm{KL}(q\|\sum_kw_kp_k)` over weights on one half of the sequences; the problem is convex.
    Divergences are those of the other half.
    """
    half = answers.shape[0] // 2
    p, q = np.exp(references.astype(float)), np.exp(answers.astype(float))
    seen, right = p[:, :half].reshape(len(p), -1), q[:half].ravel()

    def loss(weights):
        mixture = weights @ seen
        return -np.mean(right * np.log(mixture)), -(seen @ (right / mixture)) / len(right)

    whole = {"type": "eq", "fun": lambda weights: weights.sum() - 1, "jac": np.ones_like}
    bounds = [(1e-9, 1.0)] * len(p)
    start = np.full(len(p), 1 / len(p))
    answer = minimize(loss, start, jac=True, bounds=bounds, constraints=whole, method="SLSQP", tol=1e-10)
    weights = answer.x / answer.x.sum()
    mixture = np.tensordot(weights, p, 1)
    rest = q[half:]
    each = [np.mean(np.sum(rest * np.log(rest / law[half:]), axis=-1)) for law in (*p, mixture)]
    return weights, np.array(each[:-1]), each[-1]
