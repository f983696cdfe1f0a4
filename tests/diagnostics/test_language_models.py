"""Diagnostics of a language model: each number against NumPy on the model's own logits, in bounded memory."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from tests import language_models as files

from icllab import diagnostics, models, tasks
from icllab.algorithms.ngrams import NGram
from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.diagnostics.behaviour import answers, length_gradients, lengths
from icllab.diagnostics.contexts import distances, nulls
from icllab.diagnostics.sampling.run_losses import network_loss
from icllab.models import pretrained

VOCABULARY, KEY, WEIGHTS = files.VOCABULARY, jax.random.key(0), files.drawn(files.TIED)
SEQUENCES = [np.random.default_rng(i).integers(0, VOCABULARY, size) for i, size in enumerate((9, 4, 7, 6, 9, 5))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return pretrained.load(files.write_folder(tmp_path_factory.mktemp("model"), files.TIED))


@pytest.fixture(scope="module")
def shallow(model):
    """The last block alone."""
    return eqx.tree_at(lambda m: m.blocks, model, model.blocks[-1:])


@pytest.fixture(scope="module")
def repeated():
    return tasks.RepeatedTokens(vocabulary=VOCABULARY, period=4)


def of_prompts(sequences):
    prompts = TokenPrompt.from_ragged(sequences)
    return tasks.FixedPrompts(tasks.RepeatedTokens(vocabulary=VOCABULARY, period=4), prompts, len(sequences))


def rows(task, count):
    """The tokens of the prompts that a diagnostic draws, without their padding."""
    drawn = answers.sample_prompts(task, key=KEY, prompts=count)
    mask = np.ones(drawn.tokens.shape, bool) if drawn.mask is None else np.asarray(drawn.mask)
    return [np.asarray(tokens)[real] for tokens, real in zip(drawn.tokens, mask, strict=True)]


def logits_of(tokens):
    """Those of the family's formula in NumPy, of all but the last token."""
    return files.logits(files.TIED, WEIGHTS, tokens[:-1])


def losses(tokens):
    return -log_softmax(logits_of(tokens), axis=1)[np.arange(len(tokens) - 1), tokens[1:]]


@pytest.mark.parametrize("measure", [diagnostics.head_scores, diagnostics.per_length])
def test_ids_of_another_vocabulary_are_refused(measure, model):
    """Heads are scored without a loss, which would notice."""
    task = tasks.RepeatedTokens(vocabulary=10 * VOCABULARY, period=4)
    with pytest.raises(InputError, match=f"tokens .*: expected an id from 0 to {VOCABULARY - 1}.*its own tokenizer"):
        measure(model, task, key=KEY, prompts=8)


def test_losses_of_prompts_of_different_lengths_are_cross_entropies(model):
    task = of_prompts(SEQUENCES)
    table = np.full((16, 8), np.nan)
    for row, tokens in zip(table, rows(task, 16), strict=True):
        row[: len(tokens) - 1] = losses(tokens)
    result = diagnostics.per_length(model, task, key=KEY, prompts=16)
    np.testing.assert_array_equal(result.targets, np.isfinite(table).sum(0))
    np.testing.assert_allclose(result.loss, np.nanmean(table, axis=0), rtol=1e-4)
    hits = lengths.accuracy(model, task, key=KEY, prompts=16).accuracy
    right = [np.sum(logits_of(row).argmax(1) == row[1:]) for row in rows(task, 16)]
    assert float((hits * result.targets).sum()) == pytest.approx(sum(right))


