"""Curves of different origin in one figure."""

from collections.abc import Mapping
from typing import Any

import xarray as xr


def joined(curves: Mapping[str, Mapping[Any, xr.DataArray]], hue: str, attrs: Mapping[Any, Any]) -> xr.Dataset:
    """Join variables of several names in one Dataset over ``hue``, NaN where a name lacks a variable.

    ``curves`` is name -> variable -> values, over the same axes for every name.
    """
    parts = [xr.Dataset(dict(variables)) for variables in curves.values()]
    options: dict[str, Any] = {"coords": "minimal", "compat": "override", "combine_attrs": "drop"}
    return xr.concat(parts, hue, **options).assign_coords({hue: list(curves)}).assign_attrs(attrs)
