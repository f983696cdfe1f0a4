"""A verdict names a construction, tells no candidates apart that are equal, and is not fooled."""

import inspect
import json
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import icllab as icl
from icllab import constructions
from icllab.algorithms import (
    FromSklearn,
    FunctionalDescent,
    GradientDescent,
    GradientDescentPlusPlus,
    LeastSquares,
    PreconditionedDescent,
    Ridge,
)
from icllab.core.axes import AXES, QUANTITIES, derived
from icllab.core.errors import InputError
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics import Fitted, PromptSplit, VerdictRule, identify
from icllab.models import LinearAttention
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression
from icllab.training import Ensemble, Run, Trajectory

DIM, LENGTH = 3, 24
SHAPE = {"dim": DIM, "normalised": True, "half": True}
RULE = VerdictRule(resamples=200)
FEW = {"prompts": PromptSplit(60, fitting=40), "rule": RULE}
SOME = {"prompts": PromptSplit(400, fitting=100), "rule": RULE}


@pytest.fixture
def task():
    """In float64."""
    with jax.enable_x64(True):
        yield LinearRegression.convention("ahn", dim=DIM, length=LENGTH)


class Constant(AbstractPredictor):
    """Does not look at the examples: its answers are affine in the query."""

    slope: float = 0.0

    def __call__(self, prompt):
        return 1.0 + self.slope * prompt.x[:, 0]


class Linear(AbstractPredictor):
    """Answers x·(w + off), w the least squares of all examples but the query's own."""

    off: jax.Array

    def __call__(self, prompt):
        return jnp.sum(prompt.x * (LeastSquares().weights(prompt) + self.off[None, :]), axis=1)


class Neighbour(AbstractPredictor):
    """The label of the nearest example, for the last query."""

    positions = "last"

    def __call__(self, prompt):
        nearest = jnp.argmin(jnp.sum((prompt.x[:-1] - prompt.x[-1:]) ** 2, axis=1))
        return prompt.y[:-1][nearest][None]


class Halves(AbstractPredictor):
    """The mean of ridge regression and the nearest neighbour."""

    positions = "last"

    def __call__(self, prompt):
        return (Ridge(0.1)(prompt)[-1:] + Neighbour()(prompt)) / 2


def matrices(seed, scale, layers):
    return scale * np.random.default_rng(seed).normal(size=(layers, DIM, DIM))


def algorithms():
    kernel = {"kernel": "exponential", "temperature": 4.0, "noise_variance": 0.1, "dim": DIM, "normalised": True}
    a, b = matrices(0, 0.3, 2), matrices(1, 0.6, 2)
    return {
        "GD": GradientDescent(0.4, layers=2, **SHAPE),
        "preconditioned": PreconditionedDescent(a, layers=2, **SHAPE),
        "GD++": GradientDescentPlusPlus(a, b, layers=2, **SHAPE),
        "kernel": FunctionalDescent(0.3, layers=2, **kernel),
    }


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("GD", marks=pytest.mark.slow),
        "GD++",
        pytest.param("preconditioned", marks=pytest.mark.slow),
        "kernel",
    ],
)
def test_every_construction_is_recovered(name, task, getkey):
    """Twice: by its answers, and by its weights where there are any."""
    candidates = algorithms()
    network = constructions.gradient_descent(candidates[name], answers="last")
    result = identify(network, candidates, task, key=getkey(), **FEW)
    of_candidate = result.sel(candidate=name)
    assert str(result.verdict.values) == name
    assert int(of_candidate["candidate_rank"]) == 1
    assert float(of_candidate.fraction_unexplained) < 1e-20
    assert float(of_candidate.mean_difference) < 1e-10
    assert float(of_candidate.gradient_difference) < 1e-10
    assert float(of_candidate.cosine) == pytest.approx(1, abs=1e-12)
    remainder = result.drop_sel(candidate=name)
    assert np.all(remainder.fraction_unexplained_interval.sel(bound="low") > 0.01)
    if name != "kernel":
        assert float(of_candidate.weight_distance) < 1e-12
        linear = result.weight_distance.drop_sel(candidate=["kernel", name])
        assert np.all(linear > 1e-3)
    else:
        assert "weight_distance" not in result


