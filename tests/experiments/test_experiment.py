"""A claim as data: axes and fixed numbers may be replaced, by name and by kind."""

import pytest

from icllab.core.errors import InputError
from icllab.experiments.experiment import Experiment, World, like


def claim(**changes):
    return Experiment(
        **{
            "claim": "All is well.",
            "sources": (),
            "static": ("dim",),
            "sizes": {"smoke": {"dim": (2, 4), "tau": (0.5, 1), "seed": 3}},
            "fixed": {"rho": 0.1, "length": 5, "predictor": "ridge"},
            "measure": lambda point, *, key: {"icl_error": (("tau",), [1.0] * len(point.tau))},
            "check": lambda dataset: [],
            "figure": lambda dataset: None,
            "worlds": {"other": World("another formula", theory=lambda dataset: dataset.assign(other=1))},
            "name": "room/claim",
            **changes,
        }
    )


def test_a_size_is_a_grid_of_static_and_traced_axes():
    grid = claim().grid("smoke")
    assert grid.static == {"dim": (2, 4)}
    assert grid.traced == {"tau": (0.5, 1), "seed": (0, 1, 2)}


def test_axes_and_seeds_can_be_chosen():
    grid = claim().grid("smoke", {"dim": ["8"], "tau": ["2", "0.25"]}, seeds=2)
    assert grid.static == {"dim": (8,)}
    assert grid.traced == {"tau": (2, 0.25), "seed": (0, 1)}
    assert claim().grid("smoke", {"rho": [0.2]}).static == {"dim": (2, 4)}  # fixed: no axis, but known


def test_fixed_values_can_be_replaced_by_one_other():
    chosen = {"rho": ["1e-3"], "length": ["7"], "predictor": ["dMMSE"], "dim": ["8"]}
    assert claim().with_fixed(chosen).fixed == {"rho": 1e-3, "length": 7, "predictor": "dMMSE"}
    assert claim().with_fixed(None).fixed == claim().fixed
    with pytest.raises(InputError, match=r"rho: expected one value, since it is fixed in this claim, got \[1, 2\]"):
        claim().with_fixed({"rho": [1, 2]})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("smok",), "unknown size of room/claim 'smok'; did you mean 'smoke'?"),
        (("smoke", {"taau": [1]}), "unknown axis of room/claim 'taau'; did you mean 'tau'?"),
        (("smoke", {"dim": []}), "dim: expected at least one value"),
        (("smoke", {"tau": [0.5, 0]}), "tau: expected a number > 0, got 0"),
        (("smoke", None, 0), "seeds: expected an integer of at least 1, got 0"),
    ],
)
def test_what_cannot_be_chosen_is_refused(arguments, said):
    with pytest.raises(InputError) as caught:
        claim().grid(*arguments)
    assert said in str(caught.value)


def test_an_unknown_size_is_refused_at_once():
    with pytest.raises(InputError, match="unknown size 'smal'; did you mean 'small'"):
        claim(sizes={"smal": {}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"sizes": {"smoke": {"tau": (1.0,)}}},
            "size 'smoke': expected values of the static axis 'dim'",
        ),
        ({"fixed": {"rho": True}}, "rho: expected numbers or names, got True"),
        ({"fixed": {"rho": -0.1}}, "rho: expected a number >= 0, got -0.1"),
        ({"sizes": {"smoke": {"dim": (2, 0)}}}, "dim: expected a number >= 1, got 0"),
    ],
)
def test_a_claim_that_cannot_be_run_is_refused_at_once(changes, said):
    with pytest.raises(InputError, match=said):
        claim(**changes)


@pytest.mark.parametrize(
    ("example", "value", "read"),
    [
        (1, "3", 3),
        (1, 3.0, 3),
        (1.5, "3", 3),
        (1.5, "2.5", 2.5),
        (1.5, "inf", float("inf")),
        ("ridge", "dMMSE", "dMMSE"),
        (2, "1e3", 1000),
    ],
)
def test_values_are_of_the_axis_kind(example, value, read):
    result = like("x", example, value)
    assert result == read
    assert type(result) is type(read)


@pytest.mark.parametrize(
    ("example", "value", "said"),
    [
        (1, "2.5", "x: expected an integer, got '2.5'"),
        (1, "inf", "x: expected an integer, got 'inf'"),
        (1, "two", "x: expected an integer, got 'two'"),
        (1.5, "nan", "x: expected a number, got 'nan'"),
        (1.5, None, "x: expected a number, got None"),
        (1, True, "x: expected an integer, got True"),
        ("a", True, "x: expected a name, got True"),
    ],
)
def test_values_of_another_kind_are_refused(example, value, said):
    with pytest.raises(InputError) as caught:
        like("x", example, value)
    assert str(caught.value) == said


def test_a_wrong_world_replaces_what_it_names_and_nothing_else():
    here = claim(theory=lambda dataset: dataset)
    there = here.in_world("other")
    assert there.measure is here.measure
    assert there.check is here.check
    assert there.theory is here.worlds["other"].theory
    assert here.in_world(None) is here
    with pytest.raises(InputError, match="unknown world of room/claim 'othr'; did you mean 'other'"):
        here.in_world("othr")


def test_measure_sees_every_number_by_name():
    point = claim().point({"dim": 4}, {"tau": (0.5, 1), "seed": (0, 1)})
    assert (point.dim, point.tau, point.seed) == (4, (0.5, 1), (0, 1))
    assert (point.rho, point.length, point.predictor) == (0.1, 5, "ridge")
