"""The reduced head: what it computes, that it is causal, and that a fit says how it went."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.models import reduced
from icllab.models.reduced.choice import SOLVERS
from icllab.tasks import GaussianWeights, LinearRegression, UniformInputs

DIM, KEY = 6, jax.random.key(5)


@eqx.filter_jit
def make_task(dim=DIM):
    return LinearRegression.from_scaling(dim=dim, alpha=2.0, kappa=1.0, rho=0.1, key=KEY)


@eqx.filter_jit
def sampled(task, key):
    return task.sample(key=key)


@pytest.fixture(scope="module")
def task():
    return make_task()


@pytest.fixture(scope="module")
def model(task):
    return reduced.fit(task, prompts=80, ridge=0.05, key=KEY)


def test_it_predicts_with_gamma_times_the_features_of_the_prefix(task, model, getkey):
    prompt = sampled(task, getkey())
    trace = eqx.filter_jit(model.trace)(prompt)
    gamma, x, y = (np.asarray(part, float) for part in (model.gamma, prompt.x, prompt.y))
    prediction, weights = np.asarray(trace.prediction), np.asarray(trace.activations["weights"])
    for i in range(prompt.positions):
        w = gamma @ np.append(DIM * y[:i] @ x[:i], y[:i] @ y[:i]) / max(i, 1)
        np.testing.assert_allclose(weights[i], w, rtol=2e-4, atol=1e-5)
        np.testing.assert_allclose(prediction[i], x[i] @ w, rtol=2e-4, atol=1e-5)
    assert prediction[0] == 0


def test_no_prediction_depends_on_what_comes_after_its_query(task, model, getkey):
    """The gradient is exactly zero: no label at or after, no input after, reaches a position."""
    prompt = sampled(task, getkey())
    slopes = jax.tree.map(np.asarray, jax.jit(jax.jacobian(model))(prompt))
    later = np.triu(np.ones((prompt.positions, prompt.positions), bool), 1)
    assert not np.any(slopes.y[np.triu(later | np.eye(len(later), dtype=bool))])
    assert not np.any(slopes.x[later])
    assert np.all(np.any(slopes.x, axis=2)[~later][1:])


def test_jit_is_eager_and_the_report_survives(task, model, getkey):
    prompt = sampled(task, getkey())
    np.testing.assert_allclose(eqx.filter_jit(model)(prompt), model(prompt), rtol=1e-5, atol=1e-6)
    through_jit, through_tree = jax.jit(lambda m: m)(model), jax.tree.map(lambda leaf: leaf, model)
    for other in (through_jit, through_tree):
        assert other.report.solver == model.report.solver
        assert other.report.reason == model.report.reason
        assert other.report.residual == model.report.residual
        assert other.converged == model.converged
        assert other.icl_error() == model.icl_error()


def test_errors_are_those_of_the_gamma_it_has_now(model):
    zero = eqx.tree_at(lambda m: m.gamma, model, jnp.zeros_like(model.gamma))
    second = model.task.inputs.second_moment(DIM)
    np.testing.assert_allclose(zero.icl_error(), 0.1 + np.trace(second), rtol=1e-6)
    pool = np.asarray(model.task.weights.weights)
    np.testing.assert_allclose(zero.idg_error(), 0.1 + np.mean(pool**2), rtol=1e-6)
    assert model.idg_error() < zero.idg_error()
    assert model.idg_error() < model.icl_error()


def test_the_fit_minimises_the_population_error_on_the_pool_as_prompts_grow(task):
    """Its excess over the best head is O(p/n): it falls below 3% at 95 prompts per parameter."""
    from icllab.tasks.attention_features import feature_moments

    moments = feature_moments(task)
    best = np.linalg.solve(moments.features, moments.cross).T
    fitted = reduced.fit(task, prompts=4000, ridge=0.0, key=KEY)
    assert moments.error(best) < fitted.idg_error() < 1.03 * moments.error(best)


def test_a_fit_is_a_function_of_its_key(task):
    def fit(key):
        return np.asarray(reduced.fit(task, prompts=80, ridge=0.0, key=jax.random.key(key)).gamma)

    first = fit(1)
    np.testing.assert_array_equal(fit(1), first)
    assert np.any(fit(2) != first)


def test_a_fit_on_shuffled_labels_learns_nothing(task):
    """The wrong world of every claim that needs one: as bad as predicting zero, or worse."""
    samples = reduced.sample(task, prompts=2000, key=KEY)
    right = reduced.fit_features(task, samples, ridge=0.0)
    wrong = reduced.fit_features(task, samples.shuffled(key=jax.random.key(1)), ridge=0.0)
    zero = eqx.tree_at(lambda m: m.gamma, right, jnp.zeros_like(right.gamma))
    assert right.idg_error() < 0.8 * zero.idg_error()
    assert wrong.idg_error() > 0.98 * zero.idg_error()


def test_a_solve_that_was_cut_short_says_so(task):
    samples = reduced.sample(task, prompts=100, key=KEY)
    for solver in ("primal_pcg", "dual_cg"):
        cut = reduced.fit_features(task, samples, ridge=0.01, solver=solver, iterations=2)
        assert not cut.converged
        assert int(cut.report.iterations) == 2
        assert float(cut.report.residual) > float(cut.report.tolerance)
        assert np.all(np.isfinite(cut.gamma))


def test_the_report_names_solver_reason_precision_and_tolerance(task):
    small = reduced.fit(task, prompts=30, ridge=0.0, key=KEY)
    assert (small.report.solver, small.report.precision) == ("dual_cholesky", "float64")
    assert small.report.reason.startswith("n = 30, rank 42: ")
    asked = reduced.fit(task, prompts=100, ridge=0.0, key=KEY, solver="primal_pcg")
    assert (asked.report.solver, asked.report.precision, asked.report.reason) == ("primal_pcg", "float32", "asked for")
    assert asked.converged
    np.testing.assert_allclose(asked.report.tolerance, 1e-5, rtol=1e-6)
    assert float(asked.report.residual) <= 1e-5


def test_float64_on_throughout_is_float64_throughout():
    with jax.enable_x64(True):
        model = reduced.fit(make_task(), prompts=100, ridge=0.0, key=KEY, precision="float64")
        assert (model.gamma.dtype, model.converged) == (jnp.float64, True)
        assert eqx.filter_eval_shape(model, sampled(model.task, KEY)).dtype == jnp.float64


def test_prompts_at_counts_squares_or_parameters():
    assert reduced.prompts_at(1.5, 20) == 600
    assert reduced.prompts_at(1.0, 20, per="d(d+1)") == 420
    assert reduced.prompts_at(1e-9, 20) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": 0}, r"prompts: expected an integer of at least 1, got 0"),
        ({"ridge": -0.1}, r"ridge: expected a finite number >= 0, got -0.1"),
        ({"ridge": float("nan")}, r"ridge: expected a finite number >= 0, got nan"),
        ({"solver": "primal_cg"}, r"unknown solver 'primal_cg'; did you mean 'primal_pcg'\?"),
        ({"precision": "float16"}, r"unknown precision 'float16'; did you mean 'float64'\?|'float32'\?"),
        ({"tolerance": 0.0}, r"tolerance: expected a number > 0, got 0.0"),
        ({"iterations": 0}, r"iterations: expected an integer of at least 1, got 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(task, change, message):
    with pytest.raises(InputError, match=rf"^({message})$"):
        reduced.fit(task, **{"prompts": 20, "ridge": 0.0, "key": KEY, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ridge": "0.1"}, r"ridge: expected a finite number >= 0, got '0.1'"),
        ({"ridge": None}, r"ridge: expected a finite number >= 0, got None"),
        ({"tolerance": "small"}, r"tolerance: expected a number > 0, got 'small'"),
        ({"iterations": 2.5}, r"iterations: expected an integer of at least 1, got 2.5"),
        ({"iterations": "9"}, r"iterations: expected an integer of at least 1, got '9'"),
    ],
)
def test_another_type_is_refused_in_one_line_where_no_type_checker_is_on(task, change, message):
    samples = reduced.sample(task, prompts=20, key=KEY)
    unchecked = inspect.unwrap(reduced.fit_features)
    with pytest.raises(InputError, match=rf"^({message})$"):
        unchecked(task, samples, **{"ridge": 0.0, **change})


def test_ratios_and_dimensions_of_another_type_are_refused_likewise(task):
    for arguments, message in (
        (("2", 8), r"^tau: expected a finite number > 0, got '2'$"),
        ((2.0, 8.5), r"^dim: expected an integer of at least 1, got 8.5$"),
        ((2.0, "8"), r"^dim: expected an integer of at least 1, got '8'$"),
    ):
        with pytest.raises(InputError, match=message):
            inspect.unwrap(reduced.prompts_at)(*arguments)
    with pytest.raises(InputError, match=r"^prompts: expected an integer of at least 1, got 20.0$"):
        inspect.unwrap(reduced.sample)(task, prompts=20.0, key=KEY)


def test_other_inputs_dimensions_and_ratios_are_refused_in_one_line(task):
    uniform = LinearRegression(DIM, 4, UniformInputs(1.0), GaussianWeights(1.0), 0.1)
    with pytest.raises(InputError, match=r"^inputs: expected GaussianInputs"):
        reduced.fit(uniform, prompts=20, ridge=0.0, key=KEY)
    with pytest.raises(InputError, match=r"^samples: expected the token dimension 4 of the task, got 6$"):
        reduced.fit_features(make_task(4), reduced.sample(task, prompts=9, key=KEY), ridge=0.0)
    with pytest.raises(InputError, match=r"unknown unit 'd2'; did you mean 'd\^2'\?"):
        reduced.prompts_at(1.0, 20, per="d2")
    with pytest.raises(InputError, match=r"^tau: expected a finite number > 0, got 0.0$"):
        reduced.prompts_at(0.0, 20)


def test_every_solver_is_offered():
    assert set(SOLVERS) == {"primal_pcg", "dual_cg", "dual_cholesky", "primal_cholesky"}


@pytest.mark.parametrize("solver", ["dual_cholesky", "primal_cholesky"])
def test_a_label_that_is_no_number_is_never_a_converged_fit(task, solver):
    samples = reduced.sample(task, prompts=20, key=KEY)
    labels = np.array(samples.label)
    labels[0, 0] = np.nan
    spoilt = eqx.tree_at(lambda s: s.label, samples, jnp.asarray(labels))
    fitted = reduced.fit_features(task, spoilt, ridge=0.1, solver=solver)
    assert not fitted.converged
    assert not np.any(fitted.gamma)