def test_what_is_saved_is_in_the_tables(task, getkey):
    result = identify(LeastSquares(), {"a": LeastSquares(), "b": Ridge(1.0)}, task, key=getkey(), **FEW)
    assert set(result.sizes) <= set(AXES)
    assert all(derived(name, QUANTITIES) for name in result.data_vars)
    assert result.sizes == {"candidate": 2, "bound": 2, "other_candidate": 2}


def rivals_with_free_numbers():
    candidates = {"GD": GradientDescent(0.1, layers=2, **SHAPE), "ridge": Ridge(1.0), "small ridge": Ridge(1e-3)}
    return with_fits(candidates, {"GD": ["rate"], "ridge": ["ridge"]})


def with_fits(candidates, paths):
    return {name: Fitted(c, paths[name]) if name in paths else c for name, c in candidates.items()}


def test_fitted_parameters_are_found(task, getkey):
    candidates = rivals_with_free_numbers()
    network = constructions.gradient_descent(GradientDescent(0.37, layers=2, **SHAPE), answers="last")
    result = identify(network, candidates, task, key=getkey(), **FEW)
    assert str(result.verdict.values) == "GD"
    assert json.loads(str(result.fitted_values.sel(candidate="GD").values))["rate"] == pytest.approx(0.37, rel=1e-9)
    assert float(result.weight_distance.sel(candidate="GD")) < 1e-9
    np.testing.assert_array_equal(result.fitted_parameters, [1, 1, 0])
    assert json.loads(str(result.fitted_values.sel(candidate="small ridge").values)) == {}


def random_network():
    return LinearAttention.ahn(dim=DIM, layers=2, std=0.5, key=jax.random.key(3))


def neighbour():
    from sklearn.neighbors import KNeighborsRegressor

    return FromSklearn(KNeighborsRegressor(1), positions="last")


def lasso():
    from sklearn.linear_model import Lasso

    return FromSklearn(Lasso(0.3, fit_intercept=False), positions="last")


SLOW = [pytest.param(network, marks=pytest.mark.slow) for network in (neighbour, lasso, Halves)]


@pytest.mark.parametrize("network", [random_network, *SLOW], ids=lambda n: n.__name__)
def test_none_of_these(network, task, getkey):
    """And no near miss: the best candidate leaves at least three times what it may."""
    candidates = rivals_with_free_numbers()
    result = identify(network(), candidates, task, key=getkey(), **SOME)
    assert str(result.verdict.values) == "none of these"
    assert not result.accepted.any()
    assert not result.among.any()
    assert float(result.fraction_unexplained_interval.sel(bound="low").min()) > 0.03
    # The answers alone say it too.
    assert float(result.prediction_discrepancy_interval.sel(bound="low").min()) > 0.03


def test_a_half_and_half_mixture_is_none_even_where_both_halves_are_candidates(task, getkey):
    result = identify(Halves(), {"ridge": Ridge(0.1), "neighbour": Neighbour()}, task, key=getkey(), **SOME)
    assert str(result.verdict.values) == "none of these"
    # Both halves are off by half of what is between them.
    squares = result.prediction_discrepancy.values / np.mean(result.prediction_discrepancy.values)
    np.testing.assert_allclose(squares, 1, rtol=1e-12)


def noisy(noise):
    item = jnp.ones(())
    return LinearRegression(DIM, LENGTH, GaussianInputs(item), GaussianWeights(item), jnp.asarray(noise))


