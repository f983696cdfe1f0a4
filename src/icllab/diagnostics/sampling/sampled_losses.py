r"""Losses as functions of one vector, alone or as the mean over samples of data.

A loss may have terms, a vector whose sum it is. The loss of batches is compared with that of the same batch at
:math:`w^*`: the term of every sample there is found once, so that the comparison costs a step nothing.
"""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from icllab.core.errors import IclError, expected, kind_of
from icllab.core.protocols import is_task
from icllab.diagnostics.sampling.costs import nominal_seconds
from icllab.diagnostics.sampling.posteriors import Posterior, Vector, summed

GROUPS, MOST_GROUPS = 64, 1024  # of samples, whose gradients' scatter is looked at
BLOCK = 256  # samples that are evaluated at once, where all of them count
FEW = 8  # samples whose mean is compared with what the loss says of them


class HeldLoss(eqx.Module):
    """A loss as a function of some weights; the others are held."""

    loss: Any
    constants: Any  # tree with None for every array of which all is selected
    entries: Any  # tree with the indices of what is selected of an array, and None for all or nothing

    def __call__(self, part: Any, *samples: Any) -> Any:
        """The loss of the whole."""
        return self.loss(eqx.combine(self.arrays(part), self.constants), *samples)

    def arrays(self, part: Any) -> Any:
        """The selected weights as whole arrays, None for others."""

        def array(leaf: Any, entries: Any, constant: Any) -> Any:
            return leaf if entries is None else jnp.asarray(constant).at[entries].set(leaf)

        return jax.tree.map(array, part, self.entries, self.constants, is_leaf=lambda leaf: leaf is None)


class VectorLoss(eqx.Module):
    """A loss of one flat vector of the floating-point parameters; other leaves are fixed."""

    loss: Any  # of the parameters, and of samples if there are data
    static: Any  # of the parameters, what is no floating-point array
    data: Any  # a tree of arrays with a leading axis of samples, or None
    unravel: Any = eqx.field(static=True)
    held: HeldLoss | None = None  # of what does not move, where the loss is of more than the vector

    def __call__(self, w: Any) -> Any:
        """The loss, of all the data if there are any."""
        return self.loss(self.parameters(w)) if self.data is None else self.of(w, self.data)

    def of(self, w: Any, samples: Any) -> Any:
        """The loss of some samples."""
        return self.loss(self.parameters(w), samples)

    def of_each(self, w: Any, samples: Any) -> Any:
        """The terms of every sample alone, [sample, term]."""
        single = jax.tree.map(lambda leaf: leaf[:, None], samples)
        at_once = getattr(self.loss, "at_once", None)  # of a network whose activations for all are too many

        def terms(sample: Any) -> Array:
            return jnp.atleast_1d(self.of(w, sample))

        return jax.vmap(terms)(single) if at_once is None else jax.lax.map(terms, single, batch_size=at_once)

    def parameters(self, w: Any) -> Any:
        """The tree of all parameters at a vector."""
        tree = eqx.combine(self.unravel(w), self.static)
        return tree if self.held is None else eqx.combine(self.held.arrays(tree), self.held.constants)


def vector_loss(loss: Any, at: Any, data: Any) -> tuple[VectorLoss, Vector]:
    """The loss as a function of one vector, and the vector of ``at``.

    Raises:
        InputError: The loss is no function, or there are no floating-point parameters, or of several types.
    """
    if not callable(loss) or isinstance(loss, type):
        raise expected("loss", "a function of parameters", kind_of(loss))
    if is_task(at):
        hint = "learning_coefficient, hessian_spectrum and free_energy take a network and its task"
        raise expected("at", "a tree of arrays, the parameters of the loss", f"a task, {kind_of(at)}", hint)
    params, static = eqx.partition(jax.tree.map(_strong, at), eqx.is_inexact_array)
    types = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(params)})
    if len(types) != 1:
        came = types or sorted({_kind(leaf) for leaf in jax.tree.leaves(at)}) or at
        hint = "" if types else "jnp.asarray(..., float) makes an array of numbers"
        raise expected("at", "a tree of arrays of one floating-point type", came, hint)
    centre, unravel = ravel_pytree(params)
    whole, held = (loss.loss, loss) if isinstance(loss, HeldLoss) else (loss, None)
    return VectorLoss(whole, static, jax.tree.map(_on_device, data), unravel, held), centre


def _strong(leaf: Any) -> Any:
    """NumPy's arrays as JAX's: parameters that a run has kept are on the host."""
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" else leaf


def _on_device(leaf: Any) -> Any:
    """NumPy's arrays of numbers as JAX's."""
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf" else leaf


def _kind(leaf: Any) -> str:
    return str(leaf.dtype) if eqx.is_array_like(leaf) and hasattr(leaf, "dtype") else type(leaf).__name__


