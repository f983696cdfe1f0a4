"""Nearest neighbours, and any estimator with ``fit`` and ``predict``, fitted anew to every prefix of the prompt."""

from numbers import Integral, Real
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.algorithms.least_squares import require_regression
from icllab.core.errors import EnvironmentFault, expected, install_command, require_integer, require_known
from icllab.core.prompt import ItemLabelPrompt, RegressionPrompt
from icllab.core.protocols import AbstractPredictor


class NearestNeighbours(AbstractPredictor):
    r"""The mean label of the k examples nearest to the query; of all examples if there are fewer, 0 if there are none.

    .. math:: \hat y_i = \sum_{j \in N_i} \omega_j y_j \Big/ \sum_{j \in N_i} \omega_j, \qquad
              |N_i| = \min(i, k), \qquad \omega_j = 1 \;\text{ or }\; |x_j - x_i|^{-1}

    Where weighted examples have the query's own input, they alone are averaged. Of equal distances the earlier example
    is nearer. The paper's figures divide squared errors by d, of sparse tasks by nonzero coordinates, of trees by 1.

    Attributes:
        neighbours: k (static); Garg et al. have 3.
        weighting: ``"uniform"`` or ``"distance"``, one over the Euclidean distance (static).

    Source: [Garg22].
    """

    differentiable = False  # in inputs an answer is constant but for jumps
    neighbours: int = eqx.field(static=True, default=3)
    weighting: Literal["uniform", "distance"] = eqx.field(static=True, default="uniform", kw_only=True)

    def __check_init__(self) -> None:
        require_integer("neighbours", self.neighbours)
        require_known("weighting", self.weighting, ("uniform", "distance"))

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " position"]:
        """The mean at every position."""
        require_regression(prompt)
        x, y = prompt.x, prompt.y
        distances = jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, axis=2))
        distances = jnp.where(jnp.tri(len(y), k=-1, dtype=bool), distances, jnp.inf)
        nearest, places = jax.lax.top_k(-distances, min(self.neighbours, len(y)))
        weights = (nearest > -jnp.inf).astype(x.dtype)
        if self.weighting == "distance":
            equal = (nearest == 0).astype(x.dtype)
            weights = jnp.where(jnp.any(nearest == 0, axis=1, keepdims=True), equal, weights / (equal - nearest))
        return jnp.sum(weights * y[places], axis=1) / jnp.maximum(jnp.sum(weights, axis=1), jnp.finfo(x.dtype).tiny)


