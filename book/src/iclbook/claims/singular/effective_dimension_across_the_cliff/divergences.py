"""Answers as functions of strengths or weights, their divergence from a reference, and its curvature."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from icllab.models.induction.minimal_head import MinimalHead


class Landscape(eqx.Module):
    """Log-probabilities of labels in the landscape, [1, label]: first the target, then the context's other labels."""

    pairs: int = eqx.field(static=True)
    labels: int = eqx.field(static=True)

    def __call__(self, w):
        """The log-probabilities, with the query's attention over its 2N + 1 tokens written out."""
        weight = jax.nn.softmax(jnp.zeros(self.pairs + 1).at[0].set(w[0]))[0]
        attention = jax.nn.softmax(jnp.zeros(2 * self.pairs + 1).at[1].set(w[1] * weight))
        read = jnp.zeros(self.labels).at[: self.pairs].set(attention[1::2])
        return jax.nn.log_softmax(w[2] * read)[None]


class Head(eqx.Module):
    """Log-probabilities of a :class:`MinimalHead` on prompts, [prompt, label], from inner products with the query."""

    overlaps: jax.Array
    codes: jax.Array
    target: jax.Array

    @classmethod
    def from_prompts(cls, prompts, labels):
        """Overlaps, label codes and targets of prompts, for a head without a preference among labels."""
        content = jax.vmap(lambda prompt: prompt.content())(prompts)
        overlaps = jnp.einsum("pid,pd->pi", content, content[:, -1])
        return cls(overlaps, jax.nn.one_hot(prompts.labels[:, :-1], labels), prompts.labels[:, -1])

    def __call__(self, w):
        """Answers of :class:`MinimalHead` at strengths w, from overlaps alone."""
        tokens = self.overlaps.shape[1]
        sees = jnp.asarray(np.tril(np.ones((tokens, tokens), bool)))
        before = jnp.where(sees, w[0] * jnp.asarray(np.eye(tokens, k=-1), w.dtype), -jnp.inf)
        pattern = jax.nn.softmax(before, axis=1)

        def log_probabilities(prompt):  # prompt by prompt: a quadrature has thousands of strengths side by side
            overlaps, codes = prompt
            attention = jax.nn.softmax(w[1] * (pattern @ overlaps))
            return jax.nn.log_softmax(w[2] * (attention[1::2] @ codes))

        return jax.lax.map(log_probabilities, (self.overlaps, self.codes))

    def loss(self, w):
        """Cross-entropy of the target label."""
        return -jnp.mean(jnp.take_along_axis(self(w), self.target[:, None], axis=1))

    def model(self, w):
        """The head with these strengths."""
        return MinimalHead.reading(labels=self.codes.shape[2], beta1=w[0], alpha=w[1], xi=w[2])


@eqx.filter_jit
def information(answers, w):
    """Fisher matrix of log-probabilities [prompt, label] at w, averaged over prompts."""
    slopes = jax.jacfwd(answers)(w)
    return jnp.einsum("pl,pli,plj->ij", jnp.exp(answers(w)), slopes, slopes) / slopes.shape[0]


class Turned(eqx.Module):
    """Divergence from reference answers, in coordinates along the eigenvectors at their point."""

    answers: eqx.Module
    at: jax.Array
    axes: jax.Array
    reference: jax.Array

    def __call__(self, u):
        """Mean over prompts of KL(reference || answers at u)."""
        answers = self.answers(self.at + self.axes @ u)  # pyright: ignore[reportCallIssue]
        return jnp.mean(jnp.sum(jnp.exp(self.reference) * (self.reference - answers), axis=1))

    @property
    def observed(self):
        """The divergence as a vector of one element."""
        return eqx.Partial(_vector, self)


def _vector(divergence, u):
    return divergence(u)[None]


@eqx.filter_jit
def descend(answers, start, rate, steps):
    """Strengths and losses at every step of gradient descent on the loss of all prompts."""

    def step(w, _):
        loss, slope = jax.value_and_grad(answers.loss)(w)
        return w - rate * slope, (w, loss)

    return jax.lax.scan(step, start, None, length=steps)[1]


@eqx.filter_jit
def mean_loss(network, task, prompts):
    """Mean of the task's loss over prompts."""
    return jnp.mean(jax.vmap(lambda prompt: task.loss(network.trace(prompt).prediction, prompt)[-1])(prompts))


@eqx.filter_jit
def rows(network, prompts):
    r"""Rows R over all weights; :math:`R^\top R` is the Fisher matrix of the answers, or the metric of centred logits.

    The nonzero eigenvalues are those of :math:`RR^\top`.
    """
    params, static = eqx.partition(network, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(params)

    def prompt_rows(prompt):
        def logits(w):
            return eqx.combine(unravel(w), static).trace(prompt).prediction[-1]

        slopes, chance = jax.jacrev(logits)(flat), jax.nn.softmax(logits(flat))
        return jnp.sqrt(chance)[:, None] * (slopes - (chance @ slopes)[None]), slopes - slopes.mean(0, keepdims=True)

    count = prompts.labels.shape[0]
    return tuple(block.reshape(-1, flat.size) / count**0.5 for block in jax.lax.map(prompt_rows, prompts))
