"""Free energies that are known: of Gaussian integrals, of halves of them, and of singular losses by their slopes."""

import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from diagnostics.questions import ask
from jax.flatten_util import ravel_pytree
from refusals import unchecked

from icllab.core.errors import InputError
from icllab.core.statistics import mean_and_error
from icllab.diagnostics import HMC, SMC, free_energy, free_energy_slope
from icllab.diagnostics.sampling.smc import Whitened
from icllab.diagnostics.singular import free_energies
from icllab.diagnostics.singular.free_energies import annealed_slope
from icllab.theory import learning_coefficients as exact

H = np.array([4.0, 1.0, 0.2])
GAMMA = 0.5
STOPS = np.array([1.0, 30.0, 1000.0])
AWAY = 0.3


class Bowl(eqx.Module):
    """A quadratic loss with its least value away from the prior's centre, along the first parameter."""

    curvatures: jax.Array
    least: jax.Array

    def __call__(self, w):
        flat = ravel_pytree(w)[0]
        return jnp.sum(self.curvatures * (flat - jnp.zeros(3).at[0].set(AWAY)) ** 2) / 2 + self.least


def bowl(least=0.25):
    return Bowl(jnp.asarray(H), jnp.asarray(least))


def positive(w):
    return ravel_pytree(w)[0][1] > 0


def gaussian(t):
    """F, E[L] and Var L of that bowl: products of one-dimensional Gaussian integrals."""
    stiff = t * H + GAMMA
    centre = np.array([t * H[0] * AWAY / stiff[0], 0, 0])
    gap = centre - np.array([AWAY, 0, 0])
    free = np.sum(np.log(stiff / GAMMA)) / 2 + t * 0.25 + t * H[0] * AWAY**2 * GAMMA / stiff[0] / 2
    mean = 0.25 + np.sum(H * (1 / stiff + gap**2)) / 2
    variance = np.sum(H**2 * (1 / stiff**2 + 2 * gap**2 / stiff)) / 2
    return free, mean, variance


@pytest.fixture(scope="module")
def found():
    """The whole space, and the half of it: by symmetry as much of every posterior."""
    with jax.enable_x64(True):
        how = {"nbeta": STOPS, "localization": GAMMA, "sampler": SMC(repeats=16, particles=250)}
        at = {"a": jnp.zeros(2), "b": jnp.zeros(())}
        observe = lambda w: jnp.stack([w["a"][0], w["a"][1]])  # noqa: E731
        whole = ask(free_energy, bowl(), at, key=jax.random.key(0), observe=observe, **how)
        half = ask(free_energy, bowl(), at, key=jax.random.key(1), observe=observe, region=positive, **how)
    return whole, half


def test_a_gaussian_integral_by_both_routes(found):
    """Within four standard errors, each below four hundredths of a nat; so the moments, to two and seven per cent."""
    for dataset, more in zip(found, (0.0, np.log(2)), strict=True):
        assert dataset.attrs["warnings"] == []
        for i, t in enumerate(STOPS):
            free, mean, variance = gaussian(t)
            here = dataset.isel(nbeta=i)
            for name, wanted, error in [
                ("free_energy", free + more, 0.04),
                ("integrated", free + more, 0.04),
                ("route_gap", 0.0, 0.02),
                ("mean_loss", mean, 0.02 * mean),
                ("loss_variance", variance, 0.07 * variance),
            ]:
                assert float(here[f"{name}_error"]) < error
                assert abs(float(here[name]) - wanted) < 4 * float(here[f"{name}_error"]), (name, t)


def test_the_mean_over_repeats_is_that_of_the_integrals(found):
    """Of exp(-F), by both routes; the jackknife of nearly equal repeats has the error of their mean."""
    for dataset in found:
        each = dataset["repeat_free_energy"].transpose("nbeta", "repeat").values
        np.testing.assert_allclose(dataset["free_energy"], -np.log(np.exp(-each).mean(1)), rtol=1e-13)
        # The two errors are equal to first order in the spread of the repeats, and no further.
        np.testing.assert_allclose(dataset["free_energy_error"], mean_and_error(each)[1], rtol=0.3)
        gap = dataset["integrated"] - dataset["free_energy"]
        np.testing.assert_allclose(dataset["route_gap"], gap, atol=1e-13)


