"""Start, training and errors of attention with trained step sizes and a trained temperature."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics.identification.candidates import FittedParameters, fit_candidate
from icllab.models import ScalarAttention


def initial_attention(
    weighting: str, *, layers: int, train_temperature: bool, prompts: RegressionPrompt
) -> ScalarAttention:
    """Attention before training: rates from one to ten over the largest eigenvalue of its kernel.

    Equal rates would stay equal: if the temperature is one, the answer is symmetric in them.
    """
    rates = jnp.asarray(np.geomspace(1.0, 10.0, layers), prompts.x.dtype)
    model = ScalarAttention.from_rates(weighting, rates, temperature=1.0 if train_temperature else None)
    patterns = np.asarray(_patterns(model, prompts.x[:32]), float)
    largest = np.mean([np.abs(np.linalg.eigvals(matrix[:-1, :-1])).max() for matrix in patterns])
    return eqx.tree_at(lambda m: m.unit, model, jnp.asarray(1 / largest, prompts.x.dtype))


def fit_steps(start: ScalarAttention, prompts: RegressionPrompt) -> ScalarAttention:
    """Minimise the squared error at the last position over the rates, and over the temperature if it is used.

    By Gauss and Newton's method from three starts; rates stay positive.
    """
    paths = ["rates", "log_temperature"] if float(start.uses_temperature) else ["rates"]
    position = prompts.x.shape[1] - 1
    targets = np.asarray(prompts.y[:, -1:], float)
    model: Any = fit_candidate(
        start, FittedParameters.from_paths("attention", start, paths), prompts, targets, (position,)
    )
    return model


@eqx.filter_jit
def squared_errors(predictor: Any, prompts: RegressionPrompt) -> Float[Array, " prompt"]:
    """Squared error of the last answer to each prompt."""
    return jax.lax.map(lambda prompt: (predictor(prompt)[-1] - prompt.y[-1]) ** 2, prompts, batch_size=256)


@eqx.filter_jit
def _patterns(
    model: ScalarAttention, inputs: Float[Array, "prompt position dim"]
) -> Float[Array, "prompt position position"]:
    return jax.vmap(model.pattern)(inputs)