@pytest.mark.parametrize("ragged", [False, True])
def test_the_lens_reads_the_answer_before_the_padding_and_ends_in_the_models_loss(model, repeated, ragged):
    task = of_prompts(SEQUENCES) if ragged else repeated
    lens = diagnostics.logit_lens(model, task, key=KEY, prompts=8, query_length=2)
    tokens = rows(task, 8)
    assert float(lens.loss[-1]) == pytest.approx(np.mean([losses(row)[-1] for row in tokens]), rel=1e-4)
    alone = np.mean([losses(row[-3:])[-1] for row in tokens])
    assert float(lens.loss_alone[-1]) == pytest.approx(alone, rel=1e-4)
    np.testing.assert_allclose([lens.distance[-1], lens.distance_alone[-1]], 0, atol=1e-5)
    # The embedding's answer is that of a table: the norm, then the tied readout.
    table = np.asarray(model.embedding.projection.weight, np.float64)
    last = [row[-2] for row in tokens]
    first = files.norm(table[last], np.asarray(model.final_norm.scale)) @ table.T
    wanted = -log_softmax(first, axis=1)[np.arange(8), [row[-1] for row in tokens]]
    assert float(lens.loss[0]) == pytest.approx(wanted.mean(), rel=1e-4)
    final = np.array([logits_of(row)[-1] for row in tokens])
    kl = np.sum(softmax(final, 1) * (log_softmax(final, 1) - log_softmax(first, 1)), axis=1)
    assert float(lens.distance[0]) == pytest.approx(kl.mean(), rel=1e-3)


def test_a_query_longer_than_the_shortest_prompt_is_refused(model):
    with pytest.raises(ValueError, match="query_length: expected an integer from 1 to 3, got 4"):
        diagnostics.logit_lens(model, of_prompts(SEQUENCES), key=KEY, prompts=16, query_length=4)


def test_the_benefit_of_a_context_is_a_difference_of_cross_entropies(model, repeated):
    result = diagnostics.icl_scores(model, repeated, key=KEY, prompts=8, size=2, early=1)
    tokens = rows(repeated, 8)
    both = np.array([(losses(row)[1], losses(row)[-1], losses(row[-3:])[-1]) for row in tokens])
    assert float(result.early_minus_late) == pytest.approx((both[:, 0] - both[:, 1]).mean(), abs=1e-4)
    assert float(result.context_benefit) == pytest.approx((both[:, 2] - both[:, 1]).mean(), abs=1e-4)


def test_scores_of_heads_are_diagonals_of_the_traced_patterns(model, repeated):
    scores = diagnostics.head_scores(model, repeated, key=KEY, prompts=4)
    traced = [model.trace(TokenPrompt(jnp.asarray(row))).activations for row in rows(repeated, 4)]
    names = [f"block{i}.attention.pattern" for i in range(files.LAYERS)]
    for name, shift in (("previous_token_score", 1), ("diagonal_induction_score", 3)):
        wanted = [np.concatenate([np.diagonal(a[n], -shift, 1, 2).mean(1) for n in names]) for a in traced]
        np.testing.assert_allclose(scores[name], np.mean(wanted, 0), rtol=1e-4)


def test_fewer_prompts_of_a_large_vocabulary_are_in_memory_and_no_number_changes(model, repeated, monkeypatch):
    sizes = []
    block = answers._answer_block
    monkeypatch.setattr(answers, "_answer_block", lambda *a: sizes.append(len(a[3].tokens)) or block(*a))
    whole = diagnostics.per_length(model, repeated, key=KEY, prompts=10)
    monkeypatch.setattr(answers, "LOGITS", 3 * 7 * VOCABULARY)
    parts = diagnostics.per_length(model, repeated, key=KEY, prompts=10)
    assert sizes == [10, 3, 3, 3, 3]
    assert answers.prompts_at_once(model, repeated.sample(key=KEY), 4) == 2  # twice, and not three and one
    np.testing.assert_allclose(parts.loss, whole.loss, rtol=1e-5)
    ensemble = {"a": model, "b": model}
    assert float(diagnostics.per_length(ensemble, repeated, key=KEY, prompts=4).loss.std("predictor").max()) == 0


def test_a_loss_in_parts_has_the_same_value_and_gradient(model, repeated, monkeypatch):
    whole, params, prompts = network_loss(model, repeated, key=KEY, data=5)
    monkeypatch.setattr(answers, "LOGITS", 4 * 2 * 7 * VOCABULARY)
    parts = network_loss(model, repeated, key=KEY, data=5)[0]
    assert (whole.at_once, parts.at_once) == (None, 2)
    wanted = np.mean([losses(np.asarray(row)) for row in prompts.tokens])
    gradients = []
    for loss in (whole, parts):

        def of_scale(scale, prompts, loss=loss):
            return loss(eqx.tree_at(lambda m: m.final_norm.scale, params, scale), prompts)

        value, gradient = jax.jit(jax.value_and_grad(of_scale))(params.final_norm.scale, prompts)
        assert float(value) == pytest.approx(wanted, rel=1e-5)
        gradients.append(gradient)
    np.testing.assert_allclose(*gradients, atol=1e-5 * float(jnp.abs(gradients[0]).max()))


