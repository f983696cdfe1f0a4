r"""Numbers with their standard errors, over named axes.

.. math:: \hat m = \frac1n\sum_i x_i, \qquad \mathrm{SE}^2 = \frac{1}{n(n-1)}\sum_i(x_i - \hat m)^2

A geometric mean is kept as the mean of logarithms: its ratios and bounds are compared there, where errors of a ratio
are symmetric, and reported as numbers.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import xarray as xr

from icllab.core.errors import expected
from icllab.core.statistics import extrapolate, mean_and_error

Number: TypeAlias = float | np.ndarray | np.number | xr.DataArray


@dataclass(frozen=True, init=False)
class Estimate:
    """A value and its standard error for every element of an array with named axes.

    Attributes:
        value: The estimate; a plain number is an array without axes.
        error: The standard error, over the same axes; 0 where the value is exact, NaN where it is unknown.
        logarithmic: Whether both are those of a natural logarithm.
    """

    value: xr.DataArray
    error: xr.DataArray
    logarithmic: bool = False

    def __init__(self, value: Number, error: Number, logarithmic: bool = False) -> None:
        value, error = _array(value), _array(error)
        error = error if error.dims == value.dims else error.broadcast_like(value).transpose(*value.dims)
        for name, part in (("value", value), ("error", error), ("logarithmic", logarithmic)):
            object.__setattr__(self, name, part)

    def __sub__(self, other: "Estimate | Number") -> "Estimate":
        """The difference of independent estimates; of geometric means it is not defined, but their ratio is."""
        other = _estimate(other)
        if self.logarithmic or other.logarithmic:
            raise expected("difference", "estimates of numbers", "a geometric mean", "take the ratio")
        return Estimate(self.value - other.value, _hypot(self.error, other.error))

    def __add__(self, other: "Estimate | Number") -> "Estimate":
        """The sum of independent estimates."""
        other = _estimate(other)
        return self - Estimate(-other.value, other.error, other.logarithmic)

    def __truediv__(self, other: "Estimate | Number") -> "Estimate":
        """The ratio of independent estimates, to first order in the errors; exact for geometric means."""
        other = _estimate(other)
        if self.logarithmic:
            below = other if other.logarithmic else other.log()
            return Estimate(self.value - below.value, _hypot(self.error, below.error), True)
        if other.logarithmic:
            raise expected("ratio", "two geometric means, or none", "one")
        ratio = self.value / other.value
        return Estimate(ratio, _hypot(self.error / other.value, ratio * other.error / other.value))

    def log(self) -> "Estimate":
        """The same, kept as a logarithm, to first order in the error."""
        return self if self.logarithmic else Estimate(np.log(self.value), self.error / np.abs(self.value), True)

    def number(self) -> "Estimate":
        """The same, kept as a number and not as a logarithm, to first order in the error."""
        return Estimate(np.exp(self.value), np.exp(self.value) * self.error) if self.logarithmic else self

    def average(self, over: str) -> "Estimate":
        """The mean over an axis, with the elements' own errors, which are independent."""
        count = self.error.sizes[over]
        return replace(self, value=self.value.mean(over), error=(self.error**2).sum(over, skipna=False) ** 0.5 / count)

    def sel(self, **at: Any) -> "Estimate":
        """Values at coordinates, as of a DataArray."""
        return replace(self, value=self.value.sel(at), error=self.error.sel(at))


def mean(samples: xr.DataArray, over: str = "seed") -> Estimate:
    """The mean over independent repetitions and its standard error; NaNs are left out.

    An error needs two repetitions; of one it is unknown (NaN).
    """
    like = samples.isel({over: 0}, drop=True)
    value, error = mean_and_error(samples.transpose(*like.dims, over).to_numpy())
    return Estimate(like.copy(data=value), like.copy(data=error))


def geometric_mean(samples: xr.DataArray, over: str = "seed") -> Estimate:
    """The geometric mean over independent repetitions of positive numbers, with the error of its logarithm."""
    found = mean(samples.copy(data=np.log(samples.to_numpy())), over)
    return replace(found, logarithmic=True)


def limit(finite: Estimate, along: str = "dim", *, order: int) -> Estimate:
    """What a finite-size estimate tends to, :func:`icllab.core.statistics.extrapolate` along an axis of sizes."""
    rest = [str(name) for name in finite.value.dims if name != along]
    like = finite.value.isel({along: 0}, drop=True).transpose(*rest)
    values, errors = (part.transpose(*rest, along).to_numpy() for part in (finite.value, finite.error))
    sizes = finite.value[along].to_numpy()
    found = np.array([extrapolate(sizes, values[at], errors[at], order=order) for at in np.ndindex(like.shape)])
    value, error = np.moveaxis(found.reshape(*like.shape, 2), -1, 0)
    return replace(finite, value=like.copy(data=value), error=like.copy(data=error))


def stored(dataset: xr.Dataset, name: str) -> Estimate:
    """A quantity of a dataset with the ``_error`` that stands beside it; without one it is exact."""
    error = f"{name}_error"
    return Estimate(dataset[name], dataset[error] if error in dataset else xr.zeros_like(dataset[name], dtype=float))


def _array(value: Number) -> xr.DataArray:
    return value if isinstance(value, xr.DataArray) else xr.DataArray(np.asarray(value, dtype=float))


def _estimate(value: Estimate | Number) -> Estimate:
    return value if isinstance(value, Estimate) else Estimate(value, xr.zeros_like(_array(value), dtype=float))


def _hypot(one: xr.DataArray, other: xr.DataArray) -> xr.DataArray:
    return (one**2 + other**2) ** 0.5
