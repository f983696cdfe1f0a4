r"""The map of a context to weights: :math:`f_c(w)` with :math:`T_w(c, x) \approx T_{f_c(w)}(x)`, and its tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor
from icllab.core.views import html_fields, one_line
from icllab.diagnostics.contexts import nulls
from icllab.diagnostics.contexts.distances import divergence, kind_of
from icllab.diagnostics.contexts.map_tests import MapTests, fitted_map
from icllab.diagnostics.contexts.nulls import NULLS, Untrained
from icllab.diagnostics.contexts.queries import answers_alone, queries_for, require_answer
from icllab.diagnostics.contexts.solvers import MapSolver, unfelt
from icllab.diagnostics.contexts.subspaces import Where, chosen
from icllab.diagnostics.contexts.verdicts import Compared, MapOutcome, MapVerdict, judged

UNSOLVED = 0.1  # relative residual of the linear system of a derivative


@dataclass(frozen=True, repr=False)
class ContextMap:
    """What :func:`context_map` finds.

    Attributes:
        weights: The model of the weights :math:`f_c(w)`.
        dataset: All numbers, with their errors and those of the nulls.
        verdict: The outcome, and a sentence.
        warnings: What a reader should know, as sentences.
    """

    weights: Any
    dataset: xr.Dataset
    verdict: MapVerdict
    warnings: tuple[str, ...]

    @property
    def outcome(self) -> MapOutcome:
        """``law``, ``capacity``, ``no map`` or ``undecided``."""
        return self.verdict.outcome

    @property
    def gap(self) -> float:
        r""":math:`\rho_c`, on held-out queries."""
        return float(self.dataset["gap"])

    @property
    def null_gaps(self) -> xr.DataArray:
        """The gaps of the nulls, over ``null`` and ``draw``."""
        return self.dataset["null_gap"]

    @property
    def derivative(self) -> float:
        r""":math:`\tau_c` over random directions; the nulls' is ``dataset.null_derivative``."""
        return float(self.dataset["derivative"])

    @property
    def composition(self) -> float:
        """The composition gap; NaN where the context has one example."""
        return float(self.dataset["composition"])

    @property
    def norm(self) -> float:
        """How far the weights move, over the norm of those that may."""
        return float(self.dataset["norm"])

    @property
    def rank_curve(self) -> xr.DataArray:
        """The gap when every matrix of the change is cut to a rank, over ``rank``."""
        return self.dataset["rank_gap"]

    @property
    def gradient(self) -> float:
        """Gradient norm where the fit ended, over that at the start."""
        return float(self.dataset["gradient"])

    @property
    def converged(self) -> bool:
        """Whether the gradient is below the solver's tolerance."""
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
            others = ", ".join(f"{null} {float(least.sel(null=null)):.2g}" for null in NULLS)
            return f"{float(data[name]):.2g} (least of nulls: {others})"

        shown = {name: beside(name) for name in ("gap", "derivative", "composition", "norm")}
        return {"verdict": f"{self.outcome.value}, {self.verdict.sentence}"} | shown


