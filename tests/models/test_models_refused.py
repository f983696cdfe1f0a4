"""Arguments that make no model are refused in one line, before anything is drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused, unchecked

from icllab.models import (
    Attention,
    BlockOptions,
    Classifier,
    DeepSets,
    Embedding,
    FastWeights,
    FrozenEntities,
    GeneralisedAttention,
    GradientStep,
    Interleaved,
    ItemLabelNetwork,
    Joined,
    LinearAttention,
    MinimalHead,
    PromptPerceptron,
    Recurrent,
    ScalarAttention,
    Tokens,
    Transformer,
    ablated,
    reduced,
    width_for,
)
from icllab.models.contexts.random_features import PositiveFeatures
from icllab.models.networks.dense import Dense, Perceptron
from icllab.models.reduced.samples import Samples, sample
from icllab.tasks import LinearRegression
from icllab.training import ensemble

KEY = jax.random.key(0)
NO_KEY = "key: expected one random key of JAX, got "
INTEGER = "expected an integer of at least 1, got "
TASK = LinearRegression.convention("raventos", dim=2, length=3)
BLOCK = {"heads": 2, "mlp": (4,), "norm": "pre"}
SQUARE, INNER = jnp.ones((1, 3, 3)), jnp.ones((1, 2, 2))
SIGNED = {"sign": 1, "answers": "last", "normalised": True}


def block(**change):
    return BlockOptions(**BLOCK | change)


def transformer(arrangement=None, **change):
    fields = {"dim": 2, "width": 4, "layers": 1, "block": block(), "positions": "none", "key": KEY}
    return Transformer(Interleaved() if arrangement is None else arrangement, **fields | change)


def attention(**change):
    fields = {"width": 4, "heads": 2, "key": KEY} | change
    return Attention(fields.pop("width"), fields.pop("heads"), **fields)


def ahn(**change):
    return LinearAttention.ahn(**{"dim": 2, "layers": 1, "std": 0.1, "key": KEY} | change)


def linear(**change):
    return LinearAttention(**{"p": SQUARE, "q": SQUARE, "causal": False, "query_is_key": False} | SIGNED | change)


def drawn(**change):
    fields = {"dim": 2, "layers": 1, "std": 0.1, "temperature": 1.0, "similarity": "relu", "key": KEY}
    return GeneralisedAttention.init(**fields | SIGNED | change)


def general(**change):
    fields = {"value": SQUARE, "key": INNER, "query": INNER, "temperature": jnp.ones(1), "diagonal": None}
    return GeneralisedAttention(**fields | {"similarity": "relu", "axis": "keys"} | SIGNED | change)


def scalar(**change):
    return ScalarAttention.from_rates(**{"weighting": "relu", "rates": jnp.ones(2)} | change)


def network(**change):
    return ItemLabelNetwork(**{"dim": 2, "position_dim": 5, "labels": 2, "key": KEY} | change)


def fast(**change):
    return FastWeights.init(**{"dim": 2, "hidden": 2, "std": 0.1, "normalised": True, "key": KEY} | change)


def perceptron(**change):
    fields = {"inner": 2, "hidden": (3,), "outer": 1, "nonlinearity": "relu", "key": KEY}
    return Perceptron(**fields | change)


def prompt_perceptron(**change):
    return PromptPerceptron(**{"dim": 2, "length": 3, "hidden": (4,), "answers": "last", "key": KEY} | change)


def recurrent(**change):
    return Recurrent(**{"dim": 2, "width": 3, "key": KEY} | change)


def sets(**change):
    return DeepSets(**{"dim": 2, "width": 3, "hidden": (4,), "pool": "sum", "key": KEY} | change)


def embedding(**change):
    return Embedding(Interleaved(), **{"dim": 2, "width": 4, "positions": "none", "key": KEY} | change)


def classifier(**change):
    return Classifier(**{"width": 2, "labels": 2, "depth": 1, "key": KEY} | change)


def dense(**change):
    return Dense(**{"inner": 2, "outer": 2, "key": KEY} | change)


def minimal(**change):
    return MinimalHead.init(**{"dim": 2, "labels": 2, "key": KEY} | change)


def reading(**change):
    return MinimalHead.reading(**{"labels": 2} | change)


def positive(**change):
    return PositiveFeatures.init(**{"features": 2, "dim": 2, "key": KEY} | change)


def fitted(**change):
    return reduced.fit(**{"task": TASK, "prompts": 9, "ridge": 0.1, "key": KEY} | change)


def shuffled(**change):
    return Samples.from_rows(np.ones((2, 2)), np.ones((2, 3)), np.ones(2)).shuffled(**change)


@pytest.mark.parametrize(
    "make",
    [
        *(transformer, embedding, attention, dense, perceptron, classifier, prompt_perceptron, recurrent, sets),
        *(ahn, drawn, network, minimal, fast, positive, fitted, shuffled),
    ],
)
@pytest.mark.parametrize(
    ("key", "came"),
    [(0, "0; jax.random.key(0) makes one from a seed"), (np.zeros(2, np.uint32), "'ndarray'"), (None, "'NoneType'")],
)
def test_a_seed_is_no_key(make, key, came):
    assert_refused(lambda: make(key=key), NO_KEY + came)


@pytest.mark.parametrize(
    ("make", "change", "said"),
    [
        (transformer, {"layers": 2.5}, f"layers: {INTEGER}2.5"),
        (transformer, {"width": -1}, f"width: {INTEGER}-1"),
        (transformer, {"dim": 2.0}, f"dim: {INTEGER}2.0"),
        (transformer, {"length": -1}, "length: expected an integer of at least 0, got -1"),
        (transformer, {"std": -0.1}, "std: expected a finite number >= 0, got -0.1"),
        (transformer, {"std": jnp.ones(2)}, "std: expected a finite number >= 0, got 'float32 of shape (2,)'"),
        (transformer, {"width": 5}, "heads: expected a divisor of the width 5, got 2"),
        (transformer, {"positions": None}, "unknown positions None; known: learned, none, one_hot, rotary"),
        (
            transformer,
            {"arrangement": Joined},
            "arrangement: expected one such as Interleaved(), got 'the class Joined'",
        ),
        (transformer, {"block": BLOCK}, "block: expected options such as BlockOptions(heads=2, "),
        (block, {"heads": 2.0}, f"heads: {INTEGER}2.0"),
        (block, {"mlp": 32}, "mlp: expected a tuple of widths, one for each hidden layer, or None for attention only"),
        (block, {"mlp": ("4",)}, f"mlp: {INTEGER}'4'"),
        (block, {"head_dim": -2}, f"head_dim: {INTEGER}-2"),
        (block, {"norm": None}, "unknown norm None; known: "),
        (Transformer.raventos, {"dim": 2, "length": 3, "width": "4", "key": KEY}, f"width: {INTEGER}'4'"),
        (Transformer.lu, {"dim": 2, "dense": "no", "key": KEY}, "dense: expected True or False, got 'no'"),
        (Joined, {"answers": "last", "causal": "no", "query_is_key": True}, "causal: expected True or False, got 'no'"),
        (Joined, {"answers": "last", "causal": True, "query_is_key": 1}, "query_is_key: expected True or False, got 1"),
        (Tokens, {"vocabulary": 2.5}, f"vocabulary: {INTEGER}2.5"),
        (attention, {"width": 4.0}, f"width: {INTEGER}4.0"),
        (attention, {"heads": 3}, "heads: expected a divisor of the width 4, got 3"),
        (attention, {"dim": 2.5}, f"dim: {INTEGER}2.5"),
        (attention, {"scale": "1"}, "scale: expected a finite number, or None for 1 / sqrt(dim), got '1'"),
        (attention, {"rotary": "no"}, "rotary: expected Rotary(), or None, got 'str'"),
        (attention, {"similarity": 2}, "similarity: expected a function of a query and a key, or None"),
        (attention, {"output_std": -1}, "output_std: expected a finite number >= 0, got -1"),
        (dense, {"outer": 2.0}, f"outer: {INTEGER}2.0"),
        (dense, {"bias": None}, "bias: expected True or False, got None"),
        (
            perceptron,
            {"hidden": 3},
            "hidden: expected a tuple of widths, one for each hidden layer, got 3; hidden=(3,)",
        ),
        (
            perceptron,
            {"nonlinearity": 3},
            "nonlinearity: expected linear, relu, gelu, exact_gelu, silu, tanh or a function, got 3",
        ),
        (classifier, {"width": 2.5}, f"width: {INTEGER}2.5"),
        (classifier, {"labels": "2"}, f"labels: {INTEGER}'2'"),
        (prompt_perceptron, {"length": "3"}, "length: expected an integer of at least 0, got '3'"),
        (recurrent, {"width": None}, f"width: {INTEGER}None"),
        (sets, {"hidden": 4}, "hidden: expected a tuple of widths, one for each hidden layer, got 4; hidden=(4,)"),
        (ahn, {"layers": 2.5}, f"layers: {INTEGER}2.5"),
        (ahn, {"dim": "2"}, f"dim: {INTEGER}'2'"),
        (ahn, {"std": None}, "std: expected a finite number >= 0, got None"),
        (linear, {"p": 1.0}, "p: expected an array [layer, dim + 1, dim + 1], got 'float'"),
        (linear, {"q": SQUARE[0]}, "q: expected an array of the shape of p, got (3, 3)"),
        (linear, {"sign": True}, "sign: expected 1 or -1, got True"),
        (linear, {"normalised": "no"}, "normalised: expected True or False, got 'no'"),
        (linear, {"query_is_key": None}, "query_is_key: expected True or False, got None"),
        (
            LinearAttention.from_gamma,
            {"gamma": jnp.eye(2)},
            "gamma: expected an array of shape (dim, dim + 1), got (2, 2)",
        ),
        (drawn, {"temperature": -1.0}, "temperature: expected a finite number > 0, got -1.0"),
        (drawn, {"layers": None}, f"layers: {INTEGER}None"),
        (general, {"key": SQUARE}, "key: expected an array [layer, dim, dim] of shape (1, 2, 2), got (1, 3, 3)"),
        (general, {"temperature": 1.0}, "temperature: expected one number for each of 1 layers, got 'float'"),
        (general, {"diagonal": INNER}, "diagonal: expected an array of the shape of value, or None, got (1, 2, 2)"),
        (scalar, {"rates": [0.1]}, "rates: expected an array of one number for each layer, got 'list'"),
        (scalar, {"unit": "1"}, "unit: expected a finite number > 0, got '1'"),
        (scalar, {"temperature": 0}, "temperature: expected a finite number > 0, or None for 1, got 0"),
        (network, {"layers": True}, "layers: expected 1 or 2, got True"),
        (network, {"layers": 2.0}, f"layers: {INTEGER}2.0"),
        (network, {"attention": 3}, "attention: expected one name, or 2, one for each layer, got 3"),
        (network, {"dim": 2.5}, f"dim: {INTEGER}2.5"),
        (network, {"std": "1"}, "std: expected a finite number >= 0, got '1'"),
        (
            ItemLabelNetwork.from_task,
            {"task": TASK, "key": KEY},
            "task: expected an item-label task, got 'LinearRegression'",
        ),
        (reading, {"beta1": "1"}, "beta1: expected a finite number, got '1'"),
        (reading, {"alpha": True}, "alpha: expected a finite number, got True"),
        (reading, {"beta2": jnp.ones(2)}, "beta2: expected a finite number, got 'float32 of shape (2,)'"),
        (reading, {"xi": None}, "xi: expected a finite number, got None"),
        (minimal, {"dim": "2"}, f"dim: {INTEGER}'2'"),
        (fast, {"normalised": "no"}, "normalised: expected True or False, got 'no'"),
        (fast, {"std": "1"}, "std: expected a finite number >= 0, got '1'"),
        (positive, {"dim": 2.5}, f"dim: {INTEGER}2.5"),
        (fitted, {"task": LinearRegression}, "task: expected a LinearRegression, got 'the class LinearRegression'"),
        (GradientStep, {"start": [0.0], "rate": 0.1}, "start: expected an array of one number for each dimension"),
        (GradientStep, {"start": jnp.zeros(2), "rate": "0.1"}, "rate: expected a finite number, got '0.1'"),
        (
            width_for,
            {"build": 3, "parameters": 9},
            "build: expected a function of a width that makes a model, got 'int'",
        ),
        (width_for, {"build": transformer, "parameters": "9"}, "parameters: expected a finite number >= 1, got '9'"),
        (ablated, {"model": None, "layer": True}, "layer: expected 1 or 2, got True"),
    ],
)
def test_what_makes_no_model_is_refused(make, change, said):
    assert_refused(lambda: make(**change), said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"frozen": 1.5, "layer": 0}, f"frozen: {INTEGER}1.5"),
        ({"frozen": 2, "layer": 1}, "layer: expected an integer from 0 to 0, got 1"),
        ({"frozen": 2, "layer": -1}, "layer: expected an integer from 0 to 0, got -1"),
    ],
)
def test_a_layer_or_a_number_of_tokens_that_is_not_there_is_refused(change, said):
    assert_refused(lambda: FrozenEntities.heads(transformer(), None, **change), said)


@unchecked()
def test_numbers_that_are_arrays_or_traced_are_still_taken():
    std, temperature = jnp.asarray(0.1), np.float32(2.0)
    assert ahn(std=std).p.shape == (1, 3, 3)
    assert drawn(std=np.asarray(0.1), temperature=temperature).temperature.shape == (1,)
    traced = jax.eval_shape(lambda s, k: (transformer(std=s, key=k).readout, reading(beta1=s).beta1), std, KEY)
    assert traced[0].weight.shape == (4, 1)
    many = jax.vmap(lambda s: ahn(std=s).p)(jnp.ones(3))
    assert many.shape == (3, 1, 3, 3)


def test_a_size_that_is_swept_in_an_ensemble_is_told_as_such():
    build = Transformer.lu
    said = "layers: expected swept numbers that are leaves, got 'a static field'"
    assert_refused(lambda: ensemble(build, seeds=1, key=KEY, dim=2, layers=[1, 2]), said)


def test_a_legacy_key_is_refused_as_elsewhere():
    assert_refused(lambda: sample(TASK, prompts=3, key=jax.random.PRNGKey(0)), f"{NO_KEY}'uint32 of shape (2,)'")
