r"""Null maps: to a target that is unrelated to the context, and of an untrained network.

A map is a fit, and weights exist for many targets that have no relation to a context. Therefore the same measurements
are made of two nulls.

* *unrelated*: the model's weights, and as target its answers without context plus another network's answers to the same
  context and queries, centred and scaled to the same divergence: another non-linear function of the query.
* *untrained*: an untrained network, from its own weights to its own answers with the context.

The networks of the nulls are the model with permuted entries of every array, or samples of a function of the user's.
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import expected
from icllab.core.protocols import AbstractTask
from icllab.diagnostics.contexts.distances import divergence, divergence_kind
from icllab.diagnostics.contexts.queries import Queries, answers_after, answers_alone, queries_for, require_answer
from icllab.diagnostics.contexts.solvers import MapFit, answer_changes
from icllab.diagnostics.contexts.subspaces import Where, parameter_mask, parameters, permute, with_parameters

NULLS = ("unrelated", "untrained")
Untrained = Callable[[PRNGKeyArray], Any]


class MapCase(eqx.Module):
    """A map to fit: a start, and targets that depend on the weights of a network after a context.

    Attributes:
        fit: Start, and targets on the fitted queries.
        held_out: Targets on the held-out queries.
        mover: Network whose answers after the context define the targets.
        factor: Factor on these answers after centring; None: neither factor nor centring.
    """

    fit: MapFit
    held_out: Float[Array, "query output"]
    mover: Any
    factor: Float[Array, ""] | None

    def changes(self, context: Any, queries: Queries, direction: Any) -> tuple[Array, Array]:
        """Directional derivatives of the targets, on the fitted and on the held-out queries."""
        parts = [answer_changes(self.mover, part, direction, context) for part in (queries.fitted, queries.held_out)]
        return self._scaled(*parts)

    def _scaled(self, fitted_changes: Array, held_out_changes: Array) -> tuple[Array, Array]:
        if self.factor is None:
            return fitted_changes, held_out_changes
        mean = jnp.mean(fitted_changes, axis=0, keepdims=True)
        return self.factor * (fitted_changes - mean), self.factor * (held_out_changes - mean)


def own_case(model: Any, mask: Any, context: Any, queries: Queries, kind: str) -> MapCase:
    """The case of the context itself."""
    targets = answers_after(model, context, queries.fitted)
    fit = MapFit(model, mask, queries.fitted, targets, kind)
    return MapCase(fit, answers_after(model, context, queries.held_out), model, None)


def context_case(
    model: Any, task: AbstractTask, context: Any, *, subspace: Where | None, queries: Any, size: int, key: PRNGKeyArray
) -> tuple[MapCase, Queries]:
    """The case of a context, and its queries: ``queries`` of ``size`` positions from the task, or given prompts."""
    mask = parameter_mask(model, subspace)
    query_set = queries_for(context, task, count=queries, size=size, key=jax.random.fold_in(key, 0))
    kind = divergence_kind(task, require_answer(model, context, query_set))
    return own_case(model, mask, context, query_set, kind), query_set


def unrelated_case(case: MapCase, network: Any, context: Any, queries: Queries) -> MapCase:
    """A case with a target at equal distance from the same weights, made of another network's answers."""
    fit = case.fit
    bases = [answers_alone(fit.model, part) for part in (queries.fitted, queries.held_out)]
    other_answers = [answers_after(network, context, part) for part in (queries.fitted, queries.held_out)]
    mean = jnp.mean(other_answers[0], axis=0, keepdims=True)
    target_divergence = jnp.mean(divergence(fit.kind, fit.targets, bases[0]))
    factor = _factor(fit.kind, bases[0], other_answers[0] - mean, target_divergence)
    targets, held_out = (base + factor * (answer - mean) for base, answer in zip(bases, other_answers, strict=True))
    return MapCase(eqx.tree_at(lambda f: f.targets, fit, targets), held_out, network, factor)


def null_networks(model: Any, count: int, *, untrained: Untrained | None, key: PRNGKeyArray) -> Iterator[Any]:
    """Networks with arrays of the same shapes but without the structure from training, one after the other."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(parameters(model))]
    for network_key in (jax.random.fold_in(key, i) for i in range(count)):
        if untrained is None:
            yield with_parameters(model, permute(parameters(model), network_key))
            continue
        network = untrained(network_key)
        came = [leaf.shape for leaf in jax.tree.leaves(parameters(network))]
        if came != shapes:
            raise expected("untrained", f"a function of a key that draws {type(model).__name__}s of one shape", came)
        yield network


@eqx.filter_jit
def _factor(kind: str, base: Array, change: Array, target_divergence: Array) -> Float[Array, ""]:
    """Factor on a change of answers that gives the target divergence, by bisection."""

    def mean_divergence(exponent: Array) -> Array:
        return jnp.mean(divergence(kind, base + jnp.exp(exponent) * change, base))

    def narrower(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        small = mean_divergence(middle) < target_divergence
        return jnp.where(small, middle, low), jnp.where(small, high, middle)

    ends = jnp.asarray(-40.0, base.dtype), jnp.asarray(40.0, base.dtype)
    return jnp.exp(jax.lax.fori_loop(0, 50, narrower, ends)[0])
