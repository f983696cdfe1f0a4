r"""The map of a context to weights: :math:`f_c(w)` with :math:`T_w(c, x) \approx T_{f_c(w)}(x)`, and its tests."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.calls import moved
from icllab.core.errors import expected, require_key
from icllab.core.progress import advance, shows, stage
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor
from icllab.core.result_warnings import warns
from icllab.core.views import html_fields, one_line
from icllab.diagnostics.contexts import nulls
from icllab.diagnostics.contexts.distances import divergence
from icllab.diagnostics.contexts.map_tests import MapMeasurements, MapTests, fit_map
from icllab.diagnostics.contexts.nulls import NULLS
from icllab.diagnostics.contexts.queries import QUERY_LENGTH, QuerySource, answers_alone, unpadded
from icllab.diagnostics.contexts.solvers import MapSolver, unused_parameters
from icllab.diagnostics.contexts.subspaces import Where
from icllab.models.pretrained.ignored_fields import names_ignored

UNSOLVED = 0.1  # relative residual of the linear system of a derivative


@dataclass(frozen=True, repr=False)
class ContextMap:
    """Result of :func:`context_map`.

    Attributes:
        weights: The model of the weights :math:`f_c(w)`.
        dataset: All measurements, with their errors and those of the nulls.
        warnings: Warnings, as sentences.
    """

    weights: Any
    dataset: xr.Dataset
    warnings: tuple[str, ...]

    @property
    def gap(self) -> float:
        r""":math:`\rho_c`, on held-out queries."""
        return float(self.dataset["gap"])

    @property
    def null_gaps(self) -> xr.DataArray:
        """Gaps of the nulls, over ``null`` and ``draw``."""
        return self.dataset["null_gap"]

    @property
    def derivative(self) -> float:
        r""":math:`\tau_c` over random directions; the nulls' is ``dataset.null_derivative``."""
        return float(self.dataset["derivative"])

    @property
    def composition(self) -> float:
        """Composition gap; NaN if the context has one example."""
        return float(self.dataset["composition"])

    @property
    def norm(self) -> float:
        """Norm of the weight change over the norm of the subspace's weights."""
        return float(self.dataset["norm"])

    @property
    def rank_curve(self) -> xr.DataArray:
        """Gap with every matrix of the change truncated to a rank, over ``map_rank``."""
        return self.dataset["rank_gap"]

    @property
    def gradient(self) -> float:
        """Final gradient norm of the fit over that at the start."""
        return float(self.dataset["gradient"])

    @property
    def converged(self) -> bool:
        """True if the final gradient is at most the solver's tolerance."""
        return bool(self.dataset["converged"])

    def __repr__(self) -> str:
        return one_line("ContextMap", self._summary())

    def _repr_html_(self) -> str:
        queries = {name: self.dataset.attrs[name] for name in ("query_length", "queries", "positions", "method")}
        return html_fields("Context map", self._summary() | queries | {"warnings": "; ".join(self.warnings) or "none"})

    def _summary(self) -> dict[str, str]:
        data = self.dataset

        def beside(name: str) -> str:
            least = data[f"null_{name}"].min("draw")
            null_values = ", ".join(f"{null} {float(least.sel(null=null)):.2g}" for null in NULLS)
            return f"{float(data[name]):.2g} (least of nulls: {null_values})"

        return {name: beside(name) for name in ("gap", "derivative", "composition", "norm")}


