"""Terms of a logit difference: their sum, and each against the difference that its part makes."""

import equinox as eqx
import jax
import numpy as np
import pytest
from tests.diagnostics.circuits.networks import language_model, network

from icllab.core.errors import InputError
from icllab.diagnostics import logit_difference, logit_terms, patch

IDS, METRIC = [1, 4, 7, 2, 5], logit_difference(6, 8)


def random(model, key=5):
    """The network with each array random, biases and scales of norms too."""
    arrays, static = eqx.partition(model, eqx.is_array)
    leaves, form = jax.tree.flatten(arrays)
    keys = jax.random.split(jax.random.key(key), len(leaves))
    drawn = [leaf + 0.3 * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return eqx.combine(form.unflatten(drawn), static)


def total(terms):
    return float(terms.heads.sum() + terms.mlp.sum() + terms.embedding + terms.biases)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": True, "positions": "learned"},
        {"norm_kind": "rms", "kv_heads": 1, "norm_offset": 1.0},
        {"parallel": True, "bias": True},
        {"norm": "none", "mlp": None},
    ],
)
def test_terms_sum_to_the_logit_difference(options):
    model = random(network(**options))
    terms = logit_terms(model, IDS, METRIC)
    logits = np.asarray(model.logits(IDS), float)[-1]
    assert float(terms.logit_difference) == pytest.approx(logits[6] - logits[8], rel=3e-6, abs=1e-5)
    assert total(terms) == pytest.approx(float(terms.logit_difference), abs=1e-5)
    assert terms.sizes == {"block": 3, "head": 3}
    assert (terms.mlp == 0).all() == (options.get("mlp", ()) is None)


def test_a_head_of_the_last_block_adds_its_term():
    """Without a final norm and dense layers, patching the head changes the logits by the change of its term."""
    model, other = random(network(norm="none", mlp=None)), [1, 3, 7, 9, 5]
    ours, theirs = (logit_terms(model, ids, METRIC) for ids in (IDS, other))
    exact = patch(model, IDS, other, ["heads"], metric=METRIC)
    change = exact.heads_metric[-1] - exact.corrupted_metric
    assert np.allclose(change, ours.heads[-1] - theirs.heads[-1], atol=1e-5)
    assert np.abs(change).min() > 1e-3


def test_several_prompts_have_means_with_errors():
    lm = language_model()
    metric = logit_difference(["g", "h"], "i")
    both = logit_terms(lm, ["behcf", "bd"], metric)
    single = [logit_terms(lm, "behcf", logit_difference("g", "i")), logit_terms(lm, "bd", logit_difference("h", "i"))]
    for name in ("heads", "mlp", "embedding", "biases", "logit_difference"):
        values = np.stack([part[name] for part in single])
        assert np.allclose(both[name], values.mean(0), atol=1e-6)
        assert np.allclose(both[f"{name}_error"], values.std(0, ddof=1) / 2**0.5, atol=1e-6)
        assert np.isnan(single[0][f"{name}_error"]).all()


@pytest.mark.parametrize("norm", ["post", "output", "both"])
def test_norms_of_what_is_added_are_refused_by_name(norm):
    with pytest.raises(InputError, match=f'norm="pre" or "none", got \'{norm}\''):
        logit_terms(network(norm=norm), IDS, METRIC)


def test_a_soft_cap_and_other_metrics_are_refused():
    with pytest.raises(InputError, match="without a soft cap"):
        logit_terms(network(cap=30.0), IDS, METRIC)
    with pytest.raises(InputError, match="logit_difference"):
        logit_terms(network(), IDS, 6)
