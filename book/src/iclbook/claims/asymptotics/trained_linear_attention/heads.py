"""Ways of training a head of linear attention on fixed contexts, and its exact minimum on these contexts."""

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from icllab.core.prompt import RegressionPrompt
from icllab.models import LinearAttention, ReducedLinearAttention, reduced
from icllab.models.reduced.samples import Samples
from icllab.tasks import LinearRegression
from icllab.tasks.attention_features import features
from icllab.training import Record, Sweep

DECADES = 8  # natural logarithms by which gradient descent shrinks its slowest part
MOST = 1_000_000  # steps of it


class Contexts(NamedTuple):
    """One training set, and the task that it was drawn from."""

    task: Any
    x: Any  # queries [n, d]
    h: Any  # features [n, d + 1]
    y: Any  # labels [n]
    prompts: Any  # what models are trained on

    @classmethod
    def sample(cls, point: SimpleNamespace, of_pool: Any, of_contexts: Any, *, single: bool) -> "Contexts":
        """Sample ``tau d(d+1)`` contexts of a pool of tasks; ``single``: training sees contexts of one example."""
        task = LinearRegression.from_scaling(
            dim=point.dim, alpha=point.alpha, kappa=point.kappa, rho=point.rho, key=of_pool
        )
        count = reduced.prompts_at(point.tau, point.dim, per="d(d+1)")
        prompts, h = _prompts(task, jax.random.split(of_contexts, count))
        x, y = prompts.x[:, -1], prompts.y[:, -1]
        return cls(task, x, h, y, jax.vmap(one_example)(x, h, y) if single else prompts)

    def exact(self, ridges: Sequence[float]) -> list[ReducedLinearAttention]:
        """The minimum for every ridge, with the least norm if there are many, by a dense solve on the smaller side."""
        samples = Samples.from_rows(self.x, self.h, self.y)
        solver = "dual_cholesky" if len(self.y) < self.x.shape[1] * self.h.shape[1] else "primal_cholesky"
        return [
            reduced.fit_features(self.task, samples, ridge=ridge, precision="float64", solver=solver)
            for ridge in ridges
        ]

    def curvatures(self) -> tuple[float, float]:
        """Largest and smallest second derivative of the mean squared error, within the span of the contexts."""
        x, h = np.asarray(self.x), np.asarray(self.h)
        kernel = (x @ x.T) * (h @ h.T)
        if len(x) > x.shape[1] * h.shape[1]:
            z = np.einsum("ni,nj->nij", x, h).reshape(len(x), -1)
            kernel = z.T @ z
        values = np.linalg.eigvalsh(kernel)
        return 2 * float(values[-1]) / len(x), 2 * float(values[0]) / len(x)

    def compare(self, model: Any, exact: ReducedLinearAttention) -> dict[str, float]:
        """Errors of a trained model on fresh tasks and its contexts, and its matrix's distance from the exact one."""
        gamma = np.asarray(model.gamma) if isinstance(model, ReducedLinearAttention) else _matrix(model)
        target, x, h, y = (np.asarray(part) for part in (exact.gamma, self.x, self.h, self.y))
        residuals = np.sum((x @ gamma) * h, axis=1) - y
        return {
            "icl_error": eqx.tree_at(lambda m: m.gamma, exact, jnp.asarray(gamma)).icl_error(),
            "gamma_distance": float(np.linalg.norm(gamma - target) / np.linalg.norm(target)),
            "gamma_norm": float(np.linalg.norm(gamma) / np.linalg.norm(target)),
            "training_error": float(np.mean(residuals**2) / np.mean(y**2)),
        }

    def fit(
        self, model: Any, *, steps: int, optimizer: Any, key: Any, values: Any = None, trainable: Any = None
    ) -> list[Any]:
        """Train a model to answer the queries, on all contexts at every step; one model for each swept value."""
        run = icl.fit(
            model,
            self.task,
            steps=steps,
            key=key,
            batch=None,
            data=self.prompts,
            positions="last",
            optimizer=optimizer,
            trainable=trainable,
            sweep=Sweep(values or {}, mode="map"),
            record=Record([0], progress=False),
        )
        return [run.member(i) for i in range(run.size)]


