"""What a browser's tab shows of an explorer: which answer, and the numbers that are drawn."""

import contextlib

import numpy as np


@contextlib.contextmanager
def watched(browser):
    """A tab that must have no error and no request to elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab, wrong = context.new_page(), []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda said: wrong.append(said.text) if said.type == "error" and "400" not in said.text else None)
    here = ("http://127.0.0.1", "file:", "data:")
    tab.on("request", lambda asked: None if asked.url.startswith(here) else wrong.append(asked.url))
    yield tab
    context.close()
    assert not wrong


def answers(page, root="#main"):
    return int(page.get_attribute(root, "data-answered"))


def move(page, name, value, root="#main"):
    """Type a value beside a slider, and wait for the answer."""
    before = answers(page, root)
    field = page.locator(f"{root} .control:has([name={name}]) input[type=text]")
    field.fill(str(value))
    field.press("Enter")
    page.wait_for_function(
        "([root, n]) => Number(document.querySelector(root).dataset.answered) > n", arg=[root, before]
    )


def curves(page, root="#main"):
    """What uPlot was given: x, and label -> y."""
    drawn = page.evaluate("(root) => document.querySelector(root + ' figure.curves').drawn", root)
    x, *y = (np.array(values, float) for values in drawn["data"])
    return x, dict(zip(drawn["labels"], y, strict=True))


def drawn_map(page, root="#main"):
    """The map, with its path and its mark."""
    return page.evaluate("(root) => document.querySelector(root + ' figure.map').drawn", root)


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)