def test_a_mean_of_integrals_has_no_half_variance():
    """Normal F with a spread of 0.6: the mean of F is 0.18 too large; of 16 repeats what is left is 0.0135.

    That is (exp(0.36) - 1) / 32, to first order. The jackknife has the spread that there is, to a tenth.
    """
    each = np.random.default_rng(0).normal(1.0, 0.6, (4000, 16))
    found, error = free_energies._jackknifed(*free_energies._pooled(each))
    spread = found.std()
    assert spread / np.sqrt(4000) < 0.003
    assert abs(found.mean() - (1 - 0.18) - 0.0135) < 4 * spread / np.sqrt(4000)
    assert np.sqrt((error**2).mean()) == pytest.approx(spread, rel=0.1)
    # Energies of any size, and a population that has lost nearly everything.
    np.testing.assert_allclose(free_energies._pooled(each + 1e5)[0] - 1e5, found, atol=1e-9)
    lost, without = free_energies._pooled(np.array([[2.0, 2.0, 2.0, 900.0]]))
    np.testing.assert_allclose(lost[0], 2 + np.log(4 / 3), rtol=1e-13)
    np.testing.assert_allclose(without[0], [2 + np.log(3 / 2)] * 3 + [2.0], rtol=1e-13)


class Net(eqx.Module):
    """Parameters beside which there are a function, a name and integers."""

    weight: jax.Array
    order: jax.Array
    activation: Callable[..., jax.Array] = jax.nn.relu
    name: str = "net"

    def loss(self):
        return jnp.sum(self.activation(self.weight[self.order]) ** 2) / 2


def test_a_module_is_its_parameters():
    """Half of the plane of two parameters, of which only positive ones have a loss: a product of Gaussian integrals."""
    how = {"nbeta": [3.0], "localization": 1.0, "key": jax.random.key(0), "sampler": SMC(particles=200, repeats=4)}
    found = ask(
        free_energy,
        lambda net: net.loss(),
        Net(jnp.zeros(2), jnp.array([1, 0])),
        region=lambda net: net.weight[net.order[1]] > 0,
        **how,
    )
    assert found.attrs["parameters"] == 2
    error = float(found["free_energy_error"][0])
    assert abs(float(found["free_energy"][0]) + np.log(0.25 * (0.5 + 0.25))) < 4 * error < 0.3
    with pytest.raises(InputError, match="at: expected a tree of arrays of one floating-point type"):
        ask(free_energy, lambda w: jnp.sum(w**2), jnp.zeros(2, int), **how)


def test_the_region_and_what_is_observed_in_it(found):
    whole, half = found
    assert float(whole["log_prior_mass"]) == float(whole["log_prior_mass_error"]) == 0
    assert abs(float(half["log_prior_mass"]) + np.log(2)) < 4 * float(half["log_prior_mass_error"]) < 0.05
    for i, t in enumerate(STOPS):
        stiff = t * H + GAMMA
        wanted = np.array([t * H[0] * AWAY / stiff[0], np.sqrt(2 / np.pi / stiff[1])])
        seen, error = (half[name].values[i] for name in ("observed", "observed_error"))
        assert (error < 0.03).all()
        assert (np.abs(seen - wanted) < 4 * error).all()
    assert abs(whole["observed"].values[0, 1]) < 4 * whole["observed_error"].values[0, 1]


def test_the_ladder_says_how_it_was_climbed(found):
    whole, _ = found
    assert set(STOPS) <= set(whole["rung_nbeta"].values)
    assert (np.diff(whole["rung_nbeta"]) > 0).all()
    assert float(whole["effective_share"].min()) > 0.89
    climbed = whole.isel(rung=slice(1, None))
    assert (climbed["correlation"] < 0.3).mean() > 0.95
    assert ((climbed["moves"] >= 2) & (climbed["moves"] <= 10)).all()
    assert 0.7 < float(climbed["acceptance"].mean()) < 0.9
    assert (whole["ancestors"] > 10).all()
    assert float(whole["least_loss"]) >= 0.25


def test_a_population_that_does_not_move_says_so():
    """No trajectory to speak of, and few particles: correlated losses, few ancestors; and its two routes part."""
    with jax.enable_x64(True):
        loss = Whitened(bowl(), None, jnp.zeros(3), jnp.ones(3), lambda w: w)
        sampler = SMC(particles=20, repeats=2, leapfrogs=1, moves=(1, 1))
        path = sampler.path(loss, stops=np.array([1e4]), key=jax.random.key(2))
        assert path.ancestors.max() < 5
        assert path.last.shape == (2, 20, 3)
        found = ask(
            free_energy, bowl(), jnp.zeros(3), nbeta=[1e4], localization=1.0, key=jax.random.key(2), sampler=sampler
        )
    said = " ".join(found.attrs["warnings"])
    assert "temperatures the moves leave losses as they were" in said
    assert "all of a population descends from" in said


def linear_layers(widths, rank):
    """Half the squared distance of a product of matrices from the identity of that rank."""
    shapes = [(b, a) for a, b in itertools.pairwise(widths)]
    truth = jnp.eye(widths[-1], widths[0]).at[:, rank:].set(0)

    def loss(layers):
        product = layers[0]
        for layer in layers[1:]:
            product = layer @ product
        return jnp.sum((product - truth) ** 2) / 2

    return loss, [jnp.zeros(shape) for shape in shapes]


