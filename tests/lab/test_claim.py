"""A claim as data: axes and fixed numbers may be replaced, by name and by kind."""

import pytest

from icllab.core.axes import Axis, Quantity
from icllab.core.errors import InputError
from icllab.core.grid import Seeds
from icllab.lab.claim import Claim, Control, like


def claim(**changes):
    return Claim(
        **{
            "sentence": "All is well.",
            "sources": (),
            "static": ("dim",),
            "sizes": {"smoke": {"dim": (2, 4), "tau": (0.5, 1), "seed": 3}},
            "fixed": {"rho": 0.1, "length": 5, "predictor": "ridge"},
            "quantities": ("icl_error",),
            "measure": lambda point, *, key, level=1.0: {"icl_error": (("tau",), [level] * len(point.tau))},
            "check": lambda dataset: [],
            "figure": lambda dataset: None,
            "controls": {
                "other": Control("another formula", theory=lambda dataset: dataset.assign(other=1)),
                "doubled": Control("twice as much", measure={"level": 2.0}, axes={"tau": (4,)}),
            },
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
    same = claim()
    assert same.with_fixed(None) is same, "a claim that does not change is not checked again"
    assert [type(claim().with_fixed({"rho": [two]}).fixed["rho"]) for two in (2, 2.0, "2")] == [float] * 3
    with pytest.raises(InputError, match=r"rho: expected one value, since it is fixed in this claim, got \[1, 2\]"):
        claim().with_fixed({"rho": [1, 2]})


def test_a_size_may_have_another_value_of_a_fixed_number():
    sizes = {"smoke": {"dim": (2,), "length": 3}, "small": {"dim": (4,), "tau": (1.0,)}}
    own = claim(sizes=sizes)
    assert own.at("smoke").fixed == {**own.fixed, "length": 3}
    assert own.at("small").fixed == own.fixed
    grid = own.grid("smoke")
    assert (dict(grid.static), dict(grid.traced)) == ({"dim": (2,)}, {})
    chosen = own.at("smoke").with_fixed({"length": [7]})
    assert (chosen.point({"dim": 2}, {}).length, own.at("smoke").point({"dim": 2}, {}).length) == (7, 3)
    with pytest.raises(InputError, match="rho: expected a number >= 0, got -1"):
        claim(sizes={"smoke": {"dim": (2,), "rho": -1.0}})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("smok",), "unknown size of room/claim 'smok'; did you mean 'smoke'?"),
        (("smoke", {"taau": [1]}), "unknown axis of room/claim 'taau'; did you mean 'tau'?"),
        (("smoke", {"dim": []}), "dim: expected at least one value"),
        (("smoke", {"tau": [0.5, 0]}), "tau: expected a number > 0, got 0"),
        (("smoke", None, 0), "seeds: expected an integer from 1 to 1000000, got 0"),
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
        ({"sizes": {"smoke": {"tau": (1.0,)}}}, "size 'smoke': expected values of the axis 'dim'"),
        ({"fixed": {"rho": True}}, "rho: expected numbers or names, got True"),
        ({"fixed": {"rho": -0.1}}, "rho: expected a number >= 0, got -0.1"),
        ({"sizes": {"smoke": {"dim": (2, 0)}}}, "dim: expected a number >= 1, got 0"),
        ({"sizes": {"smoke": {"dim": 3}}}, "dim: expected a sequence of values; only seeds may be counted, got 3"),
        ({"sizes": {"smoke": {"dim": (2,), "breadth": (3,)}}}, "unknown axis 'breadth'"),
        ({"outputs": ("stepp",)}, "unknown axis 'stepp'; did you mean 'step'"),
        ({"outputs": ("step",)}, "size 'smoke': expected values of the axis 'step'"),
        ({"outputs": ("dim",)}, r"outputs: expected axes that are not swept, got \['dim'\]"),
        ({"quantities": ("icl_eror",)}, "unknown quantity 'icl_eror'; did you mean 'icl_error'"),
        ({"quantities": (Quantity("icl_error", "e", "my error"),)}, "icl_error: expected a name that is not a shared"),
        ({"axes": (Axis("dim", "D", "my dimension"),)}, "dim: expected a name that is not a shared axis's already"),
        ({"sources": ("Nobody99",)}, "unknown source 'Nobody99'"),
        (
            {"references": "@misc{Me26,\n  title = {T},\n}", "sources": ("Me26",)},
            "references, Me26: expected a field 'author'",
        ),
        ({"sentence": "so " * 31 + "on."}, "sentence: expected a sentence of at most 30 words, got 32"),
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


def test_a_control_replaces_what_it_names_and_nothing_else():
    here = claim(theory=lambda dataset: dataset)
    there = here.under("other")
    assert there.measure is here.measure
    assert there.check is here.check
    assert there.theory is here.controls["other"].theory
    assert there.sizes == here.sizes
    assert not here.controls["other"].simulated
    assert here.under(None) is here
    with pytest.raises(InputError, match="unknown control of room/claim 'othr'; did you mean 'other'"):
        here.under("othr")


def test_a_simulated_control_measures_something_else_where_it_says():
    here = claim(theory=lambda dataset: dataset)
    there = here.under("doubled")
    assert here.controls["doubled"].simulated
    assert there.theory is here.theory
    assert there.grid("smoke").traced == {"tau": (4,), "seed": (0, 1, 2)}
    assert here.grid("smoke").traced["tau"] == (0.5, 1)
    point = there.point({"dim": 2}, {"tau": (4,)})
    assert there.measure(point, key=None) == {"icl_error": (("tau",), [2.0])}
    assert here.measure(point, key=None) == {"icl_error": (("tau",), [1.0])}


def test_a_control_that_changes_nothing_is_refused():
    with pytest.raises(InputError, match="control: expected another measurement or another formula, got 'the same'"):
        Control("the same")


def test_a_claim_without_a_control_is_refused_with_what_to_add():
    with pytest.raises(InputError, match=r"controls: expected at least one negative control.*add controls=\{"):
        claim(controls={})


def test_the_configuration_is_what_a_cell_depends_on():
    here = claim().configuration("smoke", None)
    assert here["fixed"] == dict(claim().fixed)
    assert here["version"] == 1
    for other, size, control in (
        (claim().with_fixed({"rho": [0.5]}), "smoke", None),
        (claim(version=2), "smoke", None),
        (claim(precision="float64"), "smoke", None),
        (claim(), "smoke", "other"),
    ):
        assert other.configuration(size, control) != here


def test_a_claim_may_have_names_and_sources_of_its_own():
    own = claim(
        axes=(Axis("temper", "T", "temper", above=0),),
        quantities=("icl_error", Quantity("mood", "m", "mood")),
        sizes={"smoke": {"dim": (2,), "temper": (1.0,), "seed": 1}},
        references="@misc{Me26,\n  author = {Me, Myself},\n  title = {T},\n  year = {2026},\n}",
        sources=("Me26", "Lu24"),
    )
    assert own.reference("Me26").short == "Me (2026)"
    assert own.vocabulary.axis("temper").meaning == "temper"
    assert own.vocabulary.quantity("mood_error").meaning == "standard error of the mood"
    assert own.vocabulary.described() == {"temper": ("T", "temper", ""), "mood": ("m", "mood", "")}
    assert own.vocabulary.row("temper_line").label == "temper, $T$"  # along which a line has its points
    assert own.vocabulary.row("tau_line").symbol == own.vocabulary.row("tau").symbol
    with pytest.raises(InputError, match="temper: expected a number > 0, got 0"):
        own.grid("smoke", {"temper": [0.0]})
    with pytest.raises(InputError, match="unknown quantity of the claim 'idg_error'"):
        own.vocabulary.quantity("idg_error")


def test_seeds_may_be_cut_into_blocks_that_are_cells():
    blocks = claim(sizes={"medium": {"dim": (2, 4), "tau": (1.0,), "seed": Seeds(5, block=2)}})
    grid = blocks.grid("medium")
    assert len(grid) == 6
    assert [grid.inside(cell)["seed"] for cell in grid.cells()] == [(0, 1), (2, 3), (4,)] * 2
    more = blocks.grid("medium", seeds=6)
    assert [more.inside(cell)["seed"] for cell in more.cells()] == [(0, 1), (2, 3), (4, 5)] * 2


def test_a_larger_size_repeats_no_seed_of_a_smaller_one():
    """Of ``smoke``, which is never judged, it may; a block begins where one of its own would."""
    plain = {"dim": (2,), "tau": (1.0,)}
    sizes = {
        "smoke": plain | {"seed": 2},
        "small": plain | {"seed": 5},
        "medium": plain | {"seed": Seeds(6, block=3)},
        "full": plain | {"seed": 2},
    }
    seeds = {size: claim(sizes=sizes).grid(size).traced["seed"] for size in sizes}
    assert seeds == {"smoke": (0, 1), "small": tuple(range(5)), "medium": tuple(range(6, 12)), "full": (12, 13)}
    assert claim(sizes=sizes).grid("medium", seeds=2).traced["seed"] == (6, 7)
    sizes["medium"] = plain | {"seed": Seeds(2, block=1, first=1)}
    assert claim(sizes=sizes).grid("medium").traced["seed"] == (1, 2)


def test_measure_sees_every_number_by_name():
    point = claim().point({"dim": 4}, {"tau": (0.5, 1), "seed": (0, 1)})
    assert (point.dim, point.tau, point.seed) == (4, (0.5, 1), (0, 1))
    assert (point.rho, point.length, point.predictor) == (0.1, 5, "ridge")


def test_a_control_may_give_other_arguments_to_the_claims_own_theory():
    def theory(dataset, factor=1):
        return factor * dataset

    other = Control("twice as much", theory={"factor": 2})
    assert claim(theory=theory, controls={"twice": other}).under("twice").theory(3) == 6
    with pytest.raises(InputError, match="expected a claim with a theory"):
        claim(controls={"twice": other}).under("twice")
