r"""Rank in function space of a context's map.

All computations are in the space of answers to n queries of k outputs, :math:`m = nk` rows. With the Jacobians of these
answers, in the metric of the divergence and over :math:`\sqrt n`, at :math:`f_c(w)` without context
(:math:`J'` for the weights w, :math:`J'_\theta` for the subspace) and at w with it (:math:`J_c`),

.. math:: J'\,Df_c = (1 - S)\, J' + S\, J_c, \qquad S = K (K + \mu)^{-1}, \qquad K = J'_\theta J_\theta'^\top,

which is implicit differentiation with an :math:`m \times m` matrix instead of one over all parameters.

The rank of a change of one layer's weights is another question: how many directions of it inputs feel. It is asked in
the metric of the inputs' covariance, since singular values of :math:`\Delta W` alone count what no input has.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.calls import moved
from icllab.core.domains import PROPER_FRACTION
from icllab.core.errors import expected, require_integer, require_key
from icllab.core.prompt import Prompt
from icllab.core.protocols import AbstractTask, Predictor
from icllab.core.views import html_fields, one_line
from icllab.diagnostics.contexts import nulls
from icllab.diagnostics.contexts.distances import metric_root
from icllab.diagnostics.contexts.map_tests import fit_map
from icllab.diagnostics.contexts.queries import (
    QUERY_LENGTH,
    QuerySource,
    answers_alone,
    join_prompt,
    last_answer,
    unpadded,
)
from icllab.diagnostics.contexts.solvers import MapSolver, unused_parameters
from icllab.diagnostics.contexts.subspaces import Where, parameter_mask
from icllab.diagnostics.stretches import map_in_stretches

THRESHOLD = 1e-3  # theta, relative to the largest eigenvalue


@dataclass(frozen=True, repr=False)
class ContextRank:
    r"""Result of :func:`context_rank`.

    Attributes:
        weights: The model of the weights :math:`f_c(w)`.
        rank: :math:`r_c`, the number of eigenvalues of :math:`M_c` above a thousandth of the largest.
        participation: :math:`(\sum \lambda_i)^2 / \sum \lambda_i^2` of these eigenvalues.
        query_rank: Rank of :math:`G'` over the weights that vary or may change, by the same threshold.
        eigenvalues: Eigenvalues of :math:`M_c` in descending order, as many as rows allow.
        basis: Orthonormal rows that span the row space of :math:`M_c`.
        converged: Whether the fit of the map has converged.
        memory: Bytes of all Jacobians.
    """

    weights: Any
    rank: int
    participation: float
    query_rank: int
    eigenvalues: Float[np.ndarray, " mode"]
    basis: Float[np.ndarray, "rank parameter"]
    converged: bool
    memory: int

    @property
    def degeneracy(self) -> int:
        r""":math:`\delta_c = \operatorname{rank} G' - r_c`."""
        return self.query_rank - self.rank

    def rank_above(self, threshold: float) -> int:
        r""":math:`r_c` with another threshold :math:`\theta`.

        Raises:
            InputError: The threshold is not between 0 and 1.
        """
        PROPER_FRACTION.require("threshold", threshold)
        return _count_above(self.eigenvalues, threshold)

    def overlap(self, other: "ContextRank") -> float:
        r"""Overlap of the weight directions that two contexts use.

        .. math:: O(c_1, c_2) = \frac{\operatorname{tr} \Pi_1 \Pi_2}{\min(r_1, r_2)}

        with the projectors on the row spaces of :math:`M_c^{1/2}`: 1 if one contains the other, 0 if they are
        orthogonal. Directions are compared in the metric of an isotropic prior.

        Raises:
            InputError: The ranks belong to different weights, or one of them is 0.
        """
        if other.basis.shape[1] != self.basis.shape[1]:
            raise expected("other", f"a rank over {self.basis.shape[1]} weights", other.basis.shape[1])
        if not min(self.rank, other.rank):
            raise expected("other", "two ranks of at least 1", [self.rank, other.rank])
        return float(np.sum((self.basis @ other.basis.T) ** 2) / min(self.rank, other.rank))

    def __repr__(self) -> str:
        return one_line("ContextRank", self._summary())

    def _repr_html_(self) -> str:
        return html_fields("Rank of a context", self._summary())

    def _summary(self) -> dict[str, str]:
        return {
            "rank": str(self.rank),
            "participation": f"{self.participation:.3g}",
            "degeneracy": str(self.degeneracy),
            "converged": str(self.converged),
            "memory": f"{self.memory / 2**20:.3g} MiB",
        }


@moved(query_length=QUERY_LENGTH, threshold="ContextRank.rank_above(threshold)")
def context_rank(
    model: Predictor,
    task: AbstractTask,
    context: Prompt,
    *,
    subspace: Where | None,
    key: PRNGKeyArray,
    weights: Where | None = None,
    queries: int | Any = 64,
    solver: MapSolver | None = None,
) -> ContextRank:
    r"""Rank of a context's map in the space of answers to queries.

    .. math:: M_c = Df_c^\top\, G'\, Df_c, \qquad r_c = \#\{i : \lambda_i > \theta \lambda_1\}, \qquad
              \delta_c = \operatorname{rank} G' - r_c

    with :math:`G'` the Fisher matrix of the model without context at :math:`f_c(w)` and :math:`\theta = 10^{-3}`. The
    derivative :math:`Df_c` is the identity along weights that affect no query; :math:`M_c` counts only directions that
    change answers. If :math:`T_w(c, x) = T_{f_c(w)}(x)` for all w nearby, :math:`M_c` is the Fisher matrix of the model
    with the context at w. If only some ``weights`` vary, the rank is that of :math:`f_c` on these.

    Args:
        model: Model at its weights w.
        task: Task that owns the loss, and samples the queries.
        context: Prompt whose examples before its last query are the context.
        subspace: Weights that the map may change; see :func:`~icllab.diagnostics.contexts.maps.context_map`.
        key: Key of the queries.
        weights: Weights w that vary, as ``where`` of ``equinox.tree_at``; None: all. Of a large network, few.
        queries: Number of queries, or prompts stacked on a leading axis, of which half are used. Memory is proportional
            to queries times outputs times the weights that vary or may change, time to the cube of queries times
            outputs. Or a :class:`~icllab.diagnostics.contexts.queries.QuerySource`.
        solver: Options of the fit; None: the defaults. Here the ridge :math:`\mu` is relative to the largest
            eigenvalue of K.

    Raises:
        InputError: As ``context_map``; or the linear system of the derivative is singular and there is no ridge.

    Derived: docs/context-map.md, The rank of a context.
    """
    require_key(key)
    map_solver, context, source = MapSolver() if solver is None else solver, unpadded(context), QuerySource.of(queries)
    varied_mask = parameter_mask(model, weights, "weights")
    case, query_set = nulls.context_case(
        model, task, context, subspace=subspace, queries=source.prompts, size=source.length, key=key
    )
    mask, kind = case.fit.mask, case.fit.kind
    unused_parameters(case.fit, source.length)
    own_map = fit_map(case, map_solver)

    full_mask = jax.tree.map(lambda *flags: any(flags), mask, varied_mask)
    z = answers_alone(own_map.model, query_set.fitted)
    alone = _jacobian(own_map.model, full_mask, None, query_set.fitted, z, kind)
    after = _jacobian(model, varied_mask, context, query_set.fitted, z, kind)
    subspace_columns, varied_columns = (alone[:, _columns(full_mask, part, model)] for part in (mask, varied_mask))
    smooth = _smoother(subspace_columns, map_solver.ridge_of(z.dtype))
    map_rows = varied_columns + smooth @ (after - varied_columns)
    spectrum, basis = _spectrum(map_rows)
    return ContextRank(
        weights=own_map.model,
        rank=len(basis),
        participation=float(spectrum.sum() ** 2 / np.sum(spectrum**2)) if spectrum.any() else 0.0,
        query_rank=len(_spectrum(alone)[1]),
        eigenvalues=spectrum,
        basis=basis,
        converged=own_map.converged,
        memory=sum(matrix.nbytes for matrix in (alone, after, subspace_columns, varied_columns, map_rows)),
    )


def metric_spectrum(
    change: Float[Array, "inner outer"], covariance: Float[Array, "row column"]
) -> Float[Array, " outer"]:
    r"""Mean squares of what a change of a layer's weights does to its outputs, along its principal directions.

    .. math:: \lambda_i\big(\Delta W^\top \Sigma\, \Delta W\big), \qquad
              \sum_i \lambda_i = E\,|\Delta W^\top a|^2, \quad a \sim (0, \Sigma)

    in descending order. The best change of rank r leaves :math:`\sum_{i > r} \lambda_i / \sum_i \lambda_i` of it.

    Args:
        change: :math:`\Delta W`.
        covariance: :math:`\Sigma`, covariance of the layer's inputs; second moments where the bias does not change.

    Derived: docs/contexts-to-weights.md, Rank in the metric of the inputs.
    """
    return jnp.clip(_metric_directions(change, covariance)[0][::-1], 0)


def cut_in_metric(
    change: Float[Array, "inner outer"], covariance: Float[Array, "row column"], rank: int
) -> Float[Array, "inner outer"]:
    r"""Change of rank r with the nearest effect on the layer's outputs.

    .. math:: \Delta W_r = \Delta W\, V_r V_r^\top
              = \arg\min_{\operatorname{rank} M \le r} E\,|(\Delta W - M)^\top a|^2

    with the r leading eigenvectors :math:`V_r` of :math:`\Delta W^\top \Sigma\, \Delta W`.

    Args:
        change: :math:`\Delta W`.
        covariance: Covariance of inputs, as for :func:`metric_spectrum`.
        rank: r, from 0.

    Derived: docs/contexts-to-weights.md, Rank in the metric of the inputs.
    """
    require_integer("rank", rank, least=0)
    vectors = _metric_directions(change, covariance)[1][:, ::-1][:, :rank]
    return (change @ vectors) @ vectors.T


def _metric_directions(change: Array, covariance: Array) -> Any:
    if covariance.shape != (len(change), len(change)):
        came = list(covariance.shape)
        raise expected("covariance", f"a matrix over the {len(change)} inputs of the change", came)
    return jnp.linalg.eigh(change.T @ covariance @ change)


def _smoother(jacobian: np.ndarray, ridge: float) -> np.ndarray:
    """The matrix S, from the Jacobian of the subspace."""
    values, vectors = np.linalg.eigh(jacobian @ jacobian.T)
    values = np.clip(values, 0.0, None)
    tiny = len(values) * np.finfo(float).eps * values.max()
    rank = int(np.sum(values > tiny))
    if ridge == 0 and rank < jacobian.shape[1]:
        came = f"a singular system, of rank {rank} in {jacobian.shape[1]} weights"
        raise expected("ridge", "a number > 0 where queries do not feel all of the subspace", came)
    shifted = values + ridge * values.max()
    share = np.where(values > tiny, values / np.where(shifted > 0, shifted, 1.0), 0.0)
    return (vectors * share) @ vectors.T


def _spectrum(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared singular values of the rows, and the right singular vectors of those above the threshold."""
    _, singular, directions = np.linalg.svd(rows, full_matrices=False)
    values = singular**2
    return values, directions[: _count_above(values, THRESHOLD)]