@pytest.mark.parametrize(
    "second",
    [lambda: Ridge(1e-8), lambda: GradientDescent(0.6, layers=200, **SHAPE), lambda: Ridge(0.01)],
    ids=["a tiny ridge", "many steps", "a context that is long for the ridge"],
)
def test_indistinguishable(second, getkey):
    with jax.enable_x64(True):
        candidates = {"itself": LeastSquares(), "other": second(), "far": Ridge(100.0)}
        result = identify(LeastSquares(), candidates, noisy(0.01), key=getkey(), **FEW)
    assert str(result.verdict.values) == "indistinguishable"
    np.testing.assert_array_equal(result.among, [True, True, False])
    assert float(result.mutual.sel(candidate="itself", other_candidate="other")) < 1e-6
    assert float(result.fraction_unexplained.sel(candidate="itself")) == 0
    assert float(result.fraction_unexplained.sel(candidate="other")) > 0


def test_the_fraction_is_what_the_formula_says(task, getkey):
    """For answers x·(w + v) against x·w both fractions are |v|² over E|w|² plus |v|², the query being isotropic.

    The baselines' part, x·v, is taken from the scale: E(f - t)² = E|w - Ew|². The fraction of the gradients is exact,
    and so up to sampling is that of the answers.
    """
    off = jnp.array([0.3, 0.0, 0.0])
    result = identify(Linear(off), {"w": LeastSquares()}, task, key=getkey(), **SOME)
    size = 3.0  # E|w|², least squares being exact without noise
    wide = 4 * float(np.sqrt(2 / 3 / 400)) + 0.03  # |w|² has relative variance 2/3; the fit of t
    assert float(result.input_gradient_discrepancy[0]) == pytest.approx(0.09 / size, rel=wide)
    assert float(result.prediction_discrepancy[0]) == pytest.approx(0.09 / size, rel=3 * wide)
    assert float(result.mean_difference[0]) == pytest.approx(0.3 * np.sqrt(2 / np.pi), rel=4 * 0.75 / 20)
    assert float(result.gradient_difference[0]) == pytest.approx(0.3, rel=1e-10)
    assert str(result.verdict.values) == "none of these"


def test_what_a_baseline_answers_is_no_candidate(task, getkey):
    for network in (Constant(), Constant(2.0)):
        result = identify(network, {"itself": network, "ridge": Ridge(0.1)}, task, key=getkey(), **FEW)
        assert str(result.verdict.values) == "none of these"
        assert "the baselines leave nothing" in str(result.warning.values)
        assert float(result.baseline_explained) == 1


@pytest.mark.slow
def test_intervals_cover_the_truth(task, getkey):
    """The population share of a shifted least squares, 0.03, lies in the interval as often as said."""
    low, high = [], []
    for seed in range(40):
        key = jax.random.fold_in(getkey(), seed)
        result = identify(Linear(jnp.array([0.3, 0.0, 0.0])), {"w": LeastSquares()}, task, key=key, **FEW)
        interval = result.input_gradient_discrepancy_interval.values[0]
        low, high = [*low, interval[0]], [*high, interval[1]]
    coverage = np.mean((np.array(low) < 0.03) & (np.array(high) > 0.03))
    # 95 % less four standard errors of 40 draws, and the skew of 60 prompts.
    assert coverage > 0.95 - 4 * np.sqrt(0.05 * 0.95 / 40)
    assert np.mean(np.array(high) / np.array(low)) < 2


def test_every_position_and_the_last_of_a_shorter_prompt(task, getkey):
    """A predictor that answers the last position is asked earlier by shorter prompts."""
    network = constructions.gradient_descent(GradientDescent(0.4, layers=1, **SHAPE), answers="last")
    candidates = {"GD": GradientDescent(0.4, layers=1, **SHAPE), "half": GradientDescent(0.2, layers=1, **SHAPE)}
    result = identify(network, candidates, task, key=getkey(), positions=(2, 5), **FEW)
    assert str(result.verdict.values) == "GD"
    assert float(result.fraction_unexplained[0]) < 1e-20
    assert result.attrs["positions"] == [2, 5]


