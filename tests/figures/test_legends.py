"""Legends: one above the panels where their marks agree, none over data."""

import numpy as np
import pytest
import xarray as xr

from icllab.figures import Panel, panels
from icllab.figures.legends import covers_data, marks, merged


def data(value=1.0):
    """Curves over two dimensions of names and one of numbers."""
    rng = np.random.default_rng(0)
    names = {"model": ["a", "b"], "predictor": ["ridge", "dmmse"], "step": list(range(400))}
    loss = value * rng.random((2, 400))
    return xr.Dataset({"loss": (("model", "step"), loss), "test_loss": (("predictor", "step"), loss)}, coords=names)


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_marks_that_agree_have_one_legend_above():
    rows = [Panel("loss", hue="model"), Panel("loss", hue="model", xscale="log")]
    figure = panels(data().isel(step=slice(1, None)), rows, x="step", columns=2)
    (legend,) = figure.legends
    assert texts(legend) == ["a", "b"]
    assert all(axes.get_legend() is None for axes in figure.axes)


def test_panels_that_tell_different_things_apart_have_their_legends():
    figure = panels(data(), [Panel("loss", hue="model"), Panel("test_loss", hue="predictor")], x="step", columns=2)
    assert not figure.legends
    assert [texts(axes.get_legend()) for axes in figure.axes] == [["a", "b"], ["ridge", "dmmse"]]


def test_names_beside_numbers_have_their_legends_though_their_colours_differ():
    numbers = data().rename(predictor="dim").assign_coords(dim=[2, 4])
    figure = panels(numbers, [Panel("loss", hue="model"), Panel("test_loss", hue="dim")], x="step", columns=2)
    assert not figure.legends
    assert [texts(axes.get_legend()) for axes in figure.axes] == [["a", "b"], ["$d = 2$", "$d = 4$"]]


def test_one_name_of_two_colours_or_one_colour_of_two_names_is_no_agreement():
    blue, red = ({"color": colour, "marker": "o", "linestyle": "none"} for colour in ("blue", "red"))
    assert merged([{"a": blue}, {"a": red}]) is None
    assert merged([{"a": blue}, {"b": blue}]) is None
    assert merged([{"a": blue}, {"b": red}]) == {"a": blue, "b": red}
    line = {"color": "blue", "marker": "", "linestyle": "--"}
    assert merged([{"a": line}, {"a": blue}]) == {"a": {"color": "blue", "marker": "o", "linestyle": "--"}}
    assert marks([], [], "closed form") == {}


@pytest.mark.parametrize("columns", [1, 2])
def test_no_legend_lies_over_data(columns):
    rows = [Panel("loss", hue="model", ylim=(0.0, 1.0)), Panel("test_loss", hue="predictor", ylim=(0.0, 1.0))]
    figure = panels(data(), rows, x="step", columns=columns)
    figure.draw_without_rendering()
    for axes in figure.axes:
        legend = axes.get_legend()
        assert not covers_data(axes, legend)
        assert legend.get_window_extent().y0 >= axes.get_window_extent().y1 - 1  # above: the panel is full of points
        assert axes.bbox.height / figure.dpi > 0.8


def test_a_legend_with_room_stays_in_its_panel():
    rows = [Panel("loss", hue="model", ylim=(0.0, 1.0)), Panel("test_loss", hue="predictor", ylim=(0.0, 1.0))]
    figure = panels(data(0.1), rows, x="step", columns=2)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert axes.get_legend().get_window_extent().y1 <= axes.get_window_extent().y1 + 1


@pytest.mark.parametrize("part", ["line", "points", "bars"])
def test_data_of_every_kind_count_as_covered(part):
    from icllab.figures.output import Drawing

    figure = Drawing(width=3.0, height=2.0)
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    legend = axes.legend(handles=[], loc="center", title="in the middle")
    figure.draw_without_rendering()
    assert not covers_data(axes, legend)
    if part == "line":
        axes.plot([0.1, 0.9], [0.1, 0.9])  # no vertex of which is under the legend
    elif part == "points":
        axes.plot([0.5], [0.5], "o")
    else:
        axes.errorbar([0.5], [0.95], [0.7], linestyle="none")
    figure.draw_without_rendering()
    assert covers_data(axes, legend)


@pytest.mark.parametrize(("values", "bars"), [(range(3, 23), 1), (range(3, 11), 0), ([f"n{i}" for i in range(20)], 0)])
def test_many_numeric_hues_have_a_colour_bar(values, bars):
    """Its colours are those of the points, in the order of the values; eight numbers, or names, have a legend."""
    values = list(values)
    data = xr.Dataset(
        {"icl_error": (("dim", "tau"), np.arange(2.0 * len(values)).reshape(-1, 2))},
        {"dim": values[::-1], "tau": [0.5, 1.0]},
    )
    figure = panels(data, [Panel("icl_error")], x="tau", hue="dim")
    assert len(figure.axes) == 1 + bars
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert len(names) == (0 if bars else len(values))
    if bars:
        bar = figure.axes[1]
        assert bar.get_ylabel().startswith("token dimension")
        ticks = {
            round(place): text.get_text() for place, text in zip(bar.get_yticks(), bar.get_yticklabels(), strict=True)
        }
        assert ticks[0] == "3"
        assert ticks[19] == "22"
        drawn = [line.get_color() for line in figure.axes[0].lines if line.get_linestyle() == "None"]
        (colours,) = [part.cmap(range(20)) for part in bar.collections if part.cmap.N == 20]
        np.testing.assert_allclose(drawn[:20], colours[::-1])
        assert len({line.get_marker() for line in figure.axes[0].lines if line.get_linestyle() == "None"}) == 1
