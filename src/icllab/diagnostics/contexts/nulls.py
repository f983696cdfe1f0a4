r"""Targets that a map is compared with: another function of equal distance, and the same network untrained.

A map is a fit: there are weights for many targets that have nothing to do with a context. So every number of a map is
beside two others, measured in the same way.

* *unrelated*: the model's own weights, and as target its answers without context plus another network's answers to the
  same context and queries, centred and scaled to the same divergence. It is another non-linear function of the query.
* *untrained*: the same measurement of an untrained network, from its own weights to its own answers with the context.

The other networks have the entries of every array of the model in a random order, so that sizes are the same and
structure is gone; or are drawn by the user.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected
from icllab.diagnostics.contexts.derivatives import change_after
from icllab.diagnostics.contexts.distances import divergence
from icllab.diagnostics.contexts.queries import Queries, answers_after, answers_alone
from icllab.diagnostics.contexts.solvers import Fit
from icllab.diagnostics.contexts.subspaces import parameters, permuted, with_parameters

NULLS = ("unrelated", "untrained")
Untrained = Callable[[PRNGKeyArray], Any]


class Case(eqx.Module):
    """A map to be fitted: a start, and targets that move with the weights of a network after a context.

    Attributes:
        fit: Start, and targets on the queries that are fitted.
        held_out: Targets on the other queries.
        mover: The network whose answers after the context make the targets.
        factor: What these are multiplied with; their mean is taken off if this is not None.
    """

    fit: Fit
    held_out: Float[Array, "query output"]
    mover: Any
    factor: Float[Array, ""] | None

    def changes(self, context: Any, queries: Queries, direction: Any) -> tuple[Array, Array]:
        """How the targets move along a direction of the weights, on the fitted and on the other queries."""
        parts = [change_after(self.mover, context, part, direction) for part in (queries.fitted, queries.held_out)]
        return self._scaled(*parts)

    def steps(self, context: Any, queries: Queries, direction: Any) -> Array:
        """How far the other queries' targets move in a whole step."""
        there = with_parameters(self.mover, jax.tree.map(jnp.add, parameters(self.mover), direction))
        first, last = (
            [answers_after(one, context, part) for one in (self.mover, there)]
            for part in (queries.fitted, queries.held_out)
        )
        return self._scaled(first[1] - first[0], last[1] - last[0])[1]

    def _scaled(self, fitted: Array, held_out: Array) -> tuple[Array, Array]:
        if self.factor is None:
            return fitted, held_out
        mean = jnp.mean(fitted, axis=0, keepdims=True)
        return self.factor * (fitted - mean), self.factor * (held_out - mean)


def own(model: Any, mask: Any, context: Any, queries: Queries, kind: str) -> Case:
    """The map of the context itself."""
    targets = answers_after(model, context, queries.fitted)
    fit = Fit(model, mask, queries.fitted, targets, kind)
    return Case(fit, answers_after(model, context, queries.held_out), model, None)


def unrelated(case: Case, other: Any, context: Any, queries: Queries) -> Case:
    """A target of equal distance from the same weights, made of another network's answers."""
    fit = case.fit
    bases = [answers_alone(fit.model, part) for part in (queries.fitted, queries.held_out)]
    given = [answers_after(other, context, part) for part in (queries.fitted, queries.held_out)]
    mean = jnp.mean(given[0], axis=0, keepdims=True)
    wanted = jnp.mean(divergence(fit.kind, fit.targets, bases[0]))
    factor = _factor(fit.kind, bases[0], given[0] - mean, wanted)
    fitted, held_out = (base + factor * (answer - mean) for base, answer in zip(bases, given, strict=True))
    return Case(eqx.tree_at(lambda f: f.targets, fit, fitted), held_out, other, factor)


def drawn_networks(model: Any, count: int, *, untrained: Untrained | None, key: PRNGKeyArray) -> list[Any]:
    """So many networks of the same arrays without what training has put there."""
    keys = [jax.random.fold_in(key, i) for i in range(count)]
    if untrained is None:
        return [with_parameters(model, permuted(parameters(model), one)) for one in keys]
    networks = [untrained(one) for one in keys]
    wanted = [leaf.shape for leaf in jax.tree.leaves(parameters(model))]
    for network in networks:
        came = [leaf.shape for leaf in jax.tree.leaves(parameters(network))]
        if came != wanted:
            raise expected("untrained", f"a function of a key that draws {type(model).__name__}s of one shape", came)
    return networks


@eqx.filter_jit
def _factor(kind: str, base: Array, change: Array, wanted: Array) -> Float[Array, ""]:
    """By how much a change of answers is to be multiplied for a divergence, which grows with it: by bisection."""

    def reached(exponent: Array) -> Array:
        return jnp.mean(divergence(kind, base + jnp.exp(exponent) * change, base))

    def narrower(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        small = reached(middle) < wanted
        return jnp.where(small, middle, low), jnp.where(small, high, middle)

    ends = jnp.asarray(-40.0, base.dtype), jnp.asarray(40.0, base.dtype)
    return jnp.exp(jax.lax.fori_loop(0, 50, narrower, ends)[0])