def rows_of(data: Any, rows: Any) -> Any:
    """Some samples of the data."""
    return jax.tree.map(lambda leaf: leaf[rows], data)


def sample_count(data: Any) -> int:
    """Number of samples.

    Raises:
        InputError: There are none, or the arrays do not agree.
    """
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(data) if eqx.is_array(leaf)}
    if len(sizes) != 1 or 0 in sizes:
        came = sorted(sizes) or sorted({_kind(leaf) for leaf in jax.tree.leaves(data)})
        hint = "" if sizes - {0} else "jnp.asarray makes one of a list"
        raise expected("data", "arrays with one leading axis of samples", came, hint)
    return sizes.pop()


class Batches(eqx.Module):
    r"""A posterior that is seen through batches of samples, drawn with replacement.

    The gradient of a batch is noise around that of all the data. With ``slope`` it is the batch's own difference from
    :math:`w^*` that is noise:

    .. math:: \nabla L_b(w) - \nabla L_b(w^*) + \nabla L(w^*)

    and of a loss without terms :math:`(\nabla L_b(w^*) - \nabla L(w^*))^\top(w-w^*)` is taken from the loss too.
    """

    posterior: Posterior  # of all the data
    baseline: Float[Array, "sample term"]  # at w*
    slope: Float[Array, " parameter"] | None  # of all the data at w*; None for the gradient of a batch as it is
    size: int = eqx.field(static=True)

    def sample(self, key: PRNGKeyArray) -> tuple[Any, Float[Array, " term"]]:
        """A batch, and its terms at :math:`w^*`."""
        loss = cast(VectorLoss, self.posterior.loss)
        rows = jax.random.randint(key, (self.size,), 0, self.baseline.shape[0])
        return rows_of(loss.data, rows), jnp.mean(self.baseline[rows], axis=0)

    def evaluated(self, w: Vector, batch: tuple[Any, Array]) -> tuple[Float[Array, ""], Vector, Float[Array, " term"]]:
        """The loss above that of the same batch at the point, the gradient of the potential, and the terms likewise."""
        samples, baseline = batch
        loss = cast(VectorLoss, self.posterior.loss)

        def over(w: Vector) -> Array:
            return jnp.atleast_1d(loss.of(w, samples)) - baseline

        above, gradient, terms = summed(over, w)
        if self.slope is not None:
            noise = summed(over, self.posterior.at)[1] - self.slope
            gradient = gradient - noise
            if terms.shape == (1,):
                # Most of what a batch's loss says of its own samples, to first order around the point.
                above = above - jnp.sum(noise * (w - self.posterior.at))
                terms = above[None]
        return above, self.posterior.nbeta * gradient + self.posterior.restoring(w), terms


class AtPoint(eqx.Module):
    r"""Terms of all samples and the gradient of the loss at :math:`w^*`."""

    terms: Float[Array, "sample term"]  # a loss without data is one sample
    slope: Float[Array, " parameter"]  # of the loss

    @property
    def baseline(self) -> Float[np.ndarray, " term"]:
        """The terms of the loss, of all the data."""
        return np.asarray(self.terms, np.float64).mean(0)


def at_point(loss: VectorLoss, w: Vector, *, batch: int = BLOCK) -> AtPoint:
    """Losses and gradient of all the data, a batch at a time."""
    if loss.data is None:
        terms, slope = _alone(loss, w)
        return AtPoint(terms[None], slope)
    count = sample_count(loss.data)
    groups, whole = _groups(loss.data, batch)
    terms, slope, _ = _over_groups(loss, w, groups)
    if whole < count:
        left = jax.tree.map(lambda leaf: leaf[None, whole:], loss.data)
        last_terms, last, _ = _over_groups(loss, w, left)
        terms = jnp.concatenate([terms, last_terms])
        slope = slope * (whole / count) + last * (1 - whole / count)
    return AtPoint(terms, slope)


