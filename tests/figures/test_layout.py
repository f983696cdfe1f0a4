"""Figures at the width of a paper's column and of a slide, and several in one."""

from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.text import Text

from icllab.core.errors import InputError
from icllab.figures import Panel, panels, pdf_bytes, png_bytes
from icllab.figures.layout import StandsAlone, fit, side_by_side, sized
from icllab.figures.style import LOOKS, drawn_as, inches, named_look


def data(names=("ridge", "dmmse", "descent")):
    """Curves with errors over tau, beside values of names."""
    tau, rng = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0], np.random.default_rng(1)
    return xr.Dataset(
        {
            "icl_error": (("dim", "tau", "seed"), 1 + rng.random((2, 6, 4))),
            "idg_error": (("dim", "tau", "seed"), 1 + rng.random((2, 6, 4))),
            "loss": (("model",), np.arange(len(names)) + 1.0),
        },
        coords={"dim": [20, 40], "tau": tau, "seed": range(4), "model": list(names)},
    )


def errors(count=2, columns=1, title=None):
    rows = [Panel("icl_error" if i % 2 == 0 else "idg_error") for i in range(count)]
    return panels(data(), rows, x="tau", hue="dim", xscale="log", title=title, columns=columns)


def letters(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def written(figure):
    return [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]


@pytest.mark.parametrize(
    ("text", "value"), [("3.25in", 3.25), ("82.55mm", 3.25), ("8.255 cm", 3.25), ("234.8775pt", 3.25), (3.25, 3.25)]
)
def test_widths_have_units(text, value):
    assert inches(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["3.25", "3.25 px", "in", "-3in", "0.1in", "41in", "1.2.3in", "nanin", 0.0, True])
def test_what_is_no_width_is_refused_in_one_line(text):
    with pytest.raises(InputError, match=r"^width: expected a length of 1.5in to 40in with its unit .*, got"):
        inches(text)


def test_an_unknown_style_is_refused():
    with pytest.raises(InputError, match="unknown style 'papr'; did you mean 'paper'"):
        named_look("papr")


@pytest.mark.parametrize("width", [2.5, 3.25, 5.0, 6.75])
def test_a_figure_for_a_paper_has_letters_of_the_captions_size_at_its_width(width):
    with drawn_as(named_look("paper", width)):
        figure = errors(title="A title in words")
    figure.draw_without_rendering()
    assert figure.get_figwidth() == width
    assert {text.get_fontsize() for text in written(figure)} == {8.0}
    assert not any("A title" in text.get_text() for text in written(figure))
    assert letters(figure) == ["a", "b"]
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= -0.02
    assert box.x1 <= width + 0.02
    assert box.y1 <= figure.get_figheight() + 0.02
    assert all(axes.bbox.height / figure.dpi > 0.8 for axes in figure.axes)
    if width != 3.25:
        return
    pdf = pdf_bytes(figure)
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert b"STIXGeneral" in pdf


def test_a_title_of_values_stays_since_panels_need_it():
    with drawn_as(LOOKS["paper"]):
        (legend,) = errors(title="$d = 40$").legends
    assert legend.get_title().get_text() == "$d = 40$"


def test_one_panel_has_no_letter():
    with drawn_as(LOOKS["paper"]):
        assert letters(errors(1)) == [""]


@pytest.mark.parametrize(
    ("look", "count", "asked", "columns"),
    [("paper", 2, 2, 1), ("paper", 6, 2, 2), ("paper", 3, 1, 1), ("slide", 2, 1, 2), ("slide", 4, 1, 2)],
)
def test_panels_keep_a_width_at_which_they_can_be_read(look, count, asked, columns):
    with drawn_as(LOOKS[look]):
        figure = errors(count, asked)
    assert figure.axes[0].get_subplotspec().get_gridspec().ncols == columns


def test_panels_of_a_wide_figure_stand_beside_each_other():
    with drawn_as(named_look("paper", "7in")):
        assert errors(2, 1).axes[0].get_subplotspec().get_gridspec().ncols == 2


def test_a_slide_is_the_paper_in_large():
    with drawn_as(LOOKS["slide"]):
        figure = errors()
    assert {text.get_fontsize() for text in written(figure)} == {18.0}
    (points, *_), (thin, *_) = (f.axes[0].containers[0].lines for f in (figure, errors()))
    assert points.get_markersize() == pytest.approx(thin.get_markersize() * 18 / 7.5)


@pytest.mark.parametrize("look", LOOKS)
def test_labels_are_no_longer_than_their_panel(look):
    with drawn_as(LOOKS[look]):
        figure = panels(data(), [Panel("icl_error"), Panel("idg_error")], x="tau", hue="dim", columns=2)
        figure.axes[0].set_ylabel("words " * 12 + r"and $\frac{a formula with spaces}{b}$ [nats]")
        fit(figure)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert axes.yaxis.label.get_window_extent().height <= axes.bbox.height * 1.02
    assert r"$\frac{a formula with spaces}{b}$" in figure.axes[0].get_ylabel()


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["a", "b", "c", "d"], "level"),
        (["without the first", "without the second", "with all of them", "none"], "lines"),
        ([f"unpronounceable{i}" for i in range(9)], "turned"),
    ],
)
def test_names_below_a_panel_do_not_overlap(names, kind):
    figure = panels(data(names), [Panel("loss")], x="model")
    figure.draw_without_rendering()
    labels = figure.axes[0].get_xticklabels()
    assert [label.get_text().replace("\n", " ") for label in labels] == names
    assert any("\n" in label.get_text() for label in labels) is (kind == "lines")
    assert {label.get_rotation() for label in labels} == {30.0 if kind == "turned" else 0.0}
    if kind != "turned":
        boxes = [label.get_window_extent() for label in labels]
        assert all(left.x1 <= right.x0 for left, right in pairwise(boxes))


