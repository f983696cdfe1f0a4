"""Gradient descent of heads of softmax attention from a small start: when components are learned, and the values."""

import equinox as eqx
import jax
import numpy as np

from iclbook.claims.descent import _heads, _plateaus
from iclbook.claims.descent._covariances import eigenvectors
from iclbook.claims.descent.softmax_saddles.claim import SETTING
from icllab.core.grid import tabulated
from icllab.theory import saddles

VERSION = 1


def measure(point, *, key, softmax=True):
    """Networks of all starts. ``softmax``: whether attention is a softmax, or linear."""
    task, step = _heads.task_of(SETTING), np.asarray(point.step)
    spectrum = np.array(_plateaus.SETTINGS[SETTING][0])
    of_training, of_judgement = jax.random.split(key)
    prompts = jax.vmap(lambda k: task.sample(key=k))(jax.random.split(of_judgement, point.judged))
    answered = eqx.filter_jit(jax.vmap(lambda network, prompt: network(prompt)[-1], (None, 0)))
    inputs, labels = (np.asarray(array, float) for array in (prompts.x, prompts.y))
    inputs = inputs @ eigenvectors(task.dim)
    features = np.einsum("pi,pid->pd", labels[:, :-1], inputs[:, :-1]) / task.length * inputs[:, -1]

    weights = saddles.component_weights(spectrum, length=task.length)
    steps = np.concatenate([np.zeros((len(features), 1)), np.cumsum(features * weights, axis=1)], axis=1)
    closed = spectrum.sum() - np.append(0, np.cumsum(spectrum**2 * weights))
    # What the prompts that were drawn add to the error of linear attention on each plateau, which is known.
    drawn = np.mean((steps - labels[:, -1:]) ** 2, axis=0) - closed

    def read(networks):
        """Loss, components and values along the training of a network."""
        answers = np.array([answered(network, prompts) for network in networks], float)
        loss = np.mean((answers - labels[:, -1]) ** 2, axis=1)
        along = answers @ features / np.sum(features**2, axis=0)
        learned = _plateaus.learned_steps(along, step, spectrum)
        records = _plateaus.flattest(loss, step, learned)
        values = np.array([network.values for network in networks], float)
        left = np.abs(values.sum(axis=1)) / np.abs(values).max(axis=1)
        none, plateau = records < 0, list(point.plateau)
        return {
            "loss_curve": (("step",), loss),
            "learned_step": (("component",), learned[list(point.component)]),
            "plateau_loss": (("plateau",), np.where(none, np.nan, loss[records] - drawn)[plateau]),
            "value_sum": (("plateau",), np.where(none, np.nan, left[records])[plateau]),
        }

    def trained(std):
        """Runs from one start: with one key all starts of a seed are multiples of each other."""
        cell = type(point)(**vars(point) | {"std": std})
        return _heads.train(cell, task, key=of_training, heads=point.heads, rank=1, softmax=softmax).trajectory

    trajectories = {std: trained(std) for std in point.start_std}
    return tabulated(
        lambda start_std, seed: read([trajectories[start_std].at(int(n)).member(point.seed.index(seed)) for n in step]),
        start_std=point.start_std,
        seed=point.seed,
    )
