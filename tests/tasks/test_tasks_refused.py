"""Arguments that make no task are refused in one line, before anything is drawn."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused, unchecked

from icllab.tasks import (
    FixedPrompts,
    FunctionRegression,
    GaussianInputs,
    GaussianWeights,
    HierarchicalRegression,
    HigherOrderChain,
    IntegratedRegression,
    ItemLabel,
    LabelRelations,
    LinearRegression,
    MarkovChain,
    PeriodicStrings,
    PromptMixture,
    SphereInputs,
    Standardised,
    StringPrograms,
    Table,
    UniformInputs,
    WeightPool,
)

KEY = jax.random.key(0)
TASK = LinearRegression.convention("raventos", dim=2, length=3)
INTEGER = "expected an integer of at least 1, got "
SQUARES = np.arange(8.0).reshape(4, 2) ** 2
INPUTS = "expected a distribution of inputs such as GaussianInputs(1.0)"
WEIGHTS = "expected a distribution of weights such as GaussianWeights(1.0)"


def functions(**change):
    fields = {"dim": 2, "length": 3, "inputs": SphereInputs(1.0), "kernel": "linear"}
    return FunctionRegression(**fields | {"temperature": 1.0, "noise_variance": 0.1} | change)


def hierarchical(**change):
    return HierarchicalRegression(**{"dim": 2, "length": 3, "factors": 1} | change)


def items(**change):
    return ItemLabel.init(**{"classes": 8, "labels": 8, "pairs": 4, "dim": 3, "no_repeats": True, "key": KEY} | change)


def relations(**change):
    return LabelRelations.init(**{"items": items(), "relations": 2, "key": KEY} | change)


def fixed(**change):
    return FixedPrompts.from_task(**{"task": TASK, "count": 4, "key": KEY} | change)


def programs(**change):
    return StringPrograms.init(**{"functions": 2, "symbols": 4, "lengths": (2, 3), "key": KEY} | change)


def higher(**change):
    return HigherOrderChain.init(**{"vocabulary": 2, "order": 1, "tokens": 6, "key": KEY} | change)


def chain(**change):
    return MarkovChain.init(**{"vocabulary": 2, "tokens": 6, "key": KEY} | change)


def scaled(**change):
    return LinearRegression.from_scaling(**{"dim": 2, "alpha": 1.0, "kappa": 1.0, "rho": 0.1, "key": KEY} | change)


def regression(**change):
    fields = {"dim": 2, "length": 3, "inputs": GaussianInputs(1.0), "weights": GaussianWeights(1.0)}
    return LinearRegression(**fields | {"noise_variance": 0.1} | change)


NUMBERS = (
    (GaussianInputs, "covariance"),
    (GaussianWeights, "covariance"),
    (UniformInputs, "half_width"),
    (SphereInputs, "radius"),
    (regression, "noise_variance"),
)


def pool(**change):
    return WeightPool.init(GaussianWeights(1.0), **{"size": 2, "dim": 3, "key": KEY} | change)


def periodic(**change):
    fields = {"vocabulary": 9, "shortest": 2, "longest": 4, "tokens": 11, "held_out": 0}
    return PeriodicStrings(**fields | change)


def shuffled(**change):
    return Table(SQUARES, SQUARES[:, 0], length=2).shuffled(**change)


def many(**change):
    return TASK.sample_many(**{"count": 2} | change)


@pytest.mark.parametrize("make", [items, relations, fixed, programs, higher, chain, pool, scaled, shuffled, many])
@pytest.mark.parametrize(
    ("key", "came"), [(0, "0; jax.random.key(0) makes one from a seed"), (np.zeros(2, np.uint32), "'")]
)
def test_a_seed_is_no_key(make, key, came):
    assert_refused(lambda: make(key=key), f"key: expected one random key of JAX, got {came}")


@pytest.mark.parametrize(
    ("make", "change", "said"),
    [
        *[
            (scaled, {name: value}, f"{name}: expected {domain}, got {value!r}")
            for name, domain, values in (
                ("dim", "an integer of at least 1", (0,)),
                ("alpha", "a finite number > 0", (-1.0, math.nan, math.inf, "1")),
                ("kappa", "a number > 0", (0.0, "inf")),
                ("rho", "a finite number >= 0", (-0.1, "1", True)),
            )
            for value in values
        ],
        *[
            (law, {name: value}, f"{name}: expected real numbers, got {text}")
            for law, name in NUMBERS
            for value, text in (("1", "'1'"), (1j, "'numbers of type complex64'"), (True, "'numbers of type bool'"))
        ],
        *[
            (law, {name: value}, f"{name}: expected a finite number >= 0, got")
            for law, name in NUMBERS[2:]
            for value in (-1.0, math.nan, math.inf, np.ones((2, 3)), np.ones(1))
        ],
        (regression, {"inputs": GaussianWeights(1.0)}, f"inputs: {INPUTS}, got 'GaussianWeights'"),
        (regression, {"inputs": 1.0}, f"inputs: {INPUTS}, got 'float'"),
        (regression, {"weights": GaussianInputs(1.0)}, f"weights: {WEIGHTS}, got 'GaussianInputs'"),
        (regression, {"weights": GaussianWeights}, f"weights: {WEIGHTS}, got 'the class GaussianWeights'"),
        (
            regression,
            {"weights": WeightPool(jnp.ones((5, 3)), GaussianWeights(1.0))},
            "weights: expected a pool of vectors of 2 dimensions, got 'shape (5, 3)'",
        ),
        (
            LinearRegression.convention,
            {"name": "raventoss", "dim": 2, "length": 2},
            "unknown convention 'raventoss'; did you mean 'raventos'?",
        ),
        (pool, {"size": 0}, f"size: {INTEGER}0"),
        (pool, {"size": -1}, f"size: {INTEGER}-1"),
        (pool, {"dim": 0}, f"dim: {INTEGER}0"),
        (periodic, {"shortest": 1}, "shortest: expected an integer of at least 2, got 1"),
        (periodic, {"shortest": 5}, "longest: expected at least the shortest period, 5, got 4"),
        (periodic, {"tokens": 4}, "tokens: expected more than the longest period, 4, got 4"),
        (periodic, {"held_out": 3}, "vocabulary: expected more than 10, so that a token is left"),
        (functions, {"kernel": "relu"}, "kernel: expected a positive semi-definite kernel, got 'relu'"),
        (functions, {"kernel": "gauss"}, "kernel: expected linear, relu, exponential or a function, got 'gauss'"),
        (
            functions,
            {"kernel": "softmax"},
            "kernel: expected linear, relu, exponential or a function, got 'softmax'; a softmax is not symmetric",
        ),
        (functions, {"temperature": 0.0}, "temperature: expected a finite number > 0, got 0.0"),
        (functions, {"noise_variance": -0.1}, "noise_variance: expected a finite number >= 0, got -0.1"),
        (functions, {"length": 0}, f"length: {INTEGER}0"),
        (hierarchical, {"dim": 0}, f"dim: {INTEGER}0"),
        (hierarchical, {"length": 0}, f"length: {INTEGER}0"),
        (hierarchical, {"factors": 0}, f"factors: {INTEGER}0"),
        *[
            (hierarchical, {"least_explained": least, "most_explained": most}, "least_explained and most_explained: ")
            for least, most in ((0.6, 0.4), (0.0, 1.5), (math.nan, 1.0))
        ],
        (fixed, {"count": 0}, f"count: {INTEGER}0"),
        *[
            (
                lambda size: FixedPrompts(TASK, fixed().prompts, size),
                {"size": size},
                "size: expected a whole number from",
            )
            for size in (0, 5, 2.5, math.nan)
        ],
        (functions, {"temperature": [1.0, 2.0]}, "temperature: expected a finite number > 0, got [1.0, 2.0]"),
        (functions, {"temperature": np.ones(9)}, "temperature: expected a finite number > 0, got 'shape (9,)'"),
        (functions, {"temperature": "1"}, "temperature: expected real numbers, got '1'"),
        (functions, {"noise_variance": True}, "noise_variance: expected real numbers, got 'numbers of type bool'"),
        (functions, {"dim": True}, f"dim: {INTEGER}True"),
        (functions, {"repair": "no"}, "repair: expected True or False, got 'no'"),
        (
            functions,
            {"inputs": 1.0},
            "inputs: expected a distribution of inputs such as GaussianInputs(1.0), got 'float'",
        ),
        (
            functions,
            {"inputs": GaussianInputs},
            "inputs: expected a distribution of inputs such as GaussianInputs(1.0)",
        ),
        (hierarchical, {"least_explained": "0"}, "least_explained: expected real numbers, got '0'"),
        (
            hierarchical,
            {"most_explained": np.ones(2)},
            "most_explained: expected a number from 0 to 1, got 'shape (2,)'",
        ),
        (PromptMixture, {"p_bursty": [1.0, 1.0]}, "p_bursty: expected a number from 0 to 1, got [1.0, 1.0]"),
        (PromptMixture, {"p_novel": None}, "p_novel: expected real numbers, got 'NoneType'"),
        (items, {"pairs": "4"}, f"pairs: {INTEGER}'4'"),
        (items, {"no_repeats": "no"}, "no_repeats: expected True or False, got 'no'"),
        (items, {"mixture": 0.5}, "mixture: expected one such as PromptMixture(p_bursty=0.5), or None, got 'float'"),
        (
            items,
            {"within_class_noise": jnp.ones(2)},
            "within_class_noise: expected a finite number >= 0, got [1.0, 1.0]",
        ),
        (relations, {"rows": "2"}, "rows: expected an integer of at least 0, got '2'"),
        (relations, {"items": TASK}, "items: expected an ItemLabel task, got 'LinearRegression'"),
        (fixed, {"count": 2.5}, f"count: {INTEGER}2.5"),
        (
            fixed,
            {"task": LinearRegression},
            "task: expected a task, with methods sample and loss, got 'the class Linear",
        ),
        (programs, {"lengths": 3}, "lengths: expected lengths of strings, such as (4, 8), got 3"),
        (programs, {"lengths": ("3",)}, f"lengths: {INTEGER}'3'"),
        (
            programs,
            {"programs": [0, 1]},
            "programs: expected a sequence of sequences of functions, such as [(0,), (0, 1)]",
        ),
        (programs, {"turned": "no"}, "turned: expected True or False, got 'no'"),
        (programs, {"noise": [0.1, 0.1]}, "noise: expected a number from 0 to 1, got [0.1"),
        (IntegratedRegression, {"task": "raventos"}, "task: expected a LinearRegression, got 'str'"),
        (
            Standardised,
            {"predictor": Standardised},
            "predictor: expected a function of a prompt, got 'the class Standar",
        ),
        (many, {"count": 2.5, "key": KEY}, "count: expected an integer of at least 0, got 2.5"),
    ],
)
def test_what_makes_no_task_is_refused(make, change, said):
    assert_refused(lambda: make(**change), said)


@unchecked()
def test_numbers_that_are_arrays_or_traced_are_still_taken():
    temperature = jax.eval_shape(lambda t: functions(temperature=t).temperature, jnp.asarray(1.0))
    assert temperature.shape == ()
    many = jax.vmap(lambda noise: functions(noise_variance=noise).noise_variance)(jnp.ones(3))
    assert many.shape == (3,)
