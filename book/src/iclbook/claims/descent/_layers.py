r"""Linear attention trained from random starts on fresh prompts, and its loss over a reference's on shared prompts.

.. math:: Z_l = Z_{l-1} + \frac1n P_l Z_{l-1} M \big( Z_{l-1}^\top Q_l Z_{l-1} \big), \qquad
          \hat y = -[Z_L]_{d+1,\,n+1}

Three forms of the matrices are trained: all of them; :math:`P_l = \mathrm{diag}(B_l, 1)` and
:math:`Q_l = \mathrm{diag}(-A_l, 0)`; or the same with :math:`B_l = 0`. Other entries start at zero and stay there.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from icllab import algorithms, constructions
from icllab.core.errors import unknown
from icllab.diagnostics.behaviour.answers import EveryPosition, answers, heaviest_share, sample_prompts
from icllab.models import LinearAttention
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression
from icllab.training import Record, Sweep

FORMS = ("full", "blocks", "sparse")
ORDINARY = 0.999  # fraction of prompts
RISE = 0.05  # fraction of the training in which the rate rises


def start(form: str, *, dim: int, layers: int, std: float, key: Any) -> LinearAttention:
    """Random layers of one form; trained entries are normal with standard deviation ``std``."""
    model = LinearAttention.ahn(dim=dim, layers=layers, std=std, form="gram", key=key)
    p, q = trained_entries(form, dim)
    constant = jnp.zeros_like(model.p).at[:, dim, dim].set(0.0 if form == "full" else 1.0)
    return dataclasses.replace(model, p=model.p * p + constant, q=model.q * q)


def trained_entries(form: str, dim: int) -> tuple[Any, Any]:
    """Masks of P and Q, 1 for trained entries and 0 elsewhere: each [1, dim + 1, dim + 1], for all layers."""
    if form not in FORMS:
        raise unknown("form", form, FORMS)
    ones, zeros = np.ones((1, dim + 1, dim + 1), np.float32), np.zeros((1, dim + 1, dim + 1), np.float32)
    block = np.pad(np.ones((1, dim, dim), np.float32), ((0, 0), (0, 1), (0, 1)))
    return {"full": (ones, ones), "blocks": (block, block), "sparse": (zeros, block)}[form]


def starts(form: str, *, dim: int, layers: int, seeds: Sequence[int], std: float, key: Any) -> Any:
    """Ensemble of networks before training, one for every seed."""
    return icl.ensemble(lambda key: start(form, dim=dim, layers=layers, std=std, key=key), seeds=list(seeds), key=key)


def train(point: Any, task: Any, form: str, *, layers: int, key: Any, keep: Sequence[int] = ()) -> Any:
    """Train one network for every seed of a cell by Adam on fresh prompts; starts and prompts are not shared.

    The cell has ``step`` (the largest counts), ``seed``, ``std``, ``batch``, ``rate`` and ``clip``.
    """
    of_start, of_prompts = jax.random.split(key)
    steps = int(np.max(point.step))
    return icl.fit(
        starts(form, dim=task.dim, layers=layers, seeds=point.seed, std=point.std, key=of_start),
        task,
        steps=steps,
        key=of_prompts,
        batch=point.batch,
        optimizer=optimizer(form, task.dim, steps, point.rate, point.clip),
        sweep=Sweep(mode="map"),
        record=Record([0], keep=keep, progress=False),
    )


def networks(point: Any, task: Any, form: str, *, layers: int, key: Any, learn: bool = True) -> dict[int, Any]:
    """Networks of a cell by seed: trained, or at the start unless they ``learn``."""
    if learn:
        members = train(point, task, form, layers=layers, key=key).members
    else:
        members = starts(form, dim=task.dim, layers=layers, seeds=point.seed, std=point.std, key=key)
    return {seed: members.member(s) for s, seed in enumerate(point.seed)}


def regression(length: int, of_inputs: np.ndarray, of_tasks: np.ndarray, rho: float = 0.0) -> LinearRegression:
    """Linear regression with covariances of inputs and tasks, each [dim, dim], and label noise of variance rho."""
    inputs, weights = (jnp.asarray(covariance, jnp.float32) for covariance in (of_inputs, of_tasks))
    return LinearRegression(len(of_inputs), length, GaussianInputs(inputs), GaussianWeights(weights), jnp.float32(rho))


@functools.cache
def optimizer(form: str, dim: int, steps: int, rate: float, clip: float) -> Any:
    """Adam on clipped gradients; the rate rises and then falls to zero along a cosine. One object for all cells."""
    p, q = trained_entries(form, dim)

    def masked(updates: Any, _: Any) -> Any:
        return dataclasses.replace(updates, p=updates.p * p, q=updates.q * q)

    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, round(RISE * steps), steps)
    return optax.chain(optax.stateless(masked), optax.clip_by_global_norm(clip), optax.adam(schedule, b1=0.9, b2=0.99))


def on_shared_prompts(models: Sequence[Any], task: Any, *, key: Any, prompts: int) -> np.ndarray:
    """Squared errors of several models on the same prompts, [model, prompt]."""
    return np.stack([answers(EveryPosition(), model, task, key=key, prompts=prompts)[:, -1] for model in models])


def ordinary(task: Any, *, key: Any, prompts: int) -> np.ndarray:
    """Mask [prompt] of the shared prompts that are ordinary.

    A polynomial of a sample covariance, as layers compute it, may have errors whose mean is that of the prompts with
    the largest eigenvalues. The thousandth whose eigenvalues are largest is not ordinary, whatever the answers.
    """
    x = np.asarray(sample_prompts(task, key=key, prompts=prompts).x[:, :-1], float)
    largest = np.linalg.eigvalsh(np.einsum("pid,pie->pde", x, x))[:, -1]
    return largest <= np.quantile(largest, ORDINARY)


def ratio(terms: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    r"""Loss divided by a reference's loss on the same prompts, and its paired standard error.

    .. math:: r = \bar a/\bar b, \qquad \mathrm{SE}(r) = \mathrm{SE}(\overline{a - rb})/\bar b
    """
    value = terms.mean() / reference.mean()
    error = (terms - value * reference).std(ddof=1) / np.sqrt(len(terms)) / reference.mean()
    return float(value), float(error)


def heaviest(terms: np.ndarray) -> float:
    """Fraction of a loss in its ten largest terms."""
    return float(heaviest_share(terms))


def as_step(model: LinearAttention) -> tuple[np.ndarray, float]:
    r"""Matrix A of the step that one layer computes, and the size of entries that are zero for any such step.

    .. math:: A = -c\,Q_{11}^\top, \qquad \max\big(|u|/|c|,\; |q_{21}|/\|Q_{11}\|_F\big)

    with the last row :math:`(u^\top, c)` of P and the first d columns :math:`(Q_{11}; q_{21}^\top)` of Q: both numbers
    are the same in every gauge.
    """
    p, q, d = np.asarray(model.p[0], float), np.asarray(model.q[0], float), model.dim
    matrix = -p[d, d] * q[:d, :d].T
    excess = max(np.linalg.norm(p[d, :d]) / abs(p[d, d]), np.linalg.norm(q[d, :d]) / np.linalg.norm(q[:d, :d]))
    return matrix, float(excess)


def step_models(
    rates: np.ndarray, contractions: np.ndarray | None = None, *, dim: int
) -> tuple[algorithms.GradientDescentPlusPlus, LinearAttention]:
    """GD++ with a scalar rate and contraction for each step, and the attention that computes it."""
    b = np.zeros_like(rates) if contractions is None else contractions
    numbers, shape = jnp.asarray([rates, b], jnp.float32), {"layers": len(rates), "dim": dim}
    algorithm = algorithms.GradientDescentPlusPlus.scalar(*numbers, **shape, normalised=True, half=True)
    attention = constructions.gradient_descent(algorithm, answers="last", form="gram")
    assert isinstance(attention, LinearAttention)
    return algorithm, attention


def blocks(model: LinearAttention) -> tuple[np.ndarray, np.ndarray]:
    """Matrices A and B of every layer of a network with block structure, each [layer, dim, dim]."""
    d = model.dim
    p, q = np.asarray(model.p, float), np.asarray(model.q, float)
    return -np.swapaxes(q[:, :d, :d], 1, 2), p[:, :d, :d]