def test_shares_of_the_gradient_are_products_of_gradients(shallow, repeated):
    """Of every length's gradient on one group with the total gradient on the others, written out."""
    result = length_gradients.gradient_shares(shallow, repeated, key=KEY, prompts=8, groups=8)
    params, static = eqx.partition(shallow, eqx.is_inexact_array)

    def of_positions(free, prompt):
        return repeated.loss(eqx.combine(free, static)(prompt), prompt)

    jacobian = jax.jit(jax.vmap(jax.jacrev(of_positions), (None, 0)))
    prompts = answers.sample_prompts(repeated, key=KEY, prompts=8)
    leaves = jax.tree.leaves(jacobian(params, prompts))
    flat = np.concatenate([np.asarray(leaf, np.float64).reshape(8, 7, -1) for leaf in leaves], axis=2)
    products = np.einsum("apw,bqw->pab", flat, flat) * (1 - np.eye(8))
    assert float(result.gradient_square) == pytest.approx(products.sum() / 56, rel=1e-3)
    shares = products.sum((1, 2)) / products.sum()
    np.testing.assert_allclose(result.gradient_share.fillna(0), shares * np.isfinite(result.gradient_share), rtol=1e-2)


def test_prompts_of_a_set_are_compared_in_the_divergence_of_their_task(repeated):
    answer = jax.ShapeDtypeStruct((VOCABULARY,), jnp.float32)
    fixed = of_prompts(SEQUENCES)
    mixture = tasks.Mixture((repeated, repeated), [0.5, 0.5])
    assert [distances.divergence_kind(task, answer) for task in (repeated, fixed, mixture)] == ["logits"] * 3


def test_a_context_is_as_far_from_none_as_the_models_answers_say(model, repeated):
    """What a map is to bring to zero: the divergence of answers with the context from those without it."""
    context = repeated.sample(key=jax.random.key(2))
    case = nulls.context_case(
        model, repeated, context, subspace=lambda m: m.final_norm.scale, queries=4, size=3, key=KEY
    )[0]
    queries = [np.asarray(row)[-4:-1] for row in rows_of_queries(repeated, 8)[4:]]
    before = [files.logits(files.TIED, WEIGHTS, np.append(context.tokens[:-2], query))[-1] for query in queries]
    after = [files.logits(files.TIED, WEIGHTS, query)[-1] for query in queries]
    kl = np.sum(softmax(before, 1) * (log_softmax(before, 1) - log_softmax(after, 1)), axis=1)
    np.testing.assert_allclose(case.held_out, before, rtol=1e-3, atol=1e-4)
    assert case.fit.kind == "logits"
    answers_alone = jnp.asarray(np.array(after), jnp.float32)
    np.testing.assert_allclose(distances.divergence("logits", case.held_out, answers_alone), kl, rtol=1e-3)


def rows_of_queries(task, count):
    return answers.sample_prompts(task, key=jax.random.fold_in(KEY, 0), prompts=count).tokens