class FromSklearn(AbstractPredictor):
    r"""A predictor that fits a clone of an estimator to the examples before each position and applies it to the query.

    For trees, kernel machines, XGBoost or a pipeline. It runs on the host, prompt by prompt, and costs one
    fit for each position. A regressor answers regression prompts with a number. With ``classes`` a classifier answers
    item-label prompts, and regression prompts with integer targets, with log-probabilities of the labels from 0. They
    are mixed with the uniform distribution, which has the weight of one example,

    .. math:: \ln \frac{n\,p_c + 1/C}{n + 1}

    after n examples, so that a label that is not in the context has a finite loss.

    Attributes:
        estimator: Any object with ``fit(x, y)``, which returns it, and ``predict(x)``; a classifier has
            ``predict_proba(x)`` and ``classes_``. One that draws random numbers needs a fixed ``random_state``, else
            its answers differ from call to call. It stays unfitted.
        positions: ``"every"``; or ``"last"``, one fit for a prompt where every position is too slow.
        fewest: How many examples the estimator needs: ``KNeighborsRegressor(5)`` needs 5.
        otherwise: The number that a regressor answers at positions that have seen fewer, position 0 among them. A
            classifier answers :math:`-\ln C` for each label.
        classes: Number C of labels of a classifier; None for a regressor.

    Raises:
        InputError: There is no ``fit`` or ``predict``; or, when called, the estimator refuses the examples.
        EnvironmentFault: scikit-learn is not installed.
    """

    traceable = False
    differentiable = False
    estimator: Any = eqx.field(static=True)
    positions: Literal["every", "last"] = eqx.field(static=True, default="every", kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]
    fewest: int = eqx.field(static=True, default=1, kw_only=True)
    otherwise: float = eqx.field(static=True, default=0.0, kw_only=True)
    classes: int | None = eqx.field(static=True, default=None, kw_only=True)

    def __check_init__(self) -> None:
        try:
            import sklearn.base  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError:
            message = f"FromSklearn: expected scikit-learn, got none; {install_command('tables')}"
            raise EnvironmentFault(message) from None
        methods = ("fit", "predict" if self.classes is None else "predict_proba")
        lacking = [name for name in methods if not callable(getattr(self.estimator, name, None))]
        if lacking or isinstance(self.estimator, type):
            is_class = isinstance(self.estimator, type)
            actual = self.estimator.__name__ if is_class else type(self.estimator).__name__
            hint = "call it: FromSklearn(Ridge())" if is_class else f"it has no {lacking[0]}"
            raise expected("estimator", f"an object with {methods[0]} and {methods[1]}", actual, hint)
        if self.positions not in ("every", "last"):
            raise expected("positions", "'every' or 'last'", self.positions)
        if isinstance(self.fewest, bool) or not isinstance(self.fewest, Integral) or self.fewest < 1:
            raise expected("fewest", "an integer of at least 1, because an estimator needs an example", self.fewest)
        if isinstance(self.otherwise, bool) or not isinstance(self.otherwise, Real):
            raise expected("otherwise", "a number", self.otherwise)
        if self.classes is not None:
            require_integer("classes", self.classes, least=2)

    def __call__(self, prompt: RegressionPrompt | ItemLabelPrompt) -> Float[Array, "answered *class"]:
        """The predictions, with one fit for each position answered."""
        of_items = isinstance(prompt, ItemLabelPrompt)
        if of_items and self.classes is None:
            raise expected("classes", "the number of labels, for item-label prompts", None)
        inputs, targets = (prompt.items, prompt.labels) if of_items else (prompt.x, prompt.y)
        x, y = np.asarray(inputs), np.asarray(targets)
        positions = range(prompt.positions) if self.positions == "every" else [prompt.length]
        answer = self._number if self.classes is None else self._log_probabilities
        return jnp.asarray([answer(x[: i + 1], y[:i]) for i in positions], inputs.dtype)

    def _number(self, x: np.ndarray, y: np.ndarray) -> float:
        if len(y) < self.fewest:
            return self.otherwise
        return float(np.asarray(self._fitted(x, y, "predict")[1]).reshape(()))

    def _log_probabilities(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        count: Any = self.classes
        labels, probabilities = np.unique(y.astype(int)), np.zeros(count)
        if len(y) and not (np.array_equal(labels, np.unique(y)) and labels[0] >= 0 and labels[-1] < count):
            raise expected("prompt", f"labels from 0 to {count - 1}", np.unique(y).tolist())
        if len(y) < self.fewest:
            return np.full(count, -np.log(count))
        if len(labels) == 1:  # many classifiers refuse a single class
            probabilities[labels] = 1.0
        else:
            estimator, answer = self._fitted(x, y.astype(int), "predict_proba")
            probabilities[estimator.classes_] = answer[0]
        return np.log((len(y) * probabilities + 1 / count) / (len(y) + 1))

    def _fitted(self, x: np.ndarray, y: np.ndarray, method: str) -> tuple[Any, Any]:
        """Fit a clone to the examples, and return it with its answer to the query, the last row of ``x``."""
        from sklearn.base import clone

        try:
            copy: Any = clone(self.estimator, safe=False)
            fitted = copy.fit(x[:-1], y)
            return fitted, getattr(fitted, method)(x[-1:])
        except ValueError as reason:
            name, why = type(self.estimator).__name__, str(reason).partition("\n")[0]
            hint = f"its error is {why!r}; fewest=... leaves out positions with fewer examples"
            kind = "real-valued examples" if self.classes is None else "labelled examples"
            raise expected("estimator", f"an estimator that fits {len(y)} {kind}", name, hint) from reason
