"""A prompt in a browser: tokens as text, their colours and numbers, the keyboard, the address; no model is read."""

import pytest
from page.conftest import MARKUP
from page.servers import serving

from icllab.page import server
from icllab.page.language_models import TEXTS

TOKENS = [" a", MARKUP, "⏎", r"\xe6", " b"]


@pytest.fixture(scope="module")
def address(quick, without_models, tmp_path_factory):
    """Where the page is."""
    with serving(server.build(tmp_path_factory.mktemp("out"))) as address:
        yield address


def opened(tab, address, query=""):
    tab.goto("about:blank")
    tab.goto(f"{address}#/prompt{query}")
    tab.wait_for_selector("[data-answered]")
    return tab


def answered(tab, act):
    """Act, and wait for the next answer."""
    count = int(tab.get_attribute("[data-answered]", "data-answered"))
    act()
    tab.wait_for_function("(n) => Number(document.querySelector('[data-answered]').dataset.answered) > n", arg=count)


def test_tokens_are_text_and_their_colours_are_what_the_context_saves(tab, address):
    opened(tab, address)
    tokens = tab.locator(".token")
    assert tokens.all_text_contents() == TOKENS
    assert tab.evaluate("window.alerted === undefined")
    assert tab.locator(".tokens script").count() == 0
    of = "(all) => all.map((one) => [one.dataset.sign, Number(one.style.getPropertyValue('--share'))])"
    signs, shares = zip(*tokens.evaluate_all(of), strict=True)
    assert signs == ("saves", "saves", "costs", "saves", "saves")
    assert shares == pytest.approx([0, 0, 1 / 6, 1 / 6, 1])
    assert tokens.nth(4).get_attribute("aria-label") == "“ b”, the context saves 8.50"
    grounds = tokens.evaluate_all("(all) => all.map((one) => getComputedStyle(one).backgroundColor)")
    assert len(set(grounds)) == 4
    assert grounds[0] == grounds[1]  # no difference has no colour


def test_a_token_says_its_losses_and_where_the_head_attends_from_it(tab, address):
    opened(tab, address)
    readout = tab.locator(".readout")
    losses, attention = readout.inner_text().split(" From here ")
    assert losses == "“ b” (4): 0.50 nats with context, 9.00 without: it saves 8.50."
    assert attention.startswith("head 1.0 attends 0.60 to “ b” (4), 0.10 to ")
    tab.locator(".token").last.focus()
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("ArrowLeft")
    assert "“⏎” (2): 4.00 nats with context, 3.00 without: it costs 1.00." in readout.inner_text()
    weights = tab.locator(".token").evaluate_all("(all) => all.map((one) => one.style.getPropertyValue('--attention'))")
    assert [float(weight) for weight in weights] == [0.1, 0.1, 0.8, 0, 0]
    assert tab.evaluate("() => document.querySelector('figure').drawn.axes.mark") == 2
    tab.keyboard.press("Home")
    assert readout.inner_text().startswith("“ a” (0): no loss. From here head 1.0 attends 1.00 to “ a” (0)")
    tab.locator(".token").nth(3).hover()
    assert readout.inner_text().startswith(r"“\xe6” (3): 2.00 nats")
    tab.mouse.move(0, 0)
    assert readout.inner_text().startswith("“ a” (0)")  # where the keyboard is


def test_the_pattern_is_drawn_with_rows_that_attend(tab, address):
    opened(tab, address)
    canvas = tab.locator("canvas[role=img]")
    cells = canvas.evaluate("(one) => one.cells")

    def place(i, j):
        return {"x": cells["left"] + (j + 0.5) * cells["size"], "y": cells["top"] + (i + 0.5) * cells["size"]}

    def colour(i, j):
        at = place(i, j)
        get = "(one, [x, y]) => [...one.getContext('2d').getImageData(x, y, 1, 1).data]"
        return canvas.evaluate(get, [at["x"], at["y"]])

    assert colour(0, 0) == [253, 231, 37, 255]  # viridis at 1
    assert colour(4, 0) == colour(3, 2) != colour(3, 3)
    assert colour(0, 3)[3] == 0  # nobody attends to what follows
    canvas.hover(position=place(3, 1))
    assert f"From here head 1.0 attends 0.10 to “{MARKUP}” (1)." in tab.locator(".readout").inner_text()
    canvas.click(position=place(3, 1))
    tab.mouse.move(0, 0)
    assert tab.locator(".readout").inner_text().startswith(r"“\xe6” (3)")
    assert canvas.get_attribute("aria-label").startswith(
        r"Attention pattern of head 1.0; from “\xe6” 0.70 to “\xe6” (3)"
    )


def test_controls_are_in_the_address_and_come_back_from_it(tab, address):
    opened(tab, address, "?model=tiny&size=4&text=a%2Fb+%26c")
    assert tab.evaluate("() => document.querySelector('.view').prompt.alone[3]") == 6  # of 4 tokens
    assert tab.locator("textarea").input_value() == "a/b &c"
    assert tab.locator("[name=example]").input_value() == ""
    answered(tab, lambda: tab.get_by_role("button", name="0.1").click())
    assert [tab.locator(f"[name={name}]").input_value() for name in ("block", "head")] == ["0", "1"]
    answered(tab, lambda: tab.select_option("[name=example]", label="Capitals"))
    assert tab.locator("textarea").input_value() == TEXTS["Capitals"]
    tab.reload()
    tab.wait_for_selector("[data-answered]")
    names = ("model", "size", "block", "head", "example")
    assert [tab.locator(f"[name={name}]").input_value() for name in names] == ["tiny", "4", "0", "1", TEXTS["Capitals"]]
    answered(tab, lambda: tab.select_option("[name=model]", "large"))
    assert tab.locator("[name=block]").input_value() == "1"  # chosen anew


def test_typing_is_read_once_and_a_refusal_is_one_line(tab, address):
    opened(tab, address)
    asked = []
    tab.on("request", lambda request: asked.append(request.post_data_json) if "api/prompt" in request.url else None)
    tab.locator("textarea").fill("")
    answered(tab, lambda: tab.locator("textarea").press_sequentially("refused", delay=20))
    assert [one["text"] for one in asked] == ["refused"]
    problem = tab.locator(".problem")
    assert problem.inner_text() == "text: expected another, got 'refused'"
    assert "old" in tab.locator(".result").get_attribute("class")
    answered(tab, lambda: tab.locator("textarea").fill("a text"))
    assert not problem.is_visible()


def test_every_token_is_in_a_table(tab, address):
    opened(tab, address)
    tab.get_by_text("The numbers: every token").click()
    rows = tab.locator(".drawn[open] tbody tr")
    rows.first.wait_for()
    cells = [row.split("\t") for row in rows.all_inner_texts()]
    assert [row[0] for row in cells] == list("01234")
    assert cells[2][1:5] == ["“⏎”", "4.00", "3.00", "-1.00"]
    assert cells[2][5].startswith("0.80 to “⏎” (2)")


def test_without_models_the_view_says_what_brings_them(tab, address, monkeypatch):
    from icllab.page.language_models import LanguageModels

    monkeypatch.setattr(LanguageModels, "names", lambda self: [])
    tab.goto(f"{address}#/prompt")
    assert "`make models` in a clone brings three" in tab.locator(".prompt > .note").inner_text()
    assert tab.locator("textarea").count() == 0