def test_members_of_an_ensemble(task, getkey):
    members = icl.ensemble(lambda *, key, ridge: Ridge(ridge), seeds=1, key=getkey(), ridge=[0.5, 4.0])
    assert isinstance(members, Ensemble)
    result = identify(members, {"half": Ridge(0.5), "four": Ridge(4.0)}, task, key=getkey(), **FEW)
    assert result.verdict.values.tolist() == ["half", "four"]
    assert result.fraction_unexplained.dims == ("member", "candidate")
    np.testing.assert_array_equal(result.ridge, [0.5, 4.0])


def test_a_run_is_judged_at_every_step_kept(task, getkey):
    """Three members whose ridge has moved, each in its own way, after five updates."""
    ends = np.array([3.0, 2.0, 0.5])
    members = Ensemble(jax.vmap(Ridge)(ends), {"seed": np.arange(3)})
    params = {0: jax.vmap(Ridge)(np.full(3, 3.0)), 5: jax.vmap(Ridge)(ends)}
    empty = eqx.filter(members.stacked, eqx.is_array, inverse=True)
    run = Run(members, xr.Dataset(), {}, Trajectory((0, 5), params, empty, members.coordinates))
    candidates = {"start": Ridge(3.0), "any": Fitted(Ridge(1.0), ["ridge"])}
    key = getkey()
    result = identify(run.trajectory, candidates, task, key=key, **FEW)
    end = identify(run, candidates, task, key=key, **FEW)
    xr.testing.assert_equal(end, result.sel(step=5, drop=True))
    assert end.attrs["summary"].startswith("of 3 networks 2 any and 1 indistinguishable; ")
    assert result.attrs["summary"].startswith("of 6 networks 4 indistinguishable and 2 any; ")
    assert result.verdict.dims == ("member", "step")
    np.testing.assert_array_equal(result.step, [0, 5])
    np.testing.assert_array_equal(result.seed, [0, 1, 2])
    assert result.verdict.values[:, 0].tolist() == ["indistinguishable"] * 3
    assert result.verdict.values[:, 1].tolist() == ["indistinguishable", "any", "any"]
    learned = [
        json.loads(fit_result)["ridge"] for fit_result in result.fitted_values.sel(step=5, candidate="any").values
    ]
    np.testing.assert_allclose(learned, ends, rtol=1e-6)


class Scrambled:
    """Answers that no formula has: they look random, and are the same for the same prompt."""

    traceable = False

    def __call__(self, prompt):
        return np.sign(np.cos(1e4 * np.asarray(prompt.x).sum(1)))


@pytest.mark.slow
def test_candidates_and_baselines_gain_nothing_from_the_prompts_that_they_are_fitted_to(task, getkey):
    """Nine fitted numbers explain a tenth of ninety random answers, and add a tenth to the error of others."""
    start = PreconditionedDescent(0.1 * np.eye(DIM), layers=1, **SHAPE)
    rivals, split = {"it": Fitted(start, ["preconditioner"])}, PromptSplit(90, fitting=90)
    few, enough = [], []
    for _ in range(4):
        few.append(identify(Scrambled(), rivals, task, key=getkey(), prompts=split, rule=RULE))
        enough.append(float(few[-1].prediction_discrepancy[0]))
    error = np.std(enough, ddof=1) / 2
    assert error < 0.05
    assert np.mean(enough) > 0.97  # in sample it is 0.85
    fitted_to_ten = identify(
        Scrambled(), {"it": LeastSquares()}, task, key=getkey(), prompts=PromptSplit(400, fitting=10), rule=RULE
    )
    assert float(fitted_to_ten.baseline_explained) < -0.1  # five numbers: in sample it is positive


