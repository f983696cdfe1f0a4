"""Measurements against their axes, whatever those are."""

import numpy as np
import pytest
import xarray as xr

from icllab.core.errors import InputError
from icllab.figures.overview import measured


def results(**sizes):
    axes = {name: np.arange(1.0, size + 1) for name, size in sizes.items()}
    values = np.random.default_rng(0).normal(size=tuple(sizes.values()))
    return xr.Dataset({"icl_error": (tuple(sizes), values), "converged": ((), 1.0)}, axes)


def test_the_longest_axis_is_along_and_the_next_short_one_in_colours():
    axes = measured(results(dim=3, tau=9, rho=12, seed=4)).axes
    assert len(axes) == 1  # what has no axis is not drawn
    assert "noise" in axes[0].get_xlabel()
    assert len(axes[0].lines) + len(axes[0].containers) >= 3  # one for each dim
    assert r"\tau = 1" in axes[0].get_title(loc="right")  # nine are too many colours: the first


def test_means_over_seeds_are_drawn():
    dataset = results(tau=5, seed=7)
    (axes,) = measured(dataset).axes
    heights = np.sort(axes.containers[0].lines[0].get_ydata())
    np.testing.assert_allclose(heights, np.sort(dataset.icl_error.mean("seed").values))


def test_numbers_without_an_axis_are_refused():
    with pytest.raises(InputError, match="expected a quantity with an axis besides the seed"):
        measured(results(seed=3))
