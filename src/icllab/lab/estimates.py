r"""Estimates: arrays of numbers with standard errors, over named axes.

.. math:: \hat m = \frac1n\sum_i x_i, \qquad \mathrm{SE}^2 = \frac{1}{n(n-1)}\sum_i(x_i - \hat m)^2

The error of a mean of n samples is itself known with n - 1 degrees of freedom, and a mean of few samples over it has
Student's distribution. Of a sum or ratio of independent estimates they are those of Welch and Satterthwaite,

.. math:: \nu = \frac{(\sum_k s_k^2)^2}{\sum_k s_k^4/\nu_k},

infinite where an error is known without samples.

Samples that lean to one side make a mean lean too, and its error with it. The skewness of a mean is
:math:`\lambda = \gamma/\sqrt n`; the skewness of a linear combination with coefficients :math:`c_k` is
:math:`\sum_k (c_ks_k)^3\lambda_k / (\sum_k c_k^2s_k^2)^{3/2}`. Ten samples hardly tell their own :math:`\gamma`:
:func:`mean` takes the average over all elements of an array.

A geometric mean is kept as the mean of logarithms: its ratios and bounds are compared there, where errors of a ratio
are symmetric, and reported as numbers.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import xarray as xr

from icllab.core.errors import expected
from icllab.core.statistics import extrapolate, mean_and_error
from icllab.core.views import fields_html, fields_repr

Number: TypeAlias = float | np.ndarray | np.number | xr.DataArray


@dataclass(frozen=True, init=False, repr=False)
class Estimate:
    """A value and its standard error for every element of an array with named axes.

    Attributes:
        value: The estimate; a plain number is an array without axes.
        error: The standard error, over the same axes; 0 where the value is exact, NaN where it is unknown.
        logarithmic: Whether both are those of a natural logarithm.
        freedom: Degrees of freedom of the error, over the same axes; infinite where it is not one of samples.
        skewness: Skewness of the estimate, over the same axes; 0 where it is unknown.
    """

    value: xr.DataArray
    error: xr.DataArray
    logarithmic: bool
    freedom: xr.DataArray
    skewness: xr.DataArray

    __repr__ = fields_repr
    _repr_html_ = fields_html

    def __init__(
        self,
        value: Number,
        error: Number,
        logarithmic: bool = False,
        freedom: Number = np.inf,
        skewness: Number = 0.0,
    ) -> None:
        value = _array(value)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "logarithmic", logarithmic)
        for name, part in (("error", error), ("freedom", freedom), ("skewness", skewness)):
            object.__setattr__(self, name, _like(_array(part), value))

    def __sub__(self, operand: "Estimate | Number") -> "Estimate":
        """The difference of independent estimates; of geometric means it is not defined, but their ratio is."""
        operand = _estimate(operand)
        if self.logarithmic or operand.logarithmic:
            raise expected("difference", "estimates of numbers", "a geometric mean", "take the ratio")
        return _joined(self.value - operand.value, (self, _array(1.0)), (operand, _array(-1.0)))

    def __add__(self, operand: "Estimate | Number") -> "Estimate":
        """The sum of independent estimates."""
        operand = _estimate(operand)
        return self - replace(operand, value=-operand.value, skewness=-operand.skewness)

    def __truediv__(self, operand: "Estimate | Number") -> "Estimate":
        """The ratio of independent estimates, to first order in the errors; exact for geometric means."""
        operand = _estimate(operand)
        if self.logarithmic:
            below = operand if operand.logarithmic else operand.log()
            return replace(
                _joined(self.value - below.value, (self, _array(1.0)), (below, _array(-1.0))), logarithmic=True
            )
        if operand.logarithmic:
            raise expected("ratio", "two geometric means, or none", "one")
        ratio = self.value / operand.value
        return _joined(ratio, (self, 1 / operand.value), (operand, -ratio / operand.value))

    def log(self) -> "Estimate":
        """The estimate as a logarithm, to first order in the error."""
        if self.logarithmic:
            return self
        return replace(self, value=np.log(self.value), error=self.error / np.abs(self.value), logarithmic=True)

    def number(self) -> "Estimate":
        """The estimate as a number instead of a logarithm, to first order in the error."""
        if not self.logarithmic:
            return self
        return replace(self, value=np.exp(self.value), error=np.exp(self.value) * self.error, logarithmic=False)

    def average(self, over: str) -> "Estimate":
        """The mean over an axis, with the elements' own errors, which are independent."""
        return self.combined(1 / self.value.sizes[over], over)

    def combined(self, weights: Number, over: str) -> "Estimate":
        """The sum over an axis with weights; the elements' own errors are independent."""
        weighted = _array(weights) * self.error
        squares = weighted**2
        freedom = _satterthwaite(squares.sum(over), (squares**2 / self.freedom).sum(over))
        error = squares.sum(over, skipna=False) ** 0.5
        value = (_array(weights) * self.value).sum(over, skipna=False)
        skewness = _skewness((weighted**3 * self.skewness).sum(over), error)
        return replace(self, value=value, error=error, freedom=freedom, skewness=skewness)

    def sel(self, **at: Any) -> "Estimate":
        """Values at coordinates, as of a DataArray."""
        parts = ("value", "error", "freedom", "skewness")
        return replace(self, **{part: getattr(self, part).sel(at) for part in parts})


