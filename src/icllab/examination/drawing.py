"""Figures of sections: lines by position or step, bars by candidate or head, and groups of bars.

Values far above the network's own are clipped at the frame and marked with their numbers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from icllab.figures.output import Drawing
from icllab.figures.style import colours, context, look, marker

CLIP = 3.0
_WIDTH = 6.0  # inches


def _empty(height: float = 2.6) -> tuple[Drawing, Any]:
    figure = Drawing(width=look().width or _WIDTH, height=height)
    return figure, figure.subplots()


def lines(dataset: xr.Dataset, name: str, *, x: str, hue: str, first: str) -> Drawing:
    """Means with errors against one axis; above three times the median of the curves' maxima they are cut."""
    with context():
        figure, axes = _empty()
        top = CLIP * float(np.median(np.nanmax(dataset[name].transpose(hue, x).values, axis=1)))
        hues = [str(value) for value in dataset[hue].values]
        hidden = []
        for index, (label, colour) in enumerate(zip(hues, colours(hues), strict=True)):
            values, errors = (dataset[f"{name}{s}"].sel({hue: label}).values for s in ("", "_error"))
            if np.nanmax(values) > top:
                hidden.append(f"{label} up to {np.nanmax(values):.4g}")
            at = dataset[x].values
            axes.errorbar(
                at, np.minimum(values, top), errors, label=label, color=colour, marker=marker(index),
                markersize=3, linewidth=2 if label == first else 1,
            )  # fmt: skip
        axes.set_xlabel("examples before the query" if x == "position" else x)
        axes.set_ylabel(name)
        axes.set_ylim(0, min(top, 1.05 * float(np.nanmax(dataset[name].values))))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        if hidden:
            axes.set_title(f"clipped at the frame: {', '.join(hidden)}", fontsize="small")
    return figure


def bars(dataset: xr.Dataset, name: str, over: str, *, line: float | None = None) -> Drawing:
    """Horizontal bars with errors or intervals; a dashed line marks a threshold."""
    labels = [str(value) for value in dataset[over].values]
    values = np.asarray(dataset[name].values, float)
    order = np.arange(len(labels))[:24] if len(labels) <= 24 else np.argsort(-np.abs(np.nan_to_num(values)))[:24]
    if f"{name}_interval" in dataset:
        errors = np.abs(np.asarray(dataset[f"{name}_interval"].values, float) - values[:, None]).T
    else:
        errors = np.asarray(dataset[f"{name}_error"].values, float)[None].repeat(2, 0)
    finite = values[np.isfinite(values)]
    top = min(CLIP * float(np.median(np.abs(finite))) if finite.size else 1.0, float(np.max(finite, initial=1e-12)))
    top = max(top, 2 * line if line is not None else 0.0, float(np.max(finite, initial=0)) if len(finite) < 3 else 0.0)
    with context():
        figure, axes = _empty(0.7 + 0.22 * len(order))
        for row, index in enumerate(order[::-1]):
            value = float(np.nan_to_num(values[index], nan=0.0, posinf=2 * top))
            axes.barh(row, min(value, top), color=colours([0])[0], height=0.7)
            if value > top:
                axes.text(top, row, f" {values[index]:.4g}", va="center", ha="left", fontsize="small")
            elif np.isfinite(errors[:, index]).all():
                axes.errorbar(value, row, xerr=errors[:, [index]], color="black", linewidth=1)
        axes.set_yticks(range(len(order)), [labels[index] for index in order[::-1]])
        axes.set_xlabel(name.replace("_", " "))
        if line is not None:
            axes.axvline(line, color="black", linewidth=0.8, linestyle="--")
    return figure


def groups(dataset: xr.Dataset, names: Mapping[str, str], over: str) -> Drawing:
    """Bars side by side, one for each variable, for each value of an axis."""
    labels = [str(value) for value in dataset[over].values]
    with context():
        figure, axes = _empty(0.7 + 0.5 * len(labels))
        height = 0.8 / len(names)
        palette = colours(list(names))
        for index, (name, label) in enumerate(names.items()):
            rows = np.arange(len(labels))[::-1] - (index - (len(names) - 1) / 2) * height
            axes.barh(
                rows, dataset[name].values, height, xerr=dataset[f"{name}_error"].values, label=label,
                color=palette[index],
            )  # fmt: skip
        axes.set_yticks(np.arange(len(labels))[::-1], labels)
        axes.set_xscale("log")
        axes.set_xlabel("loss at the last position")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
