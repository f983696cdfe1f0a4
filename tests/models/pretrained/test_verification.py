"""The first layer that differs is named, and what is equal is not accused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.models import BlockOptions, Tokens, Transformer, edited, pretrained

IDS = [1, 4, 2, 0]
NAMES = ["embedding", "block0", "block1", "readout"]


def network():
    block = BlockOptions(heads=2, mlp=(8,), norm="pre")
    return Transformer(Tokens(5), dim=5, width=8, layers=3, block=block, positions="rotary", key=jax.random.key(0))


def states(model):
    trace = model.trace(TokenPrompt(jnp.array([*IDS, 0], jnp.int32)))
    return trace.prediction, np.stack([trace.activations[name] for name in NAMES])


def test_where_two_models_part():
    model = network()
    equal = pretrained.verify(model, IDS, *states(model)[:1], hidden=states(model)[1])
    assert list(equal.activation.values) == [*NAMES, "prediction"]
    assert equal.attrs["parts_at"] == ""
    assert float(equal.difference.max()) < 1e-6
    assert float(equal.cosine.min()) > 1 - 1e-6

    def edit(name, value):
        return value.at[2].multiply(1.5) if name == "block1.attention" else value

    logits, hidden = states(edited(model, edit))
    result = pretrained.verify(model, IDS, logits, hidden=hidden)
    assert result.attrs["parts_at"] == "block1"
    assert float(result.difference.sel(activation="block0")) < 1e-6
    assert pretrained.verify(model, IDS, logits).attrs["parts_at"] == "prediction"
    assert pretrained.verify(model, IDS, np.full((4, 5), np.nan)).attrs["parts_at"] == "prediction"


def test_shapes():
    model = network()
    logits, hidden = states(model)
    with pytest.raises(InputError, match=r"logits: expected shape \(4, 5\), got \(3, 5\)"):
        pretrained.verify(model, IDS, logits[1:])
    with pytest.raises(InputError, match="hidden: expected 4 states"):
        pretrained.verify(model, IDS, logits, hidden=hidden[1:])
