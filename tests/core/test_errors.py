"""One line: what was expected, what came, the nearest valid name."""

import numpy as np
import pytest

from icllab.core.errors import (
    CellsMissing,
    EnvironmentFault,
    IclError,
    InputError,
    expected,
    require_integer,
    require_known,
    unknown,
)


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("taau", ["tau", "alpha"], "unknown axis 'taau'; did you mean 'tau'?"),
        ("peak", ["asymptotics/peak", "descent/steps"], "unknown axis 'peak'; did you mean 'asymptotics/peak'?"),
        ("zzz", ["tau", "alpha"], "unknown axis 'zzz'; known: alpha, tau"),
        ("zzz", [], "unknown axis 'zzz'; known: none"),
        ("zzz", [f"name{i}" for i in range(20)], "unknown axis 'zzz'; 20 are known"),
    ],
)
def test_an_unknown_name(name, known, said):
    assert str(unknown("axis", name, known)) == said


def test_a_name_is_refused_unless_it_is_known():
    require_known("axis", "tau", iter(["alpha", "tau"]))
    with pytest.raises(InputError, match=r"unknown axis 'taau'; did you mean 'tau'\? \(see the table\)"):
        require_known("axis", "taau", iter(["alpha", "tau"]), "(see the table)")


def test_a_hint_stands_at_the_end():
    assert str(unknown("axis", "x", ["y"], "(see the table)")) == "unknown axis 'x'; known: y (see the table)"


def test_an_unexpected_value():
    assert str(expected("seeds", "an integer", 1.5)) == "seeds: expected an integer, got 1.5"
    assert str(expected("seeds", "an integer", "x", "try 8")) == "seeds: expected an integer, got 'x'; try 8"


@pytest.mark.parametrize("value", [0, 2.5, 3.0, "3", True, None, np.float64(3.0)])
def test_what_is_no_integer_that_is_large_enough(value):
    require_integer("seeds", 1)
    require_integer("seeds", np.int64(3))
    require_integer("seeds", 0, least=0)
    with pytest.raises(InputError) as refused:
        require_integer("seeds", value)
    assert str(refused.value) == f"seeds: expected an integer of at least 1, got {value!r}"


def test_exit_statuses():
    assert [kind("x").exit_status for kind in (InputError, CellsMissing, EnvironmentFault, IclError)] == [2, 3, 4, 4]
    assert isinstance(unknown("axis", "x", []), InputError)
    assert issubclass(InputError, ValueError)  # a caller in Python need not know our names
