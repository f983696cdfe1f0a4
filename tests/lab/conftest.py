"""A small dataset that several tests of files write and read."""

import numpy as np
import pytest
import xarray as xr


@pytest.fixture
def dataset():
    return xr.Dataset(
        {
            "icl_error": (("dim", "seed"), np.array([[0.1, np.nan], [np.inf, -0.0]])),
            "converged": ("dim", [True, False]),
        },
        coords={"dim": [2, 4], "seed": [0, 1], "predictor": ("dim", ["ridge", "λ"])},
        attrs={"claim": "room/claim", "key": 0, "number": 0.1},
    )