def test_a_search_that_meets_no_number_is_refused_in_one_line(task, getkey):
    """The root of (a - 1) has no finite derivative at a = 1: if every start is such a point, nothing is fitted."""

    class Root(AbstractPredictor):
        scale: jax.Array
        at_one_alone: bool = eqx.field(static=True)

        def __call__(self, prompt):
            one = 1.0 if self.at_one_alone else jax.lax.stop_gradient(self.scale)
            return jnp.sqrt(self.scale - one) * prompt.x[:, 0]

    def fitted(at_one_alone):
        root = Root(jnp.ones(()), at_one_alone)
        return identify(Ridge(0.1), {"root": Fitted(root, ["scale"])}, task, key=getkey(), **FEW)

    with pytest.raises(InputError, match=r"rivals\['root'\]: expected .* finite derivatives"):
        fitted(False)
    assert np.isfinite(fitted(True).fraction_unexplained).all()  # from another start


def test_a_search_passes_by_where_derivatives_are_infinite(task, getkey):
    """From 2 the first full step towards 1.01 goes beyond 1, where the root ends."""

    class Edge(AbstractPredictor):
        scale: jax.Array

        def __call__(self, prompt):
            beyond = jnp.where(self.scale < 1, 1.0, self.scale)  # a finite answer, an infinite derivative
            return jnp.sqrt(beyond - 1) * prompt.x[:, 0]

    def network(prompt):
        return 0.1 * prompt.x[:, 0]

    edge = Fitted(Edge(jnp.full((), 2.0)), ["scale"])
    found = identify(network, {"edge": edge}, task, key=getkey(), **FEW)
    assert json.loads(str(found.fitted_values.item()))["scale"] == pytest.approx(1.01, rel=1e-4)


def test_along_an_axis_candidates_fitted_in_training_fail_at_another_scale(getkey):
    """A step that depends on the size of its inputs is a fixed step only where it was fitted."""

    class Normed(AbstractPredictor):
        positions = "last"

        def __call__(self, prompt):
            size = jnp.mean(jnp.sum(prompt.x[:-1] ** 2, axis=1))
            return GradientDescent(1.0, layers=1, **SHAPE)(prompt)[-1:] / size

    with jax.enable_x64(True):

        def scaled(scale):
            law = GaussianWeights(jnp.ones(()))
            return LinearRegression(DIM, LENGTH, GaussianInputs(jnp.asarray(scale**2)), law, jnp.asarray(0.0))

        candidates = {"one step": Fitted(GradientDescent(0.1, layers=1, **SHAPE), ["rate"])}
        split = PromptSplit(60, fitting=40, fit_on=scaled(1.0))
        options = {"prompts": split, "rule": RULE._replace(tolerance=0.2)}
        key = getkey()
        parts = [identify(Normed(), candidates, scaled(scale), key=key, **options) for scale in (0.5, 1.0, 2.0)]
        result = xr.concat(parts, dim="input_scale")
    assert result.verdict.values.tolist() == ["none of these", "one step", "none of these"]
    # A rate of 1/2 for inputs of unit variance answers 4 times too little, or too much, at half and twice the scale.
    # Of 60 prompts: a mean of so many squares of normal numbers is known to sqrt(2 / 60), a half of this tolerance.
    by_scale = result.fraction_unexplained.sel(candidate="one step").values
    np.testing.assert_allclose(by_scale[[0, 2]], [0.75**2, 3**2], rtol=0.35)


def test_candidates_without_slopes_are_judged_by_answers(task, getkey):
    candidates = {"neighbour": neighbour(), "ridge": Ridge(1.0)}
    result = identify(Neighbour(), candidates, task, key=getkey(), **FEW)
    assert str(result.verdict.values) == "neighbour"
    assert np.isnan(result.input_gradient_discrepancy.sel(candidate="neighbour"))
    assert float(result.prediction_discrepancy.sel(candidate="neighbour")) == 0


class Endless(AbstractPredictor):
    """Answers infinity where the query's first entry is positive."""

    def __call__(self, prompt):
        return jnp.where(prompt.x[:, 0] > 0, jnp.inf, LeastSquares()(prompt))


