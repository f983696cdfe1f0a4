"""Effects of heads: the gradient against differences, and ablations against models whose heads are cut out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.diagnostics import head_effects
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.models import BlockOptions, Tokens, Transformer, head_outputs
from icllab.tasks import RepeatedTokens

TASK, KEY, PROMPTS, SHAPE = RepeatedTokens(vocabulary=7, period=4), jax.random.key(3), 5, (2, 3)
MODEL = Transformer(
    Tokens(7),
    dim=7,
    width=12,
    layers=2,
    block=BlockOptions(heads=3, mlp=(8,), norm="pre"),
    positions="rotary",
    std=0.5,
    key=jax.random.key(1),
)
DRAWN = sample_prompts(TASK, key=KEY, prompts=PROMPTS)


@eqx.filter_jit
def losses(model):
    return jax.vmap(lambda prompt: TASK.loss(model(prompt), prompt))(DRAWN)


def scaled(block, head, factor):
    """The model with the output weights of one head scaled."""
    output = MODEL.blocks[block].attention.output
    return eqx.tree_at(lambda m: m.blocks[block].attention.output, MODEL, output.at[head].multiply(factor))


def test_effects_are_derivatives_and_differences_of_the_loss():
    part = slice(4, None)
    effects = head_effects(MODEL, TASK, key=KEY, prompts=PROMPTS, heads=[(1, 2), (0, 1)], positions=part)
    assert list(effects.attention_head.values) == [f"block{b}.{h}" for b, h in np.ndindex(*SHAPE)]
    plain = np.asarray(losses(MODEL), float)[:, part].mean(1)
    for block, head in np.ndindex(*SHAPE):
        low, high = (
            np.asarray(losses(scaled(block, head, 1 + step)), float)[:, part].mean(1) for step in (-0.01, 0.01)
        )
        row = effects.sel(attention_head=f"block{block}.{head}")
        slopes = (low - high) / 0.02  # ablation takes away
        assert float(row.first_order_effect) == pytest.approx(slopes.mean(), abs=2e-4)
        assert float(row.first_order_effect_error) == pytest.approx(slopes.std(ddof=1) / PROMPTS**0.5, abs=2e-4)
        if (block, head) in {(1, 2), (0, 1)}:
            differences = np.asarray(losses(scaled(block, head, 0.0)), float)[:, part].mean(1) - plain
            assert float(row.ablation_effect) == pytest.approx(differences.mean(), abs=1e-5)
        else:
            assert np.isnan(row.ablation_effect)


def test_effects_of_a_replacement_at_one_token():
    """A head's output at the last token takes the value of another prompt there: the slope is along the difference."""
    prompt = jax.tree.map(lambda leaf: leaf[0], DRAWN)
    outputs = [jnp.asarray(part) for part in eqx.filter_jit(head_outputs)(MODEL, prompt)]
    last = jnp.arange(7) == 6
    fields = {"key": KEY, "prompts": PROMPTS, "outputs": outputs}
    late = head_effects(MODEL, TASK, **fields, tokens=last, positions=slice(6, None))
    early = head_effects(MODEL, TASK, **fields, tokens=lambda prompt: last, positions=slice(0, 6))
    assert np.abs(late.first_order_effect).min() > 1e-4
    np.testing.assert_array_equal(early.first_order_effect, 0)


def test_a_head_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="heads: expected a block below 2 and a head below 3"):
        head_effects(MODEL, TASK, key=KEY, prompts=2, heads=[(0, 3)])
