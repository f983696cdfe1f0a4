"""Spectra and ranks of a loss's Hessian and Fisher matrices, where there are many parameters by products alone.

A product of the Hessian with a vector costs about two gradients.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import expected
from icllab.diagnostics.curvature.krylov import TraceEstimate, extreme_eigenvalues, spectral_measure
from icllab.diagnostics.curvature.products import Curvature, EmpiricalFisher, GaussNewton, Hessian
from icllab.diagnostics.sampling.sampled_losses import sample_count

DENSE = 1500  # parameters up to which the matrix is written out
ROUNDING = 1000  # units of rounding of the largest eigenvalue that are taken for zero, or as many as parameters
NEARBY = 10.0**0.5  # factor on the threshold of a rank


def hessian_spectrum(
    loss: Callable[..., Any],
    at: Any,
    *,
    key: PRNGKeyArray,
    data: Any = None,
    batch: int | None = None,
    extreme: int = 8,
    probes: int = 16,
    order: int = 64,
    threshold: float | None = None,
    dense: int = DENSE,
) -> xr.Dataset:
    r"""The spectrum of a loss's Hessian: its ends, its trace, its rank and its density.

    .. math:: H = \nabla^2L(w), \qquad \operatorname{rank}_\theta H = \#\{i : h_i > \theta\}

    Args:
        loss: A function of parameters; with ``data`` of parameters and a batch, whose mean it is. A number, or a
            vector of terms that sum to the loss.
        at: w, any tree with arrays of one floating-point type; what else is in it stays as it is.
        key: Key of the probes.
        data: A tree of arrays with a leading axis of samples, or None.
        batch: Samples at a time; None: all.
        extreme: How many of the largest and of the smallest eigenvalues are found.
        probes: Random vectors of traces, rank and density.
        order: Products of each.
        threshold: :math:`\theta`; None: what rounding leaves of the largest eigenvalue.
        dense: Parameters up to which the matrix is written out, and everything is exact.

    Returns:
        ``eigenvalue`` over ``mode``, from the largest (0) to the smallest: all, or those at both ends. ``trace`` and
        ``rank``, with an ``_error`` over probes and a ``_gap``, what the last half of the products changed;
        ``rank_low`` and ``rank_high``, those above a threshold half a decade higher and lower: far from the rank
        where no gap in the spectrum says what is zero. ``threshold``. The density: ``node_value`` and
        ``node_weight``, over ``probe`` and ``node``, weights that sum to 1. The attributes say what was chosen.

    Raises:
        InputError: An argument is out of its range, there are no parameters, arrays of data have other numbers of
            samples, or derivatives are not finite.

    Source: [Ghorbani19].
    """
    how = {"extreme": extreme, "probes": probes, "order": order, "threshold": threshold, "dense": dense}
    return _spectrum(Hessian(loss, at, _arrays(data), batch), "hessian", key, **how)


def fisher_spectrum(
    loss: Callable[..., Any],
    at: Any,
    *,
    key: PRNGKeyArray,
    data: Any,
    outputs: Callable[..., Any] | None = None,
    batch: int | None = None,
    **how: Any,
) -> xr.Dataset:
    r"""The spectrum of a Fisher matrix: of the samples' gradients, or of the model's own answers.

    .. math:: \hat F = \frac1n\sum_i\nabla\ell_i\nabla\ell_i^\top, \qquad
              F = \frac1n\sum_iJ_i^\top\,\nabla_z^2\ell_i\,J_i

    With ``outputs``, F: the Gauss-Newton matrix, positive semidefinite where the loss is convex in the outputs. It is
    the Fisher matrix, an expectation over answers that the *model* gives, if the loss is minus the log-probability of
    an exponential family whose natural parameters are the outputs: squares over twice the variance, cross-entropy of
    logits. Without them :math:`\hat F`, of the answers in the data, which is another matrix where the model does
    not give their distribution, and no curvature of the loss.

    Args:
        loss: A function of parameters and a batch, its mean; with ``outputs`` of those and the batch.
        at: A point, as for :func:`hessian_spectrum`, which says too what is returned; so are ``key``, ``data`` and
            ``batch``.
        outputs: A function of parameters and a batch, or None.
        **how: ``extreme``, ``probes``, ``order``, ``threshold`` and ``dense`` of :func:`hessian_spectrum`.

    Raises:
        InputError: As :func:`hessian_spectrum`.

    Source: [Schraudolph02]; [Martens20].
    """
    if data is None:
        raise expected("data", "arrays with one leading axis of samples", None, "hessian_spectrum needs none")
    data = _arrays(data)
    if outputs is None:
        return _spectrum(EmpiricalFisher(loss, at, data, batch), "empirical_fisher", key, **how)
    return _spectrum(GaussNewton(loss, at, data, batch, outputs=outputs), "gauss_newton", key, **how)


def effective_dimension(
    loss: Callable[..., Any],
    at: Any,
    *,
    resolution: float,
    key: PRNGKeyArray,
    data: Any = None,
    batch: int | None = None,
    probes: int = 16,
    order: int = 64,
    dense: int = DENSE,
) -> TraceEstimate:
    r"""How many directions are steeper than a resolution, each by its share.

    .. math:: \operatorname{tr}H_+\bigl(H_++\rho\bigr)^{-1} = \sum_{h_i>0}\frac{h_i}{h_i+\rho}

    Of the posterior :math:`\exp(-n\beta L-\frac\gamma2\lVert w-w^*\rVert^2)`, :math:`\rho = \gamma/n\beta`, and half of
    it is the learning coefficient that a quadratic loss of that Hessian has.

    Args:
        loss: The loss, as for :func:`hessian_spectrum`; so are the others.
        resolution: :math:`\rho`, in units of the Hessian.
        order: Products of each probe; about :math:`\sqrt{h_{\max}/\rho}` are needed, and ``gap`` says if they were.

    Raises:
        InputError: The resolution is not positive and finite, or as :func:`hessian_spectrum`.

    Source: [MacKay92].
    """
    if not 0 < resolution < math.inf:
        raise expected("resolution", "a finite number > 0", resolution)
    made = Hessian(loss, at, _arrays(data), batch)
    size, dtype = _size(made, dense)

    def share(h: np.ndarray) -> np.ndarray:
        steep = np.clip(h, 0, None)
        return steep / (steep + resolution)

    if size <= dense:
        return TraceEstimate(float(np.sum(share(_all_eigenvalues(made)))), 0.0)
    return spectral_measure(made, size, key=key, probes=probes, order=order, dtype=dtype).trace_of(share)


def _spectrum(
    made: Curvature,
    kind: str,
    key: PRNGKeyArray,
    *,
    extreme: int = 8,
    probes: int = 16,
    order: int = 64,
    threshold: float | None = None,
    dense: int = DENSE,
) -> xr.Dataset:
    size, dtype = _size(made, dense)
    attrs: dict[str, Any] = {"matrix": kind, "parameters": size, "exact": int(size <= dense)}
    if size <= dense:
        modes = np.arange(size)
        eigenvalues = _all_eigenvalues(made)
        nodes, weights = eigenvalues[None], np.full((1, size), 1 / size)

        def trace_of(function: Callable[[np.ndarray], np.ndarray]) -> TraceEstimate:
            return TraceEstimate(float(np.sum(function(eigenvalues))), 0.0)

    else:
        of_ends, of_probes = jax.random.split(key)
        extreme = min(extreme, (size - 1) // 2)
        largest, smallest = extreme_eigenvalues(made, size, extreme, key=of_ends, dtype=dtype)
        modes = np.concatenate([np.arange(extreme), np.arange(size - extreme, size)])
        eigenvalues = np.concatenate([largest, smallest[::-1]])
        measure = spectral_measure(made, size, key=of_probes, probes=probes, order=order, dtype=dtype)
        nodes, weights = measure.quadrature()
        trace_of = measure.trace_of
        attrs |= {"probes": probes, "order": order}
    zero = max(size, ROUNDING) * float(jnp.finfo(dtype).eps) * float(np.max(np.abs(nodes)))
    line = zero if threshold is None else threshold
    total, rank = trace_of(lambda h: h), trace_of(lambda h: (h > line).astype(float))
    near = [trace_of(lambda h, by=by: (h > line * by).astype(float)).value for by in (NEARBY, 1 / NEARBY)]
    numbers = {"trace": total.value, "trace_error": total.error, "trace_gap": total.gap}
    numbers |= {"rank": rank.value, "rank_error": rank.error, "rank_gap": rank.gap}
    numbers |= {"rank_low": near[0], "rank_high": near[1], "threshold": line}
    density = {"node_value": (("probe", "node"), nodes), "node_weight": (("probe", "node"), weights)}
    variables = {"eigenvalue": ("mode", eigenvalues)} | numbers | density
    return xr.Dataset(variables, coords={"mode": modes}, attrs=attrs)


def _arrays(data: Any) -> Any:
    return jax.tree.map(jnp.asarray, data)


def _size(made: Curvature, dense: int) -> tuple[int, Any]:
    """Rows and their type; of a matrix that is not written out one product is checked to be finite."""
    centre = made.centre
    if not centre.size or not jnp.issubdtype(centre.dtype, jnp.floating):
        raise expected("at", "arrays of a floating-point type", f"{centre.size} numbers of {centre.dtype}")
    if made.batch is not None and made.batch < 1:
        raise expected("batch", "an integer of at least 1, or None", made.batch)
    if made.data is not None:
        sample_count(made.data)
    if centre.size > dense:
        _require_finite(_product(made, jnp.ones(centre.size, centre.dtype)))
    return int(centre.size), centre.dtype


@eqx.filter_jit
def _matrix(made: Curvature) -> Array:
    return jax.lax.map(made, jnp.eye(made.centre.size, dtype=made.centre.dtype), batch_size=64)


def _all_eigenvalues(made: Curvature) -> np.ndarray:
    """From the largest to the smallest."""
    matrix = np.asarray(_matrix(made), np.float64)
    _require_finite(matrix)
    return np.linalg.eigvalsh((matrix + matrix.T) / 2)[::-1]


@eqx.filter_jit
def _product(made: Curvature, v: Array) -> Array:
    return made(v)


def _require_finite(numbers: Any) -> None:
    wrong = int(np.sum(~np.isfinite(numbers)))
    if wrong:
        raise expected("loss", "finite derivatives at the point given", f"{wrong} numbers that are not")
