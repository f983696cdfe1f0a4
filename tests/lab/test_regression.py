"""Golden numbers tell what has moved, and neither rounding nor seeds."""

import numpy as np
import pytest
import xarray as xr

from icllab.lab import provenance, regression

GOLDEN = xr.Dataset(
    {
        "error": (("dim", "seed"), np.random.default_rng(0).normal(1.0, 0.1, (3, 6))),
        "time": ("dim", [1.0, 2.0, np.inf]),
        "chain": ("dim", [5.0, 6.0, 7.0]),
        "chain_error": ("dim", [0.1, 0.2, 0.3]),
        "chain_rhat": 1.001,
        "zero": 1e-12,
    },
    {"dim": [2, 4, 8], "seed": range(6)},
)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda d: d, None),
        (lambda d: d.assign(error=d.error + 1e-5), None),  # other rounding
        (lambda d: d.assign(error=d.error * (1 + 0.05 * (d.seed == 3))), None),  # what training makes of it
        (lambda d: d.assign(error=d.error.transpose("seed", "dim")), None),
        (lambda d: d.assign(time=d.time + 1e-4), None),
        (lambda d: d.assign(chain=d.chain + 0.29), None),  # within three of its own standard errors
        (lambda d: d.assign(chain=d.chain + 0.31), "chain: 1 of 3 numbers moved"),
        (lambda d: d.assign(chain_error=d.chain_error * 1.4), None),
        (lambda d: d.assign(chain_error=d.chain_error * 2), "chain_error: 3 of 3 numbers moved"),
        (lambda d: d.assign(chain_error=d.chain_error**2), "chain_error: 3 of 3 numbers moved"),
        (lambda d: d.assign(chain_rhat=d.chain_rhat + 0.009), None),
        (lambda d: d.assign(chain_rhat=d.chain_rhat + 0.011), "chain_rhat: 1 of 1 numbers moved"),
        (lambda d: d.assign(zero=-3 * d.zero), None),  # rounding
        (lambda d: d.assign(zero=d.zero + 1e-9), "zero: 1 of 1 numbers moved"),
        (lambda d: d.assign(error=2 * d.error), "error: 3 of 3 numbers moved"),
        (lambda d: d.assign(error=d.error + 0.5 * (d.dim == 4)), "error: 1 of 3 numbers moved"),
        (lambda d: d.assign(time=d.time + 3e-4), "time: 2 of 2 numbers moved"),
        (lambda d: d.assign(time=d.time.where(d.dim > 2)), "time: numbers are not finite at other places"),
        (lambda d: d.assign(error=d.error.where(d.seed > 0)), "error: numbers are not finite at other places"),
        (lambda d: d.drop_vars("time"), "time: measured once, now missing"),
        (lambda d: d.assign(more=d.time), "more: measured now, not in the record"),
        (lambda d: d.isel(seed=slice(5)), "seed: expected the coordinates [0, 1, 2, 3, 4, 5], got [0, 1, 2, 3, 4]"),
        (lambda d: d.assign_coords(dim=[2, 4, 16]), "dim: expected the coordinates [2, 4, 8], got [2, 4, 16]"),
    ],
)
def test_numbers_agree_within_rounding_and_seeds_and_no_further(change, line):
    lines = regression.differences(GOLDEN, change(GOLDEN))
    assert [text.startswith(line) for text in lines] == [True] if line else lines == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda d: d, None),
        (lambda d: d.assign(error=d.error * (1 + 1e-8)), None),
        (lambda d: d.assign(error=d.error.transpose("seed", "dim")), None),
        (lambda d: d.assign(error=d.error * (1 + 1e-5)), "error: 18 of 18 numbers moved"),
        (lambda d: d.assign(error=d.error * (1 + 1e-4 * (d.seed == 3) * (d.dim == 8))), "error: 1 of 18 numbers moved"),
        (lambda d: d.assign(error=d.error.isel(seed=slice(None, None, -1)).assign_coords(seed=d.seed)), "error: "),
        (lambda d: d.assign(chain_error=d.chain_error * 1.4), "chain_error: 3 of 3 numbers moved"),
        (lambda d: d.assign(chain_rhat=d.chain_rhat + 0.001), "chain_rhat: 1 of 1 numbers moved"),
    ],
)
def test_on_the_platform_of_the_record_every_seed_agrees_to_rounding(change, line):
    lines = regression.differences(GOLDEN, change(GOLDEN), strict=True)
    assert [text.startswith(line) for text in lines] == [True] if line else lines == []


@pytest.mark.parametrize("name", ["jax_version", "jaxlib_version", "numpy_version", "processor"])
def test_a_platform_is_versions_and_processor(name):
    here = xr.Dataset(attrs=provenance.machine())
    assert regression.same_platform(here, here)
    assert not regression.same_platform(here, here.assign_attrs({name: "another"}))
    unknown = here.assign_attrs({name: ""})
    assert not regression.same_platform(unknown, unknown)
    assert not regression.same_platform(xr.Dataset(), xr.Dataset())


@pytest.mark.parametrize(
    ("attribute", "moved", "refused"),
    [("jax_version", 1.0, False), ("machine", 1.0, False), ("jax_version", 3.5, True)],
)
def test_counts_of_warnings_have_an_error_under_another_version(attribute, moved, refused):
    """Of two seeds with two warnings each no scatter is seen, and other chains have another count."""
    golden = xr.Dataset({"sampler_warnings": ("seed", [2.0, 2.0]), "loss": ("seed", [2.0, 2.0])}, {"seed": [0, 1]})
    golden = golden.assign_attrs(jax_version="0.10", machine="2 cores of A")
    now = golden.assign(sampler_warnings=golden.sampler_warnings - [moved, 0.0])
    assert len(regression.differences(golden, now)) == 1
    now = now.assign_attrs({attribute: "another"})
    if refused:
        now = now.assign(sampler_warnings=golden.sampler_warnings + 2 * moved)
    assert len(regression.differences(golden, now)) == refused
    (line,) = regression.differences(golden, golden.assign(loss=golden.loss + golden.seed).assign_attrs(now.attrs))
    assert line.startswith("loss: ")
