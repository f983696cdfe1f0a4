"""Tokens are written as if the whole text were computed anew for each of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from token_transformers import FAMILIES, VOCABULARY, WIDTH, network, sampling

from icllab import models
from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.models.pretrained.generation import written


@eqx.filter_jit
def anew(model, ids):
    return model(TokenPrompt.from_ids(ids))


def require_as_anew(model, prompts, tokens=12, temperature=0.0, chunk=5, heat=1e-4):
    """Each token has the largest logit, with its noise, when the text up to it is computed alone."""
    how = sampling(temperature, len(prompts))
    *_, rows = written(model, prompts, tokens, how, chunk)
    assert rows.shape == (len(prompts), tokens)
    for prompt, row, key in zip(prompts, rows, how.keys, strict=True):
        answers = anew(model, jnp.asarray([*prompt, *row[:-1]], jnp.int32))[len(prompt) - 1 :]
        for step, logits in enumerate(np.asarray(answers)):
            noise = jax.random.gumbel(jax.random.fold_in(key, step), logits.shape)
            scores = logits + temperature * np.asarray(noise)
            assert scores[row[step]] >= scores.max() - heat, (prompt, step)
    return rows


def quick(names, chosen):
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", quick(FAMILIES, ("gpt2", "mistral")))
def test_each_token_is_that_of_the_text_computed_anew(name):
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6]]
    rows = require_as_anew(network(name), prompts, temperature=1.0)
    assert len({tuple(row) for row in rows}) == 3


@pytest.mark.slow
def test_the_last_position_is_used():
    prompt = [3] * 30
    require_as_anew(network("gpt2"), [prompt], tokens=11)  # 41 positions


@pytest.mark.slow
def test_weights_in_bfloat16_write_the_same():
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if leaf.ndim > 1 else leaf, network("llama"))
    require_as_anew(narrow, [[3, 1, 4], [5]], temperature=1.0, heat=1e-3)


def heads_at(tokens):
    return lambda model: models.ablated(model, heads=["block0.1", "a1.h2"], tokens=tokens)


MEANS = np.random.default_rng(0).normal(size=(2, 4, WIDTH // 4)).astype(np.float32)
INTERVENTIONS = {
    "ablated": lambda model: models.ablated(model, heads=[(0, 1), "a1.h2"]),
    "ablated by means": lambda model: models.ablated(model, heads=["block0.1", (1, 3)], outputs=MEANS),
    "ablated twice": lambda model: models.ablated(models.ablated(model, heads=[(0, 0)]), heads=[(0, 1)], outputs=MEANS),
    "ablated at one token": lambda model: models.ablated(
        model, heads=[(0, 1)], tokens=lambda prompt: jnp.arange(prompt.positions) == 2
    ),
    "steered": lambda model: models.edited(model, lambda name, value: value + 0.5 if name == "block0" else value),
    "third token": lambda model: models.edited(
        model, lambda name, value: value.at[2].set(1.0) if name == "block0.mlp" else value
    ),
    "pattern": lambda model: models.edited(
        model, lambda name, value: value.at[1].multiply(0.5) if name == "block1.attention.pattern" else value
    ),
    "by prompt": lambda model: models.edited_by(
        model,
        lambda prompt: (
            lambda name, value: (
                value + (prompt.tokens[:-1] == 3).astype(value.dtype)[:, None] if name == "block0" else value
            )
        ),
    ),
    "path": lambda model: models.path_patched(model, [(0, 1)], [(1, 2)]),
}


@pytest.mark.parametrize("name", quick(INTERVENTIONS, ("ablated twice", "third token")))
def test_an_intervention_acts_at_every_step(name):
    plain = network("llama")
    model = INTERVENTIONS[name](plain)
    prompts = [[3, 1, 4, 1, 5], [9, 3, 3]]
    rows = require_as_anew(model, prompts, tokens=14, temperature=1.0)
    ids = jnp.asarray([*prompts[0], *rows[0]], jnp.int32)
    assert np.abs(anew(model, ids) - anew(plain, ids))[4:].max() > 0.01


@pytest.mark.parametrize(
    "edit",
    [
        lambda name, value: value.at[-1].set(0.0) if name == "block0" else value,
        lambda name, value: value - value.mean(0, keepdims=True) if name == "block0.mlp" else value,
        lambda name, value: value + jnp.arange(5.0)[:, None] if name == "block0" else value,
    ],
    ids=["last token", "mean of all tokens", "five tokens"],
)
def test_an_intervention_that_depends_on_later_tokens_is_refused(edit):
    model = models.edited(network("llama"), edit)
    message = "^model: expected an intervention that does not depend on the number of tokens, got 'Edited'; "
    with pytest.raises(InputError, match=message):
        list(written(model, [[3, 1, 4, 1, 5]], 3, sampling(0.0, 1), 3))


def test_heads_have_one_name_in_three_spellings():
    model = network("llama")
    ids = [3, 1, 4]
    first = models.ablated(model, heads=[(1, 2)])(TokenPrompt.from_ids(ids))
    for heads in ("block1.2", "a1.h2", (1, 2), ["block1.2"], np.array(["block1.2"]), [np.array([1, 2])]):
        np.testing.assert_array_equal(models.ablated(model, heads=heads)(TokenPrompt.from_ids(ids)), first)


def test_lengths_share_programs():
    model = network("llama")
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))

    def programs(call):
        compiled.clear()
        call()
        return compiled.count("/jax/core/compile/backend_compile_duration")

    try:
        assert programs(lambda: model.logits([3] * 17)) > 0
        assert programs(lambda: [model.logits([3] * n) for n in range(18, 33)]) == 0
        list(written(model, [[3] * 3], 9, sampling(0.0, 1), 9))
        calls = lambda: [list(written(model, [[3] * n], 16, sampling(0.5, 1), 4)) for n in (5, 16)]  # noqa: E731
        assert programs(calls) == 0
    finally:
        jax.monitoring.clear_event_listeners()


def test_logits_in_buckets_are_those_of_the_prompt():
    for name, counts in (("gpt2", (1, 41)), ("mistral", (16, 17))):
        model = network(name)
        for ids in (np.arange(count, dtype=np.int32) % VOCABULARY for count in counts):
            np.testing.assert_allclose(model.logits(ids), anew(model, jnp.asarray(ids)), rtol=0, atol=1e-5)
