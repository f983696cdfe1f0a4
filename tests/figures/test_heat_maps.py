"""Heat maps: which cell is where, and what stands beside them."""

import numpy as np
import pytest
import xarray as xr

from icllab.core.errors import InputError
from icllab.figures.heat_maps import heat_map
from icllab.figures.output import png_bytes

VALUES = np.arange(12.0).reshape(2, 3, 2) - 4
DATASET = xr.Dataset(
    {"value": (("direction", "block", "position"), VALUES), "word": (("block", "position"), np.full((3, 2), " x"))},
    coords={
        "direction": ["down", "up"],
        "block": np.arange(3),
        "position": [0, 1],
        "token": ("position", [" a", "$b"]),
    },
)


def test_panels_rows_and_columns_are_those_of_the_dataset():
    figure = heat_map(DATASET, "value")
    panels = figure.axes[:2]
    for axes, values in zip(panels, VALUES, strict=True):
        (image,) = axes.images
        assert np.array_equal(image.get_array(), values)
        assert image.origin == "lower"
        assert image.get_clim() == (-7, 7)
        assert axes.get_xlabel() == "position"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["␣a", r"\$b"]
    assert panels[0].get_ylabel() == "block"
    assert [axes.get_title(loc="right") for axes in panels] == ["down", "up"]
    assert png_bytes(figure, 50) == png_bytes(heat_map(DATASET, "value"), 50)


def test_texts_stand_in_their_cells():
    figure = heat_map(DATASET.isel(direction=0), "value", text="word", labels="position")
    texts = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert texts == {(j, i): "␣x" for i in range(3) for j in range(2)}
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0", "1"]


def test_without_negative_values_the_colours_begin_at_zero():
    (image,) = heat_map(DATASET.isel(direction=1), "value").axes[0].images
    assert image.get_clim() == (0, 7)


def test_what_is_not_a_table_is_refused():
    with pytest.raises(InputError, match="unknown variable 'share'"):
        heat_map(DATASET, "share")
    with pytest.raises(InputError, match="two or three dimensions"):
        heat_map(DATASET.isel(direction=0, block=0), "value")
