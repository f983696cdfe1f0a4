"""Losses that say little are named, by predictor and position, and honest predictors are not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import algorithms
from icllab.core.errors import ResultWarning
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor, AbstractTask
from icllab.diagnostics import PromptSplit, icl_scores, identify, per_length
from icllab.diagnostics.behaviour.loss_warnings import loss_warnings
from icllab.models import Recurrent, Transformer
from icllab.models.networks.embedding import Interleaved
from icllab.models.networks.transformer import BlockOptions
from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, Table
from icllab.tasks.fixed_prompts import FixedPrompts
from icllab.training import Ensemble

KEY = jax.random.key(3)
DIM, LENGTH = 2, 6
SHAPE = {"dim": DIM, "normalised": True, "half": True}
RIDGE = algorithms.Ridge(0.25)


def regression(scale=1.0, noise=0.25):
    inputs = GaussianInputs(jnp.asarray(float(scale)))
    return LinearRegression(DIM, LENGTH, inputs, GaussianWeights(jnp.ones(())), jnp.asarray(float(noise)))


TASK = regression()


def mean_of_labels(prompt):
    return jnp.pad(jnp.cumsum(prompt.y[:-1]), (1, 0)) / jnp.maximum(jnp.arange(prompt.positions), 1).astype(float)


HONEST = {
    "ridge": RIDGE,
    "strong": algorithms.Ridge(5.0),
    "step": algorithms.GradientDescent(0.3, layers=1, **SHAPE),
    "zero": lambda prompt: 0 * prompt.y,
    "mean": mean_of_labels,
}


@pytest.mark.parametrize(("prompts", "scale"), [(4, 1.0), (64, 1.0), (64, 1e-6)])
def test_honest_predictors_are_not_warned_of(prompts, scale):
    task = regression(scale, 0.1 * scale)
    assert per_length(HONEST, task, key=KEY, prompts=prompts).attrs["warnings"] == []
    assert icl_scores(HONEST, task, key=KEY, prompts=prompts).attrs["warnings"] == []


def test_what_rounding_leaves_of_a_perfect_answer_is_not_warned_of():
    """Without noise, the losses after ``DIM`` examples are rounding, of which few prompts have most."""
    result = per_length(algorithms.LeastSquares(), regression(noise=0.0), key=KEY, prompts=512)
    late = result.sel(position=DIM)
    assert 0 < float(late.loss) < 1e-4
    assert float(late.standard_error) > 0.5 * float(late.loss)
    assert result.attrs["warnings"] == []


class Broken(AbstractPredictor):
    """Another value at one position of the prompts whose first input is above a limit."""

    position: int
    value: float
    limit: float = 1.0

    def __call__(self, prompt):
        answers = RIDGE(prompt)
        hit = (prompt.x[0, 0] > self.limit) & (jnp.arange(prompt.positions) == self.position)
        return jnp.where(hit, self.value, answers)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_answers_that_are_no_numbers_are_named_with_predictor_and_position(value):
    position = int(np.random.default_rng().integers(LENGTH + 1))
    with pytest.warns(ResultWarning, match=f"predictor 'broken': the loss is not finite at position {position}, of"):
        result = per_length({"ridge": RIDGE, "broken": Broken(position, value)}, TASK, key=KEY, prompts=32)
    (text,) = result.attrs["warnings"]
    assert text.endswith(f"of {int((first_inputs(32) > 1).sum())} of 32 prompts")


@eqx.filter_jit
def first_inputs(prompts):
    return jax.vmap(lambda key: TASK.sample(key=key).x[0, 0])(jax.random.split(KEY, prompts))


def test_a_mean_that_few_prompts_carry_is_named():
    limit = float(np.sort(np.asarray(first_inputs(256)))[-2])
    result = per_length({"rare": Broken(4, 300.0, limit)}, TASK, key=KEY, prompts=256)
    assert result.attrs["warnings"] == [
        "predictor 'rare': the standard error exceeds half of the mean loss at position 4: a few prompts carry it"
    ]
    assert float(result.standard_error[0, 4]) > 0.5 * float(result.loss[0, 4])


def test_scores_of_a_descent_that_diverges_are_warned_of():
    diverging = algorithms.GradientDescent(4.0, layers=20, **SHAPE)
    for prompts in (4, 64):
        with pytest.warns(ResultWarning, match="predictor 'GradientDescent'.*position 6"):
            icl_scores(diverging, TASK, key=KEY, prompts=prompts)
        with pytest.warns(ResultWarning, match="predictor 'GradientDescent'"):
            per_length(diverging, TASK, key=KEY, prompts=prompts)


def test_a_huge_loss_is_told_with_its_scale():
    """Of answers that differ little between prompts, so that the standard error is small."""
    (text,) = loss_warnings(np.full((50, 2), [1.0, 3e7]), ["position 0", "position 1"], scale=2.0)
    assert text == "the mean loss at position 1 is 3e+07, and that of answering the mean target is 2"


def test_padding_is_no_missing_answer():
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(size, DIM)), rng.normal(size=size)) for size in (3, 5, 5, 4) * 8]
    prompts = RegressionPrompt.from_ragged(rows)
    task = FixedPrompts(TASK, prompts, jnp.asarray(32))
    assert (
        per_length(lambda prompt: jnp.where(prompt.mask, 0 * prompt.y, jnp.nan), task, key=KEY, prompts=32).attrs[
            "warnings"
        ]
        == []
    )


def untrained():
    """Twenty networks: each of two architectures, its weights times ten factors."""
    block = BlockOptions(heads=1, mlp=(8,), norm="pre")
    networks = [
        eqx.filter_jit(Transformer)(Interleaved(), dim=DIM, width=8, layers=1, block=block, positions="none", key=KEY),
        eqx.filter_jit(Recurrent)(dim=DIM, width=8, key=KEY),
    ]
    factors = np.geomspace(0.1, 10, 10)
    for network in networks:
        arrays, static = eqx.partition(network, eqx.is_inexact_array)
        stacked = jax.tree.map(
            lambda leaf: jnp.asarray(np.multiply.outer(factors, np.asarray(leaf)), leaf.dtype), arrays
        )
        yield Ensemble(eqx.combine(stacked, static), {"seed": np.arange(10)})


def test_untrained_networks_are_not_asked_for_their_units():
    above = 0
    for members in untrained():
        result = per_length(members, TASK, key=KEY, prompts=512)
        assert not any("units" in text for text in result.attrs["warnings"])
        above += int((result.loss.sel(position=0) > 2 * 2.25).sum())
    assert above >= 3  # so that the losses alone would accuse some


def other_units():
    offset = float(np.random.default_rng().uniform(4, 40))
    return {
        "an offset": lambda prompt: RIDGE(prompt) + offset,
        "a constant": lambda prompt: jnp.full_like(prompt.y, offset),
        "no labels": lambda prompt: offset * prompt.x[:, 0],
    }


def test_a_network_with_other_units_is_asked_for_them():
    networks = other_units()
    with pytest.warns(ResultWarning, match="units\\?"):
        result = per_length(networks | {"ridge": RIDGE}, TASK, key=KEY, prompts=256)
    asked = " ".join(text for text in result.attrs["warnings"] if text.endswith("units?"))
    assert {name for name in (*networks, "ridge") if f"predictor {name!r}" in asked} == set(networks)
    with pytest.warns(ResultWarning, match="predictor '<lambda>': the loss before the first label is .* units\\?"):
        result = identify(networks["an offset"], {"ridge": RIDGE}, TASK, key=KEY, prompts=PromptSplit(256, fitting=20))
    assert "units?" in str(result.warning.values)


def test_a_table_far_from_zero_is_no_mismatch():
    """Nothing is known of its mean before the first label."""
    rng = np.random.default_rng(0)
    table = Table(rng.normal(size=(60, DIM)), 50 + rng.normal(size=60), length=LENGTH)
    assert per_length({"ridge": RIDGE, "zero": HONEST["zero"]}, table, key=KEY, prompts=64).attrs["warnings"] == []


class Halves(AbstractTask):
    """A user's task whose predictions are pairs of numbers."""

    def sample(self, *, key):
        return TASK.sample(key=key)

    def loss(self, prediction, prompt):
        return (prediction[:, 0] + prediction[:, 1] - prompt.y) ** 2


def test_a_task_with_other_predictions_is_measured_all_the_same():
    result = per_length(
        lambda prompt: jnp.stack([prompt.x[:, 0], prompt.x[:, 1]], axis=1), Halves(), key=KEY, prompts=20
    )
    assert result.attrs["warnings"] == []
