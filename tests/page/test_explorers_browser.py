"""Explorers of the page in a browser: what is drawn is what `icllab.theory` says."""

# ruff: noqa: RUF001 (Greek letters are meant)

import io
import itertools

import matplotlib
import numpy as np
import pytest
from page.explorer_server import Handler, served
from page.explorer_tab import close, curves, move, surface

from icllab.page.explorers import EXPLORERS
from icllab.theory import free_energy, induction_landscape, learning_coefficients, linear_attention, preconditioners


@pytest.fixture(scope="module")
def address():
    with served() as where:
        yield where


def opened(page, where, id, query=""):
    """An explorer that has answered; its element."""
    page.goto("about:blank")  # an address that differs after its # alone would not be loaded
    page.goto(f"{where}#/explore/{id}" + (f"?{query}" if query else ""))
    page.wait_for_selector("#main[data-answered]")


def settle(page):
    """Until the figure has been painted. A promise of its frames would be waited for without a limit."""
    page.evaluate(
        "() => { window.painted = false;"
        " requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = true; })); }"
    )
    page.wait_for_function("() => window.painted", polling=20)


def painted(page, selector="#main .stage"):
    """The colours of a picture of an element, as an array [pixel, channel]."""
    settle(page)
    return image(page.locator(selector)).reshape(-1, 3)


