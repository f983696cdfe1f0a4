"""A context as weights: the prefixed transformer answers as the transformer does after the context."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt, TokenPrompt
from icllab.models import BlockOptions, Interleaved, Joined, Tokens, Transformer
from icllab.models.contexts.prefixes import Prefixed, after

RNG = np.random.default_rng(3)
DIM, POSITIONS, LAYERS = 3, 2, 2


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def regression(positions):
    x, y = RNG.normal(size=(positions, DIM)), RNG.normal(size=positions)
    return RegressionPrompt(x=jnp.asarray(x), y=jnp.asarray(y))


def tokens(count):
    return TokenPrompt(tokens=jnp.asarray(RNG.integers(0, DIM, size=count)))


def transformer(arrangement, *, norm="pre", positions="learned", **options):
    block = BlockOptions(heads=2, mlp=(5,), norm=norm, nonlinearity="tanh", **options)
    fields = {"dim": DIM, "width": 8, "layers": LAYERS, "positions": positions, "length": 12}
    return Transformer(arrangement, **fields, block=block, key=jax.random.key(0))


def joined(answers, *, causal=True, query_is_key=False):
    return Joined(answers=answers, causal=causal, query_is_key=query_is_key)


@eqx.filter_jit
def answers(arrangement, fields, context, prompt):
    """Of the prefixed transformer, and of the transformer after the context."""
    model = transformer(arrangement, **dict(fields))
    return Prefixed.from_context(model, context)(prompt), model(after(context, prompt))


@pytest.mark.parametrize(
    ("arrangement", "fields"),
    [
        pytest.param(Interleaved(), {}, marks=pytest.mark.slow),
        (Tokens(DIM), {"positions": "rotary", "norm": "post"}),
        (joined("every"), {"positions": "one_hot", "weighting": "relu", "normalisation": "examples", "norm": "none"}),
        pytest.param(joined("last", query_is_key=True), {"positions": "none"}, marks=pytest.mark.slow),
    ],
)
def test_it_answers_as_the_transformer_after_the_context(arrangement, fields):
    context, prompt = (tokens(5), tokens(4)) if isinstance(arrangement, Tokens) else map(regression, (4, POSITIONS))
    prefixed, full = answers(arrangement, tuple(fields.items()), context, prompt)
    assert len(prefixed) == (1 if getattr(arrangement, "answers", "") == "last" else prompt.positions)
    np.testing.assert_allclose(prefixed, full[-len(prefixed) :], rtol=1e-12, atol=1e-13)


@eqx.filter_jit
def composed(first, second, prompt):
    """Both contexts in turn, together; the traces on a prompt, and the transformer's own."""
    model = transformer(Interleaved())
    in_turn, together = (
        Prefixed.from_context(model, first).extended(second),
        Prefixed.from_context(model, after(first, second)),
    )
    own = model.trace(after(after(first, second), prompt)), model.trace(prompt)
    return in_turn, together, together.trace(prompt), own


@pytest.fixture(scope="module")
def both():
    with jax.enable_x64(True):
        return composed(regression(3), regression(4), regression(1))


def test_a_prefix_extended_by_a_second_context_is_the_prefix_of_both(both):
    in_turn, together, *_ = both
    assert in_turn.examples == together.examples == 5
    assert together.keys[-1].shape == (10, 2, 4)
    for one, other in zip(jax.tree.leaves(in_turn), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)


def test_positions_do_not_restart(both):
    """The prompt's tokens are embedded where they stand after the context; their keys come after the prefix."""
    *_, trace, (full, alone) = both
    embedded = full.activations["embedding"]
    np.testing.assert_array_equal(trace.activations["embedding"], embedded[-1:])
    for name in ("embedding", "prediction"):
        assert np.abs(np.asarray(full.activations[name][-1:]) - alone.activations[name]).max() > 1e-3
    for name in ("block1.attention.keys", "block1.attention.pattern", "block1", "prediction"):
        rows = slice(None) if name.endswith("keys") else slice(-1, None)
        own = full.activations[name]
        own = own[:, rows] if name.endswith("pattern") else own[rows]
        np.testing.assert_allclose(trace.activations[name], own, rtol=1e-10, atol=1e-12)


def test_what_has_no_prefix_is_refused():
    def built(arrangement):
        return eqx.filter_eval_shape(transformer, arrangement)

    with pytest.raises(InputError, match="context: expected at least 1 example, got 0"):
        Prefixed.from_context(built(Interleaved()), regression(1))
    with pytest.raises(InputError, match="model: expected a causal model"):
        Prefixed.from_context(built(joined("last", causal=False)), regression(3))
    with pytest.raises(InputError, match="prompt: expected at most 12 examples before the query, got 13"):
        eqx.filter_eval_shape(answers, Interleaved(), (), regression(4), regression(11))
    with pytest.raises(InputError, match="RegressionPrompt and TokenPrompt"):
        after(regression(2), tokens(3))
