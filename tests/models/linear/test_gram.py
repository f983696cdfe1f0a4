"""The Gram form is the form on tokens, to rounding, and its cost for a layer does not grow with the prompt."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing import prompt_of

from icllab.core.errors import InputError
from icllab.models import LinearAttention, edited
from icllab.models.interventions.recording import Recorder
from icllab.models.linear.gram import gram_prediction

DIM, LENGTH = 3, 5


def prompt_with(length):
    return prompt_of(0, positions=length + 1, dim=DIM)


def both(layers, answers="every", causal=False, query_is_key=False, normalised=True):
    weights = 0.3 * np.random.default_rng(1).normal(size=(2, layers, DIM + 1, DIM + 1))
    p, q = map(jnp.asarray, weights)
    layout = {"answers": answers, "causal": causal, "query_is_key": query_is_key, "normalised": normalised}
    return [LinearAttention(p, q, sign=-1, **layout, form=form) for form in ("tokens", "gram")]


@pytest.mark.parametrize("answers", ["every", "last"])
@pytest.mark.parametrize(
    ("layers", "query_is_key", "normalised"), [(3, False, True), (3, True, False), (4, True, True)]
)
def test_it_is_the_form_on_tokens(answers, layers, query_is_key, normalised):
    """With few layers by vectors, with four by matrices."""
    read = {"every": answers == "every", "query_is_key": query_is_key, "normalised": normalised}

    @eqx.filter_jit
    def found(tokens, gram, prompt):
        return tokens(prompt), gram(prompt), -gram_prediction(gram.p, gram.q, prompt, Recorder(), **read)

    with jax.enable_x64(True):
        of_tokens, of_gram, again = found(*both(layers, answers, False, query_is_key, normalised), prompt_with(LENGTH))
    np.testing.assert_allclose(of_gram, of_tokens, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(again, of_gram)


def test_of_one_layer_causal_or_not_is_the_same():
    with jax.enable_x64(True):
        tokens, gram = (eqx.filter_jit(model)(prompt_with(LENGTH)) for model in both(1, causal=True))
    np.testing.assert_allclose(gram, tokens, rtol=1e-11, atol=1e-13)


def test_the_cost_of_a_layer_does_not_grow_with_the_prompt():
    """Counted by the compiler: what a second layer adds, at two lengths."""

    def operations(form, layers, length):
        model = both(layers, "last")[form]
        return jax.jit(lambda p: model(p)).lower(prompt_with(length)).cost_analysis()["flops"]

    tokens, gram = ([operations(form, 2, n) - operations(form, 1, n) for n in (8, 64)] for form in (0, 1))
    assert tokens[1] > 5 * tokens[0]
    assert gram[1] == gram[0]


def test_its_activations_are_named_and_matter():
    prompt = prompt_with(LENGTH)

    def names(model):
        found = []
        eqx.filter_eval_shape(lambda: found.extend(model.trace(prompt).activations))
        return found

    _, gram = both(2)
    assert names(gram) == ["gram", "query", "layer0.query", "layer1.query", "prediction"]
    _, deep = both(4)
    written = [f"layer{i}.{what}" for i in range(3) for what in ("map", "query", "gram")]
    assert names(deep) == ["gram", "query", *written, "layer3.query", "prediction"]
    silent = edited(gram, lambda name, value: jnp.zeros_like(value) if name == "gram" else value)
    np.testing.assert_array_equal(eqx.filter_jit(silent)(prompt), 0)


def test_where_examples_see_earlier_ones_only_it_is_refused():
    with pytest.raises(InputError, match="form: expected 'tokens' if examples see only earlier examples, got 'gram'"):
        both(2, causal=True)
    with pytest.raises(InputError, match="unknown form 'gramm'; did you mean 'gram'"):
        dataclasses.replace(both(1)[0], form="gramm")
