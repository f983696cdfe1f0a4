"""The diabetes table, and scikit-learn's predictors fitted to its prompts."""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from icllab.core.errors import EnvironmentFault, install_command

if TYPE_CHECKING:
    from icllab.core.prompt import RegressionPrompt
    from icllab.tasks import Table

Losses: TypeAlias = Any  # an array, or one with named axes
FITTED = ("5 neighbours", "forest", "ridge by CV")
RESOLVED = 0.25 / 5930  # half a unit of the target of the diabetes table, squared, over its variance


def diabetes() -> Any:
    """The diabetes table of Efron et al., in its own units: ``data``, ``target`` and ``feature_names``.

    Raises:
        EnvironmentFault: scikit-learn, which ships it, is not installed.
    """
    try:
        from sklearn.datasets import load_diabetes
    except ImportError:
        hint = install_command("tables")
        raise EnvironmentFault(f"the diabetes table: expected scikit-learn, which ships it, got none; {hint}") from None
    return load_diabetes(scaled=False)


def fitted_losses(name: str, prompts: "RegressionPrompt", length: int, table: "Table") -> list[float]:
    """Loss of an estimator of ``FITTED`` on row ``length`` of every prompt, fitted to the rows before it."""
    import jax.numpy as jnp
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from icllab.algorithms import FromSklearn
    from icllab.core.prompt import RegressionPrompt

    estimator = {
        "5 neighbours": make_pipeline(StandardScaler(), KNeighborsRegressor(5, algorithm="kd_tree")),
        "forest": RandomForestRegressor(20, random_state=0),
        "ridge by CV": make_pipeline(StandardScaler(), RidgeCV(np.logspace(-1, 3, 9))),
    }[name]
    predictor = FromSklearn(estimator, positions="last")
    losses = []
    for x, y in zip(np.asarray(prompts.x), np.asarray(prompts.y), strict=True):
        prompt = RegressionPrompt(x=jnp.asarray(x[: length + 1]), y=jnp.asarray(y[: length + 1]))
        losses.append(float(table.loss(predictor(prompt), prompt)[0]))
    return losses


def floored(losses: Losses) -> Losses:
    """Losses, replaced by at least the loss of half a unit of the target, which is an integer."""
    return np.maximum(losses, RESOLVED)


def log_losses(losses: Losses) -> Losses:
    """Logarithms of floored losses, because a mean of integers can be exactly right."""
    return np.log(floored(losses))
