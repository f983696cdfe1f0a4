"""Explorers in the documentation, in a browser: what is looked up is what `icllab.theory` says, without a network."""

import importlib.util
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from page.conftest import reading
from page.explorer_server import STATIC
from page.explorer_tab import answers, close, curves, drawn_map, move, watched

from icllab.page import prompt_worker
from icllab.page.explorers import EXPLORERS
from icllab.theory import free_energy, induction_landscape, learning_coefficients, linear_attention

DOCS = Path(__file__).parents[2] / "docs"
_spec = importlib.util.spec_from_file_location("make_explorers", DOCS / "make_explorers.py")
make_explorers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_explorers)


@pytest.fixture(scope="module")
def documentation(tmp_path_factory):
    """The raw parts of the documentation's page, and small grids beside it."""
    folder = tmp_path_factory.mktemp("docs")
    grids = {
        "linear_attention": {"x": ("tau", "kappa"), "alpha": (1, 10), "kappa": (0.5, 2), "ridge": (0, 0.3)},
        "induction_landscape": {"moment": (0.25, 0.5), "pairs": (4,), "time": (20, 60)},
        "preconditioner": {"length": (5, 20), "power": (-1, 0)},
        "saddles": {"dim": (4,), "length": (5, 31)},
        "learning_coefficients": {"hidden": (2, 4), "rank": (0, 3)},
        "normal_crossing": {"k1": (1, 2)},
        "free_energies": {"x": ("n", "gap"), "gap": (0.001, 0.01)},
    }
    (folder / make_explorers.MODEL).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_worker, "read", lambda path, text, *values: reading(text, *values))
        make_explorers.write(folder, grids, folder)
    raw = re.findall(
        r"^```\{raw\} html\n(.*?)^```", (DOCS / "explorers.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    (folder / "explorers.html").write_text('<!doctype html><meta charset="utf-8"><body>' + "\n".join(raw), "utf-8")
    return (folder / "explorers.html").as_uri(), grids


@pytest.fixture(scope="module")
def page(browser, documentation):
    """The documentation's page, opened from the disk without a network, scrolled through; each test moves its own."""
    with watched(browser) as tab:
        tab.context.set_offline(True)
        tab.goto(documentation[0])
        for id in [*EXPLORERS, "prompt"]:
            tab.locator(f"[data-explorer={id}]").scroll_into_view_if_needed()
            tab.wait_for_selector(f"[data-explorer={id}][data-answered]")
        yield tab


def test_the_documentation_has_every_explorer_and_its_numbers_are_those_of_theory(page, documentation):
    assert set(documentation[1]) == set(EXPLORERS)
    root = "[data-explorer=linear_attention]"
    law = {"tau": 2.0, "alpha": 10.0, "kappa": 0.5, "rho": 0.01, "ridge": 0.0}
    x, drawn = curves(page, root)
    close(drawn["ICL error, fresh tasks"], linear_attention.icl_error(**{**law, "tau": x}))
    move(page, "kappa", 1.4, root)  # the nearest of the grid is shown as what it is
    assert page.locator(f"{root} .control:has([name=kappa]) input[type=text]").input_value() == "2"
    law["kappa"] = 2.0
    x, drawn = curves(page, root)
    close(drawn["ICL error, fresh tasks"], linear_attention.icl_error(**{**law, "tau": x}))
    found = drawn_map(page, root)
    grid = {**law, "tau": np.array(found["x"])[:, None], "alpha": np.array(found["y"])}
    close(found["z"], linear_attention.icl_error(**grid))
    assert page.locator(f"{root} .control:has-text('label noise') .fixed").first.inner_text() == "0.01"

    root = "[data-explorer=induction_landscape]"
    move(page, "time", 25, root)
    found, sizes = drawn_map(page, root), {"pairs": 4, "labels": 32}
    flow = induction_landscape.flow((0, 0, 0), time=20, levels=(0.5,), **sizes)
    close(found["path"]["z"][-1], flow.loss[-1])
    xi = np.interp(found["mark"]["x"], flow.parameters[:, 0], flow.parameters[:, 2])
    close(found["z"], induction_landscape.loss(np.array(found["x"])[:, None], np.array(found["y"]), xi, **sizes))

    root = "[data-explorer=free_energies]"
    page.select_option(f"{root} [name=x]", "gap")
    page.wait_for_function(
        "(root) => document.querySelector(root + ' figure.curves').drawn.axes.x.label.startsWith('ΔL')", arg=root
    )
    gap, drawn = curves(page, root)
    rich = free_energy.Phase(0.0, learning_coefficients.LearningCoefficient(2.5, 5))
    for value, share in zip(gap[::9], drawn["simple phase"][::9], strict=True):
        simple = free_energy.Phase(value, learning_coefficients.LearningCoefficient(0.5, 1))
        close(share, free_energy.posterior_weights([simple, rich], 300)[0])


def test_where_the_grid_has_no_answer_the_documentation_says_why(page):
    root = "[data-explorer=learning_coefficients]"
    move(page, "hidden", 2, root)
    before = answers(page, root)
    move(page, "rank", 3, root)
    assert answers(page, root) > before
    assert page.locator(f"{root} .problem").inner_text() == "rank: expected at most 2, the smallest size, got 3"


def test_a_prompt_is_shown_with_every_head(page):
    root = page.locator("[data-explorer=prompt]")
    assert root.locator("[name=example] option").all_inner_texts() == list(make_explorers.ENGLISH)
    for menu, value in (("size", "4"), ("block", "0"), ("head", "1")):
        before = answers(page, "[data-explorer=prompt]")
        root.locator(f"[name={menu}]").select_option(value)
        page.wait_for_function(
            "(n) => Number(document.querySelector('[data-explorer=prompt]').dataset.answered) > n", arg=before
        )
    answer = root.evaluate("(one) => one.prompt")
    wanted = reading("", 4, 0, 1)
    assert [answer[name] for name in ("tokens", "loss", "alone", "block", "head")] == [
        wanted[name] for name in ("tokens", "loss", "alone", "block", "head")
    ]
    for row, wanted_row in zip(answer["pattern"], wanted["pattern"], strict=True):
        np.testing.assert_allclose(row, wanted_row, atol=0.002)
    assert "From here head 0.1 attends" in root.locator(".readout").inner_text()
    assert root.locator("textarea").get_attribute("readonly") is not None


def test_modules_that_cannot_become_one_script_are_refused(tmp_path):
    shutil.copytree(STATIC, tmp_path / "static")
    (tmp_path / "static" / "viridis.js").write_text('import viridis from "elsewhere";\n', "utf-8")
    with pytest.raises(ValueError, match=r"viridis\.js: expected imports of names on one line"):
        make_explorers.bundle(tmp_path / "static")
