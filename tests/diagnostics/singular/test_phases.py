"""Phases with known free energies; and two wells of one integral, which a quadrature knows."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from diagnostics.questions import ask
from scipy.integrate import quad

from icllab.core.errors import InputError
from icllab.diagnostics import SMC, free_energy, phase_weights, sampled_crossings
from icllab.theory import free_energy as asymptotic
from icllab.theory.learning_coefficients import LearningCoefficient

N = np.geomspace(30, 3000, 9)


def phase(values, error=0.1, n=N):
    values = np.broadcast_to(values, n.shape)
    return xr.Dataset(
        {"free_energy": ("nbeta", values), "free_energy_error": ("nbeta", np.full(n.shape, error))}, {"nbeta": n}
    )


def test_weights_and_crossings_are_those_of_the_expansion():
    simple = asymptotic.Phase(0.02, LearningCoefficient(1.0))
    rich = asymptotic.Phase(0.0, LearningCoefficient(2.5, 2))
    sampled = [phase(asymptotic.asymptotic(p, N)) for p in (simple, rich)]
    found = phase_weights({"simple": sampled[0], "rich": sampled[1]})
    np.testing.assert_allclose(found["weight"], asymptotic.posterior_weights([simple, rich], N), atol=1e-12)
    known = asymptotic.crossings(simple, rich)
    crossing = sampled_crossings(*sampled)
    assert crossing.sizes["crossing"] == 1
    n = float(crossing["crossing_n"][0])
    assert n == pytest.approx(known[(known > N[0]) & (known < N[-1])][0], rel=0.01)
    steps = [asymptotic.asymptotic(rich, m) - asymptotic.asymptotic(simple, m) for m in (1.01 * n, n / 1.01)]
    slope = abs(steps[0] - steps[1]) / 0.02
    assert float(crossing["crossing_n_error"][0]) == pytest.approx(n * 0.1 * np.sqrt(2) / slope, rel=0.15)


def test_errors_of_weights_are_those_of_draws():
    """To first order: against a hundred thousand draws of free energies with small errors."""
    draws = np.random.default_rng(0).normal([1.0, 1.5, 0.2], [0.03, 0.02, 0.05], (100_000, 3))
    shares = np.exp(-draws) / np.exp(-draws).sum(1, keepdims=True)
    one = np.array([100.0])
    phases = {"a": phase(1.0, 0.03, one), "b": phase(1.5, 0.02, one), "c": phase(0.2, 0.05, one)}
    found = phase_weights(phases)
    np.testing.assert_allclose(found["weight_error"].values[:, 0], shares.std(0), rtol=0.02)
    np.testing.assert_allclose(found["weight"].values[:, 0], shares.mean(0), atol=1e-3)


def test_none_where_there_is_none():
    assert sampled_crossings(phase(1.0), phase(2.0)).sizes["crossing"] == 0


class Wells(eqx.Module):
    """A double well, tilted; the sign says which of its halves is finite."""

    side: jax.Array

    def __call__(self, w):
        return jnp.where(self.side * w > 0, (w**2 - 1) ** 2 / 4 - 0.05 * w + 0.2, jnp.inf)


def test_two_wells_have_the_weights_of_their_integrals():
    n = np.array([5.0, 40.0])
    sampled = {}
    with jax.enable_x64(True):
        for name, side in (("left", -1.0), ("right", 1.0)):
            sampled[name] = ask(
                free_energy,
                Wells(jnp.asarray(side)),
                jnp.zeros(()),
                nbeta=n,
                localization=1.0,
                key=jax.random.key(int(side) + 1),
                sampler=SMC(particles=300),
            )
    found = phase_weights(sampled)

    def well(t, low, high):
        return quad(lambda w: np.exp(-t * ((w * w - 1) ** 2 / 4 - 0.05 * w + 0.2) - w * w / 2), low, high)[0]

    for i, t in enumerate(n):
        left, right = well(t, -8, 0), well(t, 0, 8)
        for name, part in (("left", left), ("right", right)):
            free = -np.log(part / np.sqrt(2 * np.pi))
            error = float(sampled[name]["free_energy_error"][i])
            assert error < 0.03
            assert abs(float(sampled[name]["free_energy"][i]) - free) < 4 * error
        share, error = (float(found[v].sel(phase="right")[i]) for v in ("weight", "weight_error"))
        assert error < 0.01
        assert abs(share - right / (left + right)) < 4 * error


@pytest.mark.slow
def test_a_well_that_is_nearly_lost_inside_a_region_is_warned_of():
    """The left half of a tilted cusp has a wall at zero and a shallow well, where four directions are free.

    The wall has the posterior at small n, the well at n = 300, when few particles are left in it, in some populations
    none. They differ more than their weights explain; more of them come to the integral.
    """

    def loss(w):
        x, y = w[0], w[1:]
        well = x**4 / 4 - x**2 / 2 - 0.35 * x + (x + 1) ** 2 * jnp.sum(y**2) / 2
        return jnp.where(x < 0, well, jnp.inf)

    n = 300.0
    x = np.linspace(-5, 0, 10_001)
    along = np.exp(-n * (x**4 / 4 - x**2 / 2 - 0.35 * x) - x**2 / 2) / np.sqrt(2 * np.pi)
    known = -np.log(np.trapezoid(along / (1 + n * (x + 1) ** 2) ** 2, x))
    how = {"nbeta": [30, 100, n], "localization": 1.0, "key": jax.random.key(0)}
    with jax.enable_x64(True):
        few, many = (ask(free_energy, loss, jnp.zeros(5), sampler=SMC(particles=count), **how) for count in (400, 4000))
    assert any("a part of it may be lost" in sentence for sentence in few.attrs["warnings"])
    errors = [float(found["free_energy_error"][-1]) for found in (few, many)]
    assert errors[0] > 4 * float(few["weight_error"][-1])
    assert errors[1] < 0.3
    assert abs(float(many["free_energy"][-1]) - known) < 4 * errors[1]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (lambda: phase_weights({"a": phase(1.0)}), "phases: expected at least two, got ['a']"),
        (lambda: sampled_crossings(phase(1.0), phase(2.0, n=N[1:])), "nbeta: expected the same of all phases"),
        (lambda: sampled_crossings(*[phase(1.0, n=N[:1])] * 2), "nbeta: expected at least two numbers, got [30.0]"),
    ],
)
def test_bad_questions(question, said):
    with pytest.raises(InputError) as error:
        question()
    assert said in str(error.value)


def test_grids_that_differ_by_rounding_are_one_grid():
    near = phase(2.0, n=N * (1 + 1e-15))
    assert not np.array_equal(near["nbeta"], phase(2.0)["nbeta"])
    xr.testing.assert_allclose(sampled_crossings(phase(1.0), near), sampled_crossings(phase(1.0), phase(2.0)))
