"""Sections on networks of known answer, at a small size of the task: verdicts, numbers and nulls."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from icllab import algorithms, constructions, tasks
from icllab.algorithms import KernelRichardson, NormalisedDescent
from icllab.algorithms.descent import GradientDescentPlusPlus
from icllab.algorithms.estimators import NearestNeighbours
from icllab.core.kernels import gaussian
from icllab.core.protocols import AbstractPredictor
from icllab.examination.examining import Examination, answer
from icllab.examination.measuring import Mean, Zero, latest, shuffled
from icllab.examination.results import circuit
from icllab.examination.section import SIZES, Pace, Size
from icllab.examination.sections import SECTIONS, algorithm, heads
from icllab.examination.sentences import first_sentences
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
        first = self.share * self.first(prompt)
        return first if isinstance(self.second, Zero) else first + (1 - self.share) * self.second(prompt)


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


class Follower(AbstractPredictor):
    """What followed an earlier place of the present token: the newest, the oldest, or all with equal logits.

    The last token never follows, and its logit lies far below all others.
    """

    vocabulary: int = eqx.field(static=True)
    which: str = eqx.field(static=True)
    wrong: float = eqx.field(static=True, default=0.0)  # a logit of the present token before it repeats

    def __call__(self, prompt):
        count = prompt.positions
        present, following = prompt.tokens[:count], prompt.tokens[1 : count + 1]
        places = jnp.arange(count)
        same = (present[:, None] == present[None]) & (places[:, None] > places[None])
        order = {"newest": places, "oldest": -places, "all": 0 * places}[self.which][None]
        best = jnp.max(jnp.where(same, order, -count), axis=1, keepdims=True)
        found = (same & (order == best)).astype(float) @ jax.nn.one_hot(following, self.vocabulary, dtype=float)
        alone = (~same.any(1, keepdims=True)).astype(float) * jax.nn.one_hot(present, self.vocabulary, dtype=float)
        return (10.0 * jnp.minimum(found, 1.0) + self.wrong * alone).at[:, -1].set(-1e12)


@pytest.mark.parametrize("which", ["newest", "oldest", "all"])
def test_the_place_that_an_induction_head_follows_is_named_where_places_differ(which):
    task = tasks.parse("repeated_tokens vocabulary=5 period=8 first=5")
    wanted = "induction" if which == "all" else f"induction, {which}"
    assert finding("algorithm", Follower(6, which), task).verdict == wanted
    once = tasks.parse("repeated_tokens vocabulary=12 period=8 distinct=true first=12")
    assert finding("algorithm", Follower(13, which), once).verdict == "induction"  # one earlier place only


def test_sequences_are_judged_where_the_context_was_seen():
    """A network that is confident and wrong before anything repeats is right in its units, and heads may carry it."""
    task = tasks.parse("repeated_tokens vocabulary=12 period=8 distinct=true first=12")
    confident = Follower(13, "newest", wrong=80.0)
    assert finding("contract", confident, task).verdict == "sound"
    assert finding("in_context", confident, task).verdict == "learns in context"
    loud = Together(Follower(6, "newest"), Zero(), 5.0)
    places = tasks.parse("repeated_tokens vocabulary=5 period=8 first=5")
    assert finding("contract", loud, places).verdict == "other units"


def test_losses_of_sequences_are_means_of_their_last_eighth_without_positions_that_have_none():
    samples = np.arange(32.0).reshape(2, 16)
    assert latest("tokens", samples).tolist() == [14.5, 30.5]
    assert latest("regression", samples).tolist() == [15.0, 31.0]
    samples[0, -1], samples[1, -2:] = np.nan, np.nan
    assert np.array_equal(latest("tokens", samples), [14.0, np.nan], equal_nan=True)


class NearestItem(AbstractPredictor):
    """The label of the item nearest to the query, or always the last label."""

    nearest: bool = eqx.field(static=True)
    positions = "last"

    def __call__(self, prompt):
        near = jnp.argmin(jnp.sum((prompt.items[:-1] - prompt.items[-1:]) ** 2, -1)) if self.nearest else -2
        return 10 * jax.nn.one_hot(prompt.labels[near], 4)[None]


@pytest.mark.parametrize(("nearest", "verdict"), [(True, "nearest item"), (False, "last label")])
def test_the_algorithm_of_items_and_labels(nearest, verdict):
    task = tasks.parse("item_label classes=32 labels=4 pairs=4 dim=15 position_dim=9 burstiness=1 p_novel=1")
    assert finding("algorithm", NearestItem(nearest), task).verdict == verdict


class ByHeart(AbstractPredictor):
    """The label of the class whose mean is nearest to the query, whatever the context shows, or as it shows."""

    means: jax.Array
    share: float = eqx.field(static=True, default=1.0)
    positions = "last"

    def __call__(self, prompt):
        known = jax.nn.one_hot(jnp.argmax(self.means @ prompt.items[-1]) % 4, 4)
        shown = NearestItem(True)(prompt)[0] / 10
        return 10 * (self.share * known + (1 - self.share) * shown)[None]


@pytest.mark.parametrize(
    ("share", "verdict", "exchanged"), [(1.0, "memorised", 0.0), (0.0, "general", 1.0), (0.3, "general", 1.0)]
)
def test_known_classes_are_memorised_or_read_from_the_context(share, verdict, exchanged):
    task = tasks.parse("item_label classes=16 labels=4 pairs=4 dim=31 position_dim=9 burstiness=1 p_novel=0.5")
    subject = Subject.of(ByHeart(task.means, share), task)
    answered = answer(subject, SECTIONS["memorising"], SMALL, jax.random.key(0), PACE)
    assert answered.finding.verdict == verdict
    accuracies = answered.dataset["accuracy"]
    assert abs(float(accuracies.sel(world="exchanged")) - exchanged) < 0.1
    novel = tasks.parse("item_label classes=none labels=4 pairs=4 dim=31 position_dim=9 burstiness=1 p_novel=1")
    assert SECTIONS["memorising"].lacks(Subject.of(NearestItem(True), novel)).startswith("all classes")


def accuracies(in_context, by_heart, error=0.01):
    variables = {
        "accuracy": ("world", [in_context, by_heart, 0.5]),
        "accuracy_error": ("world", [error, error, error]),
    }
    coords = {"world": ["in context", "in weights", "exchanged"]}
    return xr.Dataset(variables, coords, {"kind": "item labels", "chance": 0.2})


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ((0.9, 0.3), "general"),
        ((0.3, 0.9), "memorised"),
        ((0.9, 0.9), "memorised and general"),
        ((0.2, 0.2), "neither"),
        ((0.9, 0.59), "undecided"),
        ((0.9, 0.3, 0.3), "undecided"),
    ],
)
def test_accuracies_are_judged_half_way_from_chance(numbers, verdict):
    assert SECTIONS["memorising"].judge(accuracies(*numbers)).verdict == verdict


class Steps(AbstractPredictor):
    """Steps of descent, or of GD++."""

    steps: int = eqx.field(static=True)
    contraction: float = eqx.field(static=True)

    def __call__(self, prompt):
        options = {"layers": self.steps, "dim": 2, "normalised": True, "half": True}
        return GradientDescentPlusPlus.scalar(0.5, self.contraction, **options)(prompt)


SIGNS = tasks.SignLabels(TASK)
SMOOTH = tasks.FunctionRegression(2, 6, tasks.GaussianInputs(1.0), kernel=gaussian, temperature=1.0, noise_variance=0.5)


def descending():
    return constructions.gradient_descent(NormalisedDescent(0.8, layers=3, dim=2))


def richardson():
    iteration = KernelRichardson(0.5, kernel=gaussian, temperature=1.0, layers=3)
    return constructions.kernel_richardson(iteration, dim=2, pieces=60, size=4.0)


@pytest.mark.parametrize(
    ("network", "task", "own", "others"),
    [
        (descending, SIGNS, "on the exponential loss", "of Richardson"),
        (richardson, SMOOTH, "of Richardson", "exponential"),
    ],
)
def test_steps_of_softmax_attention_are_candidates_for_their_tasks_alone(network, task, own, others):
    names = algorithm.candidates(Subject.of(network(), task))
    assert {f"{steps} steps {own}" for steps in algorithm.STEPS} <= set(names)
    assert not [name for name in names if others in name]


@pytest.mark.parametrize(("task", "unit"), [(SIGNS, "nats"), (TASK, "squared error")])
def test_the_unit_of_a_loss_is_the_loss_of_the_task(task, unit):
    found = finding("in_context", Zero(), task)
    assert f"({unit})" in found.sentence
    assert found.what.endswith(unit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "task", "verdict"),
    [(descending, SIGNS, "3 steps on the exponential loss"), (richardson, SMOOTH, "3 steps of Richardson")],
)
def test_constructed_softmax_attention_is_named(network, task, verdict):
    assert finding("algorithm", network(), task).verdict == verdict


@pytest.mark.parametrize(
    ("network", "verdict"),
    [
        (Steps(3, 0.0), "3 steps of descent"),
        (Mean(), "mean"),
        (Together(Mean(), Zero(), 0.5), "a baseline"),
    ],
)
def test_the_algorithm_is_named_if_no_other_accepted_one_is_near(network, verdict):
    assert finding("algorithm", network).verdict == verdict


def judged(fractions, accepted):
    """The finding of candidates that leave these fractions, with intervals of a tenth of each."""
    values = np.array(fractions)
    variables = {
        "verdict": "indistinguishable",
        "fraction_unexplained": ("candidate", values),
        "fraction_unexplained_interval": (("candidate", "bound"), np.stack([0.9 * values, 1.1 * values], 1)),
        "among": ("candidate", np.array(accepted)),
        "baseline_explained": 0.1,
    }
    names = ["3 steps of descent", "4 steps of descent", "nearest"]
    attributes = {"kind": "regression", "tolerance": 0.01}
    return SECTIONS["algorithm"].judge(xr.Dataset(variables, {"candidate": names}, attributes))


def test_two_accepted_algorithms_are_told_apart_at_a_twentieth():
    assert judged([1e-4, 3e-3, 0.5], [True, True, False]).verdict == "3 steps of descent"
    assert judged([3e-3, 1e-4, 0.5], [True, True, False]).verdict == "4 steps of descent"
    assert judged([1e-3, 3e-3, 0.5], [True, True, False]).verdict == "indistinguishable"
    assert judged([1.8e-4, 3e-3, 0.5], [True, True, False]).verdict == "indistinguishable"  # within the intervals


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


def test_the_last_sentence_names_the_world_that_is_farthest_from_ridge_where_nothing_is_a_fault():
    answered = answer(Subject.of(RIDGE, TASK), SECTIONS["elsewhere"], SMALL, jax.random.key(0), PACE)
    sentence = first_sentences(Examination({}, (answered,)))[-1]
    assert sentence.startswith("Worst: no fault was found. Farthest from ridge with ")


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
