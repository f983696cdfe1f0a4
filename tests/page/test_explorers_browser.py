"""Explorers of the page in a browser: what is drawn is what `icllab.theory` says."""

# ruff: noqa: RUF001 (Greek letters are meant)

import io

import matplotlib
import numpy as np
import pytest
from page.explorer_server import served
from page.explorer_tab import close, curves, drawn_map, move

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


def painted(page, selector):
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
    for picture in tab.locator(".explorer-card .picture").all():
        picture.locator("canvas").first.wait_for()  # drawn at first sight
    links = tab.locator(".explorer-card a").evaluate_all("(all) => all.map((one) => one.getAttribute('href'))")
    assert links == [f"#/explore/{id}" for id in EXPLORERS]


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
        found = drawn_map(tab)
        grid = {**law, "tau": np.array(found["x"])[:, None], "alpha": np.array(found["y"])}
        close(found["z"], linear_attention.icl_error(**grid))
    tab.select_option("[name=x]", "alpha")
    tab.get_by_text("A map needs two different axes").wait_for()
    assert tab.locator("#main figure.map").count() == 0
    tab.select_option("[name=x]", "rho")
    tab.wait_for_function("() => document.querySelector('figure.curves').drawn.axes.x.label.startsWith('ρ')")
    x, drawn = curves(tab)
    close(drawn["ICL error, fresh tasks"], linear_attention.icl_error(**{**law, "rho": x}))
    said = tab.locator("dl.answers dd").first.inner_text()
    assert float(said) == pytest.approx(linear_attention.icl_error(**law), rel=1e-4)


def test_the_landscape_is_drawn_with_the_flow_and_its_loss(tab, address):
    opened(tab, address, "induction_landscape", "pairs=4&labels=64&time=150&moment=0.25")
    sizes = {"pairs": 4, "labels": 64}
    flow = induction_landscape.flow((0, 0, 0), time=150, levels=(0.5,), **sizes)
    found = drawn_map(tab)
    beta, alpha = np.array(found["x"])[:, None], np.array(found["y"])
    now = [np.interp(0.25 * 150, flow.time, values) for values in flow.parameters.T]
    close(found["z"], induction_landscape.loss(beta, alpha, now[2], **sizes))
    close([found["path"][name] for name in "xyz"], [*flow.parameters.T[:2], flow.loss])
    x, drawn = curves(tab)
    close(x, flow.time)
    close(drawn["loss along the flow"], flow.loss)
    tab.select_option("[name=plane]", "alpha_xi")
    tab.wait_for_function("() => document.querySelector('figure.map').drawn.axes.y.label.startsWith('ξ')")
    found = drawn_map(tab)
    alpha, xi = np.array(found["x"])[:, None], np.array(found["y"])
    close(found["z"], induction_landscape.loss(now[0], alpha, xi, **sizes))


def test_preconditioners_coefficients_and_free_energies_are_drawn_as_theory_has_them(tab, address):
    opened(tab, address, "preconditioner", "exponent=2&dim=8&power=-1&noise=1")
    x, drawn = curves(tab)
    sigma = np.arange(1, 9) ** -2.0
    sigma /= sigma.mean()
    options = {"task_covariance": 1 / sigma, "noise_variance": 1.0}
    close(
        drawn["best preconditioner A*"], [preconditioners.optimal(sigma, length=int(n), **options).loss / 8 for n in x]
    )
    opened(tab, address, "learning_coefficients", "rank=2&inputs=7")
    x, drawn = curves(tab)
    x = x[1:]  # one hidden unit has no rank of two
    assert np.isnan(drawn["m  multiplicity"][0])
    drawn = {label: values[1:] for label, values in drawn.items()}
    found = [learning_coefficients.reduced_rank_regression(7, int(hidden), 5, 2) for hidden in x]
    close(drawn["λ  learning coefficient"], [one.value for one in found])
    close(drawn["m  multiplicity"], [one.multiplicity for one in found])
    opened(tab, address, "free_energies", "gap=0.1&rich=4&rich_m=2")
    n, drawn = curves(tab)
    simple = free_energy.Phase(0.1, learning_coefficients.LearningCoefficient(0.5, 1))
    rich = free_energy.Phase(0.0, learning_coefficients.LearningCoefficient(4, 2))
    close([drawn["simple phase"], drawn["rich phase"]], free_energy.posterior_weights([simple, rich], n))


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


def pixels(page):
    """The picture of a map without its frame, as integers, and pixels for values of its axes."""
    settle(page)
    found, picture = drawn_map(page), image(page.locator("#main figure.map .u-over")).astype(int)
    height, width = picture.shape[:2]

    def place(name, values):
        ends, values = np.array(found[name])[[0, -1]], np.array(values, float)
        if found["axes"][name]["scale"] == "log":
            ends, values = np.log(ends), np.log(values)
        return (values - ends[0]) / (ends[1] - ends[0])

    def at(x, y):
        column, row = place("x", x) * (width - 1), (1 - place("y", y)) * (height - 1)
        return np.round(row).astype(int), np.round(column).astype(int)

    return found, picture, at


