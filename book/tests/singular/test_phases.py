"""One phase less another, and its error."""

import numpy as np
import xarray as xr

from iclbook.claims.singular._phases import between


def test_one_phase_less_another_and_its_error():
    phases = xr.DataArray([[1.0, 2.0], [5.0, 4.0], [7.0, 7.0]], coords={"phase": list("abc")}, dims=("phase", "n"))
    dataset = xr.Dataset({"energy": phases, "energy_error": 3.0 * (phases > 4) + 4.0 * (phases < 4), "line": phases})
    found = between(dataset.expand_dims(seed=[0]), "energy", "b", "a", "n", "seed")
    np.testing.assert_array_equal(found.value, [[4.0], [2.0]])
    np.testing.assert_array_equal(found.error, [[5.0], [4.0]])
    found = between(dataset, "line", "a", "b", "n")
    np.testing.assert_array_equal(found.value, [-4.0, -2.0])
    np.testing.assert_array_equal(found.error, [0.0, 0.0])
