r"""Distances of a model of tokens to candidates: divergences of the distributions of the next token.

.. math:: \delta_k = \frac{E\,\mathrm{KL}(p_f \Vert p_k)}{E\,\mathrm{KL}(p_f \Vert \bar p)}, \qquad \bar p = E\,p_f

with the model's distribution :math:`p_f` and that of a candidate. The baseline is the best answer that does not depend
on the prompt: of all q, :math:`\bar p` minimises :math:`E\,\mathrm{KL}(p_f \Vert q)`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icllab.core.errors import expected
from icllab.core.protocols import AbstractPredictor, AbstractTask, Predictor, declared
from icllab.diagnostics.behaviour.answers import Question, answers_to
from icllab.diagnostics.identification.verdicts import Evidence


class TokenDistances(NamedTuple):
    """Divergences of a network from candidates and from the baseline, and its mean divergence from uniform."""

    evidence: Evidence
    from_uniform: float


class _Compared(AbstractPredictor):
    """A network and its candidates."""

    network: Any
    candidates: tuple[Any, ...]
    baseline: Float[Array, " token"]  # logarithms of probabilities

    @property
    def traceable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return declared(self.network, "traceable")

    def __call__(self, prompt: Any) -> Array:
        return self.network(prompt)


class _Divergences(Question):
    positions: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, predictor: Any, task: AbstractTask, prompt: Any) -> Float[Array, " answer"]:
        """Means over positions: from the baseline, from uniform, from every candidate, and between candidates."""
        network, *others = (_logs(p, prompt, self.positions) for p in (predictor.network, *predictor.candidates))
        baseline = jnp.broadcast_to(predictor.baseline, network.shape)
        pairs = [(network, baseline), (network, jnp.full_like(network, -np.log(network.shape[1])))]
        pairs += [(network, other) for other in others] + [(a, b) for a in others for b in others]
        return jnp.stack([_divergence(a, b) for a, b in pairs])


class _Mean(Question):
    positions: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, predictor: Any, task: AbstractTask, prompt: Any) -> Float[Array, " token"]:
        """The distribution of the next token, averaged over positions."""
        return jnp.mean(jnp.exp(_logs(predictor, prompt, self.positions)), axis=0)


def require_traceable(candidates: dict[str, Predictor]) -> None:
    """Raise for a candidate that JAX cannot trace."""
    for name, candidate in candidates.items():
        if not declared(candidate, "traceable"):
            raise expected("rivals", "candidates of JAX, for prompts of token ids", name, "write it with jax.numpy")


def token_distances(
    network: Predictor,
    candidates: Sequence[Predictor],
    task: AbstractTask,
    prompts: Any,
    positions: tuple[int, ...],
    *,
    to_fit: tuple[Any, tuple[int, ...]],
    block: int,
) -> TokenDistances:
    """Distances on stacked prompts; the baseline is the mean of the network on prompts and positions ``to_fit``.

    A block of prompts has the logits of all predictors in memory.
    """
    share = np.maximum(answers_to(_Mean(to_fit[1]), network, task, to_fit[0], block=block).mean(0), 1e-30)
    compared = _Compared(network, tuple(candidates), jnp.asarray(np.log(share), float))
    values = answers_to(_Divergences(positions), compared, task, prompts, block=block)
    count = len(candidates)
    mutual = values[:, 2 + count :].mean(0).reshape(count, count)
    missing = np.full((len(values), count), np.nan)
    evidence = Evidence(
        answers=values[:, 2 : 2 + count],
        answers_scale=values[:, 0],
        gradients=missing,
        gradients_scale=missing[:, 0],
        mutual_answers=(mutual + mutual.T) / 2,
        mutual_gradients=np.full((count, count), np.nan),
    )
    return TokenDistances(evidence, float(values[:, 1].mean()))


def _logs(predictor: Predictor, prompt: Any, positions: tuple[int, ...]) -> Float[Array, "position token"]:
    logits = predictor(prompt)
    first = prompt.positions - logits.shape[0]  # of the positions that are answered
    return jax.nn.log_softmax(logits[jnp.asarray([i - first for i in positions])])


def _divergence(left: Array, right: Array) -> Float[Array, ""]:
    """Mean KL(p, q) over positions, with 0 log 0 = 0."""
    terms = jnp.where(left > -jnp.inf, jnp.exp(left) * (left - right), 0)
    return jnp.mean(jnp.sum(terms, axis=1))