def test_names_are_written_as_in_a_text():
    figure = panels(data(["few_shot", "xi", "$w_1$"]), [Panel("loss")], x="model")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["few shot", r"$\xi$", "$w_1$"]


def test_several_figures_stand_in_one_and_are_lettered_through():
    with drawn_as(LOOKS["paper"]):
        alone = [errors(), errors(3)]
        figure = side_by_side([("one/first", errors), ("one/second", lambda: errors(3))])
    figure.draw_without_rendering()
    assert figure.get_figwidth() == 6.75
    assert letters(figure) == ["a", "b", "c", "d", "e"]
    left, right = figure.subfigs
    for part, single in zip((left, right), alone, strict=True):
        assert len(part.legends) == 1
        for axes, other in zip(part.axes, single.axes, strict=True):
            points, others = (a.containers[0].lines[0] for a in (axes, other))
            np.testing.assert_array_equal(points.get_ydata(), others.get_ydata())
    assert max(axes.bbox.x1 for axes in left.axes) < min(axes.bbox.x0 for axes in right.axes)
    assert {text.get_fontsize() for text in written(figure)} == {8.0}


def test_figures_that_would_be_too_narrow_stand_below_each_other():
    with drawn_as(named_look("paper", "3.25in")):
        figure = side_by_side([("one/first", errors), ("one/second", errors)])
    figure.draw_without_rendering()
    upper, lower = figure.subfigs
    assert min(axes.bbox.y0 for axes in upper.axes) > max(axes.bbox.y1 for axes in lower.axes)
    assert letters(figure) == ["a", "b", "c", "d"]


def test_what_panels_has_not_drawn_stands_alone():
    with drawn_as(LOOKS["paper"]), pytest.raises(StandsAlone, match=r"^mine/plain: expected .*; draw it alone$"):
        side_by_side([("one/first", errors), ("mine/plain", Figure)])


def test_a_figure_that_a_claim_makes_itself_is_scaled_and_loses_its_title():
    plain = Figure(figsize=(8.0, 4.0))
    plain.suptitle("What is claimed")
    with drawn_as(LOOKS["paper"]):
        assert tuple(sized(plain).get_size_inches()) == (3.25, 1.625)
    assert not [text for text in written(plain) if "claimed" in text.get_text()]


def test_a_look_ends_with_its_block_and_files_keep_that_in_which_they_were_drawn():
    with drawn_as(LOOKS["slide"]):
        figure = errors()
    before = dict(matplotlib.rcParams)
    first = png_bytes(figure)
    with drawn_as(LOOKS["paper"]):
        assert png_bytes(figure) == first
    assert dict(matplotlib.rcParams) == before
    assert errors().get_figwidth() == 3.4
