"""Cells become one Dataset, whatever order they were computed in; a shape that does not fit is refused."""

import dataclasses
import json

import numpy as np
import pytest
import xarray as xr

from icllab.core.axes import Quantity
from icllab.core.errors import CellsMissing, IclError, InputError
from icllab.core.grid import Grid
from icllab.experiments import checks, results
from icllab.experiments.experiment import Experiment
from icllab.experiments.results import as_cell, assemble, label, merged, missing_part

EXPERIMENT = Experiment(
    claim="All is well.",
    sources=(),
    quantities=("icl_error", "prompts", "loss", Quantity("mood", "m", "mood")),
    static=("dim",),
    sizes={},
    check=lambda dataset: [],
    figure=lambda dataset: None,
)


def value(dim, tau, seed):
    """A number that tells where it belongs."""
    return dim + 10.0 * tau + 1000.0 * seed


def block(dim, taus, seeds):
    """What a measurement at ``dim`` returns."""
    traced = {"tau": taus, "seed": seeds}
    values = [[value(dim, t, s) for t in taus] for s in seeds]
    measured = {"icl_error": (("seed", "tau"), values), "prompts": (("tau",), list(taus))}
    return as_cell(EXPERIMENT, measured, traced, {"key": 0})


def test_a_cell_has_the_traced_axes_as_coordinates():
    cell = block(2, (0.5, 1), (0, 1, 2))
    assert dict(cell.sizes) == {"seed": 3, "tau": 2}
    assert cell["icl_error"].sel(seed=2, tau=1) == value(2, 1, 2)


@pytest.mark.parametrize(
    "measured",
    [
        {"icl_error": (("seed",), [1.0, 2.0])},
        {"icl_error": (("seed", "tau"), [1.0, 2.0, 3.0])},
        {"icl_error": (("dim",), [1.0, 2.0, 3.0])},
        {"icl_error": ((), [1.0])},
    ],
)
def test_a_shape_that_does_not_fit_is_refused(measured):
    with pytest.raises(IclError, match="measure: expected values over traced axes"):
        as_cell(EXPERIMENT, measured, {"seed": (0, 1, 2), "tau": (1.0,)}, {})


@pytest.mark.parametrize(
    ("wanted", "lacking"),
    [
        ({"tau": (0.5, 1), "seed": (0, 1)}, None),
        ({"tau": (1,), "seed": (0,)}, None),
        ({"tau": (0.5, 1), "seed": (0, 1, 2, 3)}, {"tau": (0.5, 1), "seed": (2, 3)}),
        ({"tau": (2,), "seed": (0, 1)}, {"tau": (2,), "seed": (0, 1)}),
        ({"tau": (2,), "seed": (5,)}, {"tau": (0.5, 1, 2), "seed": (0, 1, 5)}),
    ],
)
def test_what_a_cell_lacks_completes_it(wanted, lacking):
    """After measuring what is lacking and merging, nothing is lacking and all that was there still is."""
    stored = block(2, (0.5, 1), (0, 1))
    part = missing_part(stored, wanted)
    assert part == lacking
    if part is not None:
        whole = merged(stored, block(2, part["tau"], part["seed"]))
        assert missing_part(whole, wanted) is None
        assert missing_part(whole, {"tau": (0.5, 1), "seed": (0, 1)}) is None
        for t in whole["tau"].values:
            for s in whole["seed"].values:
                assert whole["icl_error"].sel(tau=t, seed=s) == value(2, t, s)
            assert whole["prompts"].sel(tau=t) == t


def test_a_cell_that_is_not_there_lacks_everything():
    wanted = {"tau": (0.5,), "seed": (0, 1)}
    assert missing_part(None, wanted) == wanted
    cell = block(2, **{"taus": (0.5,), "seeds": (0, 1)})
    assert merged(None, cell) is cell


GRIDS = [
    Grid(static={"dim": (4, 2)}, traced={"tau": (1.0, 0.5), "seed": (0, 1)}),
    Grid(static={"dim": (8,)}, traced={"tau": (2.0,), "seed": (1, 2)}),
]
CELLS = {
    label({"dim": 2}): block(2, (0.5, 1), (0, 1, 2)),  # more seeds than were asked for
    label({"dim": 4}): block(4, (1, 0.5), (1, 0)),
    label({"dim": 8}): block(8, (2,), (2, 1)),
}


@pytest.mark.parametrize("order", [1, -1])
def test_every_number_is_where_its_coordinates_say(order):
    whole = assemble(EXPERIMENT, GRIDS[::order], dict(list(CELLS.items())[::order]), {"claim": "room/claim"})
    assert {name: c.values.tolist() for name, c in whole.coords.items()} == {
        "dim": [2, 4, 8],
        "tau": [0.5, 1, 2],
        "seed": [0, 1, 2],
    }
    for dim in (2, 4, 8):
        for tau in (0.5, 1, 2):
            for seed in (0, 1, 2):
                there = float(whole["icl_error"].sel(dim=dim, tau=tau, seed=seed))
                held = CELLS[label({"dim": dim})]
                if tau in held["tau"] and seed in held["seed"]:
                    assert there == value(dim, tau, seed)
                else:
                    assert np.isnan(there)
    assert json.loads(whole.attrs["names"]) == {"mood": ["m", "mood", ""]}
    results.described(EXPERIMENT, whole)
    assert whole["icl_error"].attrs["meaning"] == "error on fresh tasks"
    assert whole["dim"].attrs == {"symbol": "d", "meaning": "token dimension", "unit": ""}