LAYERS = [((2, 2, 2), 0), ((3, 2, 3), 1), ((3, 2, 2, 3), 1), ((4, 2, 4), 2), ((2, 2, 2, 2), 0)]


@pytest.mark.slow
@pytest.mark.parametrize(("widths", "rank"), LAYERS)
def test_the_slope_of_linear_layers_is_their_coefficient(widths, rank):
    """From 1e4 to 1e7, given the multiplicity: within two hundredths and 0.03, and three errors of the estimate."""
    value, multiplicity = exact.deep_linear(widths, rank)
    with jax.enable_x64(True):
        loss, at = linear_layers(widths, rank)
        found = ask(free_energy, loss, at, nbeta=np.geomspace(1e4, 1e7, 13), localization=1.0, key=jax.random.key(0))
    slope = free_energy_slope(found).sel(multiplicity=multiplicity)
    assert float(slope["slope_error"]) < 0.006 * value + 0.005
    assert abs(float(slope["slope"]) - value) < 0.02 * value + 0.03
    assert abs(float(slope["slope"]) - value) < 4 * float(slope["slope_error"]) + 0.005 * value
    assert found.attrs["warnings"] == []


def test_a_crossing_has_the_coefficient_of_its_worse_factor():
    """K = (w1 w2^2)^2 near zero, where lambda = 1/4 and m = 1: both estimates within three errors of five per cent."""
    with jax.enable_x64(True):
        found = ask(
            annealed_slope,
            lambda w: (w[0] * w[1] ** 2) ** 2 + 3,
            jnp.zeros(2),
            nbeta=1e8,
            localization=1.0,
            key=jax.random.key(0),
        )
    wanted = exact.normal_crossing((1, 2)).value
    for name, error in (("estimate", "mcse"), ("mean_estimate", "mean_estimate_error")):
        assert found[error] < 0.05 * wanted
        assert abs(found[name] - wanted) < 3 * found[error]
    assert found.attrs["warnings"] == []
    assert float(found["baseline"]) == 3
    # A larger multiplicity fits with a larger slope.
    assert (np.diff(found["slope"].values) > 0).all()


@pytest.mark.slow
def test_a_point_that_is_no_minimum_says_so():
    with jax.enable_x64(True):
        found = ask(
            annealed_slope,
            lambda w: jnp.sum(w**2) / 2,
            jnp.full(2, 0.5),
            nbeta=1e4,
            localization=1.0,
            key=jax.random.key(0),
        )
    assert any("the point is no minimum" in sentence for sentence in found.attrs["warnings"])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"nbeta": [0.0, 1.0]}, "nbeta: expected a finite number > 0, got 0.0"),
        ({"localization": 0.0}, "localization: expected a finite number > 0, got 0.0"),
        ({"localization": None}, "localization: expected a number, the precision of the prior that SMC starts from"),
        ({"sampler": HMC()}, "sampler: expected SMC(), got HMC("),
        ({"region": lambda w: w[0] > 9}, "region: expected more than 0.0001 of the prior to have a finite loss in it"),
    ],
)
def test_bad_questions(how, said):
    arguments = {"nbeta": [1.0], "localization": 1.0, "key": jax.random.key(0), "sampler": SMC(particles=5000)} | how
    with unchecked(), pytest.raises(InputError) as error:
        ask(free_energy, lambda w: jnp.sum(w**2), jnp.zeros(1), **arguments)
    assert said in str(error.value)


def test_a_slope_needs_two_temperatures(found):
    with pytest.raises(InputError, match="nbeta: expected at least two numbers above 1"):
        free_energy_slope(found[0])
    with pytest.raises(InputError, match="nbeta: expected a finite number of at least 10, got 9"):
        ask(annealed_slope, lambda w: w, jnp.zeros(()), nbeta=9.0, localization=1.0, key=jax.random.key(0))


def test_two_temperatures_leave_nothing_of_the_law():
    """Of lambda log t - (m - 1) log log t + c through two points: the slope is lambda, and nothing is left."""
    t = np.array([100.0, 1e4])
    law = t * 0.3 + 1.5 * np.log(t) - np.log(np.log(t)) + np.array([[0.2], [-0.4], [1.0]])
    made_up = xr.Dataset({"repeat_free_energy": (("repeat", "nbeta"), law)}, coords={"nbeta": t})
    found = free_energy_slope(made_up, baseline=0.3, multiplicities=(2,)).isel(multiplicity=0)
    assert float(found["slope"]) == pytest.approx(1.5, rel=1e-9)
    assert float(found["residual"]) == 0
    assert float(found["slope_error"]) == pytest.approx(0, abs=1e-9)
