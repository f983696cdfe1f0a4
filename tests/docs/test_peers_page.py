"""The page *Coming from other libraries* says of a name what was measured of it, and nothing of others."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("make_peers", Path(__file__).parents[2] / "docs" / "make_peers.py")
make_peers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_peers)


def row(theirs, difference, **fields):
    whole = {"case": f"case of {theirs}", "theirs": theirs, "ours": "algorithms.Ridge", "difference": difference}
    return whole | {"unit": "absolute", "tolerance": 1e-6, "note": ""} | fields


ROWS = [
    row("models.py: Ridge(0.1)", 1e-9),
    row('get_model("ridge", lam=0.25)', 2e-9),
    row('get_model("mmse")', 4.7, unit="standard errors", tolerance=3.0, note="theirs | has no limit"),
]
RECORD = {"peer": "a/b", "version": "1.2", "clone": True, "date": "2026-01-02", "package": "0.3.0", "rows": ROWS}
TEMPLATE = """# Title

<!-- summary -->

## One

| there | here |
|---|---|
| `Ridge`, first | `algorithms.Ridge` |
| `get_model("mmse")` | `algorithms.bayes_optimal` |
| `get_model("other")` | `algorithms.LeastSquares` |

<!-- measured: one none -->

### Two

| there | here |
|---|---|
| `Ridge` | `algorithms.Ridge` |
"""


def test_a_name_has_what_was_measured_of_it_in_its_own_section():
    one, two = make_peers.page(TEMPLATE, {"one": RECORD}).split("### Two")
    assert "| `Ridge`, first | `algorithms.Ridge` | equal in 1 of 1, 1e-09 |" in one
    assert "| equal in 0 of 1, 4.7 standard errors: theirs \\| has no limit |" in one
    assert '| `get_model("other")` | `algorithms.LeastSquares` | not compared |' in one
    assert "| `Ridge` | `algorithms.Ridge` | not compared |" in two
    assert "equal in" not in two


def test_the_table_says_what_is_not_equal_and_why():
    page = make_peers.page(TEMPLATE, {"one": RECORD})
    assert "| `a/b` | 1.2 | 3 | 2 | 1 |" in page
    assert "4.7 standard errors | 3 | **not equal**: theirs \\| has no limit |" in page
    assert "by `bench/peers.py --only one --checkout one=DIR`" in page


def test_a_peer_that_no_section_names_has_a_section_of_its_own():
    page = make_peers.page(TEMPLATE, {"more": RECORD | {"peer": "package", "clone": False}})
    assert page.count("| not compared |") == 4
    assert "## package\n\n*Measured*: `package`, 1.2" in page
    assert "by `bench/peers.py --only more`." in page
