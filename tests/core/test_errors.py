"""One line: what was expected, what came, the nearest valid name."""

import pytest

from icllab.core.errors import CellsMissing, EnvironmentFault, IclError, InputError, expected, unknown


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


def test_a_hint_stands_at_the_end():
    assert str(unknown("axis", "x", ["y"], "(see the table)")) == "unknown axis 'x'; known: y (see the table)"


def test_an_unexpected_value():
    assert str(expected("seeds", "an integer", 1.5)) == "seeds: expected an integer, got 1.5"
    assert str(expected("seeds", "an integer", "x", "try 8")) == "seeds: expected an integer, got 'x'; try 8"


def test_exit_statuses():
    assert [kind("x").exit_status for kind in (InputError, CellsMissing, EnvironmentFault, IclError)] == [2, 3, 4, 4]
    assert isinstance(unknown("axis", "x", []), InputError)
    assert issubclass(InputError, ValueError)  # a caller in Python need not know our names
