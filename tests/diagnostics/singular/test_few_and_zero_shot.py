"""Signs that are known: of a projection, of a square; and what slopes say of made-up free energies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from diagnostics.questions import ask
from refusals import unchecked

from icllab.core.errors import InputError
from icllab.diagnostics import HMC, SMC, ZeroShot, context_coefficients
from icllab.diagnostics.singular import few_and_zero_shot

SAMPLER = SMC(particles=100, repeats=8)


def regular(u):
    """A zero-shot loss with its minimum at zero, of one number or several."""
    return jnp.sum(u**2) / 2


def compared(context_map, few_shot=regular, multiplicities=(1,)):
    with jax.enable_x64(True):
        how = {"nbeta": 1e4, "localization": 1.0, "sampler": SAMPLER, "key": jax.random.key(0)}
        zero_shot = ZeroShot(regular, context_map, multiplicities)
        return ask(context_coefficients, few_shot, jnp.zeros(3), zero_shot, **how)


def square(w):
    return jnp.sum(w**2, keepdims=True)


def first(w):
    """A projection of constant rank, into three dimensions."""
    return w * jnp.asarray([1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("context_map", "exact", "sign", "density", "raised"),
    [(first, (0.5, 1.5, 0.5), "below", "diverges", 0.0), (square, (0.75, 0.5, 0.75), "above", "vanishes", 0.01)],
    ids=["projection", "square"],
)
def test_the_sign_is_that_of_the_density(context_map, exact, sign, density, raised):
    """Of constant rank the difference is half the degeneracy, 1; of the square, -1/4. Unequal energies are told."""
    few_shot = lambda w: regular(context_map(w)) + raised  # noqa: E731
    found = compared(context_map, few_shot)
    dim = 3 if context_map is first else 1
    assert (found.attrs["sign"], found.attrs["density"], found.attrs["image_dimension"]) == (sign, density, dim)
    assert any("the energies are not equal" in said for said in found.attrs["warnings"]) == (raised > 0)
    np.testing.assert_allclose(found["baseline"], [raised, 0, 0])
    assert (found["estimate_error"] < 0.03).all()
    assert (np.abs(found["estimate"].values - exact) < 4 * found["estimate_error"].values + 0.01).all()
    for name, wanted in (("difference", exact[1] - exact[0]), ("density_exponent", exact[2] - dim / 2)):
        assert abs(float(found[name]) - wanted) < 4 * float(found[f"{name}_error"]) + 0.01
    # n beta E[K] at the last temperature is an estimate of the same number by another route.
    last = found.isel(nbeta=-1)
    assert (np.abs(last["mean_estimate"].values - exact) < 4 * last["mean_estimate_error"].values + 0.02).all()


def made_up(value, multiplicity, shift, scatter, repeats=16):
    """Free energies of a known coefficient, whose slopes scatter."""
    t = np.geomspace(1e3, 1e6, 13)
    energies = value * np.log(t) - (multiplicity - 1) * np.log(np.log(t) + shift) + 0.3
    slopes = scatter * np.random.default_rng(0).normal(size=(repeats, 1))
    bends = scatter / 4 * np.random.default_rng(1).normal(size=(repeats, 1))
    x = np.log(t) - np.log(t).mean()
    rows = {
        "repeat_free_energy": (("repeat", "nbeta"), energies + slopes * x + bends * x**2 / 4 + 0.25 * t),
        "repeat_mean_loss": (("repeat", "nbeta"), 0.25 + value / t + np.zeros((repeats, 1))),
        "baseline": 0.25,
    }
    return xr.Dataset(rows, coords={"nbeta": t})


@pytest.mark.parametrize("multiplicity", [1, 2, 3])
def test_slopes_tell_the_multiplicity_and_the_coefficient(multiplicity):
    """The constant beside the logarithm is 1.5: within the error that is stated of it."""
    found = few_and_zero_shot._fitted(made_up(0.5, multiplicity, 1.5, 0.002), (1, 2, 3))
    assert int(found["multiplicity"]) == multiplicity
    assert found["allowed"].values.tolist() == [m == multiplicity for m in (1, 2, 3)]
    assert float(found["estimate_error"]) < 0.012
    assert abs(float(found["estimate"]) - 0.5) < 3 * float(found["estimate_error"])
    assert abs(float(found["mean_estimate"][-1]) - 0.5) < 1e-9


def test_what_slopes_cannot_tell_is_allowed():
    found = few_and_zero_shot._fitted(made_up(0.5, 2, 1.0, 0.5), (1, 2, 3))
    assert found["allowed"].values.all()
    assert few_and_zero_shot._allowed(found) == list(
        zip(found["slope"].values, found["slope_error"].values, strict=True)
    )


@pytest.mark.parametrize(("power", "sign"), [(1.92, "tie"), (1.7, "above"), (2.4, "below")])
def test_a_difference_is_told_beyond_its_errors_and_beyond_what_a_finite_temperature_leaves(power, sign, monkeypatch):
    """Coefficients 1/power and 1/2: the first pair is 4 % apart, many standard errors of exact slopes."""

    def exact(posterior, **arguments):
        value = (1 / power, 0.5, 1 / power)[rows.pop(0)]
        return made_up(value, 1, 0.0, 1e-5).assign_attrs(warnings=[])

    rows = [0, 1, 2]
    monkeypatch.setattr(few_and_zero_shot, "estimate_at_temperature", exact)
    found = compared(lambda w: w[:1])
    assert abs(float(found["difference"])) > 20 * float(found["difference_error"])
    assert (found.attrs["sign"], found.attrs["density"]) == (
        sign,
        {"above": "vanishes", "below": "diverges"}.get(sign, sign),
    )


def test_a_difference_within_its_errors_has_no_sign(monkeypatch):
    def noisy(posterior, **arguments):
        return made_up((0.6, 0.5, 0.6)[rows.pop(0)], 1, 0.0, 0.3).assign_attrs(warnings=[])

    rows = [0, 1, 2]
    monkeypatch.setattr(few_and_zero_shot, "estimate_at_temperature", noisy)
    assert compared(lambda w: w[:1]).attrs["sign"] == "tie"


def test_maps_and_multiplicities_that_are_none_are_refused():
    with pytest.raises(InputError, match="multiplicities: expected integers of at least 1"):
        compared(square, multiplicities=())
    with pytest.raises(InputError, match="context_map: expected a function of parameters with finite numbers"):
        compared(lambda w: w / 0)
    zero_shot = ZeroShot(regular, square)
    how = {"nbeta": 1e4, "localization": 1.0, "key": jax.random.key(0)}
    for change, said in (
        ({"localization": None}, "localization: expected a number for all three losses"),
        ({"sampler": HMC()}, r"sampler: expected SMC\(\) with zero_shot"),
        ({"data": jnp.ones((4, 3))}, "data: expected None with zero_shot"),
    ):
        with unchecked(), pytest.raises(InputError, match=said):
            ask(context_coefficients, regular, jnp.zeros(3), zero_shot, **how | change)