def mean(samples: xr.DataArray, over: str = "seed") -> Estimate:
    """The mean over independent repetitions and its standard error; NaNs are left out.

    An error needs two repetitions; of one it is unknown (NaN).
    """
    like = samples.isel({over: 0}, drop=True)
    values = samples.transpose(*like.dims, over).to_numpy()
    count = np.isfinite(values).sum(-1) if values.dtype.kind == "f" else np.full(like.shape, values.shape[-1])
    value, error = (like.copy(data=part) for part in mean_and_error(values))
    freedom, skewness = np.maximum(count - 1.0, 0.0), _pooled_skewness(values) / np.maximum(count, 1) ** 0.5
    return Estimate(value, error, freedom=like.copy(data=freedom), skewness=like.copy(data=skewness))


def _pooled_skewness(samples: np.ndarray) -> float:
    r"""The skewness of samples along the last axis, averaged over elements that have three samples and vary.

    An average g of N samples has the error :math:`\sqrt{6/N}` where there is none: it is shrunk to
    :math:`g\max(0, 1 - 6/Ng^2)`. That of n samples alone is too small by a factor of 1 + 8/n, within a tenth for gamma
    distributions of skewness up to 2 and four samples or more: deviations are those from the samples' own mean and
    variance.
    """
    present = np.isfinite(samples)
    count = present.sum(-1).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        deviations = samples - np.where(present, samples, 0.0).sum(-1, keepdims=True) / count[..., None]
        variance, third = (np.where(present, deviations**k, 0.0).sum(-1) / count for k in (2, 3))
        ratio = third / variance**1.5 * np.sqrt(count * (count - 1.0)) / (count - 2.0)
    sound = (count > 2) & np.isfinite(ratio)
    g, total = (float(ratio[sound].mean()), float(count[sound].sum())) if sound.any() else (0.0, 0.0)
    return (
        float((ratio * (1 + 8 / np.maximum(count, 1.0)))[sound].mean()) * max(0.0, 1 - 6 / (total * g**2)) if g else 0.0
    )


def geometric_mean(samples: xr.DataArray, over: str = "seed") -> Estimate:
    """The geometric mean over independent repetitions of positive numbers, with the error of its logarithm."""
    return replace(mean(samples.copy(data=np.log(samples.to_numpy())), over), logarithmic=True)


def limit(finite: Estimate, along: str = "dim", *, order: int) -> Estimate:
    """Limit of a finite-size estimate, by :func:`icllab.core.statistics.extrapolate` along an axis of sizes."""
    axes = [str(name) for name in finite.value.dims if name != along]
    like = finite.value.isel({along: 0}, drop=True).transpose(*axes)
    values, errors = (part.transpose(*axes, along).to_numpy() for part in (finite.value, finite.error))
    sizes = finite.value[along].to_numpy()
    limits = np.array([extrapolate(sizes, values[at], errors[at], order=order) for at in np.ndindex(like.shape)])
    value, error = np.moveaxis(limits.reshape(*like.shape, 2), -1, 0)
    least = finite.freedom.min(along)  # that of the least certain size, so that it is not overstated
    return Estimate(like.copy(data=value), like.copy(data=error), finite.logarithmic, least)


def stored(dataset: xr.Dataset, name: str) -> Estimate:
    """A quantity of a dataset with its ``_error``; exact if the dataset has none."""
    error = f"{name}_error"
    return Estimate(dataset[name], dataset[error] if error in dataset else xr.zeros_like(dataset[name], dtype=float))


def _array(value: Number) -> xr.DataArray:
    return value if isinstance(value, xr.DataArray) else xr.DataArray(np.asarray(value, dtype=float))


def _estimate(value: Estimate | Number) -> Estimate:
    return value if isinstance(value, Estimate) else Estimate(value, xr.zeros_like(_array(value), dtype=float))


def _like(part: xr.DataArray, value: xr.DataArray) -> xr.DataArray:
    return part if part.dims == value.dims else part.broadcast_like(value).transpose(*value.dims)


_Part: TypeAlias = tuple[Estimate, xr.DataArray]  # an estimate and its coefficient


def _joined(value: xr.DataArray, one: _Part, another: _Part) -> Estimate:
    """A value to first order in two independent estimates."""
    first, second = (coefficient * part.error for part, coefficient in (one, another))
    squares = first**2 + second**2
    fourths = first**4 / one[0].freedom + second**4 / another[0].freedom
    cubes = first**3 * one[0].skewness + second**3 * another[0].skewness
    error = squares**0.5
    return Estimate(value, error, freedom=_satterthwaite(squares, fourths), skewness=_skewness(cubes, error))


def _skewness(cubes: xr.DataArray, error: xr.DataArray) -> xr.DataArray:
    """A third cumulant over the cube of the error; 0 where the error is 0."""
    return xr.where(error > 0, cubes / (error**3).where(error > 0, 1.0), 0.0)


def _satterthwaite(squares: xr.DataArray, fourths: xr.DataArray) -> xr.DataArray:
    """Degrees of freedom; infinite where samples add nothing to the error."""
    return xr.where(fourths > 0, squares**2 / fourths.where(fourths > 0, 1.0), np.inf)
