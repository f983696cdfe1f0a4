"""Any regressor with ``fit`` and ``predict`` as a predictor: fitted anew to every prefix of the prompt."""

from numbers import Integral, Real
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.core.errors import EnvironmentFault, expected, install_command
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor


class FittedEstimator(AbstractPredictor):
    """Result of :func:`from_sklearn`. The estimator stays unfitted: every position has a clone."""

    traceable = False
    differentiable = False
    estimator: Any = eqx.field(static=True)
    positions: Literal["every", "last"] = eqx.field(static=True)  # pyright: ignore[reportIncompatibleVariableOverride]
    fewest: int = eqx.field(static=True)
    otherwise: float = eqx.field(static=True)

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " answered"]:
        """The predictions, one fit for each position answered."""
        x, y = np.asarray(prompt.x), np.asarray(prompt.y)
        positions = range(prompt.positions) if self.positions == "every" else [prompt.length]
        return jnp.asarray([self._answer(x[: i + 1], y[:i]) for i in positions], prompt.y.dtype)

    def _answer(self, x: np.ndarray, y: np.ndarray) -> float:
        from sklearn.base import clone

        if len(y) < self.fewest:
            return self.otherwise
        try:
            copy: Any = clone(self.estimator, safe=False)
            answer = copy.fit(x[:-1], y).predict(x[-1:])
        except ValueError as reason:
            name, why = type(self.estimator).__name__, str(reason).partition("\n")[0]
            hint = f"it says {why!r}; fewest=... leaves out positions that have seen less"
            raise expected("estimator", f"one that fits {len(y)} real-valued examples", name, hint) from reason
        return float(np.asarray(answer).reshape(()))


def from_sklearn(
    estimator: Any, *, positions: Literal["every", "last"] = "every", fewest: int = 1, otherwise: float = 0.0
) -> FittedEstimator:
    """A predictor that fits a clone of ``estimator`` to the examples before each position, and asks it the query.

    For k nearest neighbours, trees, kernel machines or a pipeline, on regression prompts. It runs on the host, prompt
    by prompt, and costs one fit for each position.

    Args:
        estimator: Any object with ``fit(x, y)``, which returns it, and ``predict(x)``. One that draws random
            numbers needs a fixed ``random_state``, else its answers differ from call to call.
        positions: ``"every"``; or ``"last"``, one fit for a prompt where every position is too slow.
        fewest: How many examples the estimator needs: ``KNeighborsRegressor(5)`` needs 5.
        otherwise: The answer at positions that have seen fewer, position 0 among them.

    Raises:
        InputError: No ``fit`` or ``predict``, or, when called, the estimator refuses the examples.
        EnvironmentFault: scikit-learn is not installed.
    """
    try:
        import sklearn.base  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise EnvironmentFault(f"from_sklearn: expected scikit-learn, got none; {install_command('tables')}") from None
    lacking = [name for name in ("fit", "predict") if not callable(getattr(estimator, name, None))]
    if lacking or isinstance(estimator, type):
        came = estimator.__name__ if isinstance(estimator, type) else type(estimator).__name__
        hint = "call it: from_sklearn(Ridge())" if isinstance(estimator, type) else f"it has no {lacking[0]}"
        raise expected("estimator", "an object with fit and predict", came, hint)
    if positions not in ("every", "last"):
        raise expected("positions", "'every' or 'last'", positions)
    if isinstance(fewest, bool) or not isinstance(fewest, Integral) or fewest < 1:
        raise expected("fewest", "an integer of at least 1: no estimator fits no examples", fewest)
    if isinstance(otherwise, bool) or not isinstance(otherwise, Real):
        raise expected("otherwise", "a number", otherwise)
    return FittedEstimator(estimator=estimator, positions=positions, fewest=fewest, otherwise=otherwise)
