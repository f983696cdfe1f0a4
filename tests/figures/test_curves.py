"""Figures are pure functions of a Dataset, show what is in it, and refuse what they cannot show."""

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
import xarray as xr

from icllab.core.axes import AXES, QUANTITIES
from icllab.core.errors import InputError
from icllab.core.statistics import mean_and_error
from icllab.figures.curves import Panel, curves, panels
from icllab.figures.output import png_bytes


def dataset(dims=(20, 40), tau=(0.5, 1.0, 2.0), seeds=6):
    """A made-up double descent with a missing cell, a missing seed and a line with a pole."""
    rng = np.random.default_rng(1)
    t = np.asarray(tau)
    base = 1 / (0.05 + np.abs(t - 1))
    values = base[None, :, None] * np.exp(0.3 * rng.standard_normal((len(dims), len(tau), seeds)))
    values[0, 0, 2] = np.nan
    values[-1, -1] = np.nan
    line = np.linspace(0.25, 2.25, 9)
    with np.errstate(divide="ignore"):
        pole = 1 / np.abs(line - 1)
    return xr.Dataset(
        {
            "icl_error": (("dim", "tau", "seed"), values),
            "idg_error": (("dim", "tau", "seed"), values / 2),
            "icl_line": (("tau_line",), pole),
            "idg_line": (("tau_line",), pole / 2),
        },
        coords={"dim": list(dims), "tau": list(tau), "seed": range(seeds), "tau_line": line},
    )


def drawn(figure, panel=0):
    """The data lines of a panel that are visible in data coordinates."""
    axes = figure.axes[panel]
    return [line for line in axes.lines if line.get_transform() == axes.transData]


def test_points_are_the_means_and_bars_the_standard_errors():
    data = dataset()
    figure = curves(data, x="tau", y="icl_error", hue="dim")
    mean, error = mean_and_error(data["icl_error"].values)
    containers = figure.axes[0].containers
    assert len(containers) == 2
    for i, container in enumerate(containers):
        points, _, (bars,) = container.lines
        there = np.isfinite(mean[i])
        np.testing.assert_allclose(points.get_xdata(), data["tau"].values[there])
        np.testing.assert_allclose(points.get_ydata(), mean[i][there])
        half = [np.diff(segment[:, 1])[0] / 2 for segment in bars.get_segments()]
        np.testing.assert_allclose(half, error[i][there])


def test_the_line_breaks_where_it_diverges_and_does_not_stretch_the_axis():
    data = dataset()
    figure = curves(data, x="tau", y="icl_error", hue="dim", line="icl_line", yscale="log")
    (line,) = [a for a in drawn(figure) if len(a.get_xdata()) == 9]
    assert np.isnan(line.get_ydata()).tolist() == np.isinf(data["icl_line"].values).tolist()
    mean, error = mean_and_error(data["icl_error"].values)
    assert figure.axes[0].get_ylim()[1] < 2 * np.nanmax(mean + error)


def test_points_beyond_the_frame_are_marked_at_it():
    data = dataset(tau=(0.5, 1.0, 2.0))
    figure = curves(data, x="tau", y="icl_error", hue="dim", yscale="log", ylim=(0.1, 5.0))
    axes = figure.axes[0]
    marks = [
        line for line in axes.lines if line.get_transform() == axes.get_xaxis_transform() and line.get_marker() == "^"
    ]
    assert [line.get_xdata().tolist() for line in marks] == [[1.0], [1.0]]
    assert all(line.get_ydata().tolist() == [1.0] for line in marks)
    (axes,) = curves(data, x="tau", y="icl_error", hue="dim", yscale="log", ylim=(1e6, 1e7)).axes
    marks = [line for line in axes.lines if line.get_transform() == axes.get_xaxis_transform()]
    assert [line.get_marker() for line in marks] == ["v", "v"]
    assert all(set(line.get_ydata()) == {0.0} and {0.5, 1.0} <= set(line.get_xdata()) for line in marks)


def test_error_bars_longer_than_a_log_axis_leave_the_frame():
    values = np.array([[0.0, 0.0, 0.0, 100.0]])
    data = xr.Dataset({"icl_error": (("tau", "seed"), values)}, coords={"tau": [1.0], "seed": range(4)})
    figure = curves(data, x="tau", y="icl_error", yscale="log")
    (bars,) = figure.axes[0].containers[0].lines[2]
    (segment,) = bars.get_segments()
    assert 0 < segment[0, 1] < figure.axes[0].get_ylim()[0]