def _count_above(values: np.ndarray, threshold: float) -> int:
    return int(np.sum(values > threshold * values.max())) if values.max() > 0 else 0


def _columns(full: Any, part: Any, model: Any) -> np.ndarray:
    """Mask over all weights of those in a part."""
    leaves, parts = eqx.filter(model, full), eqx.filter(part, full)
    flags = [
        np.full(leaf.size, bool(flag))
        for leaf, flag in zip(jax.tree.leaves(leaves), jax.tree.leaves(parts), strict=True)
    ]
    return np.concatenate(flags)


def _jacobian(model: Any, mask: Any, context: Any, queries: Any, at: Array, kind: str) -> np.ndarray:
    """Jacobian, with a row for each query and output, in the metric at given answers; in float64."""
    leaves = jax.tree.leaves(_jacobians(model, mask, context, queries, at, kind))
    rows = at.size
    flat = [np.asarray(leaf, np.float64).reshape(rows, -1) for leaf in leaves]
    return np.concatenate(flat, axis=1) / np.sqrt(len(at))


def _jacobians(model: Any, mask: Any, context: Any, queries: Any, at: Array, kind: str) -> Any:
    return map_in_stretches(eqx.Partial(_jacobian_of_query, model, mask, context, kind), (queries, at))


def _jacobian_of_query(model: Any, mask: Any, context: Any, kind: str, pair: tuple[Any, Array]) -> Any:
    query, answer = pair
    prompt = query if context is None else join_prompt(context, query)
    columns = jax.jacrev(lambda f: last_answer(eqx.combine(f, model), prompt))(eqx.filter(model, mask))
    return jax.tree.map(lambda leaf: metric_root(kind, answer, leaf), columns)
