"""What goes to one worker: all smokes of a claim, which share results and programs, and otherwise a file."""

import types

import pytest
from scheduling import pytest_xdist_make_scheduler

SMOKES = "book/tests/test_every_claim.py"


@pytest.fixture
def unit(request):
    """The name of the unit of work that a test belongs to."""
    pytest.importorskip("xdist")
    names = {"dist": "loadgroup", "tx": ["popen", "popen"]}
    config = types.SimpleNamespace(
        getvalue=names.__getitem__, option=request.config.option, getoption=request.config.getoption
    )
    return pytest_xdist_make_scheduler(config, log=None)._split_scope


def test_a_claim_and_its_controls_are_one_unit(unit):
    asked = [
        f"{SMOKES}::test_the_claim_holds_at_smoke[asymptotics/double_descent]",
        f"{SMOKES}::test_a_control_fails[asymptotics/double_descent-slide_q]",
        f"{SMOKES}::test_a_control_fails[asymptotics/double_descent-pool_ratio]",
    ]
    assert {unit(name) for name in asked} == {"asymptotics/double_descent"}


def test_claims_are_units_of_their_own(unit):
    names = [f"{SMOKES}::test_the_claim_holds_at_smoke[{claim}]" for claim in ("routing/a", "routing/b")]
    assert len({unit(name) for name in names}) == 2


def test_elsewhere_a_file_is_a_unit(unit):
    file = "book/tests/routing/test_blind_detection.py"
    assert unit(f"{file}::test_one[routing/a-b]") == unit(f"{file}::test_other") == file
    assert unit(f"{SMOKES}::test_without_brackets") != unit(f"{SMOKES}::test_other")


def test_other_ways_to_deal_tests_out_are_left_alone():
    assert pytest_xdist_make_scheduler(types.SimpleNamespace(getvalue={"dist": "loadfile"}.get), log=None) is None
