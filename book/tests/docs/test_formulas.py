"""The formulas of ``icl theory`` are the functions of the theory that take and give numbers."""

import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from icllab.core.files import parse_json
from icllab.theory.parameters import Number, Numbers
from icllab.theory.preconditioners import Covariance

_spec = importlib.util.spec_from_file_location("make_formulas", Path(__file__).parents[3] / "docs" / "make_formulas.py")
make_formulas = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_formulas)


def test_the_table_is_what_the_theory_has_now():
    assert parse_json(make_formulas.TABLE.read_bytes()) == make_formulas.table(), "run docs/make_formulas.py"


class Steps(NamedTuple):
    loss: float


def broadcast(q: Numbers, *, kappa: Numbers = 0.5) -> Number:
    r"""The trace :math:`M(q)` of :func:`a.law`.

    Args:
        q: Argument, :math:`q \\ge 0`
            and finite.
        kappa: Samples over dimension.
    """


def counted(layers: int, tied: bool = False) -> Steps:
    """Steps. Arguments beyond ``layers`` are those of :func:`broadcast`."""


def eigen(spectrum: Covariance, list_: npt.ArrayLike, count: int) -> float:
    """Of eigenvalues."""


def words(name: str, q: Numbers) -> Number:
    """A text is not a number."""


def matrix(count: int) -> np.random.Generator:
    """The answer is not a number."""


def spread(*q: Numbers) -> Number:
    """Parameters without a number of them."""


def without() -> Number:
    """Nothing is asked for."""


@pytest.fixture
def rows(monkeypatch):
    functions = {f.__name__: f for f in (broadcast, counted, eigen, words, matrix, spread, without)}
    known = {f"here.{name}": function for name, function in functions.items()}
    monkeypatch.setattr(make_formulas, "functions", lambda: known)
    return make_formulas.table()


def test_a_formula_takes_numbers_and_gives_numbers(rows):
    assert set(rows) == {"here.broadcast", "here.counted", "here.eigen"}
    kinds = {name: [p["kind"] for p in row["parameters"].values()] for name, row in rows.items()}
    assert kinds == {
        "here.broadcast": ["number", "number"],
        "here.counted": ["count", "flag"],
        "here.eigen": ["spectrum", "list", "count"],
    }


def test_parameters_have_definitions_and_defaults(rows):
    assert rows["here.broadcast"]["summary"] == "The trace M(q) of a.law."
    q, kappa = rows["here.broadcast"]["parameters"].values()
    assert q == {"kind": "number", "definition": "Argument, q >= 0 and finite."}
    assert kappa == {"kind": "number", "definition": "Samples over dimension.", "default": "0.5"}
    assert rows["here.counted"]["parameters"]["tied"]["default"] == "False"


def test_functions_are_the_public_ones_of_their_own_module(monkeypatch):
    names = make_formulas.functions()
    assert {"wishart.stieltjes", "saddles.flow"} <= set(names)
    assert not [name for name in names if name.partition(".")[2].startswith("_")]
    assert names["preconditioners.optimal"].__module__ == "icllab.theory.preconditioners"
    assert "independent_inputs.read" not in names