def context_map(
    model: Predictor,
    task: AbstractTask,
    context: Prompt,
    *,
    subspace: Where | None,
    key: PRNGKeyArray,
    queries: int | Any = 256,
    query_length: int = 1,
    directions: int = 4,
    draws: int = 3,
    untrained: Untrained | None = None,
    checkpoints: Sequence[Any] = (),
    solver: MapSolver | None = None,
) -> ContextMap:
    r"""The weights without a context that answer as the model with it, and whether they are more than a fit.

    .. math:: f_c(w) = w + P\theta^*, \qquad
              \theta^* = \arg\min_\theta\; D_c(w, w + P\theta) + \tfrac\mu2 \lVert\theta\rVert^2, \qquad
              D_c(w, w') = E_x\, \mathrm{KL}\big(T_w(c, x) \,\Vert\, T_{w'}(x)\big)

    where the divergence is that of the task's loss (half the squared difference, or between softmax distributions) and
    P the subspace. Four things are measured of it, on queries that it was not fitted on:

    .. math:: \rho_c &= D_c(w, f_c(w)) / D_c(w, w) \\
              \tau_c &= \frac{E\,|\partial_d T_w(c, x) - \partial_{Df_c d} T_{f_c(w)}(x)|^2}
                             {E\,|\partial_d T_w(c, x)|^2} \\
              \kappa_c &= \frac{E\,|T_{f_c(w)}(x) - T_{f_{c_2}(f_{c_1}(w))}(x)|^2}{E\,|T_w(c, x) - T_w(x)|^2},
              \quad c = c_1 c_2

    and :math:`|f_c(w) - w|` over the norm of the subspace's weights. Squares are in the metric of the divergence. The
    directions d are random, of the size of every array. The verdict does not rest on :math:`\rho_c`. What w itself
    leaves of the derivative test, with d for :math:`Df_c d`, is ``unmoved``.

    Args:
        model: Model at its weights w.
        task: Task that owns the loss, and samples the queries.
        context: Prompt whose examples before its last query are the context.
        subspace: Weights that may move, as ``where`` of ``equinox.tree_at``, the way ``fit(trainable=...)`` takes
            them; None: all.
        key: Key of queries, nulls and directions.
        queries: Number of queries that are fitted, and of those held out; or prompts stacked on a leading axis, of
            which half are fitted.
        query_length: Number of positions of a query.
        directions: Number of random directions of the derivative test, at least 2.
        draws: Number of networks of each null, at least 2.
        untrained: Function of a key that draws an untrained network; None: the model's with every array permuted.
        checkpoints: Models of the same shapes near w: :math:`\tau_c` is also measured for the step to each, whole.
        solver: How the fits are made; None: the default :class:`~icllab.diagnostics.contexts.solvers.MapSolver`.

    Returns:
        A :class:`ContextMap`. Its ``dataset`` has ``gap``, ``derivative``, ``unmoved``, ``composition``, each with an
        ``_error``, and ``norm``; the same of the nulls over ``null`` (``unrelated``, ``untrained``) and ``draw`` with
        the prefix ``null_``; ``rank_gap`` over ``rank``; ``step_derivative`` and ``null_step_derivative`` over
        ``checkpoint``; ``divergence``, :math:`D_c(w, w)`, in nats; ``gradient``, ``converged``; and as attributes what
        the queries are.

    Raises:
        InputError: The subspace holds no weights, or none that a query feels; the context is empty, longer than the
            model takes, or changes no answer; or an argument is out of its range.

    Source: the hypothesis [SLT22].
    Derived: docs/context-map.md, The map.
    """
    require_key(key)
    require_integer("directions", directions, least=2)
    require_integer("draws", draws, least=2)
    how = MapSolver() if solver is None else solver
    mask = chosen(model, subspace)
    of_queries, of_networks, of_directions = (jax.random.fold_in(key, i) for i in range(3))
    asked = queries_for(context, task, count=queries, size=query_length, key=of_queries)
    kind = kind_of(task, require_answer(model, context, asked))

    case = nulls.own(model, mask, context, asked, kind)
    start = float(jnp.mean(divergence(kind, case.held_out, answers_alone(model, asked.held_out))))
    if not np.isfinite(start) or start == 0:
        raise expected("context", "one that changes the model's answers", f"a divergence of {start:g}")
    said = unfelt(case.fit, query_length)
    own = fitted_map(case, how)
    maps = {("own", 0): own}
    for i, other in enumerate(nulls.drawn_networks(model, draws, untrained=untrained, key=of_networks)):
        maps["unrelated", i] = fitted_map(nulls.unrelated(case, other, context, asked), how)
        maps["untrained", i] = fitted_map(nulls.own(other, mask, context, asked, kind), how)
    tests = MapTests(context, asked, mask, kind, how, model, checkpoints, directions, of_directions)
    rows = {
        (name, i): tests.measured(one, first=own if name == "unrelated" else one, other=one)
        for (name, i), one in maps.items()
    }
    ranks, gaps = tests.rank_curve(own)
    found = (
        _dataset(rows, draws)
        .assign_coords(rank=ranks)
        .assign(
            rank_gap=("rank", gaps),
            divergence=start,
            gradient=float(own.solution.gradient),
            converged=own.converged,
            null_converged=(("null", "draw"), _by_null(draws, lambda name, i: maps[name, i].converged)),
        )
    )
    found.attrs.update(asked.description, method=own.method, steps=int(own.solution.steps), head=kind)
    said += _warnings(found)
    return ContextMap(own.model, found, _verdict(found), tuple(said))


def _by_null(draws: int, value: Any) -> np.ndarray:
    return np.array([[value(name, i) for i in range(draws)] for name in NULLS])


def _dataset(rows: dict[tuple[str, int], dict[str, np.ndarray]], draws: int) -> xr.Dataset:
    """Every number of the map with its error, and those of the nulls beside it."""
    variables: dict[str, Any] = {}
    for what, pair in rows["own", 0].items():
        dims = ("checkpoint",) if pair.ndim > 1 else ()
        values = _by_null(draws, lambda name, i, what=what: rows[name, i][what])
        for end, place in (("", 0), ("_error", 1)):
            variables[what + end] = (dims, pair[..., place])
            variables[f"null_{what}{end}"] = (("null", "draw", *dims), values[..., place])
    variables = {name: value for name, value in variables.items() if not name.endswith(("norm_error", "solve_error"))}
    return xr.Dataset(variables, coords={"null": list(NULLS), "draw": np.arange(draws)})


def _verdict(found: xr.Dataset) -> MapVerdict:
    def compared(name: str) -> Compared:
        error = float(found[f"{name}_error"]) if f"{name}_error" in found else 0.0
        return Compared(float(found[name]), error, found[f"null_{name}"].values)

    composition = compared("composition") if found.attrs["context_length"] > 1 else None
    converged = bool(found["converged"])
    how = {"unmoved": float(found["unmoved"]), "converged": converged}
    return judged(compared("gap"), compared("derivative"), composition, compared("norm"), **how)


def _warnings(found: xr.Dataset) -> list[str]:
    said = []
    if not found["converged"]:
        steps, gradient = found.attrs["steps"], float(found["gradient"])
        said.append(f"the fit has not converged: after {steps} steps the gradient is {gradient:.2g} of the first")
    failed = int((~found["null_converged"]).sum())
    if failed:
        said.append(f"{failed} of {found['null_converged'].size} fits of nulls have not converged")
    if float(found["solve"]) > UNSOLVED:
        left = float(found["solve"])
        said.append(f"the solve of the derivative is singular to working precision: {left:.2g} of it is left")
    if not np.isfinite(found["null_gap"]).all():
        said.append("the context changes no answer of some untrained networks; they are left out")
    if found.attrs["context_length"] < 2:
        said.append("a context of one example cannot be cut: there is no composition test")
    return said
