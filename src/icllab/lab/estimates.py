r"""Numbers with their standard errors, over named axes.

.. math:: \hat m = \frac1n\sum_i x_i, \qquad \mathrm{SE}^2 = \frac{1}{n(n-1)}\sum_i(x_i - \hat m)^2

The error of a mean of n samples is itself known with n - 1 degrees of freedom, and a mean of few samples over it has
Student's distribution. Of a sum or ratio of independent estimates they are those of Welch and Satterthwaite,

.. math:: \nu = \frac{(\sum_k s_k^2)^2}{\sum_k s_k^4/\nu_k},

infinite where an error is known without samples.

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
    """

    value: xr.DataArray
    error: xr.DataArray
    logarithmic: bool
    freedom: xr.DataArray

    __repr__ = fields_repr
    _repr_html_ = fields_html

    def __init__(self, value: Number, error: Number, logarithmic: bool = False, freedom: Number = np.inf) -> None:
        value = _array(value)
        error, freedom = (_like(_array(part), value) for part in (error, freedom))
        for name, part in (("value", value), ("error", error), ("logarithmic", logarithmic), ("freedom", freedom)):
            object.__setattr__(self, name, part)

    def __sub__(self, operand: "Estimate | Number") -> "Estimate":
        """The difference of independent estimates; of geometric means it is not defined, but their ratio is."""
        operand = _estimate(operand)
        if self.logarithmic or operand.logarithmic:
            raise expected("difference", "estimates of numbers", "a geometric mean", "take the ratio")
        return _joined(self.value - operand.value, (self.error, self.freedom), (operand.error, operand.freedom))

    def __add__(self, operand: "Estimate | Number") -> "Estimate":
        """The sum of independent estimates."""
        operand = _estimate(operand)
        return self - replace(operand, value=-operand.value)

    def __truediv__(self, operand: "Estimate | Number") -> "Estimate":
        """The ratio of independent estimates, to first order in the errors; exact for geometric means."""
        operand = _estimate(operand)
        if self.logarithmic:
            below = operand if operand.logarithmic else operand.log()
            parts = (self.error, self.freedom), (below.error, below.freedom)
            return replace(_joined(self.value - below.value, *parts), logarithmic=True)
        if operand.logarithmic:
            raise expected("ratio", "two geometric means, or none", "one")
        ratio = self.value / operand.value
        numerator, denominator = abs(self.error / operand.value), abs(ratio * operand.error / operand.value)
        return _joined(ratio, (numerator, self.freedom), (denominator, operand.freedom))

    def log(self) -> "Estimate":
        """The same, kept as a logarithm, to first order in the error."""
        if self.logarithmic:
            return self
        return replace(self, value=np.log(self.value), error=self.error / np.abs(self.value), logarithmic=True)

    def number(self) -> "Estimate":
        """The same, kept as a number and not as a logarithm, to first order in the error."""
        if not self.logarithmic:
            return self
        return replace(self, value=np.exp(self.value), error=np.exp(self.value) * self.error, logarithmic=False)

    def average(self, over: str) -> "Estimate":
        """The mean over an axis, with the elements' own errors, which are independent."""
        return self.combined(1 / self.value.sizes[over], over)

    def combined(self, weights: Number, over: str) -> "Estimate":
        """The sum over an axis with weights; the elements' own errors are independent."""
        weights = _array(weights)
        squares = (weights * self.error) ** 2
        freedom = _satterthwaite(squares.sum(over), (squares**2 / self.freedom).sum(over))
        error = squares.sum(over, skipna=False) ** 0.5
        value = (weights * self.value).sum(over, skipna=False)
        return replace(self, value=value, error=error, freedom=freedom)

    def sel(self, **at: Any) -> "Estimate":
        """Values at coordinates, as of a DataArray."""
        return replace(self, value=self.value.sel(at), error=self.error.sel(at), freedom=self.freedom.sel(at))


def mean(samples: xr.DataArray, over: str = "seed") -> Estimate:
    """The mean over independent repetitions and its standard error; NaNs are left out.

    An error needs two repetitions; of one it is unknown (NaN).
    """
    like = samples.isel({over: 0}, drop=True)
    value, error = mean_and_error(samples.transpose(*like.dims, over).to_numpy())
    freedom = np.maximum(samples.notnull().sum(over) - 1.0, 0.0)
    return Estimate(like.copy(data=value), like.copy(data=error), freedom=freedom)


def geometric_mean(samples: xr.DataArray, over: str = "seed") -> Estimate:
    """The geometric mean over independent repetitions of positive numbers, with the error of its logarithm."""
    return replace(mean(samples.copy(data=np.log(samples.to_numpy())), over), logarithmic=True)


def limit(finite: Estimate, along: str = "dim", *, order: int) -> Estimate:
    """What a finite-size estimate tends to, :func:`icllab.core.statistics.extrapolate` along an axis of sizes."""
    axes = [str(name) for name in finite.value.dims if name != along]
    like = finite.value.isel({along: 0}, drop=True).transpose(*axes)
    values, errors = (part.transpose(*axes, along).to_numpy() for part in (finite.value, finite.error))
    sizes = finite.value[along].to_numpy()
    limits = np.array([extrapolate(sizes, values[at], errors[at], order=order) for at in np.ndindex(like.shape)])
    value, error = np.moveaxis(limits.reshape(*like.shape, 2), -1, 0)
    least = finite.freedom.min(along)  # that of the least certain size, so that it is not overstated
    return replace(finite, value=like.copy(data=value), error=like.copy(data=error), freedom=least)


def stored(dataset: xr.Dataset, name: str) -> Estimate:
    """A quantity of a dataset with the ``_error`` that stands beside it; without one it is exact."""
    error = f"{name}_error"
    return Estimate(dataset[name], dataset[error] if error in dataset else xr.zeros_like(dataset[name], dtype=float))


def _array(value: Number) -> xr.DataArray:
    return value if isinstance(value, xr.DataArray) else xr.DataArray(np.asarray(value, dtype=float))


def _estimate(value: Estimate | Number) -> Estimate:
    return value if isinstance(value, Estimate) else Estimate(value, xr.zeros_like(_array(value), dtype=float))


def _like(part: xr.DataArray, value: xr.DataArray) -> xr.DataArray:
    return part if part.dims == value.dims else part.broadcast_like(value).transpose(*value.dims)


_Part: TypeAlias = tuple[xr.DataArray, xr.DataArray]  # an error and its degrees of freedom


def _joined(value: xr.DataArray, first: _Part, second: _Part) -> Estimate:
    """A combination of two independent estimates."""
    squares = first[0] ** 2 + second[0] ** 2
    fourths = first[0] ** 4 / first[1] + second[0] ** 4 / second[1]
    return Estimate(value, squares**0.5, freedom=_satterthwaite(squares, fourths))


def _satterthwaite(squares: xr.DataArray, fourths: xr.DataArray) -> xr.DataArray:
    """Degrees of freedom; infinite where there is no error of samples."""
    return xr.where(fourths > 0, squares**2 / fourths.where(fourths > 0, 1.0), np.inf)
