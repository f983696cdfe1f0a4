"""Spectra and ranks of a loss's Hessian and Fisher matrices, by products with vectors if there are many parameters.

A product of the Hessian with a vector costs about two gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

from icllab.core.calls import moved
from icllab.core.domains import NON_NEGATIVE, POSITIVE, Domain
from icllab.core.errors import expected, require_integer, require_key
from icllab.core.progress import in_stretches, shows, stage
from icllab.core.protocols import is_task
from icllab.diagnostics.curvature.krylov import TraceEstimate, extreme_eigenvalues, spectral_measure
from icllab.diagnostics.curvature.products import Curvature, EmpiricalFisher, GaussNewton, Hessian
from icllab.diagnostics.sampling.restricted import held, restricted_loss
from icllab.diagnostics.sampling.run_losses import network_loss
from icllab.diagnostics.sampling.sampled_losses import require_loss, sample_count, shape_of, vector_loss
from icllab.models.pretrained.ignored_fields import names_ignored

DENSE = 1500  # largest number of parameters for a dense matrix
ROUNDING = 1000  # rounding threshold for zero in units of the largest eigenvalue, at least the number of parameters
TOGETHER = 64  # rows of a matrix that are computed at once
BATCH = 256  # prompts of a task in memory at once
NEARBY = 10.0**0.5  # factor on the threshold for rank_low and rank_high


@dataclass(frozen=True, kw_only=True)
class SpectrumSolver:
    r"""Options of the computation of a spectrum.

    Attributes:
        extreme: Number of eigenvalues at each end.
        probes: Number of random vectors for traces, rank and density.
        order: Number of products for each probe.
        threshold: :math:`\theta`; None: the rounding error of the largest eigenvalue.
        dense: Largest number of parameters for a dense matrix, whose results are exact.

    Raises:
        InputError: A number is out of range.
    """

    extreme: int = 8
    probes: int = 16
    order: int = 64
    threshold: float | None = None
    dense: int = DENSE

    def __post_init__(self) -> None:
        for name in ("extreme", "probes", "order"):
            require_integer(name, getattr(self, name))
        if self.threshold is not None:
            NON_NEGATIVE.require("threshold", self.threshold)
        require_integer("dense", self.dense, least=0)


MOVED = {name: f"solver=SpectrumSolver({name}=...)" for name in ("extreme", "probes", "order", "threshold", "dense")}


@moved(**MOVED)
@names_ignored
@shows("Hessian")
def hessian_spectrum(
    loss: Callable[..., Any],
    at: Any,
    *,
    key: PRNGKeyArray,
    data: Any = None,
    batch: int | None = None,
    weights: Any = None,
    solver: SpectrumSolver | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    r"""Spectrum of a loss's Hessian: extreme eigenvalues, trace, rank and density.

    .. math:: H = \nabla^2L(w), \qquad \operatorname{rank}_\theta H = \#\{i : h_i > \theta\}

    Args:
        loss: Function of parameters, or with ``data`` of parameters and a batch, over which it is a mean. It returns a
            number or a vector of terms that sum to the loss. Or a network before its task: the task's loss on ``data``,
            prompts or their number (None: 4096), with the network as the point.
        at: Point w, any tree with arrays of one floating-point type; other leaves stay constant. Or the task.
        key: Key of the probes.
        data: Tree of arrays with a leading axis of samples, or None.
        batch: Number of samples in memory at once; None: all.
        weights: Weights that the matrix is over, the others held, as in
            :func:`~icllab.diagnostics.singular.coefficients.learning_coefficient`; None: all. Of a large network take
            one layer: a product takes some ten forward passes over ``data``, and there are ``probes`` times ``order``
            of them, and about 40 for each eigenvalue.
        solver: Number of probes and products, and the threshold; None: the default :class:`SpectrumSolver`.
        progress: Whether what is done, the time left and the present estimate are shown; None: on a terminal and in a
            notebook.

    Returns:
        ``eigenvalue`` over ``mode``, from the largest (0) to the smallest: all, or those at both ends. ``trace`` and
        ``hessian_rank``, with an ``_error`` over probes and a ``_gap``, the change by the last half of the products;
        ``rank_low`` and ``rank_high``, the ranks at a threshold half a decade higher and lower, which differ from
        ``hessian_rank`` if the spectrum has no gap at zero; ``threshold``. The density: ``node_value`` and
        ``node_weight``, over ``probe`` and ``node``, weights that sum to 1. The attributes hold the options.

    Raises:
        InputError: An argument is out of range, there are no parameters, arrays of data differ in their number of
            samples, or derivatives are not finite.

    Source: [Ghorbani19].
    """
    at, data, batch, loss, key = _located(loss, at, data, batch, key)
    if weights is not None:
        loss, at, _ = restricted_loss(loss, at, weights, data)
    require_loss(*vector_loss(loss, at, data))
    matrix = Hessian(loss, at, data, batch)
    return _spectrum(matrix, "hessian", key, SpectrumSolver() if solver is None else solver)


@moved(**MOVED)
@names_ignored
def fisher_spectrum(
    loss: Callable[..., Any],
    at: Any,
    *,
    key: PRNGKeyArray,
    data: Any,
    outputs: Callable[..., Any] | None = None,
    batch: int | None = None,
    weights: Any = None,
    solver: SpectrumSolver | None = None,
) -> xr.Dataset:
    r"""Spectrum of a Fisher matrix: of the samples' gradients, or of the model's own answers.

    .. math:: \hat F = \frac1n\sum_i\nabla\ell_i\nabla\ell_i^\top, \qquad
              F = \frac1n\sum_iJ_i^\top\,\nabla_z^2\ell_i\,J_i

    With ``outputs`` the matrix is F, the Gauss-Newton matrix, positive semidefinite if the loss is convex in the
    outputs. It is the Fisher matrix, an expectation over the *model's* answers, if the loss is minus the
    log-probability of an exponential family whose natural parameters are the outputs: squares over twice the variance,
    cross-entropy of logits. Without ``outputs`` the matrix is :math:`\hat F`, of the answers in the data. It differs
    from F unless the model gives their distribution, and is not a curvature of the loss.

    Args:
        loss: Mean over a batch, as a function of parameters and the batch; with ``outputs``, of outputs and the batch.
        at: A point, as for :func:`hessian_spectrum`, which also describes the result; so are the other arguments.
        outputs: Function of parameters and a batch, or None.

    Raises:
        InputError: As :func:`hessian_spectrum`.

    Source: [Schraudolph02]; [Martens20].
    """
    if data is None and not is_task(at):
        raise expected("data", "arrays with one leading axis of samples", None, "hessian_spectrum needs none")
    at, data, batch, loss, key = _located(loss, at, data, batch, key)
    if outputs is None:
        if weights is not None:
            loss, at, _ = restricted_loss(loss, at, weights, data)
        require_loss(*vector_loss(loss, at, data))
        matrix, kind = EmpiricalFisher(loss, at, data, batch), "empirical_fisher"
    else:
        sample_count(data)
        if weights is not None:
            outputs, at, _ = held(outputs, at, weights)
        answer, centre = vector_loss(outputs, at, data)
        z = shape_of("outputs", "a function of parameters and samples", answer.of, centre, data)
        shape_of("loss", "a function of outputs and samples", loss, z, data)
        matrix, kind = GaussNewton(loss, at, data, batch, outputs=outputs), "gauss_newton"
    return _spectrum(matrix, kind, key, SpectrumSolver() if solver is None else solver)


@moved(**MOVED)
def effective_dimension(
    loss: Callable[..., Any],
    at: Any,
    *,
    resolution: float,
    key: PRNGKeyArray,
    data: Any = None,
    batch: int | None = None,
    solver: SpectrumSolver | None = None,
) -> TraceEstimate:
    r"""Effective number of directions that are steeper than a resolution.

    .. math:: \operatorname{tr}H_+\bigl(H_++\rho\bigr)^{-1} = \sum_{h_i>0}\frac{h_i}{h_i+\rho}

    For the posterior :math:`\exp(-n\beta L-\frac\gamma2\lVert w-w^*\rVert^2)`, :math:`\rho = \gamma/n\beta`. Half of
    the effective dimension is the learning coefficient of a quadratic loss with this Hessian.

    Args:
        loss: Loss, as for :func:`hessian_spectrum`; so are the other arguments.
        resolution: :math:`\rho`, in units of the Hessian.
        solver: Number of probes and of products; about :math:`\sqrt{h_{\max}/\rho}` products are needed for each
            probe, and ``gap`` shows whether they suffice.

    Raises:
        InputError: The resolution is not positive and finite, or as for :func:`hessian_spectrum`.

    Source: [MacKay92].
    """
    POSITIVE.require("resolution", resolution)
    at, data, batch, loss, key = _located(loss, at, data, batch, key)
    require_loss(*vector_loss(loss, at, data))
    matrix, solver = Hessian(loss, at, data, batch), SpectrumSolver() if solver is None else solver
    size, dtype = _size(matrix, solver.dense)

    def share(h: np.ndarray) -> np.ndarray:
        steep = np.clip(h, 0, None)
        return steep / (steep + resolution)

    if size <= solver.dense:
        return TraceEstimate(float(np.sum(share(_all_eigenvalues(matrix)))), 0.0)
    measure = spectral_measure(matrix, size, key=key, probes=solver.probes, order=solver.order, dtype=dtype)
    return measure.trace_of(share)


def curvatures(loss: Any, at: Any, *, key: PRNGKeyArray, dense: int = DENSE) -> tuple[np.ndarray, np.ndarray | None]:
    """All eigenvalues of the Hessian, in descending order, and its eigenvectors as columns.

    Of more than ``dense`` parameters the eigenvalues are quantiles of the density by random probes, without vectors.
    """
    matrix = Hessian(loss, at, None, None)
    size, dtype = _size(matrix, dense)
    if size <= dense:
        eigenvalues, vectors = np.linalg.eigh(_dense(matrix))
        return eigenvalues[::-1], vectors[:, ::-1]
    nodes, weights = spectral_measure(matrix, size, key=key, probes=4, order=64, dtype=dtype).quadrature()
    order = np.argsort(nodes, axis=None)[::-1]
    levels = np.cumsum(weights.ravel()[order]) / len(nodes)
    places = np.searchsorted(levels, (np.arange(size) + 0.5) / size)
    return nodes.ravel()[order][np.minimum(places, len(order) - 1)], None


def _located(loss: Any, at: Any, data: Any, batch: int | None, key: PRNGKeyArray) -> tuple[Any, Any, Any, Any, Any]:
    """Point, data, batch, loss and key of a loss, or of a network before its task."""
    require_key(key)
    if batch is not None:
        Domain(int, least=1, text="an integer of at least 1, or None").require("batch", batch)
    if not is_task(at):
        return at, jax.tree.map(jnp.asarray, data), batch, loss, key
    of_prompts, key = jax.random.split(key)
    loss, at, data = network_loss(loss, at, key=of_prompts, data=data)
    return at, data, BATCH if batch is None else batch, loss, key


def _spectrum(matrix: Curvature, kind: str, key: PRNGKeyArray, solver: SpectrumSolver) -> xr.Dataset:
    size, dtype = _size(matrix, solver.dense)
    attrs: dict[str, Any] = {"matrix": kind, "parameters": size, "exact": int(size <= solver.dense)}
    if size <= solver.dense:
        modes = np.arange(size)
        eigenvalues = _all_eigenvalues(matrix)
        nodes, weights = eigenvalues[None], np.full((1, size), 1 / size)

        def trace_of(function: Callable[[np.ndarray], np.ndarray]) -> TraceEstimate:
            return TraceEstimate(float(np.sum(function(eigenvalues))), 0.0)

    else:
        of_ends, of_probes = jax.random.split(key)
        extreme = min(solver.extreme, (size - 1) // 2)
        largest, smallest = extreme_eigenvalues(matrix, size, extreme, key=of_ends, dtype=dtype)
        modes = np.concatenate([np.arange(extreme), np.arange(size - extreme, size)])
        eigenvalues = np.concatenate([largest, smallest[::-1]])
        measure = spectral_measure(matrix, size, key=of_probes, probes=solver.probes, order=solver.order, dtype=dtype)
        nodes, weights = measure.quadrature()
        trace_of = measure.trace_of
        attrs |= {"probes": solver.probes, "order": solver.order}
    rounding = max(size, ROUNDING) * float(jnp.finfo(dtype).eps) * float(np.max(np.abs(nodes)))
    cutoff = rounding if solver.threshold is None else solver.threshold
    total, rank = trace_of(lambda h: h), trace_of(lambda h: (h > cutoff).astype(float))
    nearby_ranks = [trace_of(lambda h, by=by: (h > cutoff * by).astype(float)).value for by in (NEARBY, 1 / NEARBY)]
    numbers = {"trace": total.value, "trace_error": total.error, "trace_gap": total.gap}
    numbers |= {"hessian_rank": rank.value, "hessian_rank_error": rank.error, "hessian_rank_gap": rank.gap}
    numbers |= {"rank_low": nearby_ranks[0], "rank_high": nearby_ranks[1], "threshold": cutoff}
    density = {"node_value": (("probe", "node"), nodes), "node_weight": (("probe", "node"), weights)}
    variables = {"eigenvalue": ("mode", eigenvalues)} | numbers | density
    return xr.Dataset(variables, coords={"mode": modes}, attrs=attrs)


def _size(matrix: Curvature, dense: int) -> tuple[int, Any]:
    """Number and type of rows; raise if a product of a matrix that is not dense is not finite."""
    centre = matrix.centre
    if not centre.size or not jnp.issubdtype(centre.dtype, jnp.floating):
        raise expected("at", "arrays of a floating-point type", f"{centre.size} numbers of {centre.dtype}")
    if matrix.data is not None:
        sample_count(matrix.data)
    if centre.size > dense:
        _require_finite(_product(matrix, jnp.ones(centre.size, centre.dtype)))
    return int(centre.size), centre.dtype


@eqx.filter_jit(donate="all-except-first")
def _rows(curvature: Curvature, matrix: Array, first: Array, end: Array) -> Array:
    """The matrix with the blocks of rows from ``first`` to ``end`` filled in."""

    size = matrix.shape[1]
    together = min(TOGETHER, size)

    def block(i: Array, matrix: Array) -> Array:
        units = jax.nn.one_hot(i * together + jnp.arange(together), size, dtype=matrix.dtype)
        return jax.lax.dynamic_update_slice(matrix, jax.vmap(curvature)(units), (i * together, 0))

    return jax.lax.fori_loop(first, end, block, matrix)


def _dense(curvature: Curvature) -> np.ndarray:
    """The symmetric matrix, written out."""
    size, dtype = curvature.centre.size, curvature.centre.dtype
    together = min(TOGETHER, size)
    blocks = -(-size // together)
    stage("matrix", blocks, "blocks of rows")
    matrix = in_stretches(
        lambda matrix, first, end: _rows(curvature, matrix, jnp.asarray(first), jnp.asarray(end)),
        jnp.zeros((blocks * together, size), dtype),
        blocks,
    )
    dense_matrix = np.asarray(matrix[:size], np.float64)
    _require_finite(dense_matrix)
    return (dense_matrix + dense_matrix.T) / 2


def _all_eigenvalues(curvature: Curvature) -> np.ndarray:
    """All eigenvalues, in descending order."""
    return np.linalg.eigvalsh(_dense(curvature))[::-1]


@eqx.filter_jit
def _product(matrix: Curvature, v: Array) -> Array:
    return matrix(v)


def _require_finite(numbers: Any) -> None:
    failures = int(np.sum(~np.isfinite(numbers)))
    if failures:
        raise expected("loss", "finite derivatives at the point given", f"{failures} numbers that are not")