def test_the_fisher_matrix_of_the_logits_is_that_of_a_softmax(model, repeated):
    prompts, scale = network_loss(model, repeated, key=KEY, data=2)[2], model.final_norm.scale

    def outputs(scale, data):
        return jax.vmap(eqx.tree_at(lambda m: m.final_norm.scale, model, scale))(data)

    def cross_entropy(z, data):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), data.tokens[:, 1:, None], axis=2))

    spectrum = diagnostics.fisher_spectrum(cross_entropy, scale, key=KEY, data=prompts, outputs=outputs)
    # The logits are linear in the scale: x_c W_vc, of the normed stream x.
    streams = [model.trace(TokenPrompt(row)).activations["block1"] for row in prompts.tokens]
    x = np.concatenate([files.norm(np.asarray(stream, np.float64), 1) for stream in streams])
    jacobian = x[:, None] * np.asarray(model.embedding.projection.weight, np.float64)
    p = softmax(np.concatenate([logits_of(np.asarray(row)) for row in prompts.tokens]), axis=1)
    centred = jacobian - np.einsum("nv,nvc->nc", p, jacobian)[:, None]
    fisher = np.einsum("nv,nva,nvb->ab", p, centred, centred) / len(p)
    np.testing.assert_allclose(spectrum.eigenvalue, np.linalg.eigvalsh(fisher)[::-1], atol=1e-4 * fisher.trace())


def test_a_predictor_of_token_ids_is_causal_and_an_edit_that_looks_ahead_is_not(shallow, repeated):
    diagnostics.require_causal(shallow, repeated, key=KEY)
    ahead = models.edited(shallow, lambda name, value: jnp.roll(value, -1, axis=0) if name == "block0" else value)
    with pytest.raises(ValueError, match="looks at its own target or at later entries"):
        diagnostics.require_causal(ahead, repeated, key=KEY)


def laws(seed):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(VOCABULARY), 1), rng.dirichlet(np.ones(VOCABULARY), VOCABULARY)


def test_the_distance_of_a_model_of_tokens_to_an_ngram_is_a_ratio_of_divergences(model):
    task = of_prompts([row[:5] for row in SEQUENCES if len(row) >= 5])
    unigram, bigram = laws(0)
    rivals = {"unigram": NGram.from_laws((unigram,)), "bigram": NGram.from_laws((unigram, bigram))}
    result = diagnostics.identify(
        model, rivals, task, key=KEY, prompts=diagnostics.PromptSplit(12, fitting=10), positions=[1, 3]
    )

    def drawn(number, count):
        return rows_under(task, jax.random.fold_in(KEY, number), count)

    def at(tokens):
        return log_softmax(logits_of(tokens), axis=1)[[1, 3]]

    baseline = np.log(np.mean([np.exp(at(row)) for row in drawn(0, 10)], axis=(0, 1)))
    judged = drawn(1, 12)
    answers_ = np.array([at(row) for row in judged])
    wanted = {"unigram": np.log(unigram), "bigram": np.array([np.log(bigram[row[[1, 3]]]) for row in judged])}
    kl = {n: np.sum(np.exp(answers_) * (answers_ - other), -1).mean() for n, other in wanted.items()}
    scale = np.sum(np.exp(answers_) * (answers_ - baseline), -1).mean()
    for name, value in kl.items():
        row = result.sel(candidate=name)
        assert float(row.fraction_unexplained) == pytest.approx(value / scale, rel=1e-3)
    assert not {"input_gradient_discrepancy", "cosine", "gradient_difference", "weight_distance"} & set(result)
    assert str(result.verdict.values) == "none of these"
    rivals["bigram"] = diagnostics.Fitted(rivals["bigram"], ["tables"])
    with pytest.raises(
        ValueError, match=r"rivals: expected no Fitted candidate for prompts of token ids, got \['bigram"
    ):
        diagnostics.identify(model, rivals, task, key=KEY, prompts=diagnostics.PromptSplit(12, fitting=10))


def rows_under(task, key, count):
    return np.asarray(answers.sample_prompts(task, key=key, prompts=count).tokens)


def test_an_ngram_is_identified_among_others(repeated):
    unigram, bigram = laws(1)
    near = 0.97 * bigram + 0.03 / VOCABULARY
    rivals = {"unigram": (unigram,), "bigram": (unigram, bigram), "another": laws(2)}
    rivals = {name: NGram.from_laws(tables) for name, tables in rivals.items()}
    options = {"key": KEY, "prompts": diagnostics.PromptSplit(60, fitting=60), "positions": "every"}
    result = diagnostics.identify(NGram.from_laws((unigram, near)), rivals, repeated, **options)
    assert str(result.verdict.values) == "bigram"
    assert float(result.mutual.sel(candidate="bigram", other_candidate="another")) > 0.5
