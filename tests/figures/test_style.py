"""The look: readable in grey and to the colour-blind, and gone when the figure is drawn."""

import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

import icllab
from icllab.figures import style

# Machado, Oliveira and Fernandes (2009), full severity, for linear RGB.
SIGHT = {
    "trichromat": np.eye(3),
    "protanope": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranope": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanope": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour):
    rgb = np.asarray(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def luminance(rgb):
    return float(rgb @ [0.2126, 0.7152, 0.0722])


def lab(rgb):
    """CIE Lab of linear RGB, D65."""
    xyz = np.clip(rgb, 0, 1) @ np.array(
        [[0.412453, 0.212671, 0.019334], [0.357580, 0.715160, 0.119193], [0.180423, 0.072169, 0.950227]]
    )
    t = xyz / [0.950456, 1.0, 1.088754]
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def inverted(colour):
    """A colour as the page shows it in dark colours, by CSS's `invert(0.92) hue-rotate(180deg) saturate(1.8)`."""
    grey = np.tile([0.213, 0.715, 0.072], (3, 1))
    rgb = 0.08 * np.asarray(to_rgb(colour)) + 0.92 * (1 - np.asarray(to_rgb(colour)))
    for saturation in (-1, 1.8):  # a hue turned by 180 degrees is a saturation of -1
        rgb = np.clip(grey @ rgb + saturation * (np.eye(3) - grey) @ rgb, 0, 1)
    return tuple(rgb)


def test_the_page_inverts_figures_as_is_tested_here():
    page = Path(icllab.__file__).parent / "page"
    texts = [path.read_text("utf-8") for path in (page / "static" / "style.css", page / "report.py")]
    declared = [re.findall(r"--mat: (#\w+);\s*--figure: ([^;]*);", text) for text in texts]
    dark = ("#141414", "invert(0.92) hue-rotate(180deg) saturate(1.8)")
    assert declared == [[dark] * 2, [dark, ("#fff", "none")]]
    assert inverted("white") == pytest.approx(to_rgb("#141414"), abs=0.003)


@pytest.mark.parametrize("colour", [*style.CATEGORIES, *map(tuple, style.colours([1, 2, 3, 4, 5])), style.INK])
def test_every_colour_stands_out_from_the_dark_ground(colour):
    levels = [luminance(linear(inverted(one[:3] if isinstance(one, tuple) else one))) for one in (colour, "white")]
    assert (levels[0] + 0.05) / (levels[1] + 0.05) > 4


@pytest.mark.parametrize("turned", [to_rgb, inverted])
@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("values", [(20, 40, 80), (1, 2, 3, 4, 5), tuple("abcdefgh")])
def test_curves_are_told_apart_by_everybody(sight, values, turned):
    seen = [lab(np.asarray(SIGHT[sight]) @ linear(turned(colour))) for colour in style.colours(values)]
    apart = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]]
    # A difference of 2.3 is just noticeable; markers and dashes differ besides.
    assert min(apart) > 10


def test_numbers_darken_in_their_order_and_stand_out_from_paper():
    levels = [luminance(linear(colour)) for colour in style.colours([20, 40, 80, 160])]
    assert levels == sorted(levels, reverse=True)
    assert min(-np.diff(levels)) > 0.015
    assert all(1.05 / (level + 0.05) > 2.5 for level in levels)
    assert style.colours([80, 20]) == style.colours([20, 80])[::-1]


def test_names_have_a_palette():
    assert style.colours(["ridge", "dmmse"]) == list(style.CATEGORIES[:2])


def test_markers_and_dashes_differ_and_start_again_where_they_run_out():
    assert len({style.marker(i) for i in range(10)}) == 10
    assert len({str(style.dashes(i)) for i in range(6)}) == 6
    assert style.marker(10) == style.marker(0)
    assert style.dashes(6) == style.dashes(0)


def test_settings_are_as_before_afterwards_even_after_an_error():
    def fail():
        with style.context():
            assert matplotlib.rcParams["pdf.fonttype"] == 42
            raise ZeroDivisionError

    before = dict(matplotlib.rcParams)
    with pytest.raises(ZeroDivisionError):
        fail()
    assert dict(matplotlib.rcParams) == before


def test_both_axes_have_the_same_ticks():
    ticks = {name: value for name, value in style.SETTINGS.items() if name.startswith(("xtick", "ytick"))}
    assert len(ticks) == 12
    assert all(ticks["ytick" + name[5:]] == value for name, value in ticks.items())
