"""How attention with trained step sizes and a trained temperature is started, trained and judged."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics.identification.candidates import FittedParameters, fit_candidate
from icllab.models import ScalarAttention


def started(weighting: str, *, layers: int, train_temperature: bool, prompts: RegressionPrompt) -> ScalarAttention:
    """Where the training of one weighting starts: rates from one over its largest eigenvalue to ten times that.

    Equal rates would stay equal: the answer does not change when two of them are exchanged, if the temperature is one.
    """
    rates = jnp.asarray(np.geomspace(1.0, 10.0, layers), prompts.x.dtype)
    model = ScalarAttention.of(weighting, rates, temperature=1.0 if train_temperature else None)
    few = np.asarray(_patterns(model, prompts.x[:32]), float)
    largest = np.mean([np.abs(np.linalg.eigvals(matrix[:-1, :-1])).max() for matrix in few])
    return eqx.tree_at(lambda m: m.unit, model, jnp.asarray(1 / largest, prompts.x.dtype))


def trained(start: ScalarAttention, prompts: RegressionPrompt) -> ScalarAttention:
    """The rates, and the temperature where it is used, of least squared error at the last position of the prompts.

    Found by Gauss and Newton's method from three starts; rates stay positive.
    """
    paths = ["rates", "log_temperature"] if float(start.uses_temperature) else ["rates"]
    position = prompts.x.shape[1] - 1
    targets = np.asarray(prompts.y[:, -1:], float)
    found: Any = fit_candidate(
        start, FittedParameters.from_paths("attention", start, paths), prompts, targets, (position,)
    )
    return found


@eqx.filter_jit
def squared_errors(predictor: Any, prompts: RegressionPrompt) -> Float[Array, " prompt"]:
    """The squared error of the last answer to each prompt."""
    return jax.lax.map(lambda prompt: (predictor(prompt)[-1] - prompt.y[-1]) ** 2, prompts, batch_size=256)


@eqx.filter_jit
def _patterns(
    model: ScalarAttention, inputs: Float[Array, "prompt position dim"]
) -> Float[Array, "prompt position position"]:
    return jax.vmap(model.pattern)(inputs)
