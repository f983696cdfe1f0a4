"""Transformers trained on pools of chains, as mixtures of memorised and in-context unigrams and bigrams."""

import jax
import numpy as np
from scipy.optimize import minimize

from iclbook.claims.induction import _chains
from icllab.algorithms import markov_strategies
from icllab.core.grid import tabulated
from icllab.tasks import MarkovPool

VERSION = 1


def measure(point, *, key, trained=True, other=False, planted=None):
    """One number of chains; pool, network and sequences of every seed are drawn for it alone.

    ``trained``: without it networks stay at their start. ``other``: memorised strategies are those of another pool.
    ``planted``: weights of the strategies in a mixture that answers in the networks' place.
    """

    def measure_seed(seed):
        of_pool, of_other, of_network, of_training, of_prompts = jax.random.split(jax.random.fold_in(key, seed), 5)
        task = pool_of(point, key=of_pool)
        laws = strategies_of(point, task)
        if other:
            unrelated = strategies_of(point, pool_of(point, key=of_other))
            laws = {name: unrelated[name] if name.endswith("M") else law for name, law in laws.items()}
        network = _chains.transformer(task, layers=2, width=point.width, std=point.std, key=of_network)
        run = _chains.train(task, network, point, key=of_training) if trained and planted is None else None
        fits = []
        for source in point.distribution:
            sequences = task if source == "pool" else task.fresh()
            prompts = _chains.sample(sequences, point.prompts, key=jax.random.fold_in(of_prompts, source == "pool"))
            references = np.stack([_chains.log_probabilities(laws[name], prompts) for name in point.predictor])
            if planted is not None:
                answers = [np.log(np.tensordot(planted, np.exp(references), 1))]
            elif run is None:
                answers = [_chains.log_probabilities(network, prompts)]
            else:
                answers = _chains.trained_log_probabilities(run, 0, prompts)
            rows = [fit(references, answer) for answer in answers]
            fits.append(rows if len(rows) == len(point.step) else rows * len(point.step))
        columns = zip(*(zip(*rows, strict=True) for rows in fits), strict=True)
        weights, each, mixture = (np.array(column) for column in columns)
        axes = ("distribution", "step")
        return {
            "mixture_weight": ((*axes, "predictor"), weights),
            "predictor_divergence": ((*axes, "predictor"), each),
            "mixture_divergence": (axes, mixture),
        }

    return tabulated(measure_seed, seed=point.seed)


def pool_of(point, *, key):
    """A pool of K chains."""
    law = {"vocabulary": point.states, "tokens": point.tokens, "concentration": point.concentration}
    return MarkovPool.init(chains=point.tasks, **law, key=key)


def strategies_of(point, task):
    """The four strategies by name, and the uniform predictor."""
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
    start = np.full(len(p), 1 / len(p))
    options = {"bounds": [(1e-9, 1.0)] * len(p), "constraints": whole, "method": "SLSQP", "tol": 1e-10}
    weights = minimize(loss, start, jac=True, **options).x
    weights = weights / weights.sum()
    mixture, rest = np.tensordot(weights, p, 1), q[half:]
    each = [np.mean(np.sum(rest * np.log(rest / law[half:]), axis=-1)) for law in (*p, mixture)]
    return weights, np.array(each[:-1]), each[-1]
