"""A panel of a figure, and the curves that stand in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import xarray as xr

from icllab.core.errors import expected, require_known
from icllab.figures.labels import valued

Scale: TypeAlias = Literal["linear", "log"]
Limits: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """One of several panels. They share their horizontal axis unless a panel has its own.

    Attributes:
        y: The variable drawn as points; None where there is only a line.
        line: The variable drawn as a line, which breaks where it is not finite; None where there are only points.
        yscale: ``"linear"`` or ``"log"``.
        ylim: Lower and upper end; points beyond are marked at the frame, not dropped. None: those of the data.
        at: Axis -> value: where on axes that the panel does not draw. It is written above the panel.
        x: The dimension along its own horizontal axis, which may be one of names; None: that of all panels.
        hue: The dimension that it tells apart itself, in a legend of its own; None: that of all panels.
        xscale: ``"linear"`` or ``"log"``, of its own horizontal axis; None: that of all panels.
        hollow: A variable that is 0 for what can be relied upon; points are hollow where any part of them has more.
            None: no point is.
    """

    y: str | None
    line: str | None = None
    yscale: Scale = "linear"
    ylim: Limits | None = None
    at: Mapping[str, float | str] = field(default_factory=dict)
    x: str | None = None
    hue: str | None = None
    xscale: Scale | None = None
    hollow: str | None = None

    def __post_init__(self) -> None:
        if self.y is None and self.line is None:
            raise expected("panel", "a variable y, a line, or both", None)

    @property
    def shown(self) -> str:
        """The variable that the vertical axis is named after."""
        return self.y or self.line or ""

    def corner(self, dataset: xr.Dataset) -> str:
        """Text in the corner of the panel: the values at which it is taken."""
        return ", ".join(valued(dataset, name, value) for name, value in self.at.items())

    def of(self, dataset: xr.Dataset) -> xr.Dataset:
        """The part of the dataset that the panel shows."""
        for name, value in self.at.items():
            require_known("dimension", name, map(str, dataset.dims))
            if value not in dataset[name].values:
                raise expected(name, f"one of {dataset[name].values.tolist()}", value)
        return dataset.sel(dict(self.at))


@dataclass(frozen=True)
class Curve:
    """Points with their means and errors, or a line without errors, in one colour; a repetition has an empty name."""

    name: str
    colour: Any
    marker: str
    dashes: Any
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray
    hollow: np.ndarray