def by_descent(point: SimpleNamespace, contexts: Contexts, begin: Any, key: Any) -> list[Any]:
    """Train the matrix by gradient descent for every ridge, at a rate and for a time set by its curvatures."""
    decays = _decays(point)
    largest, smallest = contexts.curvatures()
    rate = 1 / (largest + max(decays))
    # Rounded up, so that few numbers of steps occur.
    steps = min(MOST, 500 * int(np.ceil(DECADES / (rate * smallest) / 500)))
    values = {"optimizer.learning_rate": [rate], "optimizer.weight_decay": decays}
    return contexts.fit(begin, steps=steps, optimizer=_descent, key=key, values=values, trainable=_gamma)


def by_adam(point: SimpleNamespace, contexts: Contexts, begin: Any, key: Any) -> list[Any]:
    """Train the matrix by Adam with a decaying rate, for every ridge."""
    values, optimizer = (
        {"optimizer.rate": [point.adam_rate], "optimizer.weight_decay": _decays(point)},
        _adam(point.steps),
    )
    return contexts.fit(begin, steps=point.steps, optimizer=optimizer, key=key, values=values, trainable=_gamma)


def as_a_layer(point: SimpleNamespace, contexts: Contexts, key: Any, *, free: bool) -> list[Any]:
    """Train the factors of the full layer by Adam; None for every nonzero ridge, because the factors have none.

    Its v21 stays zero unless it is ``free``.
    """
    layer = LinearAttention.lu(dim=point.dim, std=point.layer_std, key=key)
    layer = layer if free else _without_v21(layer)
    optimizer = _of_layer(point.steps, point.layer_rate, free)
    (trained_layer,) = contexts.fit(layer, steps=point.steps, optimizer=optimizer, key=key)
    return [trained_layer if ridge == 0 else None for ridge in point.ridge]


def _gamma(head: ReducedLinearAttention) -> Any:
    return head.gamma


def one_example(query: Any, features: Any, label: Any) -> RegressionPrompt:
    r"""A context of a single example with the same features as a longer one, and its query.

    .. math:: y_1 = \sqrt{h_2}, \qquad x_1 = h_1 / (d\, y_1)

    A head depends on a context through its features alone, and learns the same from this one.
    """
    y = jnp.sqrt(features[-1])
    x = features[:-1] / (query.shape[0] * y)
    return RegressionPrompt(x=jnp.stack([x, query]), y=jnp.stack([y, label]))


def _decays(point: SimpleNamespace) -> list[float]:
    """Weight decay for each ridge: the gradient of the penalty divided by the matrix."""
    return [2 * ridge / point.dim for ridge in point.ridge]


def _matrix(layer: Any) -> np.ndarray:
    """Gamma of a layer as if v21 were zero."""
    return np.asarray(_without_v21(layer).gamma())


def _without_v21(layer: Any) -> Any:
    """Set the v21 part of a layer's values, or of updates of a layer, to zero."""
    return eqx.tree_at(lambda m: m.p, layer, layer.p.at[:, -1, :-1].set(0.0))


# Compiled programs are cached by function and optimiser: one object each for all cells.


@jax.jit
def _prompts(task: Any, keys: Any) -> tuple[Any, Any]:
    prompts = jax.vmap(lambda k: task.sample(key=k))(keys)
    return prompts, jax.vmap(features)(prompts.x[:, :-1], prompts.y[:, :-1])


def _descent(learning_rate: Any, weight_decay: Any) -> Any:
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.sgd(learning_rate))


@functools.cache
def _adam(steps: int) -> Any:
    def adam(rate: Any, weight_decay: Any) -> Any:
        schedule = optax.cosine_decay_schedule(rate, steps)
        return optax.chain(optax.add_decayed_weights(weight_decay), optax.adam(schedule))

    return adam


@functools.cache
def _of_layer(steps: int, rate: float, free: bool) -> Any:
    mask = optax.stateless(lambda updates, _: updates if free else _without_v21(updates))
    return optax.chain(mask, optax.adam(optax.cosine_decay_schedule(rate, steps)))
