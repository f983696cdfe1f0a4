"""Results that are given to a diagnostic, and options of samplers: what does not fit is told in one line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from refusals import assert_refused

from icllab import diagnostics
from icllab.diagnostics import HMC, SMC, Quadrature

KEY = jax.random.key(0)
CURVE = xr.DataArray(np.linspace(1, 0, 30), dims="step")
EMPTY = xr.Dataset()


def coefficient(nbeta):
    posterior = diagnostics.LocalPosterior.from_function(lambda w: jnp.sum(w**2), jnp.zeros(2), nbeta=nbeta)
    return diagnostics.coefficient_at_temperature(posterior, key=KEY, sampler=HMC())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: diagnostics.delay([1, 2], [1, 2]), "first: expected a Dataset with observed_time and crossed, got"),
        (lambda: diagnostics.phase_weights([EMPTY, EMPTY]), "phases: expected free energies by name, got 'list'"),
        (lambda: diagnostics.phase_weights({"a": EMPTY, "b": EMPTY}), "energies: expected a Dataset of free_energy"),
        (lambda: diagnostics.phase_weights({"a": 1, "b": 2}), "energies: expected a Dataset of free_energy"),
        (
            lambda: diagnostics.sampled_crossings(EMPTY, EMPTY),
            "energies: expected a Dataset of free_energy, with nbeta",
        ),
        (lambda: diagnostics.free_energy_slope({"a": 1}), "energies: expected a Dataset of free_energy, with nbeta"),
        (lambda: diagnostics.free_energy_slope(EMPTY), "energies: expected a Dataset of free_energy, with nbeta"),
        (lambda: diagnostics.singular_fluctuation(np.ones(3)), "draws: expected draws of a sampler, got 'ndarray'"),
        (lambda: diagnostics.transitions(CURVE, edges=0.1), "edges: expected two numbers from 0 to 1, got 0.1"),
        (
            lambda: diagnostics.transitions(CURVE, window=(0.1,)),
            "transitions: window= is gone: the plateau is averaged from half to 0.8",
        ),
        (lambda: diagnostics.transitions(CURVE, level="half"), "level: expected a number between 0 and 1, got 'half'"),
        (
            lambda: diagnostics.transitions(CURVE, confidence=95),
            "transitions: confidence= is gone: intervals cover 95 %",
        ),
        (lambda: diagnostics.transitions(CURVE.astype(str)), "curve: expected values that are real numbers, got"),
        (lambda: Quadrature(points="9"), "points: expected one more than a multiple of four, at least 9, got '9'"),
        (lambda: SMC(moves=3), "moves: expected two numbers, the least and the largest, got 3"),
        (lambda: SMC(moves=(2, 2.5)), "moves: expected an integer of at least 1, got 2.5"),
        (lambda: coefficient("hot"), "nbeta: expected a finite number > 0, got 'hot'"),
    ],
)
def test_it_is_told(call, said):
    assert_refused(call, said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tilted": [jnp.sum]}, "tilted: expected at least one function of parameters, by name, got 'list'"),
        ({"observables": {"a": 3}}, "observables: expected functions of parameters, got \"'a': int\""),
        ({"observables": {"a": lambda w: w @ jnp.ones(3)}}, "observables: expected functions of parameters, got"),
    ],
)
def test_functions_that_are_none_are_told(change, said):
    options = {"tilted": {"a": lambda w: 2 * jnp.sum(w**2)}, "observables": {"b": lambda w: jnp.sum(w**2)}} | change
    posterior = diagnostics.LocalPosterior(lambda w: jnp.sum(w**2), jnp.zeros(1), nbeta=1.0, localization=1.0)
    options |= {"route": Quadrature(points=9), "key": KEY}
    assert_refused(lambda: diagnostics.susceptibility(posterior, **options), said)
