"""Patching against runs of the whole network under edits, attribution against small differences."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from tests.diagnostics.circuits.networks import language_model, network

from icllab import models
from icllab.core.errors import InputError, ResultWarning
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics import logit_difference, patch
from icllab.diagnostics.circuits import block_runs

CLEAN, CORRUPTED, METRIC = [1, 4, 7, 2, 5], [1, 3, 7, 9, 5], logit_difference(6, 8)
ACTIVATIONS = {
    "residual": "block{}",
    "attention": "block{}.attention",
    "mlp": "block{}.mlp",
    "heads": "block{}.attention.heads",
}


def prompt_of(ids):
    return TokenPrompt(jnp.asarray([*ids, 0]))


@eqx.filter_jit
def activations(model, prompt):
    return model.trace(prompt).activations


@eqx.filter_jit
def edited_metric(model, prompt, weights, others, right=6, wrong=8):
    """The metric of a whole run in which a fraction ``weights`` of each activation is that of another prompt."""

    def edit(name, value):
        return value + weights[name] * (others[name] - value) if name in weights else value

    last = model.trace(prompt, edit).prediction[-1]
    return last[right] - last[wrong]


def with_one(model, run, source, kind, block, index, weight=1.0):
    """The metric of a run in which one activation is that of another prompt."""
    others = {
        name: v for name, v in activations(model, prompt_of(source)).items() if not name.startswith(("e", "r", "p"))
    }
    weights = {name: jnp.zeros(value.shape) for name, value in others.items()}
    place = ACTIVATIONS[kind].format(block)
    where = (slice(None), index) if kind == "heads" else index
    weights[place] = weights[place].at[where].set(weight)
    return float(edited_metric(model, prompt_of(run), weights, others))


def metric_of(model, ids):
    return with_one(model, ids, ids, "residual", 0, 0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "post", "positions": "learned"},
        {"norm": "both", "kv_heads": 1, "norm_kind": "rms"},
        {"parallel": True, "window": 2},
    ],
)
def test_each_cell_is_a_run_with_one_activation_of_the_other_prompt(options):
    model = network(layers=2, **options)
    result = patch(model, CLEAN, CORRUPTED, metric=METRIC, direction="both")
    assert result.sizes == {"direction": 2, "block": 2, "position": 5, "head": 3}
    clean, corrupted = metric_of(model, CLEAN), metric_of(model, CORRUPTED)
    assert float(result.clean_metric) == pytest.approx(clean, abs=1e-5)
    assert float(result.corrupted_metric) == pytest.approx(corrupted, abs=1e-5)
    for direction, (run, source) in {"denoising": (CORRUPTED, CLEAN), "noising": (CLEAN, CORRUPTED)}.items():
        for kind in ACTIVATIONS:
            for block, index in np.ndindex(2, 3 if kind == "heads" else 5):
                cell = {"direction": direction, "block": block, "head" if kind == "heads" else "position": index}
                metric = with_one(model, run, source, kind, block, index)
                assert float(result[f"{kind}_metric"].sel(cell)) == pytest.approx(metric, abs=2e-5)
                share = (metric - corrupted) / (clean - corrupted)
                assert float(result[kind].sel(cell)) == pytest.approx(share, abs=1e-4)
    values = result.heads.sel(direction="denoising") + result.heads.sel(direction="noising")
    assert np.allclose(result.heads_interaction, 1 - values)


def test_the_last_stream_carries_all_and_equal_tokens_before_a_difference_nothing():
    result = patch(network(), CLEAN, CORRUPTED, ["residual"], metric=METRIC, direction="both")
    denoised, noised = (result.residual.sel(direction=name).values for name in ("denoising", "noising"))
    last = np.eye(5)[4]
    assert np.allclose(denoised[-1], last, atol=1e-5)
    assert np.allclose(noised[-1], 1 - last, atol=1e-5)
    assert np.allclose(denoised[:, 0], 0, atol=1e-5)
    assert result.meaning.values.tolist() == [
        "one clean activation in the corrupted run",
        "one corrupted activation in the clean run",
    ]


def test_exchanged_prompts_exchange_directions():
    model = network()
    one = patch(model, CLEAN, CORRUPTED, ["mlp"], metric=METRIC, direction="noising")
    other = patch(model, CORRUPTED, CLEAN, ["mlp"], metric=METRIC)
    assert one.direction == "noising"
    assert np.allclose(one.mlp, 1 - other.mlp, atol=1e-5)


def test_sites_that_do_not_fit_in_memory_together_are_measured_in_parts(monkeypatch):
    whole = patch(network(), CLEAN, CORRUPTED, metric=METRIC)
    monkeypatch.setattr(block_runs, "NUMBERS", 4 * 75)
    assert block_runs.most_at_once(network(), 5) == 4
    parts = patch(network(), CLEAN, CORRUPTED, metric=METRIC)
    for name in whole.data_vars:
        assert np.allclose(whole[name], parts[name], atol=1e-5, equal_nan=True)


def test_attribution_is_exact_to_second_order_where_the_whole_run_moves():
    """In a prompt of one token a stream carries the whole difference, here of two tokens that are a step apart."""
    model = network(layers=2)
    table, errors = model.embedding.projection.weight, []
    for step in (0.2, 0.1):
        near = eqx.tree_at(lambda m: m.embedding.projection.weight, model, table.at[3].set(table[2] + step * table[5]))
        exact = patch(near, [3], [2], ["residual"], metric=METRIC).residual.values[0, 0]
        linear = patch(near, [3], [2], ["residual"], metric=METRIC, method="attribution").isel(block=0, position=0)
        errors.append([float(linear.residual) - exact, float(linear.residual + linear.residual_second_order) - exact])
    first, second = np.abs(errors).T
    assert first[1] == pytest.approx(first[0] / 2, rel=0.3)  # values are shares of a difference that shrinks too
    assert (second < 0.3 * first).all()
    assert second[1] < second[0] / 3


def test_attribution_is_the_gradient_times_the_difference():
    model, step = network(), 0.01
    for direction, run, source in (("denoising", CORRUPTED, CLEAN), ("noising", CLEAN, CORRUPTED)):
        result = patch(model, CLEAN, CORRUPTED, metric=METRIC, method="attribution", direction=direction)
        for kind, index in (("residual", 1), ("attention", 3), ("mlp", 4), ("heads", 2)):
            high, low = (with_one(model, run, source, kind, 1, index, weight) for weight in (step, -step))
            estimate = float(result[f"{kind}_metric"][1, index]) - metric_of(model, run)
            assert estimate == pytest.approx((high - low) / (2 * step), abs=2e-3)


def test_pairs_are_averaged_with_bootstrap_errors_and_lengths_meet_at_the_end():
    model, short, other = network(), [4, 7, 5], [3, 7, 5]
    metric = logit_difference([6, 6], [8, 9])
    both = patch(model, [CLEAN, short], [CORRUPTED, other], ["residual", "heads"], metric=metric)
    single = [
        patch(model, CLEAN, CORRUPTED, ["residual", "heads"], metric=METRIC),
        patch(model, short, other, ["residual", "heads"], metric=logit_difference(6, 9)),
    ]
    assert both.position.values.tolist() == [-5, -4, -3, -2, -1]
    metrics = np.stack([part.heads_metric for part in single])
    assert np.allclose(both.heads_metric, metrics.mean(0), atol=1e-5)
    assert np.allclose(both.residual[:, 0], single[0].residual[:, 0], atol=1e-5)
    last = [part.residual_metric[:, -1] for part in single]
    assert np.allclose(both.residual_metric[:, -1], (last[0] + last[1]) / 2, atol=1e-5)
    # Of two pairs a bootstrap takes one twice, or both: half of the time each.
    spread = np.abs(metrics[0] - metrics[1]) / 2
    assert np.allclose(both.heads_metric_error, spread / 2**0.5, rtol=0.1, atol=1e-5)
    assert np.isnan(single[0].heads_error).all()


def test_a_small_difference_of_many_pairs_causes_a_warning():
    model = network()
    with pytest.warns(ResultWarning, match="values are unstable"):
        patch(model, [CLEAN, CORRUPTED, CLEAN], [CORRUPTED, CLEAN, [1, 4, 7, 2, 3]], ["heads"], metric=METRIC)


def test_texts_and_their_ids_are_the_same_prompts():
    lm = language_model()
    result = patch(lm, "behcf", "bdhjf", metric=logit_difference("g", "i"))
    assert result.token.values.tolist() == list("behcf")
    assert result.corrupted_token.values.tolist() == list("bdhjf")
    plain = patch(lm.model, CLEAN, CORRUPTED, metric=METRIC)
    assert np.array_equal(result.heads, plain.heads)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corrupted": [1, 3, 7]}, "corrupted: expected 5 tokens"),
        ({"corrupted": CLEAN}, "metric: expected two values that differ"),
        ({"corrupted": [CORRUPTED] * 2}, "corrupted: expected 1 prompts"),
        ({"metric": logit_difference("gh", "i")}, r"answers of one token, not 'gh', got \['g', 'h'\]"),
        ({"metric": logit_difference("g", "g")}, "two different answers"),
        ({"metric": logit_difference([1, 2], 3)}, "one for each of 1 prompts"),
        ({"metric": logit_difference(1, 11)}, "an id from 0 to 10"),
        ({"metric": "g"}, "diagnostics.logit_difference"),
        ({"sites": ("stream",)}, "unknown sites 'stream'"),
        ({"direction": "up"}, "unknown direction 'up'"),
        ({"method": "gradient"}, "unknown method 'gradient'"),
        ({"clean": ""}, "clean: expected a text or a sequence of token ids"),
        ({"clean": [1, 3, 7, 9, 99]}, "clean at 4: expected an id from 0 to 10"),
    ],
)
def test_what_cannot_be_patched_is_refused(change, message):
    arguments = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC, **change}
    with pytest.raises(InputError, match=message):
        patch(language_model(), **arguments)


def test_models_of_another_kind_are_refused():
    model = network()
    with pytest.raises(InputError, match="lm: expected a language model"):
        patch(models.ablated(model, heads=[(0, 1)]), CLEAN, CORRUPTED, metric=METRIC)
    with pytest.raises(InputError, match="token ids, since the model came without a tokenizer"):
        patch(model, "behcf", "bdhjf", metric=METRIC)
    with pytest.raises(InputError, match="mlp is missing in a block without dense layers"):
        patch(network(mlp=None), CLEAN, CORRUPTED, metric=METRIC)
