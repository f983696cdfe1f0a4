r"""The loss as a function of how many examples have been seen."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Key, PRNGKeyArray

from icllab.core.errors import expected
from icllab.core.protocols import AbstractTask, Predictor, declared


def per_length(
    predictors: Mapping[str, Predictor], task: AbstractTask, *, key: PRNGKeyArray, prompts: int = 1024, block: int = 256
) -> xr.Dataset:
    r"""Mean loss of each predictor after 0, 1, ..., ℓ examples, with its standard error.

    .. math:: L^{(i)} = E\, \mathrm{loss}\big(T(x_1, y_1, \dots, x_i, y_i, x_{i+1}),\; y_{i+1}\big)

    All predictors answer the same prompts, so that differences between them have smaller errors than
    the errors shown.

    Args:
        predictors: name -> any ``predictor(prompt) -> prediction``. One that answers the last position
            only has NaN elsewhere; one that is not ``traceable`` is called prompt by prompt.
        task: Samples the prompts and owns the loss.
        key: Of the prompts.
        prompts: How many; at least 2.
        block: How many are held in memory at once.

    Returns:
        ``loss`` and ``standard_error`` over ``(predictor, position)``.

    Derived: docs/asymptotics.md, From prompts to a loss per length.
    """
    if prompts < 2:
        raise expected("prompts", "an integer of at least 2, for a standard error", prompts)
    if not predictors:
        raise expected("predictors", "at least one, by name", dict(predictors))
    keys = jax.random.split(key, prompts)
    positions = jax.eval_shape(lambda k: task.sample(key=k), keys[0]).positions
    mean, error = np.full((2, len(predictors), positions), np.nan)
    for row, predictor in enumerate(predictors.values()):
        losses = np.asarray(_losses(predictor, task, keys, block), dtype=float)
        answered = losses.shape[1]  # every position, or the last: the task's loss has refused all else
        mean[row, -answered:] = losses.mean(0)
        error[row, -answered:] = losses.std(0, ddof=1) / np.sqrt(prompts)
    return xr.Dataset(
        {"loss": (("predictor", "position"), mean), "standard_error": (("predictor", "position"), error)},
        coords={"predictor": list(predictors), "position": np.arange(positions)},
        attrs={"prompts": prompts},
    )


def _losses(
    predictor: Predictor, task: AbstractTask, keys: Key[Array, " prompt"], block: int
) -> Float[Array, "prompt answered"]:
    def one(key: PRNGKeyArray) -> Float[Array, " answered"]:
        prompt = task.sample(key=key)
        return task.loss(predictor(prompt), prompt)

    if declared(predictor, "traceable"):
        return jax.jit(lambda: jax.lax.map(one, keys, batch_size=block))()
    return jnp.stack([one(key) for key in keys])
