"""The Gram form is the form on tokens, to rounding, and its cost for a layer does not grow with the prompt."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.models import LinearAttention, edited
from icllab.models.interventions.recording import Recorder
from icllab.models.linear.gram import gram_prediction

DIM, LENGTH = 3, 5


def prompt_of(length, key):
    of_x, of_y = jax.random.split(key)
    return RegressionPrompt(jax.random.normal(of_x, (length + 1, DIM)), jax.random.normal(of_y, (length + 1,)))


def both(key, layers, answers="every", causal=False, query_is_key=False, normalised=True):
    p, q = 0.3 * jax.random.normal(key, (2, layers, DIM + 1, DIM + 1))
    layout = {"answers": answers, "causal": causal, "query_is_key": query_is_key, "normalised": normalised}
    return [LinearAttention(p, q, sign=-1, **layout, form=form) for form in ("tokens", "gram")]


@pytest.mark.parametrize("answers", ["every", "last"])
@pytest.mark.parametrize(
    ("layers", "query_is_key", "normalised"), [(3, False, True), (3, True, False), (4, True, True)]
)
def test_it_is_the_form_on_tokens(answers, layers, query_is_key, normalised, getkey):
    """With few layers by vectors, with four by matrices."""
    with jax.enable_x64(True):
        prompt = prompt_of(LENGTH, getkey())
        tokens, gram = both(getkey(), layers, answers, False, query_is_key, normalised)
        np.testing.assert_allclose(gram(prompt), tokens(prompt), rtol=1e-11, atol=1e-13)
        read = {"every": answers == "every", "query_is_key": query_is_key, "normalised": normalised}
        np.testing.assert_array_equal(-gram_prediction(gram.p, gram.q, prompt, Recorder(), **read), gram(prompt))


def test_of_one_layer_causal_or_not_is_the_same(getkey):
    with jax.enable_x64(True):
        prompt = prompt_of(LENGTH, getkey())
        tokens, gram = both(getkey(), 1, causal=True)
        np.testing.assert_allclose(gram(prompt), tokens(prompt), rtol=1e-11, atol=1e-13)


def test_the_cost_of_a_layer_does_not_grow_with_the_prompt(getkey):
    """Counted by the compiler: what a second layer adds, at two lengths."""

    def operations(form, layers, length):
        model = both(jax.random.key(0), layers, "last")[form]
        prompt = prompt_of(length, jax.random.key(1))
        return jax.jit(lambda p: model(p)).lower(prompt).cost_analysis()["flops"]

    tokens, gram = ([operations(form, 2, n) - operations(form, 1, n) for n in (8, 64)] for form in (0, 1))
    assert tokens[1] > 5 * tokens[0]
    assert gram[1] == gram[0]


def test_its_activations_are_named_and_matter(getkey):
    prompt = prompt_of(LENGTH, getkey())
    _, gram = both(getkey(), 2)
    assert list(gram.trace(prompt).activations) == ["gram", "query", "layer0.query", "layer1.query", "prediction"]
    _, deep = both(getkey(), 4)
    written = [f"layer{i}.{what}" for i in range(3) for what in ("map", "query", "gram")]
    assert list(deep.trace(prompt).activations) == ["gram", "query", *written, "layer3.query", "prediction"]
    silent = edited(gram, lambda name, value: jnp.zeros_like(value) if name == "gram" else value)
    np.testing.assert_array_equal(silent(prompt), 0)


def test_where_examples_see_earlier_ones_only_it_is_refused(getkey):
    with pytest.raises(InputError, match="form: expected 'tokens' where examples see earlier ones only, got 'gram'"):
        both(getkey(), 2, causal=True)
    with pytest.raises(InputError, match="unknown form 'gramm'; did you mean 'gram'"):
        dataclasses.replace(both(getkey(), 1)[0], form="gramm")
