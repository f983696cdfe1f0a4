"""The table of equations: keys are known, derivations stand where they are said to, tests exist."""

import importlib.util
import textwrap
from pathlib import Path

import pytest

from icllab.core.errors import InputError

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "icllab"
_spec = importlib.util.spec_from_file_location("make_equations", ROOT / "docs" / "make_equations.py")
make_equations = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_equations)


@pytest.fixture
def house(tmp_path):
    """A package with one module, one page and one test; ``write(docstring)`` gives its function a docstring."""
    for folder in ("src/icllab/theory", "docs", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src/icllab/theory/__init__.py").write_text("from icllab.theory.circles import area\n")
    (tmp_path / "docs/circles.md").write_text("# Circles\n\n```python\n# no heading\n```\n\n## The area\n")
    (tmp_path / "tests/test_circles.py").write_text("from icllab.theory import area\n\ndef test_area():\n    area(1)\n")

    def write(docstring):
        body = textwrap.indent(docstring, "    ")
        (tmp_path / "src/icllab/theory/circles.py").write_text(f'def area(radius):\n    r"""Area.\n\n{body}\n    """\n')
        return tmp_path

    return write


def found(root):
    return make_equations.entries(root / "src" / "icllab", root / "docs")


def test_every_key_is_known_and_every_derivation_stands_where_it_is_said_to():
    entries = make_equations.entries(PACKAGE, ROOT / "docs")
    assert len(entries) > 10
    assert all(entry.sources or entry.derivations for entry in entries)


def test_every_formula_has_a_test_that_names_it():
    tests = make_equations.references_in_tests(ROOT / "tests", PACKAGE)
    entries = make_equations.entries(PACKAGE, ROOT / "docs")
    assert [entry.path for entry in entries if not make_equations.tests_of(entry, tests)] == []


def test_an_unknown_key_names_file_function_key_and_the_nearest_known_one(house):
    with pytest.raises(InputError) as caught:
        found(house("Source: [Lu25]."))
    assert str(caught.value) == "icllab/theory/circles.py, area: unknown source 'Lu25'; did you mean 'Lu24'?"


@pytest.mark.parametrize(
    ("docstring", "message"),
    [
        ("Source: Lu and others.", "area: expected 'Source: [Key].', got 'Source: Lu and others.'"),
        ("As in the slides [Letey25].\n\nSource: [Lu24].", "area: unknown source 'Letey25'; did you mean 'Letey24'?"),
        (
            "Derived: docs/circles.md, The aria.",
            "area: docs/circles.md lacks the section 'The aria'; its sections: 'Circles', ",
        ),
        ("Derived: docs/circles.md, no heading.", "area: docs/circles.md lacks the section 'no heading'"),
        ("Derived: docs/squares.md, The area.", "area: expected a page of the documentation, got 'docs/squares.md'"),
        ("Derived: on paper.", "area: expected 'Derived: docs/<page>.md, <section title>.', got 'Derived: on paper.'"),
    ],
)
def test_a_line_that_leads_nowhere_is_refused(house, docstring, message):
    with pytest.raises(InputError) as caught:
        found(house(docstring))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_entry_has_its_formula_origins_and_tests(house):
    root = house(
        ".. math::\n    A = \\pi r^2\n    \\qquad r > 0\n\nwith a radius.\n\n"
        "Source: the formula [Lu24], the\nname [Garg22].\n\nDerived: docs/circles.md, The area."
    )
    (entry,) = found(root)
    assert entry.path == "icllab.theory.circles.area"
    assert entry.formula == "A = \\pi r^2\n\\qquad r > 0"
    assert [source.key for source in entry.sources] == ["Lu24", "Garg22"]
    assert entry.derivations == (("circles.md", "The area"),)
    # The test imports the name that the package exports lazily.
    tests = make_equations.references_in_tests(root / "tests", root / "src" / "icllab")
    assert make_equations.tests_of(entry, tests) == ["tests/test_circles.py::test_area"]
    page = make_equations.page(root)
    assert "Lu et al. (2025) [Lu24]" in page
    assert "derived: [The area](circles.md#the-area)" in page


def test_a_test_also_names_what_its_helpers_constants_and_fixtures_name(house):
    root = house("Derived: docs/circles.md, The area.")
    (root / "tests/test_circles.py").write_text(
        textwrap.dedent(
            """
            import icllab as icl
            from icllab.theory import circles as round_things

            FORMULAS = [round_things.area]

            def helper():
                return icl.theory.circles.area(2)

            @pytest.fixture
            def one():
                return helper()

            def test_by_constant(): assert FORMULAS
            def test_by_fixture(one): assert one
            def test_another(): assert round_things.volume(1)

            def test_by_choice(): round_things.measure(method="area")

            @pytest.mark.parametrize("f", [round_things.area])
            def test_by_decorator(f): assert f
            """
        )
    )
    (entry,) = found(root)
    tests = make_equations.references_in_tests(root / "tests", root / "src" / "icllab")
    names = [test.split("::")[1] for test in make_equations.tests_of(entry, tests)]
    assert names == ["test_by_constant", "test_by_fixture", "test_by_choice", "test_by_decorator"]


def test_private_functions_and_those_without_a_line_are_left_out(house):
    root = house("Nothing to cite.")
    path = root / "src/icllab/theory/circles.py"
    path.write_text(path.read_text() + 'def _hidden():\n    """Source: [Lu24]."""\n')
    assert found(root) == []


def test_the_script_ends_with_one_line_and_status_2(house, capsys, monkeypatch):
    root = house("Source: [Lu25].")
    monkeypatch.setattr(make_equations, "ROOT", root)
    assert make_equations.main() == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (root / "docs" / "equations.md").exists()