def test_values_that_were_not_asked_for_stay_out():
    grid = Grid(static={"dim": (2,)}, traced={"tau": (1.0,), "seed": (0,)})
    whole = assemble(EXPERIMENT, [grid], CELLS, {})
    assert whole["icl_error"].shape == (1, 1, 1)
    assert whole["icl_error"].item() == value(2, 1, 0)


def test_scalars_and_names_assemble_too():
    cell = as_cell(
        EXPERIMENT, {"loss": ((), 3.0), "icl_error": (("predictor",), [1.0, 2.0])}, {"predictor": ("b", "a")}, {}
    )
    grid = Grid(static={"length": (7,)}, traced={"predictor": ("a", "b")})
    whole = assemble(EXPERIMENT, [grid], {label({"length": 7}): cell}, {})
    assert whole["loss"].values.tolist() == [3.0]
    assert whole["icl_error"].sel(length=7, predictor="a") == 2.0
    nothing_static = Grid(static={}, traced={"predictor": ("a",)})
    assert assemble(EXPERIMENT, [nothing_static], {label({}): cell}, {})["icl_error"].values.tolist() == [2.0]


def test_labels_do_not_depend_on_order():
    assert label({"dim": 2, "tau": 0.5}) == label({"tau": 0.5, "dim": 2})


def test_missing_cells_are_counted_and_the_first_is_named():
    results.require_complete("room/claim", [], 5)
    with pytest.raises(CellsMissing, match=r"room/claim: expected 5 cells, 2 are missing \(the first: dim=2, tau=1\)"):
        results.require_complete("room/claim", [{"dim": 2, "tau": 1}, {"dim": 4, "tau": 1}], 5)


def test_fixed_values_come_from_the_configuration():
    dataset = xr.Dataset(attrs={"configuration": json.dumps({"fixed": {"rho": 0.5}})})
    assert results.fixed_values(dataset) == {"rho": 0.5}


def test_only_names_of_the_claim_are_measured_and_described():
    with pytest.raises(InputError, match="unknown quantity of the claim 'icl_eror'; did you mean 'icl_error'"):
        as_cell(EXPERIMENT, {"icl_eror": (("seed",), [1.0])}, {"seed": (0,)}, {})
    with pytest.raises(InputError, match="unknown quantity of the claim 'error'"):
        results.described(EXPERIMENT, xr.Dataset({"error": ("dim", [1.0])}))
    ours = results.described(EXPERIMENT, xr.Dataset({"mood_error": ("dim", [1.0])}, {"dim": [2]}))
    assert ours["mood_error"].attrs["symbol"] == r"\mathrm{SE}(m)"


def test_another_output_coordinate_is_measured_with_the_whole():
    """Steps of a curve are not swept: a new one cannot be measured without the others."""
    stored = block(2, (0.5, 1), (0, 1))
    wanted = {"tau": (0.5, 1, 2), "seed": (0, 1)}
    assert missing_part(stored, wanted) == {"tau": (2,), "seed": (0, 1)}
    assert missing_part(stored, wanted, ("tau",)) == {"tau": (0.5, 1, 2), "seed": (0, 1)}


def test_blocks_of_seeds_come_together():
    grid = Grid(static={"dim": (2, 4)}, traced={"tau": (0.5, 1), "seed": (0, 1, 2)}, block=2)
    cells = {label(cell): block(cell["dim"], (0.5, 1), grid.inside(cell)["seed"]) for cell in grid.cells()}
    whole = assemble(EXPERIMENT, [grid], cells, {})
    assert len(cells) == 4
    for at in whole["icl_error"].stack(at=("dim", "tau", "seed")).at.values:
        dim, tau, seed = at
        assert whole["icl_error"].sel(dim=dim, tau=tau, seed=seed) == value(dim, tau, seed)


def test_a_cell_grown_under_other_sources_stays_stale():
    def part(seeds, digest):
        values = {"icl_error": (("seed",), [0.0] * len(seeds))}
        return results.as_cell(EXPERIMENT, values, {"seed": seeds}, {"sources_digest": digest, "created": digest})

    grown = results.merged(part((0, 1), "old"), part((2,), "new"))
    assert grown.sizes["seed"] == 3
    assert grown.attrs == {"sources_digest": "old", "created": "new"}


def test_a_size_that_cannot_show_the_whole_effect_leaves_out_what_it_does_not_include():
    def check(dataset):
        return [*checks.equal("a", "a", 1, 1), *checks.included("b", "b", bool(dataset))]

    experiment = dataclasses.replace(EXPERIMENT, check=check)
    words = [results.judge(experiment, xr.Dataset(), size=size).words for size in (None, "smoke", "small", "medium")]
    assert words == ["undecided", "holds (smoke)", "undecided", "undecided"]
    assert results.judge(experiment, xr.Dataset({"loss": 0.0}), size="smoke").words == "holds"
