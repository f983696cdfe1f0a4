r"""Estimates at several steps or temperatures as one dataset, and how the free energy grows along a curve."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from scipy.special import lambertw

from icllab.core.errors import expected, kind_of


def along(name: str, estimates: Mapping[Any, xr.Dataset]) -> xr.Dataset:
    """Join estimates along a new dimension, such as the steps of a run or several temperatures.

    Attributes that differ become variables, and each warning names its estimate.

    Args:
        name: Name of the dimension.
        estimates: Coordinate -> estimate.

    Raises:
        InputError: There are no estimates by coordinate.
    """
    if not isinstance(estimates, Mapping) or not estimates:
        raise expected("estimates", "at least one estimate by its coordinate", kind_of(estimates))
    labels, rows = list(estimates), list(estimates.values())
    names = sorted({key for row in rows for key in row.attrs} - {"warnings", name})
    common = [key for key in names if all(key in row.attrs and row.attrs[key] == rows[0].attrs[key] for row in rows)]
    attributes = {key: rows[0].attrs[key] for key in common}
    parts, sentences = [], []
    for label, row in zip(labels, rows, strict=True):
        distinct = {key: row.attrs[key] for key in names if key not in common and key in row.attrs}
        parts.append(row.assign(distinct).drop_attrs())
        text = f"{label:g}" if isinstance(label, float | int) else label
        sentences += [f"{name} {text}: {sentence}" for sentence in row.attrs.get("warnings", [])]
    along = xr.Variable(name, labels) if None in labels else xr.IndexVariable(name, labels)
    whole = xr.concat(parts, dim=along, data_vars="all", coords="minimal", compat="override", join="exact")
    return whole.assign_attrs(**attributes, warnings=sentences)


def sample_size(nbeta: Any) -> Any:
    r"""The n whose :math:`n/\log n` is :math:`n\beta`, the larger of two; NaN below e, where there is none."""
    nbeta = np.asarray(nbeta, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        n = -nbeta * np.real(lambertw(-1 / nbeta, -1))
    return np.where(nbeta >= math.e, n, math.nan)


def with_growth(curve: xr.Dataset) -> xr.Dataset:
    r"""Add how the free energy grows with n, by differences along the curve.

    With :math:`n\beta = n/\log n`, :math:`n(E[L]-L(w^*)) = \hat\lambda\log n` is the free energy above
    :math:`nL(w^*)` to leading order, so that

    .. math:: \frac{d(\hat\lambda\log n)}{d\log n}

    is :math:`\lambda` again where the curve is flat, and another number where n resolves more and more. Where an
    estimate is NaN, or its temperature below e, so is the growth there and beside it.

    Source: [Watanabe13].
    Derived: docs/singular-learning.md, Estimates by sampling.
    """
    size = np.log(sample_size(curve["nbeta"].values))
    # Linear in the estimates, so that errors of independent runs add. A row at a time, of what stands in it: an
    # estimate that is NaN, or below e, is its neighbours' loss alone, whose difference needs it.
    slopes = np.gradient(np.eye(len(size)), size, axis=0)
    estimate, mcse = curve["estimate"].values, curve["mcse"].values
    growth, error = np.full(len(size), math.nan), np.full(len(size), math.nan)
    for i, row in enumerate(slopes):
        used = row != 0
        used[i] = True
        weights = row[used] * size[used]
        if np.isfinite(estimate[used]).all():
            growth[i] = weights @ estimate[used]
            error[i] = np.sqrt(weights**2 @ mcse[used] ** 2)
    return curve.assign(growth_estimate=("nbeta", growth), growth_error=("nbeta", error))