def test_labels_come_from_the_axis_table():
    figure = panels(dataset(), [Panel("icl_error", "icl_line"), Panel("idg_error")], x="tau", hue="dim", vertical=1.0)
    upper, lower = figure.axes
    assert lower.get_xlabel() == AXES["tau"].label
    assert upper.get_xlabel() == ""
    assert upper.get_ylabel() == QUANTITIES["icl_error"].label
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["$d = 20$", "$d = 40$", "closed form"]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_the_same_dataset_gives_the_same_bytes_whatever_the_users_settings_are(scale):
    def picture():
        return png_bytes(
            panels(
                dataset(),
                [Panel("icl_error", "icl_line", scale), Panel("idg_error", "idg_line", scale)],
                x="tau",
                hue="dim",
                xscale=scale,
                vertical=1.0,
                title="Double descent",
            )
        )

    first = picture()
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30, "lines.linewidth": 9, "axes.grid": False}):
        second = picture()
    assert first == second
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("hue", [None, "dim"])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_text_and_legend_stay_inside_the_figure(hue, count):
    dims = tuple(10 * (i + 1) for i in range(count))
    data = dataset(dims=dims) if hue else dataset(dims=(20,))
    panel = Panel("idg_error", "idg_line", "log")
    figure = panels(data, [panel], x="tau", hue=hue, title="A title")
    png_bytes(figure)
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= -0.02
    assert box.x1 <= figure.get_figwidth() + 0.02
    assert box.y1 <= figure.get_figheight() + 0.02
    legend = figure.legends[0].get_window_extent()
    assert not any(axes.get_window_extent().overlaps(legend) for axes in figure.axes)
    sizes = [text.get_fontsize() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]
    assert min(sizes) >= 7.0
    assert figure.get_figwidth() == 3.4


@pytest.mark.parametrize("words", ["a name", "a rather long name", "a name nearly as long as the figure is wide"])
def test_long_names_take_fewer_columns(words):
    """No more than fit: seven names of a word in four columns were cut at the figure's edge."""
    names = [f"{words} {i}" for i in range(7)]
    data = xr.Dataset({"idg_error": (("predictor", "tau"), np.ones((7, 3)))}, {"predictor": names, "tau": [1, 2, 3]})
    figure = curves(data, x="tau", y="idg_error", hue="predictor")
    png_bytes(figure)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert figure.axes[0].get_window_extent().height > 40


def test_a_diverged_repetition_is_marked_at_the_top_and_precomputed_means_have_no_bars():
    data = dataset(tau=(0.5, 2.0, 3.0)).isel(dim=0)
    data["icl_error"][0, 1] = np.inf
    figure = curves(data, x="tau", y="icl_error", yscale="log")
    axes = figure.axes[0]
    (mark,) = [line for line in axes.lines if line.get_transform() == axes.get_xaxis_transform()]
    assert mark.get_xdata().tolist() == [0.5]
    figure = curves(data.mean("seed"), x="tau", y="idg_error")
    (bars,) = figure.axes[0].containers[0].lines[2]
    assert all(np.ptp(segment[:, 1]) == 0 for segment in bars.get_segments())


@pytest.mark.parametrize("ylim", [(0.55, 0.9), (0.9, 1.1), (0.3, 20.0), (1e-4, 1e3)])
def test_a_log_axis_has_at_least_two_labelled_ticks(ylim):
    figure = curves(dataset(), x="tau", y="icl_error", hue="dim", yscale="log", ylim=ylim)
    png_bytes(figure)
    ruler = figure.axes[0].yaxis
    places, labels = ruler.get_ticklocs(), [label.get_text() for label in ruler.get_ticklabels()]
    assert sum(ylim[0] <= at <= ylim[1] and bool(label) for at, label in zip(places, labels, strict=True)) >= 2


