"""Induction heads of matrices with and without each factor, tested as they train."""

import functools
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from iclbook.claims.induction import _accuracy, _networks
from iclbook.claims.induction._matrix_head import MatrixHead, SquaredError, multiplied
from icllab.core.grid import tabulated
from icllab.core.protocols import AbstractPredictor
from icllab.training import Record, TargetLoss, Until

VERSION = 2

FASTER = 2.0  # the rate of squared errors, and that of weights, over those of cross-entropies and of products
DONE, MEMORY = 0.2, 50.0  # of the loss of guessing, averaged over so many steps, where training ends


def measure(point, *, key, given=False, slower=""):
    """Losses and shares of attention of every seed, which has prompts, tests and a start of its own for all kinds.

    ``given``: both attention patterns are those of a formed head. ``slower``: the factor, ``strengths`` or
    ``objective``, in whose place stands its lack at half the rate.
    """

    def losses(seed, attention, objective, strengths):
        of_task, of_head, of_prompts, of_tests = jax.random.split(jax.random.fold_in(key, seed), 4)
        task = _networks.task(key=of_task, labels=point.label_count, pairs=point.pairs, dim=point.dim)
        is_squared, products = objective == "squared error", strengths == "products"
        factors = 2 if products and slower != "strengths" else 1
        head = MatrixHead.init(task, attention=attention, factors=factors, scale=point.scale, key=of_head)
        is_replaced = slower == "objective" and not is_squared
        guesses = np.log(point.pairs), (1 - 1 / point.pairs) / 2
        guess, scale = guesses[is_squared or is_replaced], guesses[0] / guesses[1] if is_replaced else 1.0
        held_out = task.sample_many(point.prompts, key=of_tests)
        run = icl.fit(
            Formed(head) if given else head,
            SquaredError(task) if is_squared or is_replaced else task,
            steps=Until(max(point.step), TargetLoss(DONE * guess, memory=MEMORY)),
            key=of_prompts,
            batch=point.batch,
            optimizer=descent(),
            sweep={"optimizer.rate": [point.rate * (FASTER if is_squared else 1.0) * (1.0 if products else FASTER)]},
            record=Record(point.step, held_out=held_out, keep=point.step, progress=False),
        )
        run_losses = run.dataset["held_out_loss"].isel(member=0, position=-1)
        curves = {"label_loss": scale * run_losses.reindex(step=list(point.step)).values}
        curves["right_share"] = np.ones(len(point.step)) if given else shares(run, point.step, held_out)
        return {name: (("step",), values) for name, values in curves.items()}

    return tabulated(
        losses, seed=point.seed, attention=point.attention, objective=point.objective, strengths=point.strengths
    )


def shares(run: Any, steps: Any, batch: Any) -> np.ndarray:
    """Share of the attention to labels that goes to the right one, a ratio of means over prompts, at every step."""
    values = np.asarray(_shares(*_accuracy.stack(_accuracy.stages(run, steps)), batch))
    return values.astype(np.float16).astype(float)  # three digits: a record holds many curves


@eqx.filter_jit
def _shares(params: Any, static: Any, batch: Any) -> Any:
    def at(step: Any) -> Any:
        head = eqx.combine(step, static)

        def attention(prompt: Any) -> Any:
            labels = head.pattern(prompt)[0, 1::2]
            return labels @ prompt.matches.astype(labels.dtype), jnp.sum(labels)

        right, every = jax.vmap(attention)(batch)
        return jnp.mean(right) / jnp.mean(every)

    return jax.lax.map(at, params)


class Formed(AbstractPredictor):
    """The readout alone: it is given the label that a formed head finds."""

    head: MatrixHead
    positions: ClassVar[Literal["every", "last"]] = "last"

    def __call__(self, prompt: Any) -> Any:
        """The logits of the query's label."""
        match = prompt.matches.astype(prompt.label_vectors.dtype)
        return match[None] @ prompt.label_vectors @ multiplied(self.head.readout)


@functools.cache
def descent() -> Any:
    """SGD as a factory over its learning rate. One object for all cells."""
    return lambda rate: optax.sgd(rate)