def test_what_is_no_number_explains_nothing(task, getkey):
    result = identify(LeastSquares(), {"endless": Endless(), "it": LeastSquares()}, task, key=getkey(), **FEW)
    assert str(result.verdict.values) == "it"
    assert float(result.fraction_unexplained.sel(candidate="endless")) == np.inf
    assert re.search(
        r"the difference from 'endless' is no finite number on \d+ of 60 prompts", str(result.warning.values)
    )
    assert "difference from 'it'" not in str(result.warning.values)
    with pytest.raises(
        InputError,
        match=r"predictor_or_run: expected finite answers, got '\d+ of 60 prompts without, at positions \[24\]'",
    ):
        identify(Endless(), {"it": LeastSquares()}, task, key=getkey(), **FEW)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rivals": {}}, "rivals: expected at least one candidate, by name, got {}"),
        ({"rivals": [Ridge(1.0)]}, "rivals: expected a mapping of names to candidates, got 'list'"),
        ({"rivals": Ridge(1.0)}, "rivals: expected a mapping of names to candidates, got 'Ridge'"),
        ({"rivals": {"ridge": Ridge}}, "rivals: expected predictors by name, got \"'ridge': Ridge\""),
        ({"rivals": {"ridge": 1.0}}, "rivals: expected predictors by name, got \"'ridge': float\""),
        ({"rule": "strict"}, "rule: expected a VerdictRule, got 'strict'"),
        ({"rivals": {"none of these": Ridge(1.0)}}, "rivals: expected names that differ from the other verdicts, got"),
        ({"rivals": {"ridge": Fitted(Ridge(1.0), ["rigde"])}}, "unknown part of 'ridge': 'rigde'; did you mean"),
        ({"rivals": {"ridge": Fitted(Ridge(1.0), "ridge")}}, "rivals['ridge']: expected a sequence of names, got"),
        ({"rule": VerdictRule(tolerance=0.0)}, "tolerance: expected a number between 0 and 1, got 0.0"),
        ({"rule": VerdictRule(tolerance=1e-9)}, "resolution: expected a number from 0 to the tolerance, got 1e-06"),
        ({"prompts": 5}, "prompts: expected an integer of at least 10, got 5"),
    ],
)
def test_bad_input_is_refused_in_a_line(change, message, task, getkey):
    arguments = {"rivals": {"ridge": Ridge(1.0)}, "key": getkey(), **FEW} | change
    candidates = arguments.pop("rivals")
    with pytest.raises(InputError) as warning_records:
        inspect.unwrap(identify)(Ridge(2.0), candidates, task, **arguments)
    assert str(warning_records.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fitted": {"ridge": ["ridge"]}}, "fitted= is now rivals={name: Fitted(candidate, attributes)}"),
        ({"fitting": 40}, "fitting= is now prompts=PromptSplit(prompts, fitting=...)"),
        ({"block": 40}, "block= is gone: 256 prompts are in memory at once"),
    ],
)
def test_arguments_that_moved_are_named_with_their_new_spelling(options, message, task, getkey):
    with pytest.raises(InputError, match=re.escape(f"identify: {message}")):
        identify(Ridge(2.0), {"ridge": Ridge(1.0)}, task, key=getkey(), **options)


def test_a_split_is_of_enough_prompts():
    for options, message in (
        ({"fitting": 9}, "fitting: expected an integer of at least 10, got 9"),
        ({"judged": 9}, "prompts: expected an integer of at least 10, got 9"),
    ):
        with pytest.raises(InputError, match=f"^{message}"):
            PromptSplit(**options)


def test_too_many_fitted_parameters_are_refused(task, getkey):
    steps = PreconditionedDescent(matrices(0, 0.1, 2), layers=2, **SHAPE)
    candidates = {"steps": Fitted(steps, ["preconditioner"])}
    with pytest.raises(InputError, match="expected at least 10 answers for each of 18 parameters of 'steps', got 40"):
        identify(LeastSquares(), candidates, task, key=getkey(), **FEW)
