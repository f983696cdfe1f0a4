"""The axis table is what results and figures share."""

import re

import pytest
import xarray as xr

from icllab.core.axes import AXES, QUANTITIES, Quantity, derived
from icllab.core.errors import InputError
from icllab.lab import registry


def test_names_are_words_and_belong_to_one_table():
    assert not set(AXES) & set(QUANTITIES)
    for name, row in {**AXES, **QUANTITIES}.items():
        assert row.name == name
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert row.meaning
        assert row.symbol
        assert "$" not in row.symbol


def test_every_symbol_can_be_drawn():
    from matplotlib.mathtext import MathTextParser

    parser = MathTextParser("path")
    for row in (*AXES.values(), *QUANTITIES.values()):
        parser.parse(f"${row.symbol}$")


def test_labels_say_meaning_symbol_and_unit():
    assert AXES["length"].label == r"context length, $\ell$ [examples]"
    assert AXES["dim"].label == "token dimension, $d$"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("tau", 0.0, "tau: expected a number > 0, got 0.0"),
        ("rho", -1e-9, "rho: expected a number >= 0, got -1e-09"),
        ("kappa", float("nan"), "kappa: expected a number > 0, got nan"),
        ("dim", 0, "dim: expected a number >= 1, got 0"),
    ],
)
def test_a_value_outside_its_axis_is_refused(name, value, said):
    AXES[name].require([1, 2.5])
    with pytest.raises(InputError) as caught:
        AXES[name].require([1, value])
    assert str(caught.value) == said


def test_names_are_derived_by_their_suffix():
    known = {"width": Quantity("width", "w", "width", "steps"), "icl_error": Quantity("icl_error", "E", "error")}
    assert derived("width", known) is known["width"]
    assert derived("icl_error", known) is known["icl_error"]  # a name of its own, not an error of "icl"
    assert derived("width_error", known).label == r"standard error of the width, $\mathrm{SE}(w)$ [steps]"
    assert derived("width_mcse", known).label == r"Monte Carlo standard error of the width, $\mathrm{SE}(w)$ [steps]"
    assert derived("width_theory", known).label == "width, closed form, $w$ [steps]"
    assert derived("width_line", known).label == "width, $w$ [steps]"
    assert derived("icl_error_error", known).symbol == r"\mathrm{SE}(E)"
    assert derived("height_error", known) is None
    assert derived("_error", known) is None


def test_no_name_is_a_method_of_a_dataset():
    """``dataset.head`` would be a method."""
    taken = {*dir(xr.Dataset), *dir(xr.DataArray)}
    assert not taken & {*AXES, *QUANTITIES}
    known = {"map"}  # recorded by routing/degeneracy_and_the_sign
    for name in registry.claims():
        claim = registry.load(name)
        names = {row.name for row in claim.axes} | {getattr(row, "name", row) for row in claim.quantities}
        assert taken & names <= known, name
