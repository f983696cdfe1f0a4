"""Sections on networks of known answer, at a small size of the task: verdicts, numbers and nulls."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from icllab import algorithms, constructions, tasks
from icllab.algorithms.estimators import NearestNeighbours
from icllab.core.protocols import AbstractPredictor
from icllab.examination.examining import answer
from icllab.examination.measuring import Mean, Zero, shuffled
from icllab.examination.results import circuit
from icllab.examination.section import SIZES, Pace, Size
from icllab.examination.sections import SECTIONS, heads
from icllab.examination.subject import Subject

TASK = tasks.LinearRegression.convention("raventos", dim=2, length=6)
POOLED = eqx.tree_at(lambda t: t.weights, TASK, tasks.WeightPool.init(TASK.weights, 2, 2, key=jax.random.key(1)))
RIDGE = algorithms.bayes_optimal(TASK)
DMMSE = algorithms.bayes_optimal(POOLED)
PACE = Pace(0.1, 0.01)
SMALL = Size("test", 256, 64, 64, 20)
REPEATED = tasks.RepeatedTokens(vocabulary=16, period=6)


class Together(AbstractPredictor):
    """A combination of two predictors."""

    first: AbstractPredictor
    second: AbstractPredictor
    share: float = eqx.field(static=True)

    def __call__(self, prompt):
        return self.share * self.first(prompt) + (1 - self.share) * self.second(prompt)


class Target(AbstractPredictor):
    """The target at every position."""

    def __call__(self, prompt):
        return prompt.y


class LastTarget(AbstractPredictor):
    """Zero, but for the last two positions, where it is the target."""

    def __call__(self, prompt):
        return jnp.where(jnp.arange(len(prompt.y)) >= len(prompt.y) - 2, prompt.y, 0.0)


def finding(section, network, task=TASK, *, seed=0, size=SMALL, **facts):
    answered = answer(Subject.of(network, task, **facts), SECTIONS[section], size, jax.random.key(seed), PACE)
    assert answered.status == "answered", answered.reason
    return answered.finding


@pytest.mark.parametrize(
    ("network", "verdict"),
    [
        (RIDGE, "sound"),
        (Together(RIDGE, Zero(), 10.0), "other units"),
        (Together(RIDGE, Zero(), 0.1), "other units"),
        (Together(RIDGE, Target(), 0.5), "not causal"),
        (Zero(), "sound"),
    ],
)
def test_contract(network, verdict):
    assert finding("contract", network).verdict == verdict


def test_the_contract_names_the_positions_that_see_their_target():
    found = finding("contract", LastTarget())
    assert found.verdict == "not causal"
    assert found.fault
    assert "positions 5, 6" in found.sentence


@pytest.mark.parametrize(
    ("network", "verdict"),
    [
        (RIDGE, "learns in context"),
        (Together(RIDGE, NearestNeighbours(1), 0.5), "learns in context"),
        (Mean(), "does not learn in context"),
        (Together(RIDGE, Zero(), -1.0), "does not learn in context"),
    ],
)
def test_learning_in_context(network, verdict):
    assert finding("in_context", network).verdict == verdict


def test_the_benefit_of_the_context_is_that_over_the_answer_zero():
    found = finding("in_context", RIDGE, size=SIZES["medium"])
    # Labels have the variance 2 + 1/4; ridge leaves about .25 (1 + 2/6).
    assert abs(found.number - (2.25 - 0.37)) < 6 * found.error < 1
    assert finding("in_context", Zero()).number == 0


def test_learning_in_context_by_an_induction_head_and_by_equal_logits():
    head = constructions.induction_head(16, tokens=12)
    assert finding("in_context", head, REPEATED).verdict == "learns in context"
    assert finding("algorithm", head, REPEATED).verdict == "induction"  # it follows all earlier places alike
    blank = constructions.induction_head(16, tokens=12, read=0.0)
    assert finding("in_context", blank, REPEATED).verdict == "does not learn in context"
    assert finding("algorithm", blank, REPEATED).verdict == "none of these"


def test_heads_of_an_induction_head_carry_it_and_heads_that_are_not_read_carry_nothing():
    head = constructions.induction_head(16, tokens=12)
    found = finding("heads", head, REPEATED)
    assert found.verdict == "carried by heads"
    blank = constructions.induction_head(16, tokens=12, read=0.0)
    assert finding("heads", blank, REPEATED).verdict in ("nothing to carry", "no head alone")


def test_replaced_outputs_of_no_head_change_nothing_and_of_all_heads_destroy_the_answer():
    head = constructions.induction_head(16, tokens=12)
    subject = Subject.of(head, REPEATED)
    dataset = heads.measure(subject, SMALL, jax.random.key(2))
    assert abs(float(dataset["rest"])) < 1e-4  # both heads are named, and nothing is left
    assert float(dataset["all_heads"]) > 1


@pytest.mark.parametrize(
    ("network", "verdict"),
    [
        (DMMSE, "memorised"),
        (RIDGE, "general"),
        (NearestNeighbours(1), "neither"),
    ],
)
def test_memorising(network, verdict):
    assert finding("memorising", network, POOLED, size=SIZES["medium"]).verdict == verdict


def test_p_is_one_at_dmmse_zero_at_ridge_and_the_share_between():
    numbers = [finding("memorising", Together(DMMSE, RIDGE, share), POOLED).number for share in (0.0, 0.3, 1.0)]
    assert np.allclose(numbers, [0.0, 0.3, 1.0], atol=1e-5)


def test_memorising_is_not_asked_without_a_pool():
    answered = answer(Subject.of(RIDGE, TASK), SECTIONS["memorising"], SMALL, jax.random.key(0), PACE)
    assert answered.status == "not asked"
    assert "pool" in answered.reason


def test_elsewhere_ridge_follows_ridge_and_dmmse_fails_on_fresh_tasks():
    assert finding("elsewhere", RIDGE).verdict == "holds up everywhere"
    assert finding("elsewhere", DMMSE, POOLED).verdict == "fails on fresh tasks"


def test_theory_agrees_with_ridge_whatever_the_scale_of_the_inputs():
    found = finding("theory", RIDGE, size=SIZES["medium"])
    assert "ridge" in found.sentence
    assert abs(found.number - 1) < 0.15


def test_shuffled_prompts_keep_the_query_its_target_and_every_label():
    prompts = TASK.sample_many(32, key=jax.random.key(3))
    changed = shuffled(prompts, key=jax.random.key(4))
    assert np.array_equal(changed.x, prompts.x)
    assert np.array_equal(changed.y[:, -1], prompts.y[:, -1])
    assert np.array_equal(np.sort(changed.y, axis=1), np.sort(prompts.y, axis=1))
    assert not np.array_equal(changed.y, prompts.y)


@pytest.mark.slow
def test_probes_read_the_answer_of_ridge_where_a_layer_writes_it():
    step = constructions.gradient_descent(algorithms.GradientDescent(0.9, layers=1, dim=2, normalised=True, half=True))
    probes = heads._probes(Subject.of(step, TASK), SMALL, jax.random.key(0))
    assert probes["probe"][1][0] < 0.2 < 0.4 < probes["probe"][1][1]
    assert heads._probes(Subject.of(RIDGE, TASK), SMALL, jax.random.key(0)) == {}


def test_heads_have_the_names_of_the_circuit_track():
    values = {"ablation_effect": ("attention_head", [0.5, 0.0]), "named": ("attention_head", [1, 0])}
    nodes = circuit(xr.Dataset(values, {"attention_head": ["block0.1", "block12.3"]}))["circuit"]["nodes"]
    assert nodes == {"a0.h1": {"score": 0.5, "in_graph": True}, "a12.h3": {"score": 0.0, "in_graph": False}}


def test_a_section_that_raises_says_so_and_the_others_go_on():
    class Breaks(AbstractPredictor):
        def __call__(self, prompt):
            if prompt.x.shape[0] != 7:
                raise RuntimeError("only seven positions")
            return jnp.zeros_like(prompt.y)

    assert "at 10 positions it raises" in finding("contract", Breaks()).sentence