def batch_noise(loss: VectorLoss, w: Vector, *, batch: int) -> float:
    """Trace of the covariance of the gradient of a batch that is drawn with replacement.

    From the scatter of disjoint groups, of shuffled samples: as large as a batch where there are many of them, and
    smaller where these would be few. The covariance of a mean is inverse to its size. Of G groups the relative error
    is about the root of 2/G in one direction, and less in many.
    """
    count = sample_count(loss.data)
    size = max(1, min(batch, count // GROUPS))
    groups = min(count // size, MOST_GROUPS)
    if groups < 2:
        return 0.0  # there is one sample, and every batch is of it
    rows = np.random.default_rng(0).permutation(count)[: groups * size].reshape(groups, size)
    _, slope, square = _over_groups(loss, w, rows_of(loss.data, rows))
    scatter = max(float(square) - float(jnp.sum(slope**2)), 0.0) * groups / (groups - 1)
    # Of samples that are all there are: what is drawn with replacement has their variance as it is.
    return scatter * size / batch * (count - 1) / count


def require_loss(loss: VectorLoss, w: Vector, name: str = "loss") -> tuple[int, ...]:
    """Shape of a loss: a scalar, or a vector of terms; of all the data if there are any.

    Raises:
        InputError: It has another shape or no floating-point numbers, or cannot be computed of these arguments.
    """
    samples = () if loss.data is None else (loss.data,)
    if samples:
        sample_count(loss.data)
    requirement = "a function of parameters" + (" and samples" if samples else "")
    hint = "" if samples else "with data= it is a function of parameters and samples"
    value = shape_of(name, requirement, loss.of if samples else loss, w, *samples, hint=hint)
    if not isinstance(value, jax.ShapeDtypeStruct) or len(value.shape) > 1:
        came = value.shape if isinstance(value, jax.ShapeDtypeStruct) else kind_of(value)
        raise expected(name, "a scalar, or a vector of terms whose sum it is", came)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise expected(name, "a floating-point number", value.dtype.name)
    return value.shape


def shape_of(name: str, requirement: str, function: Any, *arguments: Any, hint: str = "") -> Any:
    """Shape and type of a user's function's value; an exception of its own becomes an error of one line."""
    try:
        return eqx.filter_eval_shape(function, *arguments)
    except IclError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise expected(name, requirement, f"{type(error).__name__}: {first}", hint) from error


def require_mean(loss: VectorLoss, w: Vector) -> None:
    """Raise unless the loss is a scalar or vector, and with data the mean over samples.

    Raises:
        InputError: The loss has another shape, another one of several samples than of one, or another value than the
            mean of what it is of each.
    """
    shape = require_loss(loss, w)
    if loss.data is None:
        return
    head = rows_of(loss.data, slice(0, FEW))
    single = shape_of("loss", "a function of one sample too", loss.of, w, rows_of(loss.data, slice(0, 1))).shape
    if shape != single:
        hint = "return the mean over samples"
        raise expected("loss", "the same shape of all samples as of one", [shape, single], hint)
    # Not at the point alone: there a loss may be zero, as is its sum.
    point = np.asarray(w)
    beside = point + 0.01 * (1 + np.abs(point)) * np.cos(np.arange(w.size))
    for place in (beside, point):
        whole, by_sample = (np.asarray(values, np.float64) for values in _both(loss, jnp.asarray(place, w.dtype), head))
        if not np.isfinite([*whole, *by_sample.ravel()]).all():
            continue
        if np.abs(whole - by_sample.mean(0)).max() > 0.01 * np.abs(by_sample).mean(0).max():
            requirement = f"the mean over samples, {by_sample.mean(0).sum():.4g} of {len(by_sample)} of them"
            raise expected("loss", requirement, float(whole.sum()), "a sum is to be divided by the number of samples")


@eqx.filter_jit
def _both(loss: VectorLoss, w: Vector, samples: Any) -> tuple[Array, Array]:
    """The loss of some samples, and of each."""
    return jnp.atleast_1d(loss.of(w, samples)), loss.of_each(w, samples)


def gradient_seconds(loss: VectorLoss, w: Vector, *, batch: int) -> float:
    """Nominal seconds of the loss of all the data with its gradient: counted, and not timed."""
    if loss.data is None:
        return nominal_seconds(_alone, loss, w)
    groups, whole = _groups(loss.data, batch)
    return sample_count(loss.data) / whole * nominal_seconds(_over_groups, loss, w, groups)


def _groups(data: Any, batch: int) -> tuple[Any, int]:
    """The data in whole batches, and how many samples these are."""
    count = sample_count(data)
    size = min(batch, count)
    whole = count - count % size
    return jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, size, *leaf.shape[1:]), data), whole


@eqx.filter_jit
def _alone(loss: VectorLoss, w: Vector) -> tuple[Array, Array]:
    _, slope, terms = summed(loss, w)
    return terms, slope


@eqx.filter_jit
def _over_groups(loss: VectorLoss, w: Vector, groups: Any) -> tuple[Array, Array, Array]:
    """The terms of every sample, and the mean of the gradients of the groups and of their squared lengths."""

    def total(w: Vector, samples: Any) -> tuple[Array, Array]:
        by_sample = loss.of_each(w, samples)
        return jnp.sum(jnp.mean(by_sample, axis=0)), by_sample

    def group(sums: tuple[Array, Array], samples: Any) -> tuple[tuple[Array, Array], Array]:
        slope, by_sample = jax.grad(total, has_aux=True)(w, samples)
        return (sums[0] + slope, sums[1] + jnp.sum(slope**2)), by_sample

    start = (jnp.zeros_like(w), jnp.zeros((), w.dtype))
    (slope, square), by_sample = jax.lax.scan(group, start, groups)
    count = len(by_sample)
    return by_sample.reshape(-1, by_sample.shape[-1]), slope / count, square / count
