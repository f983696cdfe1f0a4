"""Fitted parameters against least squares that can be written down."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.diagnostics.identification.candidates import FittedParameters, fit_candidate, fitted_parameters
from icllab.tasks import LinearRegression


def task():
    return LinearRegression.convention("ahn", dim=2, length=3)


class Planes(AbstractPredictor):
    """x·c, by a number and a row of numbers."""

    slopes: jax.Array
    scale: jax.Array
    host: bool = eqx.field(static=True, default=False)

    @property
    def traceable(self):
        return not self.host

    def __call__(self, prompt):
        return self.scale * (prompt.x @ self.slopes)


def test_a_fit_starts_where_it_is_and_with_positive_arrays_ten_times_smaller_and_larger():
    candidate = Planes(jnp.array([-1.0, 2.0]), jnp.array(3.0))
    start, smaller, larger = FittedParameters.from_paths("planes", candidate, ("slopes", "scale")).starts()
    np.testing.assert_allclose(start, [-0.9, 2.2, np.log(3.0)], rtol=1e-6)
    np.testing.assert_allclose([smaller[:2], larger[:2]], [start[:2]] * 2)
    np.testing.assert_allclose(np.exp([smaller[2], larger[2]]), [0.3, 30.0], rtol=1e-6)


@pytest.fixture
def prompts(getkey):
    with jax.enable_x64(True):
        yield sample_prompts(task(), key=getkey(), prompts=30, block=30)


def fitted(candidate, paths, answers, prompts):
    (parameters,) = fitted_parameters({"it": candidate}, {"it": paths}, answers=answers.size).values()
    return fit_candidate(candidate, parameters, prompts, answers, (3,)), parameters


def test_linear_numbers_are_those_of_least_squares(prompts):
    """Also of any sign, if they do not start positive."""
    x = np.asarray(prompts.x)[:, 3]
    answers = np.sin(3 * x[:, :1]) + x[:, 1:]
    exact = np.linalg.lstsq(x, answers[:, 0], rcond=None)[0]
    result, parameters = fitted(Planes(jnp.array([-1.0, 1.0]), jnp.asarray(1.0)), ["slopes"], answers, prompts)
    np.testing.assert_allclose(result.slopes, exact, rtol=1e-9)
    assert float(result.scale) == 1.0
    assert parameters.logarithms == (False,)
    np.testing.assert_allclose(parameters.values(result)["slopes"], exact, rtol=1e-9)


def test_a_number_that_starts_positive_stays_positive(prompts):
    """The best is -2; of those above zero the least is best. Where the best is positive, it is found from afar."""
    candidate = Planes(jnp.array([1.0, 0.0]), jnp.asarray(3.0))
    answers = np.asarray(prompts.x)[:, 3, :1]
    result, parameters = fitted(candidate, ["scale"], -2 * answers, prompts)
    assert parameters.logarithms == (True,)
    assert 0 < float(result.scale) < 0.1
    near, _ = fitted(candidate, ["scale"], 1e-3 * answers, prompts)
    assert float(near.scale) == pytest.approx(1e-3, rel=1e-9)


def test_numbers_that_are_no_numbers_fit_nothing(prompts):
    candidate = Planes(jnp.array([1.0, 0.0]), jnp.asarray(3.0))
    result, _ = fitted(candidate, ["scale"], np.full((30, 1), np.nan), prompts)
    assert result is candidate


def test_bad_input_is_refused_in_a_line(prompts):
    candidate = Planes(jnp.array([1.0, 0.0]), jnp.asarray(3.0))
    for paths, message in (
        ({"it": ["scales"]}, "unknown part of 'it': 'scales'; did you mean 'scale'?"),
        ({"it": ["host"]}, "rivals['it']: expected names of floating-point arrays, got 'host'"),
        ({"it": []}, "rivals['it']: expected a sequence of names, got []"),
        ({"it": ["slopes", "scale"]}, "fitting: expected at least 10 answers for each of 3 parameters of 'it', got 29"),
    ):
        with pytest.raises(InputError) as warning_records:
            fitted_parameters({"it": candidate}, paths, answers=29)
        assert str(warning_records.value).startswith(message)
    with pytest.raises(InputError, match="expected a candidate that can be traced, got 'Planes'"):
        fitted_parameters({"it": Planes(candidate.slopes, candidate.scale, host=True)}, {"it": ["scale"]}, answers=50)