def image(locator):
    """A picture of an element, [row, column, channel]."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(locator.screenshot())).convert("RGB"))


def test_the_list_has_every_explorer(tab, address):
    tab.goto(address)
    tab.wait_for_selector(".explorer-card")
    links = tab.locator(".explorer-card a").evaluate_all("(all) => all.map((one) => one.getAttribute('href'))")
    assert links == [f"#/explore/{id}" for id in EXPLORERS]
    tab.evaluate("() => left()")
    assert tab.locator("#main").inner_text() == ""


def test_errors_of_linear_attention_are_drawn_as_theory_has_them_while_controls_move(tab, address):
    opened(tab, address, "linear_attention")
    law = {"tau": 2.0, "alpha": 10.0, "kappa": 0.5, "rho": 0.01, "ridge": 0.0}
    for name, value in ((None, None), ("kappa", 3.7), ("ridge", 0.25)):
        if name:
            law[name] = value
            move(tab, name, value)
        x, drawn = curves(tab)
        close(drawn["ICL error, fresh tasks"], linear_attention.icl_error(**{**law, "tau": x}))
        close(drawn["IDG error, pretraining tasks"], linear_attention.idg_error(**{**law, "tau": x}))
        found = surface(tab)
        grid = {**law, "tau": np.array(found["x"])[:, None], "alpha": np.array(found["y"])}
        close(found["z"], linear_attention.icl_error(**grid))
    tab.select_option("[name=x]", "alpha")
    tab.get_by_text("A surface needs a second axis").wait_for()
    assert tab.locator("#main figure.surface").count() == 0
    tab.select_option("[name=x]", "rho")
    tab.wait_for_function("() => document.querySelector('figure.curves').drawn.axes.x.label.startsWith('ρ')")
    x, drawn = curves(tab)
    close(drawn["ICL error, fresh tasks"], linear_attention.icl_error(**{**law, "rho": x}))
    said = tab.locator("dl.answers dd").first.inner_text()
    assert float(said) == pytest.approx(linear_attention.icl_error(**law), rel=1e-4)


def test_the_landscape_is_drawn_with_the_flow_and_its_loss(tab, address):
    opened(tab, address, "induction_landscape", "pairs=4&labels=64&time=150&third=fixed&level=3")
    sizes = {"pairs": 4, "labels": 64}
    flow = induction_landscape.flow((0, 0, 0), time=150, levels=(0.5,), **sizes)
    found = surface(tab)
    beta, alpha = np.array(found["x"])[:, None], np.array(found["y"])
    close(found["z"], induction_landscape.loss(beta, alpha, 3.0, **sizes))
    close([found["path"][name] for name in "xyz"], [*flow.parameters.T[:2], flow.loss])
    x, drawn = curves(tab)
    close(x, flow.time)
    close(drawn["loss along the flow"], flow.loss)
    tab.select_option("[name=surface]", "alpha_xi")
    tab.wait_for_function("() => document.querySelector('figure.surface').drawn.axes.y.label.startsWith('ξ')")
    found = surface(tab)
    alpha, xi = np.array(found["x"])[:, None], np.array(found["y"])
    close(found["z"], induction_landscape.loss(3.0, alpha, xi, **sizes))


def test_preconditioners_coefficients_and_free_energies_are_drawn_as_theory_has_them(tab, address):
    opened(tab, address, "preconditioner", "exponent=2&dim=8&length=5&noise=1")
    x, drawn = curves(tab)
    matrix = preconditioners.optimal(x, length=5, noise_variance=1.0).matrix
    close(drawn["best preconditioner A*"], np.diagonal(matrix))
    opened(tab, address, "learning_coefficients", "rank=2&inputs=7")
    x, drawn = curves(tab)
    found = [learning_coefficients.reduced_rank_regression(7, int(hidden), 5, 2) for hidden in x]
    close(drawn["λ  learning coefficient"], [one.value for one in found])
    close(drawn["m  multiplicity"], [one.multiplicity for one in found])
    opened(tab, address, "free_energies", "shown=energies&gap=0.1&rich=4&rich_m=2")
    n, drawn = curves(tab)
    simple = free_energy.Phase(0.1, learning_coefficients.LearningCoefficient(0.5, 1))
    rich = free_energy.Phase(0.0, learning_coefficients.LearningCoefficient(4, 2))
    close(drawn["simple phase"], free_energy.asymptotic(simple, n))
    close(drawn["rich phase"], free_energy.asymptotic(rich, n))


def test_a_slider_is_moved_by_keys_and_the_address_has_its_value(tab, address):
    opened(tab, address, "linear_attention")
    slider = tab.get_by_label("κ pretraining tasks over d", exact=True)
    slider.focus()
    before = float(tab.locator(".control:has([name=kappa]) input[type=text]").input_value())
    for _ in range(5):
        slider.press("ArrowRight")
    after = float(tab.locator(".control:has([name=kappa]) input[type=text]").input_value())
    assert after > before
    assert slider.get_attribute("aria-valuetext") == tab.evaluate("(v) => String(Number(v.toPrecision(4)))", after)
    tab.wait_for_function("() => location.hash.includes('kappa=')")
    tab.wait_for_function("(v) => document.getElementById('main').explorer.values.kappa === v", arg=after)
    slider.press("Home")
    tab.get_by_label("λ ridge", exact=True).press("ArrowRight")
    tab.wait_for_function("() => location.hash.includes('ridge=0.000001') || location.hash.includes('ridge=1e-6')")
    tab.reload()
    tab.wait_for_selector("#main[data-answered]")
    assert tab.evaluate("() => document.getElementById('main').explorer.values.kappa") == 0.05
    tab.get_by_role("button", name="reset the controls").click()
    tab.wait_for_function("() => !location.hash.includes('?')")


def test_of_many_moves_the_last_is_drawn_and_no_older_one_after_it(tab, address):
    opened(tab, address, "linear_attention")
    asked = []
    tab.on("request", lambda request: asked.append(request.url) if "/api/explorers/" in request.url else None)
    tab.evaluate(
        """() => {
          const slider = document.querySelector("[name=alpha]");
          for (let i = 300; i <= 700; i++) {
            slider.value = i;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
          }
        }"""
    )
    wanted = tab.evaluate("() => Number(document.querySelector('.control:has([name=alpha]) input[type=text]').value)")
    tab.wait_for_function(
        "(v) => Math.abs(document.getElementById('main').explorer.values.alpha / v - 1) < 1e-4", arg=wanted
    )
    assert len(asked) <= 4
    law = {"alpha": tab.evaluate("() => document.getElementById('main').explorer.values.alpha")}
    x, drawn = curves(tab)
    close(drawn["ICL error, fresh tasks"], linear_attention.icl_error(tau=x, kappa=0.5, rho=0.01, **law))


def test_what_is_refused_is_said_and_the_next_answer_takes_it_back(tab, address):
    opened(tab, address, "induction_landscape", "time=20&pairs=4&labels=8")
    move(tab, "pairs", 9)
    problem = tab.locator("#main .problem")
    assert problem.inner_text() == "labels: expected at least 9, one for each pair, got 8"
    move(tab, "labels", 9)
    assert not problem.is_visible()


def test_the_surface_turns_by_drag_keys_and_buttons_and_the_view_is_in_the_address(tab, address):
    opened(tab, address, "induction_landscape", "time=20")
    assert tab.get_attribute("#main .stage", "data-renderer") == "webgl"
    stage = tab.locator("#main .stage")
    pictures = [painted(tab)]
    box = stage.bounding_box()
    tab.mouse.move(box["x"] + 200, box["y"] + 150)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 320, box["y"] + 190, steps=4)
    tab.mouse.up()
    pictures.append(painted(tab))
    tab.wait_for_function("() => location.hash.includes('view=10%2C42')")
    stage.press("ArrowLeft")
    stage.press("ArrowDown")
    pictures.append(painted(tab))
    tab.wait_for_function("() => location.hash.includes('view=5%2C37')")
    tab.get_by_role("button", name="from above").click()
    pictures.append(painted(tab))
    tab.wait_for_function("() => location.hash.includes('view=0%2C90')")
    tab.get_by_role("button", name="reset view").click()
    tab.wait_for_function("() => !location.hash.includes('view')")
    for one, other in itertools.pairwise(pictures):
        assert (one != other).any(axis=1).mean() > 0.05
    assert (painted(tab) == pictures[0]).all(axis=1).mean() > 0.99


def test_the_surface_has_the_colours_of_its_heights(tab, address):
    """Low is dark violet and high yellow; without WebGL they are at the same places."""
    query = "time=20&third=fixed&level=8&view=35,50"
    opened(tab, address, "induction_landscape", query)
    seen = []
    for renderer in ("webgl", "canvas"):
        if renderer == "canvas":
            tab.add_init_script(
                "const get = HTMLCanvasElement.prototype.getContext;"
                "HTMLCanvasElement.prototype.getContext = function (kind, ...rest)"
                " { return kind === 'webgl2' ? null : get.call(this, kind, ...rest); };"
            )
            tab.reload()
            tab.wait_for_selector("#main[data-answered]")
        assert tab.get_attribute("#main .stage", "data-renderer") == renderer
        assert tab.get_by_text("This browser has no WebGL 2").count() == (renderer == "canvas")
        colours = painted(tab).astype(int)
        violet = np.abs(colours - (68, 1, 84)).sum(axis=1) < 60
        yellow = np.abs(colours - (253, 231, 37)).sum(axis=1) < 90
        assert violet.mean() > 0.02
        assert yellow.mean() > 0.002
        seen.append(np.stack([violet, np.ptp(colours, axis=1) > 40]))
    both, either = (seen[0] & seen[1]).sum(axis=1), (seen[0] | seen[1]).sum(axis=1)
    assert (both > 0.85 * either).all()


def test_from_above_the_first_axis_goes_to_the_right_and_the_second_up(tab, address):
    """The ridge of high errors at tau = 1 is a vertical line at its place, and grows with alpha."""
    opened(tab, address, "linear_attention", "view=0,90&kappa=0.2")
    settle(tab)
    picture = image(tab.locator("#main .stage")).astype(int)
    coloured = (np.ptp(picture, axis=2) > 40) & (np.arange(picture.shape[1]) < picture.shape[1] * 0.85)
    rows, columns = np.flatnonzero(coloured.sum(axis=1) > 50), np.flatnonzero(coloured.sum(axis=0) > 50)
    (top, bottom), (left, right) = rows[[0, -1]], columns[[0, -1]]
    assert (bottom - top) / (right - left) == pytest.approx(1, abs=0.05)
    high = coloured & (picture[..., 1] > 130)  # green is large from the middle of the colours on
    _, at_column = np.nonzero(high[top : bottom + 1, left : right + 1])
    wanted = np.log(1 / 0.05) / np.log(50 / 0.05)
    assert np.median(at_column) / (right - left) == pytest.approx(wanted, abs=0.02)
    assert np.std(at_column) < 0.1 * (right - left)
    ridge = left + round(wanted * (right - left))
    upper, lower = (picture[rows, ridge - 2 : ridge + 3, 1].mean() for rows in _ends(top, bottom))
    assert upper > lower + 20

    found = surface(tab)
    x, y, z = (np.log(np.array(found[name])) for name in "xyz")
    i, j = np.nonzero((np.abs(x) < 0.4)[:, None] & (np.abs(y) < 6))  # beside the ridge, where it is steep
    across, up = ((v - v[0]) / (v[-1] - v[0]) for v in (x, y))
    fractions = (z[i, j] - z.min()) / (z.max() - z.min())
    wanted = matplotlib.colormaps["viridis"](fractions)[:, :3] * 255
    pixels = picture[
        np.round(bottom - up[j] * (bottom - top)).astype(int), np.round(left + across[i] * (right - left)).astype(int)
    ]
    shades = (pixels * wanted).sum(axis=1) / (wanted**2).sum(axis=1)  # a face is the darker the less it faces the light
    off = np.abs(pixels - shades[:, None] * wanted).max(axis=1)
    assert np.median(off) < 5


def test_from_above_the_path_and_the_mark_are_where_they_are(tab, address):
    opened(tab, address, "induction_landscape", "time=150&moment=0.64&view=0,90")
    settle(tab)
    found, picture = surface(tab), image(tab.locator("#main .stage")).astype(int)
    inside = np.arange(picture.shape[1]) < picture.shape[1] * 0.85
    coloured = (np.ptp(picture, axis=2) > 40) & inside
    rows, columns = np.flatnonzero(coloured.sum(axis=1) > 50), np.flatnonzero(coloured.sum(axis=0) > 50)
    (top, bottom), (left, right) = rows[[0, -1]], columns[[0, -1]]

    def placed(colour):
        """Values of both axes at the pixels of a colour."""
        row, column = np.nonzero((np.abs(picture - colour).sum(axis=2) < 12) & inside)
        (x0, x1), (y0, y1) = (np.array(found[name])[[0, -1]] for name in "xy")
        return x0 + (column - left) / (right - left) * (x1 - x0), y0 + (bottom - row) / (bottom - top) * (y1 - y0)

    near = 0.15  # a line's width
    beta, alpha = placed((213, 94, 0))
    path = found["path"]
    assert beta.max() == pytest.approx(max(path["x"]), abs=near)
    assert alpha.max() == pytest.approx(max(path["y"]), abs=near)
    assert alpha.max() > beta.max() + 1
    beta, alpha = placed((240, 228, 66))
    assert np.mean(beta) == pytest.approx(found["mark"]["x"], abs=near)
    assert np.mean(alpha) == pytest.approx(found["mark"]["y"], abs=near)


def _ends(top, bottom):
    """The upper and the lower fifth."""
    share = (bottom - top) // 5
    return slice(top + 5, top + share), slice(bottom - share, bottom - 5)


def test_every_figure_has_its_numbers_in_words_and_as_a_table(tab, address):
    opened(tab, address, "linear_attention")
    labels = tab.locator("#main [role=img]").evaluate_all("(all) => all.map((one) => one.getAttribute('aria-label'))")
    assert len(labels) == 2
    assert labels[0].startswith("Errors of linear attention, curves: squared error against τ  pretraining contexts")
    assert "ICL error, fresh tasks: from" in labels[0]
    assert "mark at 0.891 at τ = 2, α = 10" in labels[1]
    assert tab.locator("#main table").count() == 1  # the legend: tables are made when they are opened
    tab.locator("#main figure.curves summary").click()
    lines = tab.locator("#main figure.curves details tbody tr")
    lines.first.wait_for()  # filled once it is open
    rows = lines.all_inner_texts()
    x, drawn = curves(tab)
    table = np.array([[float(value) for value in row.split("\t")] for row in rows])
    close(table[:, 0], x)
    close(table[:, 1], drawn["ICL error, fresh tasks"])
    move(tab, "kappa", 3)
    changed = tab.locator("#main figure.curves details tbody tr").first.inner_text().split("\t")
    assert float(changed[1]) == pytest.approx(curves(tab)[1]["ICL error, fresh tasks"][0], rel=1e-6)
    tab.locator("#main figure.surface summary").click()
    lines = tab.locator("#main figure.surface details tbody tr")
    lines.first.wait_for()
    assert lines.count() == len(surface(tab)["x"])


def test_stored_results_are_laid_over_and_the_controls_go_to_where_they_are(tab, address, monkeypatch):
    points = {
        "curves": [{"label": "ICL error, fresh tasks, d = 20", "x": [0.5, 2.0], "y": [0.9, 0.8], "error": [0.1, 0.2]}]
    }
    points |= {"surface": {"x": [2.0], "y": [10.0], "z": [0.8]}, "settings": [{"alpha": 10.0, "kappa": 2.0}]}
    monkeypatch.setattr(Handler, "points", points)
    opened(tab, address, "linear_attention")
    tab.get_by_label("double_descent/small").check()
    tab.wait_for_function("() => document.querySelector('figure.curves').drawn.points.length === 1")
    (one,) = tab.evaluate("() => document.querySelector('figure.curves').drawn.points")
    assert (one["x"], one["y"], one["series"], one["kind"]) == ([0.5, 2.0], [0.9, 0.8], 0, "d = 20")
    assert surface(tab)["points"] == points["surface"]
    assert "○ d = 20" in tab.locator("#main .shapes").inner_text()
    assert "2 points are on this view." in tab.locator("#main .settings").inner_text()
    tab.get_by_role("button", name="α = 10, κ = 2").click()
    tab.wait_for_function("() => document.getElementById('main').explorer.values.kappa === 2")


def test_nothing_is_wider_than_the_page(tab, address):
    """Where it is opened in a narrow window, and when that is made wide."""
    for id in EXPLORERS:
        tab.set_viewport_size({"width": 400, "height": 800})
        opened(tab, address, id, "time=20" if id == "induction_landscape" else "")
        kinds = ("curves", "surface") if "surface" in EXPLORERS[id].answer() else ("curves",)
        for width in (400, 1280):
            tab.set_viewport_size({"width": width, "height": 800})
            settle(tab)
            assert tab.evaluate("() => document.documentElement.scrollWidth") <= width, id
            for kind in kinds:
                drawn = tab.locator(f"#main figure.{kind} canvas").first.bounding_box()
                assert drawn["width"] > 0.55 * min(width, 1000), id
                assert drawn["x"] >= 0, id
                assert drawn["x"] + drawn["width"] <= width, id


def test_curves_of_different_x_are_drawn_on_one_axis_and_what_has_no_logarithm_is_a_gap(tab, address):
    tab.goto(address)
    drawn = tab.evaluate(
        """async () => {
          const { curvePlot } = await import("/static/plot.js");
          const plot = await curvePlot(document.getElementById("main"), "two");
          const y = { label: "y", scale: "log" };
          plot.draw({
            curves: [{ label: "a", x: [1, 2, 4], y: [1, 0, 3] }, { label: "b", x: [2, 3], y: [5, null] }],
            axes: { x: { label: "x", scale: "linear" }, y, mark: null },
          });
          return plot.drawn.data.map((one) => Array.from(one, (value) => value ?? null));
        }"""
    )
    assert drawn == [[1, 2, 3, 4], [1, None, None, 3], [None, 5, None, None]]


def test_curves_follow_the_colours_of_the_page(tab, address):
    opened(tab, address, "free_energies")
    light = painted(tab, "#main .canvas")
    tab.evaluate("() => { document.documentElement.dataset.theme = 'dark'; }")
    dark = painted(tab, "#main .canvas")
    assert light.mean() > 200
    assert dark.mean() < 80
    assert (np.ptp(dark.astype(int), axis=1) > 60).any()  # the curves have colours still


def test_leaving_ends_what_is_under_way(tab, address):
    opened(tab, address, "induction_landscape", "time=20")
    tab.evaluate("() => { document.querySelector('[name=moment]').dispatchEvent(new Event('input')); left(); }")
    settle(tab)
    assert tab.locator("#main").inner_text() == ""
    assert tab.evaluate("() => document.getElementById('main').explorer") is None


def test_an_unknown_explorer_is_said_to_be_none(tab, address):
    tab.goto(f"{address}#/explore/nothing")
    tab.wait_for_selector("#main .problem:visible")
    assert tab.locator("#main .problem").inner_text() == "expected an explorer, got nothing"
