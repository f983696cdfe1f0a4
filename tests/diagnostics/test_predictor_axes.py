"""Every kind of predictors goes into every diagnostic, and each gets there what it gets alone."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

import icllab as icl
from icllab.algorithms import GradientDescent, Ridge
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractModel, AbstractPredictor, Trace
from icllab.diagnostics import (
    Fitted,
    PromptSplit,
    VerdictRule,
    divergences,
    gradient_shares,
    head_scores,
    icl_scores,
    identify,
    interpolate,
    per_length,
    probe_layers,
    progress_measures,
    weight_distance,
)
from icllab.diagnostics.predictor_axes import KINDS, PredictorAxes
from icllab.models import BlockOptions, LinearAttention, MinimalHead, Tokens, Transformer
from icllab.tasks import ItemLabel, LinearRegression, MarkovChain, RepeatedTokens
from icllab.training import Ensemble, Record, Run

DIM, LENGTH = 2, 6
KEY = jax.random.key(11)
STEPS = (0, 3)


@functools.cache
def regression():
    return LinearRegression.convention("ahn", dim=DIM, length=LENGTH)


def descent(rate=0.4):
    return GradientDescent(rate, layers=1, dim=DIM, normalised=True, half=True)


@functools.cache
def heads_task():
    return ItemLabel.init(classes=None, labels=5, pairs=3, dim=6, no_repeats=True, key=KEY)


def attention(*, key):
    return LinearAttention.ahn(dim=DIM, layers=1, std=0.5, key=key)


def language_model(*, key):
    block = BlockOptions(heads=2, mlp=None, norm="none")
    return Transformer(Tokens(4), dim=4, width=8, layers=1, block=block, positions="learned", length=7, key=key)


def strengths(*, key, xi):
    return MinimalHead.reading(labels=5, beta1=3.0, alpha=2.0, xi=xi)


SWEPT = {strengths: {"xi": [0.5, 2.0]}}


@functools.cache
def two_members(build):
    """Of two seeds, or of one and two swept numbers."""
    swept = SWEPT.get(build, {})
    return icl.ensemble(build, seeds=1 if swept else [5, 3], key=KEY, **swept)


def of_regression(**options):
    return lambda measure: lambda subject: measure(subject, regression(), key=KEY, prompts=8, **options)


def of_sequences(task, **options):
    return lambda measure: lambda subject: measure(subject, task(), key=KEY, prompts=8, **options)


def identified(subject):
    candidates = {"one step": Fitted(descent(), ["rate"]), "ridge": Ridge(1.0)}
    options = {"prompts": PromptSplit(20, fitting=20), "rule": VerdictRule(resamples=20)}
    return identify(subject, candidates, regression(), key=KEY, **options)


def interpolated(subject):
    return interpolate(subject, descent(), regression(), key=KEY, points=3, prompts=8)


def probed(subject):
    return probe_layers(subject, descent(), regression(), key=KEY, prompts=20, resamples=20, block=20)


def distance(subject):
    return weight_distance(subject, descent()).to_dataset()


# name -> what is measured of any kind, and what builds a member.
DIAGNOSTICS = {
    "per_length": (of_regression()(per_length), attention),
    "per_length against another": (of_regression(against=Ridge(1.0))(per_length), attention),
    "gradient_shares": (of_regression(groups=8)(gradient_shares), attention),
    "icl_scores": (of_regression()(icl_scores), attention),
    "identify": (identified, attention),
    "interpolate": (interpolated, attention),
    "weight_distance": (distance, attention),
    "probe_layers": (probed, attention),
    "divergences": (of_sequences(lambda: MarkovChain(jnp.full((4, 4), 0.25), 8))(divergences), language_model),
    "head_scores": (of_sequences(lambda: RepeatedTokens(vocabulary=4, period=3))(head_scores), language_model),
    "progress_measures": (of_sequences(heads_task)(progress_measures), strengths),
}


@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_members_get_what_each_gets_alone(name):
    """Exactly, every number of theirs, in their order; an ensemble's, and those of predictors with names."""
    measure, build = DIAGNOSTICS[name]
    members, swept = two_members(build), SWEPT.get(build, {})
    result = measure(members)
    lone = [measure(members.member(i)) for i in range(members.size)]
    by_name = measure({"a": members.member(1), "b": members.member(0)})
    np.testing.assert_array_equal(result["seed"], members.coordinates["seed"])
    for field, values in swept.items():
        np.testing.assert_array_equal(result[field], np.asarray(values, np.float32))
    for variable, values in result.data_vars.items():
        if variable == "entropy":  # of the task alone
            continue
        assert values.dims[0] == "member"
        assert values.dims[1:] == lone[0][variable].dims
        assert by_name[variable].dims == ("predictor", *lone[0][variable].dims)
        for i, single_result in enumerate(lone):
            np.testing.assert_array_equal(values.isel(member=i), single_result[variable], err_msg=str(variable))
            at = by_name[variable].sel(predictor="ba"[i])
            np.testing.assert_array_equal(at, single_result[variable], err_msg=str(variable))
    # The two differ, so that an exchange would have been seen.
    single_result = [values for name, values in result.data_vars.items() if name != "entropy"]
    assert any(not values.isel(member=0).equals(values.isel(member=1)) for values in single_result)
    for item in lone:
        assert not {"member", "predictor", "step"} & set(item.dims)


