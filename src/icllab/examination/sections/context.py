"""Context as weights: are there weights that answer without a context as the network answers with it?

A context's weights are fitted on queries and judged on others. They say something of the context if they leave less
than a tenth of its effect, and if the same fit to an unrelated target of equal size leaves ten times as much: else they
show the capacity of the weights alone.
"""

from typing import Any

import equinox as eqx
import jax
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.protocols import declared
from icllab.core.spelling import with_error
from icllab.diagnostics import MapTests, QuerySource, context_map
from icllab.examination.section import UNDECIDED, Finding, Section, Size, decided
from icllab.examination.subject import Subject

QUERY = 3  # positions of a query: a network of attention answers one position alone without its weights
LEVEL = 0.1
"""Fraction of the effect of a context that weights which carry it leave, at most."""


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """Measure what fraction of its effect fitted weights leave, for a context and for two unrelated targets."""
    of_context, of_map = jax.random.split(key)
    context = subject.task.sample(key=of_context)
    tests = MapTests(directions=2, draws=2)
    queries = QuerySource(size.fitting // 4, length=QUERY)
    fitted = context_map(
        subject.network, subject.task, context, subspace=None, key=of_map, queries=queries, tests=tests
    )
    names = ["gap", "gap_error", "null_gap", "null_gap_error", "derivative", "derivative_error", "norm", "converged"]
    dataset = fitted.dataset[names].assign(converged=fitted.dataset["converged"].astype(int))
    return dataset.drop_attrs().assign_attrs(kind=subject.kind, queries=queries.prompts, warnings=list(fitted.warnings))


def judge(dataset: xr.Dataset) -> Finding:
    """ "carried by weights", "capacity", "no map", or undecided."""
    gap, error = float(dataset["gap"]), float(dataset["gap_error"])
    unrelated = dataset.sel(null="unrelated")
    least = unrelated.isel(draw=int(unrelated["null_gap"].argmin("draw")))
    other, other_error = float(least["null_gap"]), float(least["null_gap_error"])
    verdict, p_value = decided(LEVEL - gap, error, "map", "no map")
    if verdict == "map":
        spread = (error**2 + (LEVEL * other_error) ** 2) ** 0.5
        verdict, second = decided(LEVEL * other - gap, spread, "carried by weights", "capacity")
        p_value = max(p_value, second)
    if not int(dataset["converged"]):
        verdict, p_value = UNDECIDED, None
    sentence = (
        f"Fitted weights leave {with_error(gap, error)} of the effect of one context on new queries, and "
        f"{with_error(other, other_error)} of an unrelated target of the same size; what a change of the network does "
        f"to the answers is missed by {float(dataset['derivative']):.2g}."
    )
    what = "fraction of the effect of the context that fitted weights leave"
    null = f"an unrelated target of the same size leaves {other:.2g}"
    change = "a fit that converges" if not int(dataset["converged"]) else f"a fraction on the other side of {LEVEL}"
    return Finding(verdict, sentence, gap, error, what, null, f"{2.8 * error:.2g}", change, p_value)


def lacks(subject: Subject) -> str:
    """A network whose weights JAX differentiates."""
    network: Any = subject.network
    if not (declared(network, "traceable") and declared(network, "differentiable")):
        return "JAX does not differentiate the network; models.from_torch copies one of PyTorch into the library"
    if not jax.tree.leaves(eqx.filter(network, eqx.is_inexact_array)):
        return "the network has no weights"
    return ""


SECTION = Section(
    name="context",
    question="Are there weights that answer without a context as the network answers with it?",
    measure=measure,
    judge=judge,
    lacks=lacks,
    code="diagnostics.context_map(network, task, context, subspace=None, key=key)",
    batches=100.0,
    programs=60,
    on_request=True,
)