def test_the_map_has_the_colours_of_its_values_with_the_first_axis_to_the_right_and_the_second_up(tab, address):
    for id, query in (("linear_attention", "kappa=0.2"), ("induction_landscape", "time=200")):
        opened(tab, address, id, query)
        found, picture, at = pixels(tab)
        z = np.log(np.array(found["z"])) if found["axes"]["z"]["scale"] == "log" else np.array(found["z"])
        inside = np.ix_(range(2, len(found["x"]) - 2), range(2, len(found["y"]) - 2))
        x, y = np.meshgrid(found["x"], found["y"], indexing="ij")
        wanted = matplotlib.colormaps["viridis"]((z - z.min()) / np.ptp(z))[inside][..., :3] * 255
        off = np.abs(picture[at(x[inside], y[inside])] - wanted).max(axis=-1)
        assert np.median(off) < 6, id
        assert (off < 25).mean() > 0.8, id  # contour lines, the path and the mark hide the others
        shuffled = np.abs(picture[at(x[inside], y[inside][:, ::-1])] - wanted).max(axis=-1)
        assert np.median(shuffled) > np.median(off) + 3, id


def test_the_path_and_the_mark_are_where_they_are(tab, address):
    opened(tab, address, "induction_landscape", "time=150&moment=0.64")
    found, picture, at = pixels(tab)

    def place(colour):
        """The pixels of a colour."""
        return np.nonzero(np.abs(picture - colour).sum(axis=2) < 12)

    rows, columns = place((213, 94, 0))
    path_rows, path_columns = at(found["path"]["x"], found["path"]["y"])
    assert columns.max() == pytest.approx(path_columns.max(), abs=4)
    assert rows.min() == pytest.approx(path_rows.min(), abs=4)
    distances = np.hypot(rows[:, None] - path_rows, columns[:, None] - path_columns).min(axis=1)
    assert np.quantile(distances, 0.95) < 6
    (row, column), (rows, columns) = at(found["mark"]["x"], found["mark"]["y"]), place((240, 228, 66))
    assert np.median(rows) == pytest.approx(row, abs=2)  # a map has this colour at single pixels too
    assert np.median(columns) == pytest.approx(column, abs=2)


def test_the_value_under_the_pointer_is_that_of_the_nearest_point(tab, address):
    opened(tab, address, "induction_landscape", "time=20")
    found, _, at = pixels(tab)
    row, column = at(found["x"][40], found["y"][10])
    tab.locator("#main figure.map .u-over").hover(position={"x": int(column), "y": int(row)})
    said = tab.locator("#main figure.map .readout").inner_text()
    assert said.startswith("β = 5, α = 0.5: loss in nats ")
    assert float(said.split()[-1]) == pytest.approx(found["z"][40][10], rel=1e-3)


def test_a_value_without_a_logarithm_is_a_gap_in_the_map(tab, address):
    tab.goto(address, wait_until="networkidle")  # the page has drawn itself, and does not replace the figure
    tab.evaluate(
        """async () => {
          const [{ figure }, { map }] = await Promise.all([import("/static/plot.js"), import("/static/map.js")]);
          const axis = { label: "a", scale: "linear" }, axes = { x: axis, y: axis, z: { label: "z", scale: "log" } };
          document.getElementById("main").replaceChildren();
          const plot = figure(document.getElementById("main"), "gap", map);
          plot.draw({ x: [0, 1, 2], y: [0, 1, 2], z: [[0, 1, 10], [1, 1, 10], [1, null, 10]], axes });
        }"""
    )
    _, picture, at = pixels(tab)
    grey = np.ptp(picture, axis=2) < 20
    assert [bool(grey[at(x, y)]) for x, y in ((0.02, 0.02), (1.98, 1.0), (0.5, 1.5))] == [True, True, False]


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
    tab.locator("#main figure.map summary").click()
    lines = tab.locator("#main figure.map details tbody tr")
    lines.first.wait_for()
    assert lines.count() == len(drawn_map(tab)["x"])


def test_nothing_is_wider_than_the_page(tab, address):
    """Where it is opened in a narrow window, and when that is made wide."""
    for id in EXPLORERS:
        tab.set_viewport_size({"width": 400, "height": 800})
        opened(tab, address, id, "time=20" if id == "induction_landscape" else "")
        kinds = ("curves", "map") if "map" in EXPLORERS[id].answer() else ("curves",)
        for width in (400, 1280):
            tab.set_viewport_size({"width": width, "height": 800})
            settle(tab)
            assert tab.evaluate("() => document.documentElement.scrollWidth") <= width, id
            for kind in kinds:
                drawn = tab.locator(f"#main figure.{kind} canvas").first.bounding_box()
                assert drawn["width"] > 0.55 * min(width, 1000), id
                assert drawn["x"] >= 0, id
                assert drawn["x"] + drawn["width"] <= width, id


def test_a_value_without_a_logarithm_is_a_gap_in_a_curve(tab, address):
    tab.goto(address)
    drawn = tab.evaluate(
        """async () => {
          const { curves, figure } = await import("/static/plot.js");
          document.getElementById("main").replaceChildren();
          const plot = figure(document.getElementById("main"), "two", curves);
          const y = { label: "y", scale: "log" };
          plot.draw({
            curves: [{ label: "a", x: [1, 2, 4], y: [1, 0, 3] }, { label: "b", x: [1, 2, 4], y: [5, null, 2] }],
            axes: { x: { label: "x", scale: "linear" }, y, mark: null },
          });
          return document.querySelector("figure").drawn.data.map((one) => Array.from(one, (value) => value ?? null));
        }"""
    )
    assert drawn == [[1, 2, 4], [1, None, 3], [5, None, 2]]


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