# identify, whose fits take long, has its own test on a run.
ON_RUNS = [name for name, (_, build) in DIAGNOSTICS.items() if build is attention and name != "identify"]
# All of them take members and steps apart by the same code.
QUICK = ("per_length", "gradient_shares", "weight_distance")


@pytest.fixture(scope="module")
def run():
    start = icl.ensemble(attention, seeds=2, key=KEY)
    record = Record(keep=STEPS, progress=False)
    x, y = (
        np.random.default_rng(0).normal(size=(12, LENGTH + 1, DIM)),
        np.random.default_rng(1).normal(size=(12, LENGTH + 1)),
    )
    return icl.fit(
        start,
        regression(),
        data=jax.vmap(RegressionPrompt)(jnp.asarray(x, float), jnp.asarray(y, float)),
        steps=STEPS[-1],
        key=KEY,
        batch=4,
        optimizer=lambda rate: optax.sgd(rate),
        sweep={"optimizer.rate": [0.01, 0.1]},
        record=record,
    )


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ON_RUNS]
)
def test_a_run_is_its_trained_members_and_its_trajectory_the_kept_steps(name, run):
    assert isinstance(run, Run)
    measure = DIAGNOSTICS[name][0]
    end, along = measure(run), measure(run.trajectory)
    xr.testing.assert_identical(end, measure(run.members))
    np.testing.assert_array_equal(along["step"], STEPS)
    np.testing.assert_array_equal(along["seed"], [0, 0, 1, 1])
    np.testing.assert_allclose(along["optimizer.rate"], [0.01, 0.1] * 2, rtol=1e-6)
    for variable, values in along.data_vars.items():
        assert values.dims[:2] == ("member", "step")
        for step in STEPS:
            single_result = measure(run.trajectory.at(step))
            np.testing.assert_array_equal(values.sel(step=step), single_result[variable], err_msg=str(variable))
    # Before training the two rates of one seed are one network.
    first = along.isel(step=0)
    equal = (first.isel(member=0, drop=True), first.isel(member=1, drop=True))
    for variable in along.data_vars:
        np.testing.assert_array_equal(equal[0][variable], equal[1][variable])
    assert any(not v.isel(member=0).equals(v.isel(member=1)) for v in end.data_vars.values())


class Counted(AbstractPredictor):
    """Answers one number everywhere, and counts how often it is traced."""

    value: jax.Array
    count: object = eqx.field(static=True)

    def __call__(self, prompt):
        next(self.count)
        return jnp.broadcast_to(self.value, prompt.y.shape)


def test_all_members_are_one_compiled_program():
    """Eight members are traced as often as one is; and members with other numbers not again."""

    def traced(values):
        count = itertools.count()
        stacked = Counted(jnp.asarray(values), count)
        members = Ensemble(stacked, {"seed": np.arange(len(values))})
        result = per_length(members, regression(), key=KEY, prompts=8)
        first = next(count)
        per_length(Ensemble(Counted(2 * stacked.value, count), members.coordinates), regression(), key=KEY, prompts=8)
        assert next(count) == first + 1  # the call of next itself
        return first, result.loss

    item, _ = traced([1.0])
    eight, losses = traced(np.arange(8.0))
    assert eight == item
    # (y - c)^2 grows in the order of c but for the mean of y: members keep theirs.
    assert np.all(np.diff(losses.mean("position").values[3:]) > 0)


