"""A caption names quantities, axes, points and lines of a figure."""

import numpy as np
import pytest
import xarray as xr

from icllab.figures.curves import Panel, panels
from icllab.figures.style import CARD, PAGE, drawn_as

TAU, DIM, SEED = np.array([0.5, 1.0, 2.0]), np.array([10, 20]), np.arange(4)


@pytest.fixture
def dataset():
    errors = np.random.default_rng(0).uniform(1, 2, (3, 2, 4))
    lines = {"icl_line": (("tau", "dim"), errors.mean(-1)), "ready": (("tau", "dim", "seed"), errors > 1.9)}
    variables = {"icl_error": (("tau", "dim", "seed"), errors), "idg_error": (("tau", "dim", "seed"), errors), **lines}
    return xr.Dataset(variables, {"tau": TAU, "dim": DIM, "seed": SEED})


def test_a_caption_has_quantities_axes_points_and_lines(dataset):
    rows = [Panel("icl_error", "icl_line"), Panel("idg_error")]
    text = panels(dataset, rows, x="tau", hue="dim", line_name="theory", vertical=1.0).caption
    assert text == (
        r"Error on fresh tasks $e_{\mathrm{ICL}}$ and error on pretraining tasks $e_{\mathrm{IDG}}$ against "
        r"pretraining contexts per parameter $\tau$, coloured by token dimension $d$. "
        r"Points: means over seeds with standard errors. Lines: theory. Dashed: $\tau = 1$."
    )


def test_points_without_repetitions_are_measured_values(dataset):
    single = dataset.isel(seed=0, drop=True)
    assert panels(single, [Panel("icl_error")], x="tau", hue="dim").caption.endswith("Points: measured values.")
    single["icl_error_error"] = 0.1 * single["icl_error"]
    assert panels(single, [Panel("icl_error")], x="tau", hue="dim").caption.endswith("values with standard errors.")
    by_seed = panels(dataset.isel(dim=0, drop=True), [Panel("icl_error")], x="tau", hue="seed").caption
    assert by_seed.endswith(r"parameter $\tau$. Points: measured values.")


def test_panels_of_other_axes_have_a_sentence_each(dataset):
    rows = [Panel("icl_error", at={"dim": 10}), Panel("icl_error", x="dim", hue="tau")]
    text = panels(dataset.isel(tau=[0, 2]), rows, x="tau").caption
    assert text.count(". Error on fresh tasks") == 1
    assert "against token dimension $d$, coloured by pretraining contexts" in text


def test_a_card_has_one_panel_and_a_page_has_panels_side_by_side(dataset):
    rows = [Panel("icl_error", "icl_line"), Panel("idg_error")]
    with drawn_as(CARD):
        card = panels(dataset, rows, x="tau", hue="dim")
    assert (len(card.axes), card.get_figwidth()) == (1, CARD.width)
    assert "idg" not in card.caption.lower()
    with drawn_as(PAGE):
        page = panels(dataset, rows, x="tau", hue="dim")
    assert page.axes[0].get_position().y0 == pytest.approx(page.axes[1].get_position().y0)
