"""A Dataset as bytes: it comes back bit for bit, damage is noticed, and what netCDF cannot store is refused."""

import io

import ml_dtypes
import numpy as np
import pytest
import xarray as xr

from icllab.core.errors import InputError
from icllab.core.files import DamagedFile
from icllab.lab import netcdf
from icllab.lab.netcdf import from_bytes, to_bytes


def test_a_dataset_comes_back_bit_for_bit_and_is_the_same_file_twice(dataset):
    content = to_bytes(dataset)
    back = from_bytes(content, "cell")
    xr.testing.assert_identical(back, dataset)
    assert back["icl_error"].values.tobytes() == dataset["icl_error"].values.tobytes()
    assert to_bytes(dataset) == content
    assert b"sha256" in content[:512]


def test_any_netcdf_reader_opens_a_cell(tmp_path, dataset):
    import h5py

    (tmp_path / "cell.nc").write_bytes(to_bytes(dataset))
    with h5py.File(tmp_path / "cell.nc") as file:
        assert file.userblock_size == 512
        np.testing.assert_array_equal(file["icl_error"], dataset["icl_error"])


def test_every_flipped_bit_is_noticed(dataset):
    sound = to_bytes(dataset)
    rng = np.random.default_rng(0)
    for place in [0, 30, 511, 512, len(sound) - 1, *rng.integers(0, len(sound), 100).tolist()]:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(DamagedFile, match=r"cell\.nc: expected a file with the checksum"):
            from_bytes(bytes(damaged), "cell.nc")
    for length in (0, 100, 512, len(sound) - 1):
        with pytest.raises(DamagedFile):
            from_bytes(sound[:length], "cell.nc")


def one(values, **attributes):
    return xr.Dataset({"v": ("i", np.asarray(values), attributes), "whole": 1.0})


UNSTORABLE = [
    (
        one(np.array([1, "a"], object)),
        "variable 'v': expected numbers, times or texts that netCDF stores, got texts beside values",
    ),
    (one(np.array(["a", None], object)), "variable 'v': .* texts beside values that are none"),
    (one(np.array([{}, {}], object)), "variable 'v': .* values of type object"),
    (one(np.zeros(2, ml_dtypes.bfloat16)), "variable 'v': .* values of type bfloat16"),
    (one(np.zeros(2, ml_dtypes.int4)), "variable 'v': .* values of type int4"),
    (one(np.zeros(2, [("a", int)])), "variable 'v': .* values of type "),
    (one(["a\0b", "c"]), "variable 'v': .*embedded NULLs"),
    (
        one(np.array(["2020-01-01"], "M8[ns]"), units="days"),
        "variable 'v' with its attributes: .*'units' already exists",
    ),
    (one([1.0], note=None), "variable 'v', attribute 'note': .* got NoneType"),
    (one([1.0], note={"a": 1}), "variable 'v', attribute 'note': .* got dict"),
    (one([1.0]).assign_attrs(note={1, 2}), "attribute 'note': .* got set"),
    (one([1.0]).assign_attrs(note=True), "attribute 'note': .* got bool"),
    (one([1.0]).assign_attrs(note=2**70), "attribute 'note': .* got int"),
    (
        one([1.0]).assign_attrs({"a/b": 1}),
        "attribute 'a/b': .* got a name that is no text of 1 to 255 bytes without '/'",
    ),
    (one([1.0]).rename(v="a/b"), "variable 'a/b': .* got a name"),
    (one([1.0]).rename(i="a/b"), "variable 'v': .* got a name"),
    (one([1.0]).rename(v="é" * 128), "variable 'é+': .* got a name"),
    (one([1.0]).rename(v=0), "variable 0: .* got a name"),
    (
        xr.Dataset({"v": ("i", [1.0, 2.0])}, {"a": ("i", [1, 2]), "b": ("i", [3, 4])}).set_index(i=["a", "b"]),
        "variable 'i': .* values of type object",
    ),
]


@pytest.mark.parametrize(("dataset", "message"), UNSTORABLE, ids=range(len(UNSTORABLE)))
def test_what_netcdf_cannot_store_is_refused_by_name(dataset, message):
    with pytest.raises(InputError, match=message) as caught:
        netcdf.netcdf_bytes(dataset)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        np.array(["a", ""], object),
        np.array([1.0, None], object),
        np.array([1j, 2], np.complex64),
        np.zeros(2, np.float16),
        [True, False],
        np.array([1, 2**64 - 1], np.uint64),
        np.array(["2020-01-01", "NaT"], "M8[ns]"),
        ["NA", "#1\r\n"],
    ],
)
def test_what_netcdf_stores_comes_back(values):
    dataset = one(values, note=["a", "b"], number=np.float32(0.1)).assign_attrs(empty="")
    xr.testing.assert_identical(xr.load_dataset(io.BytesIO(netcdf.netcdf_bytes(dataset)), engine="h5netcdf"), dataset)