@moved(
    query_length=QUERY_LENGTH,
    directions="tests=MapTests(directions=...)",
    draws="tests=MapTests(draws=...)",
    untrained="tests=MapTests(untrained=...)",
    checkpoints="gone: whole steps of the weights are no longer tested",
    progress="shown('context map', False), a context manager of icllab.core.progress",
)
@warns("context map")
@names_ignored
@shows("context map")
def context_map(
    model: Predictor,
    task: AbstractTask,
    context: Prompt,
    *,
    subspace: Where | None,
    key: PRNGKeyArray,
    queries: int | Any = 256,
    tests: MapTests | None = None,
    solver: MapSolver | None = None,
) -> ContextMap:
    r"""Weights that answer without a context as the model answers with it, measured beside those of null targets.

    .. math:: f_c(w) = w + P\theta^*, \qquad
              \theta^* = \arg\min_\theta\; D_c(w, w + P\theta) + \tfrac\mu2 \lVert\theta\rVert^2, \qquad
              D_c(w, w') = E_x\, \mathrm{KL}\big(T_w(c, x) \,\Vert\, T_{w'}(x)\big)

    where the divergence is that of the task's loss (half the squared difference, or between softmax distributions) and
    P the subspace. Four quantities are measured on held-out queries:

    .. math:: \rho_c &= D_c(w, f_c(w)) / D_c(w, w) \\
              \tau_c &= \frac{E\,|\partial_d T_w(c, x) - \partial_{Df_c d} T_{f_c(w)}(x)|^2}
                             {E\,|\partial_d T_w(c, x)|^2} \\
              \kappa_c &= \frac{E\,|T_{f_c(w)}(x) - T_{f_{c_2}(f_{c_1}(w))}(x)|^2}{E\,|T_w(c, x) - T_w(x)|^2},
              \quad c = c_1 c_2

    and :math:`|f_c(w) - w|` over the norm of the subspace's weights. Squares are in the metric of the divergence. The
    directions d are random, scaled to every array. ``unmoved`` is the value of the derivative test for w itself, with d
    for :math:`Df_c d`. Whether there is a law is asked of several contexts, by
    :func:`~icllab.diagnostics.contexts.laws.context_law`.

    Args:
        model: Model at its weights w.
        task: Task that owns the loss, and samples the queries.
        context: Prompt whose examples before its last query are the context.
        subspace: Weights that may change, as ``where`` of ``equinox.tree_at`` and ``fit(trainable=...)``; None: all.
        key: Key of queries, nulls and directions.
        queries: Number of queries for the fit, and the same number held out; or prompts stacked on a leading axis, half
            of them for the fit; or a :class:`~icllab.diagnostics.contexts.queries.QuerySource`.
        tests: Number of directions and of nulls; None: the default
            :class:`~icllab.diagnostics.contexts.map_tests.MapTests`.
        solver: Options of the fits; None: the default :class:`~icllab.diagnostics.contexts.solvers.MapSolver`.

    Returns:
        A :class:`ContextMap`. Its ``dataset`` has ``gap``, ``derivative``, ``unmoved``, ``composition``, each with an
        ``_error``, and ``norm``; the same of the nulls over ``null`` (``unrelated``, ``untrained``) and ``draw`` with
        the prefix ``null_``; ``rank_gap`` over ``map_rank``; ``divergence``, :math:`D_c(w, w)`, in nats; ``gradient``,
        ``converged``. The attributes describe the queries.

    Raises:
        InputError: The subspace has no weights, or none that affects a query; the context is empty, too long for the
            model, or changes no answer; or an argument is out of range.

    Source: the hypothesis [SLT22].
    Derived: docs/context-map.md, The map.
    """
    require_key(key)
    tests, map_solver = tests or MapTests(), MapSolver() if solver is None else solver
    context, source = unpadded(context), QuerySource.of(queries)
    of_networks, of_directions = (jax.random.fold_in(key, i) for i in (1, 2))
    case, query_set = nulls.context_case(
        model, task, context, subspace=subspace, queries=source.prompts, size=source.length, key=key
    )
    mask, kind = case.fit.mask, case.fit.kind
    start = float(jnp.mean(divergence(kind, case.held_out, answers_alone(model, query_set.held_out))))
    if not np.isfinite(start) or start == 0:
        raise expected("context", "examples that change the model's answers", f"a divergence of {start:g}")
    warnings = unused_parameters(case.fit, source.length)
    stage("fits", 1 + 2 * tests.draws)
    own_map = fit_map(case, map_solver)
    advance()
    measurements = MapMeasurements(context, query_set, mask, kind, map_solver, tests.directions, of_directions)
    rows = {("own", 0): measurements.measure(own_map, reference=own_map, partner=own_map)}
    converged = {}
    networks = nulls.null_networks(model, tests.draws, untrained=tests.untrained, key=of_networks)
    for i, network in enumerate(networks):  # one at a time is in memory
        for name in NULLS:
            null = nulls.unrelated_case(case, network, context, query_set)
            if name == "untrained":
                null = nulls.own_case(network, mask, context, query_set, kind)
            candidate = fit_map(null, map_solver)
            converged[name, i] = candidate.converged
            reference = own_map if name == "unrelated" else candidate
            rows[name, i] = measurements.measure(candidate, reference=reference, partner=candidate)
            advance()
    ranks, gaps = measurements.rank_curve(own_map)
    dataset = _dataset(rows, tests.draws).assign_coords(map_rank=ranks)
    dataset = dataset.assign(
        rank_gap=("map_rank", gaps),
        divergence=start,
        gradient=float(own_map.solution.gradient),
        converged=own_map.converged,
        null_converged=(("null", "draw"), _by_null(tests.draws, lambda name, i: converged[name, i])),
    )
    dataset.attrs.update(query_set.description, method=own_map.method, steps=int(own_map.solution.steps), head=kind)
    warnings += _warnings(dataset)
    return ContextMap(own_map.model, dataset, tuple(warnings))


def _by_null(draws: int, value: Any) -> np.ndarray:
    return np.array([[value(name, i) for i in range(draws)] for name in NULLS])


def _dataset(rows: dict[tuple[str, int], dict[str, np.ndarray]], draws: int) -> xr.Dataset:
    """Measurements of the map and of the nulls, with their errors."""
    variables: dict[str, Any] = {}
    for quantity, pair in rows["own", 0].items():
        values = _by_null(draws, lambda name, i, quantity=quantity: rows[name, i][quantity])
        for suffix, column in (("", 0), ("_error", 1)):
            variables[quantity + suffix] = ((), pair[column])
            variables[f"null_{quantity}{suffix}"] = (("null", "draw"), values[..., column])
    variables = {name: value for name, value in variables.items() if not name.endswith(("norm_error", "solve_error"))}
    return xr.Dataset(variables, coords={"null": list(NULLS), "draw": np.arange(draws)})


def _warnings(dataset: xr.Dataset) -> list[str]:
    warnings = []
    if not dataset["converged"]:
        steps, gradient = dataset.attrs["steps"], float(dataset["gradient"])
        warnings.append(f"the fit has not converged: after {steps} steps the gradient is {gradient:.2g} of the first")
    failures = int((~dataset["null_converged"]).sum())
    if failures:
        warnings.append(f"{failures} of {dataset['null_converged'].size} fits of nulls have not converged")
    if float(dataset["solve"]) > UNSOLVED:
        residual = float(dataset["solve"])
        warnings.append(
            f"the derivative's linear system is singular to working precision, with residual {residual:.2g}"
        )
    if not np.isfinite(dataset["null_gap"]).all():
        warnings.append("the context changes no answer of some untrained networks; they are left out")
    if dataset.attrs["context_length"] < 2:
        warnings.append("a context of one example cannot be cut: there is no composition test")
    return warnings
