"""Curves of different origin beside each other."""

import numpy as np
import xarray as xr

from icllab.figures.hues import joined


def test_what_a_name_lacks_is_missing_and_nothing_else_changes():
    own = xr.DataArray([[1.0, 2.0], [3.0, 4.0]], {"layers": [1, 2], "seed": [0, 1]})
    line = xr.DataArray([5.0, 6.0], {"layers": [1, 2]})
    found = joined({"trained": {"loss": own, "exact": line}, "best": {"loss": 2 * own}}, "predictor", {"names": "{}"})
    assert found.predictor.values.tolist() == ["trained", "best"]
    assert found.attrs == {"names": "{}"}
    np.testing.assert_array_equal(found["loss"].sel(predictor="trained").transpose(*own.dims), own)
    np.testing.assert_array_equal(found["loss"].sel(predictor="best").transpose(*own.dims), 2 * own)
    np.testing.assert_array_equal(found["exact"].sel(predictor="trained"), line)
    assert np.isnan(found["exact"].sel(predictor="best")).all()
