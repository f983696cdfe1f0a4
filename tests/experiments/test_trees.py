"""Every variable is in one of ArviZ's groups under its own name, and all of them together are the Dataset."""

import io

import numpy as np
import pytest
import xarray as xr

from icllab.experiments import trees

RNG = np.random.default_rng(1)


def chains():
    """What a sampler's estimate has, at several temperatures."""
    return xr.Dataset(
        {
            "estimate": ("nbeta", [0.5, np.nan]),
            "chain_estimate": (("nbeta", "chain"), RNG.normal(size=(2, 4))),
            "loss_trace": (("nbeta", "chain", "draw"), RNG.normal(size=(2, 4, 9))),
            "baseline": ((), 0.25),
        },
        coords={"nbeta": [10.0, 100.0]},
        attrs={"sampler": "HMC", "warnings": [], "n": 100, "reason": "cheap"},
    )


def results():
    """What a claim's Dataset has."""
    return xr.Dataset(
        {
            "icl_error": (("dim", "seed"), RNG.normal(size=(2, 3)), {"symbol": "e"}),
            "icl_theory": ("dim", [0.1, 0.2]),
            "icl_theory_error": ("dim", [0.0, 0.0]),
            "icl_line": ("dim_line", [1.0, 2.0, 3.0]),
        },
        coords={"dim": [2, 4], "seed": [0, 1, 2], "dim_line": [2.0, 3.0, 4.0], "alpha": 0.5, "apart": [1, 2]},
        attrs={"claim": "room/claim", "key": 0},
    )


def test_draws_are_the_posterior_and_the_rest_is_said_of_the_chains():
    found = trees.tree(chains())
    assert {name: sorted(map(str, group.data_vars)) for name, group in found.children.items()} == {
        "posterior": ["loss_trace"],
        "sample_stats": ["baseline", "chain_estimate", "estimate"],
    }
    assert {"chain", "draw"} <= set(found["posterior"].sizes)


def test_results_are_observed_and_closed_forms_predict():
    found = trees.tree(results())
    assert {name: sorted(map(str, group.data_vars)) for name, group in found.children.items()} == {
        "observed_data": ["icl_error"],
        "predictions": ["icl_line", "icl_theory", "icl_theory_error"],
        "constant_data": [],
    }
    assert set(found["constant_data"].coords) == {"apart", "alpha"}  # a number that is along no axis is in every group


@pytest.mark.parametrize("dataset", [chains(), results()], ids=["chains", "results"])
def test_what_is_written_and_read_back_is_the_dataset_to_the_bit(dataset, tmp_path):
    xr.testing.assert_identical(trees.dataset_of(trees.tree(dataset)), dataset)
    content = trees.as_netcdf(trees.tree(dataset))
    (tmp_path / "tree.nc").write_bytes(content)
    with xr.open_datatree(tmp_path / "tree.nc", engine="h5netcdf") as read:
        back = trees.dataset_of(read.load())
    spelled = dataset.assign_attrs(trees.spelled(dataset.attrs))
    xr.testing.assert_identical(back, spelled)
    for name, variable in dataset.variables.items():
        assert back[name].values.tobytes() == variable.values.tobytes()


def test_each_group_says_who_made_it():
    for group in trees.tree(chains()).children.values():
        assert group.attrs["inference_library"] == "icl-lab"


def test_the_groups_of_a_file_open_one_by_one():
    content = io.BytesIO(trees.as_netcdf(trees.tree(chains())))
    with xr.open_dataset(content, group="posterior", engine="h5netcdf") as posterior:
        assert posterior["loss_trace"].shape == (2, 4, 9)