def test_predictors_that_leave_jax_are_asked_one_by_one():
    class Host(AbstractPredictor):
        traceable = False
        value: jax.Array

        def __call__(self, prompt):
            return jnp.asarray(np.full(prompt.y.shape, np.float32(self.value)))

    members = Ensemble(Host(jnp.array([0.0, 1.0])), {"seed": np.arange(2)})
    result = per_length(members, regression(), key=KEY, prompts=8)
    for i in range(2):
        item = per_length(members.member(i), regression(), key=KEY, prompts=8)
        np.testing.assert_array_equal(result.loss[i], item.loss)
    assert not result.loss[0].equals(result.loss[1])


def test_a_difference_from_a_predictor_is_that_from_its_name():
    ridge, network = Ridge(1.0), descent()
    by_name = per_length({"it": network, "ridge": ridge}, regression(), key=KEY, prompts=8, against="ridge")
    single = per_length(network, regression(), key=KEY, prompts=8, against=ridge)
    for name in ("difference", "difference_error", "difference_mean", "difference_mean_error"):
        np.testing.assert_array_equal(single[name], by_name[name].sel(predictor="it"))
        np.testing.assert_array_equal(by_name[name].sel(predictor="ridge"), 0)
    assert single.attrs["against"] == "Ridge"
    members = Ensemble(jax.vmap(Ridge)(jnp.array([0.1, 1.0])), {"seed": np.arange(2)})
    with pytest.raises(InputError, match="unknown predictor 'ridge'; known: none"):
        per_length(members, regression(), key=KEY, against="ridge")


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ([Ridge(1.0)], f"it: expected {KINDS}, got 'list'"),
        (3, f"it: expected {KINDS}, got 'int'"),
        (Ridge, f"it: expected {KINDS}, got 'the class Ridge'"),
        ({"a": [1]}, f"it: expected {KINDS}, got \"a mapping with 'a': list\""),
        ({3: Ridge(1.0)}, f"it: expected {KINDS}, got 'a mapping with 3: Ridge'"),
        ({}, "it: expected at least one, by name, got {}"),
        (
            Ensemble(jax.vmap(Ridge)(jnp.ones(1)), {"seed": np.zeros(1), "step": np.zeros(1)}),
            "ensemble: expected swept names other than member and step, got 'step'",
        ),
    ],
)
def test_anything_else_is_refused_in_a_line_with_the_four_kinds(subject, message):
    with pytest.raises(InputError) as warning_records:
        PredictorAxes.from_predictors(subject, "it")
    assert str(warning_records.value) == message


def refused_by(name):
    measure = DIAGNOSTICS[name][0]
    with pytest.raises(InputError) as warning_records:
        measure([descent()])
    return str(warning_records.value)


@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_every_diagnostic_refuses_a_list(name):
    assert f"expected {KINDS}, got 'list'" in refused_by(name)
    assert "\n" not in refused_by(name)


def test_a_run_that_kept_nothing_has_no_trajectory_to_measure(run):
    empty = type(run.trajectory)((), {}, None, run.members.coordinates)
    with pytest.raises(
        InputError, match=r"predictors: expected kept steps, got 'none'; keep them: fit\(\.\.\., record"
    ):
        per_length(empty, regression(), key=KEY)


class Even(AbstractModel):
    """Heads that attend evenly."""

    heads: int = eqx.field(static=True)

    def trace(self, prompt, edit=None):
        tokens = prompt.positions
        pattern = jnp.full((self.heads, tokens, tokens), 1 / tokens)
        return Trace(jnp.zeros((tokens, 4)), {"block0.pattern": pattern})


def test_predictors_without_an_inside_and_of_other_sizes_are_refused():
    task = RepeatedTokens(vocabulary=4, period=3)
    with pytest.raises(InputError, match="model: expected a model, whose trace has activations, got 'function'"):
        head_scores(lambda prompt: prompt.tokens, task, key=KEY)
    with pytest.raises(InputError, match=r"model: expected the heads \['block0.0', 'block0.1'\] everywhere, got \['"):
        head_scores({"a": Even(2), "b": Even(1)}, task, key=KEY, prompts=2)
    two = eqx.filter_jit(lambda key: LinearAttention.ahn(dim=DIM, layers=2, std=0.5, key=key))(KEY)
    with pytest.raises(InputError, match=r"r_squared: expected the shape \[2, 2, 2\] for every predictor, got"):
        probed({"one": two_members(attention).member(0), "two": two})
    with pytest.raises(InputError, match="model: expected linear attention, or an algorithm with a construction"):
        weight_distance({"a": Ridge(1.0)}, descent())