def test_nothing_to_show_is_an_empty_frame():
    data = dataset() * np.nan
    for scale in ("linear", "log"):
        assert png_bytes(curves(data, x="tau", y="icl_error", hue="dim", line="icl_line", yscale=scale))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": "icl_eror"}, "unknown variable 'icl_eror'; did you mean 'icl_error'?"),
        ({"line": "icl_lin"}, "unknown variable 'icl_lin'; did you mean 'icl_line'?"),
        ({"x": "taus"}, "unknown dimension 'taus'; did you mean 'tau'?"),
        ({"hue": "dims"}, "unknown dimension 'dims'; did you mean 'dim'?"),
        (
            {"hue": None},
            "icl_error: expected only the dimensions tau, seed, got 'dim'; choose one value: dataset.sel(dim=...)",
        ),
        ({"line_x": "dim"}, "line_x: expected a dimension of icl_line (tau_line), got 'dim'"),
        ({"y": "icl_line"}, "icl_line: expected only the dimensions tau, dim, seed, got 'tau_line'"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(arguments, message):
    chosen = {"x": "tau", "y": "icl_error", "hue": "dim", "line": "icl_line", **arguments}
    with pytest.raises(InputError) as caught:
        curves(dataset(), **chosen)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_closed_form_alone_has_a_style_for_every_hue():
    data = xr.Dataset(
        {"icl_theory": (("ridge", "tau"), [[1.0, np.inf, 3.0], [1.0, 2.0, 3.0]])},
        coords={"ridge": [0.0, 0.1], "tau": [0.5, 1.0, 2.0]},
    )
    figure = curves(data, x="tau", y=None, line="icl_theory", hue="ridge")
    (axes,) = figure.axes
    first, second = axes.lines
    assert np.isnan(first.get_ydata()).tolist() == [False, True, False]
    assert first.get_linestyle() != second.get_linestyle()
    assert axes.get_ylabel().replace("\n", " ") == QUANTITIES["icl_theory"].label
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [r"$\lambda = 0$", r"$\lambda = 0.1$"]


def test_panels_need_a_panel_and_a_panel_something_to_show():
    with pytest.raises(InputError, match="panels: expected at least one panel"):
        panels(dataset(), [], x="tau")
    with pytest.raises(InputError, match="panel: expected a variable y, a line, or both"):
        curves(dataset(), x="tau", y=None)


def test_drawing_imports_neither_jax_nor_pyplot():
    script = """
import sys
import icllab.figures as figures
figures.png_bytes, figures.panels, figures.curves.curves, figures.style.context
print(sorted({m.split(".")[0] for m in sys.modules} & {"jax", "equinox"}), "matplotlib.pyplot" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False"]


def test_a_panel_may_show_one_value_of_a_further_axis():
    data = xr.concat([dataset(), 3 * dataset()], dim="kappa").assign_coords(kappa=[0.5, 2.0])
    figure = panels(data, [Panel("icl_error", at={"kappa": k}) for k in (0.5, 2.0)], x="tau", hue="dim")
    for panel, factor, name in ((0, 1, r"$\kappa = 0.5$"), (1, 3, r"$\kappa = 2$")):
        axes = figure.axes[panel]
        assert axes.get_title(loc="right") == name
        points, _, _ = axes.containers[0].lines
        mean, _ = mean_and_error(factor * dataset()["icl_error"].values[0])
        np.testing.assert_allclose(points.get_ydata(), mean[np.isfinite(mean)])
    with pytest.raises(InputError, match=r"kappa: expected one of \[0.5, 2.0\], got 1.0"):
        panels(data, [Panel("icl_error", at={"kappa": 1.0})], x="tau", hue="dim")
    with pytest.raises(InputError, match="unknown dimension 'alpha'"):
        panels(data, [Panel("icl_error", at={"alpha": 1.0})], x="tau", hue="dim")


def named_data():
    """A variable over names with its error beside it, and one over time and repetitions."""
    return xr.Dataset(
        {
            "learning_coefficient": (("model", "predictor"), [[1.0, 3.0], [2.0, np.nan]]),
            "learning_coefficient_error": (("model", "predictor"), [[0.1, 0.3], [0.2, np.nan]]),
            "learning_coefficient_line": (("model",), [1.5, 2.5]),
            "loss": (("step", "seed"), [[1.0, 2.0], [0.5, 0.25]]),
        },
        coords={"model": ["b", "a"], "predictor": ["one", "other"], "step": [1, 10], "seed": [0, 1]},
    )


def test_names_stand_side_by_side_with_the_errors_beside_them_and_levels():
    rows = [Panel("learning_coefficient", "learning_coefficient_line")]
    (axes,) = panels(named_data(), rows, x="model", hue="predictor", columns=2).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["b", "a"]
    first, other = (container.lines for container in axes.containers)
    half = [np.diff(segment[:, 1])[0] / 2 for segment in first[2][0].get_segments()]
    np.testing.assert_allclose(half, [0.1, 0.2])
    np.testing.assert_allclose(other[0].get_xdata() - first[0].get_xdata()[:1], [0.12])
    (levels,) = [line for line in axes.lines if line.get_marker() == "_" and len(line.get_xdata()) == 2]
    np.testing.assert_array_equal(levels.get_xydata(), [[0.0, 1.5], [1.0, 2.5]])


def test_a_panel_may_have_an_axis_and_a_hue_of_its_own():
    rows = [Panel("learning_coefficient", x="model", hue="predictor"), Panel(None, "loss", hue="seed", xscale="log")]
    figure = panels(named_data(), rows, x="step", columns=2)
    left, right = figure.axes
    (legend,) = figure.legends  # repetitions have no names
    assert [text.get_text() for text in legend.get_texts()] == ["one", "other"]
    assert left.get_legend() is right.get_legend() is None
    assert len({line.get_color() for line in right.lines}) == 1  # and are of one colour
    assert (left.get_xscale(), right.get_xscale()) == ("linear", "log")
    assert (left.get_xlabel(), right.get_xlabel()) == (AXES["model"].label, AXES["step"].label)
    assert [len(line.get_xdata()) for line in right.lines] == [2, 2]


def run(**swept):
    """Loss curves of four members, as a run has them."""
    loss = np.linspace(1, 0, 5) * np.arange(1.0, 5.0)[:, None]
    coords = {name: ("member", values) for name, values in swept.items()}
    return xr.Dataset({"loss": (("member", "step"), loss)}, coords={"member": range(4), "step": range(5), **coords})


@pytest.mark.parametrize(
    ("swept", "names"),
    [
        ({}, ["$m = 0$", "$m = 1$", "$m = 2$", "$m = 3$"]),
        ({"seed": [0, 1, 2, 3]}, []),
        ({"seed": [0, 0, 1, 1], "task.dim": [2, 4, 2, 4]}, ["$d = 2$", "$d = 4$"]),
        ({"seed": [0] * 4, "mine": [1.0, 2.0, 1.0, 2.0], "dim": [3] * 4}, ["mine = 1", "mine = 2"]),
        ({"mine": [1, 1, 2, 2], "dim": [2, 4, 2, 4]}, [f"mine = {i}, $d = {j}$" for i in (1, 2) for j in (2, 4)]),
    ],
)
def test_members_of_a_run_are_told_apart_by_what_was_swept(swept, names):
    figure = curves(run(**swept), x="step", y="loss", hue="member")
    assert len({container.lines[0].get_color() for container in figure.axes[0].containers}) == max(len(names), 1)
    assert [text.get_text() for legend in figure.legends for text in legend.get_texts()] == names


def test_points_that_cannot_be_relied_upon_are_hollow():
    """A point is hollow where any seed, or any part that the panel does not draw, is told of."""
    data = dataset(seeds=3)
    told = xr.zeros_like(data["icl_error"]).expand_dims(part=2).copy()
    told[1, 0, 1, 2] = 1.0
    figure = panels(data.assign(told=told), [Panel("icl_error", hollow="told")], x="tau", hue="dim")
    solid, hollow, other = (container.lines[0] for container in figure.axes[0].containers)
    assert (hollow.get_markerfacecolor(), hollow.get_color()) == ("white", solid.get_color())
    np.testing.assert_array_equal(hollow.get_xdata(), [1.0])
    np.testing.assert_array_equal(solid.get_xdata(), [0.5, 2.0])
    assert 1.0 in other.get_xdata()
    with pytest.raises(InputError, match="variable"):
        panels(data, [Panel("icl_error", hollow="told")], x="tau", hue="dim")


@pytest.mark.parametrize(
    ("places", "scale", "ticks"),
    [
        ([1, 3, 8], "log", ["1", "3", "8"]),
        ([0.25, 0.5, 1.0], "linear", ["0.25", "0.5", "1"]),
        ([16384, 65536], "log", ["16384", "65536"]),
        ([0, 1, 4, 8, 16], "linear", None),  # 0 and 1 are too near each other
        ([1, 1.05, 10], "log", None),
        ([1, 2, 3, 4, 5, 6], "linear", None),
    ],
)
def test_few_places_are_the_ticks_if_their_numbers_fit(places, scale, ticks):
    data = xr.Dataset({"icl_error": (("tau",), np.ones(len(places)))}, coords={"tau": places})
    figure = curves(data, x="tau", y="icl_error", xscale=scale)
    figure.draw_without_rendering()
    at = figure.axes[0].get_xticks()
    assert (len(at) == len(places) and np.allclose(at, places)) is (ticks is not None)
    assert ticks is None or [label.get_text() for label in figure.axes[0].get_xticklabels()] == ticks
    assert scale == "log" or ticks or np.array_equal(at, np.round(at))


def test_a_label_that_the_panel_at_the_left_has_is_not_repeated():
    data = xr.concat([dataset(), 3 * dataset()], dim="kappa").assign_coords(kappa=[0.5, 2.0])
    rows = [Panel(name, at={"kappa": k}) for name in ("icl_error", "idg_error") for k in (0.5, 2.0)]
    labels = [bool(axes.get_ylabel()) for axes in panels(data, rows, x="tau", hue="dim", columns=2).axes]
    assert labels == [True, False, True, False]
    rows = [Panel(name) for name in ("icl_error", "idg_error")]
    assert all(axes.get_ylabel() for axes in panels(data.isel(kappa=0), rows, x="tau", hue="dim", columns=2).axes)


def test_panels_above_a_gap_in_the_last_row_keep_their_ticks():
    rows = [Panel("icl_error"), Panel("idg_error"), Panel("icl_error")]
    figure = panels(dataset(), rows, x="tau", hue="dim", columns=2)
    png_bytes(figure)
    shown = [any(label.get_visible() for label in axes.get_xticklabels()) for axes in figure.axes]
    assert shown == [False, True, True]
