"""What must be independent is uncorrelated, and what is held out is disjoint from what is trained on.

One key used twice gives numbers that are equal, or functions of each other, while every marginal distribution stays
right. So means of products are held to zero within their own standard errors: of the entries that one key builds, of
inputs, task and noise of a prompt, of prompts, of chains.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.cases import TASKS
from drawing import sampled_batch, sampled_many
from prompt_uses import watched
from scipy.stats import norm

import icllab as icl
from icllab import algorithms
from icllab.core.protocols import AbstractTask
from icllab.diagnostics.identification import layer_probe, measurements
from icllab.diagnostics.identification.comparison import PromptSplit, identify
from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.hmc import HMC
from icllab.diagnostics.sampling.local_posteriors import LocalPosterior
from icllab.diagnostics.sampling.mala import MALA
from icllab.diagnostics.sampling.nuts import NUTS
from icllab.diagnostics.sampling.sgld import SGLD
from icllab.diagnostics.singular.coefficients import coefficient_at_temperature
from icllab.models import (
    BlockOptions,
    DeepSets,
    FastWeights,
    GeneralisedAttention,
    Interleaved,
    ItemLabelNetwork,
    LinearAttention,
    PromptPerceptron,
    Recurrent,
    Transformer,
)
from icllab.tasks import GaussianWeights, InContextCopying, ItemLabel, LinearRegression, WeightPool
from icllab.training import Fixed, Fresh, Record, fitting

RARELY = 1e-4  # chance of one false alarm in a test


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


def assert_uncorrelated(left, right=None):
    """Means of products [sample, entry] x [sample, entry] are zero within their errors; of one array, of its pairs."""
    arrays = [np.asarray(a, float) for a in (left, left if right is None else right)]
    one, two = ((a - a.mean(0))[:, a.std(0) > 1e-9 * np.abs(a).max()] for a in arrays)
    count, means = len(one), one.T @ two / len(one)
    errors = np.sqrt(np.maximum((one**2).T @ two**2 / count - means**2, 1e-300) / count)
    scores = means / errors
    if right is None:
        np.fill_diagonal(scores, 0)
    assert np.abs(scores).max() < norm.isf(RARELY / 2 / scores.size), np.abs(scores).max()


def test_the_assertion_itself_notices_entries_that_are_equal():
    samples = np.random.default_rng(0).normal(size=(300, 20))
    assert_uncorrelated(samples)
    for i, j in ((0, 1), (3, 19)):
        equal = samples.copy()
        equal[:, i] = 2 * samples[:, j]
        with pytest.raises(AssertionError):
            assert_uncorrelated(equal)


# --- what one key builds ---------------------------------------------------------------------------------------------

BLOCK = BlockOptions(heads=2, mlp=(4,), norm="pre")
ITEMS = {"classes": 4, "labels": 4, "pairs": 2, "dim": 5}
ATTENTION = {"dim": 3, "layers": 2, "std": 0.5, "sign": -1, "answers": "every", "normalised": True}
BUILT = {
    "item label": lambda key: ItemLabel.init(**ITEMS, key=key),
    "weight pool": lambda key: WeightPool.init(GaussianWeights(jnp.asarray(1.0)), 5, 4, key=key),
    "linear attention": lambda key: LinearAttention.init(
        **ATTENTION, causal=False, query_is_key=True, form="tokens", key=key
    ),
    "generalised attention": lambda key: GeneralisedAttention.init(
        **ATTENTION, similarity="softmax", temperature=1.0, key=key
    ),
    "transformer": lambda key: Transformer(
        Interleaved(), dim=2, width=4, layers=2, positions="learned", length=8, block=BLOCK, key=key
    ),
    "perceptron": lambda key: PromptPerceptron(dim=2, length=3, hidden=(4, 4), answers="every", key=key),
    "recurrent": lambda key: Recurrent(dim=2, width=3, hidden=(3,), key=key),
    "deep sets": lambda key: DeepSets(dim=2, width=4, hidden=(4,), pool="mean", key=key),
    "fast weights": lambda key: FastWeights.init(dim=3, hidden=2, std=0.5, normalised=True, key=key),
    "item label network": lambda key: ItemLabelNetwork(dim=2, position_dim=3, labels=3, depth=1, form="plain", key=key),
}


@pytest.mark.parametrize("name", BUILT)
def test_the_entries_that_one_key_builds_are_uncorrelated(name):
    """Label vectors and class means, layers, heads, queries and keys, rows of a pool."""

    @eqx.filter_jit
    def entries(keys):
        def leaves(key):
            return [leaf.ravel() for leaf in jax.tree.leaves(eqx.filter(BUILT[name](key), eqx.is_inexact_array))]

        return jax.lax.map(lambda key: jnp.concatenate(leaves(key)), keys)

    assert_uncorrelated(entries(jax.random.split(jax.random.key(1), 400)))


def test_members_of_an_ensemble_are_uncorrelated():
    build = BUILT["recurrent"]
    members = icl.ensemble(lambda key: build(key), seeds=40, key=jax.random.key(0)).stacked
    leaves = [np.asarray(leaf).reshape(40, -1) for leaf in jax.tree.leaves(members) if eqx.is_inexact_array(leaf)]
    assert_uncorrelated(np.concatenate(leaves, axis=1).T)


# --- what a prompt is made of ----------------------------------------------------------------------------------------

REGRESSIONS = (
    "lu_letey",
    "full_covariances",
    "raventos",
    "vonoswald",
    "function_regression",
    "hierarchical_regression",
)
PROMPTS = 3000


@pytest.mark.parametrize("name", REGRESSIONS)
def test_inputs_task_and_noise_of_a_prompt_are_uncorrelated(name):
    r"""With :math:`m_k = \sum_{i \ne k} y_ix_i`, which knows the task: :math:`E[m_kx_k] = E[m_ky_k] = E[y_kx_i] = 0`.

    Inputs have mean zero and either sign, so that all three are odd in an input, unless it has the key of the task or
    of the noise.
    """
    prompts = sampled_batch(TASKS[name](), jax.random.split(jax.random.key(2), PROMPTS))
    x, y = np.asarray(prompts.x, float), np.asarray(prompts.y, float)
    moment = np.einsum("nid,ni->nd", x, y)
    for k in range(x.shape[1]):
        others = moment - y[:, k, None] * x[:, k]
        assert_uncorrelated(others, np.column_stack([x[:, k], y[:, k]]))
        assert_uncorrelated(np.delete(x, k, axis=1).reshape(PROMPTS, -1), y[:, [k]])


# Each draws as another task of the list does, with other numbers or through a task of the list.
VARIANTS = (
    "vonoswald",
    "curriculum",
    "sparse_curriculum",
    "skewed_inputs",
    "orthogonal_query",
    "random_orthant",
    "sign_labels_curriculum",
    "item_label_code",
    "item_label_mixture",
    "few_shot_symbols",
)
GIVEN = ("fixed_prompts", "table", "text")  # of a set, which prompts share


@pytest.mark.parametrize("name", [slow(name) if name in VARIANTS else name for name in TASKS if name not in GIVEN])
def test_prompts_of_one_stream_are_uncorrelated(name):
    """Neighbouring prompts, of one call for many of them, and of keys of their own where it has a way of its own."""
    task, (first, second) = TASKS[name](), jax.random.split(jax.random.key(3))
    streams = [sampled_many(task, 1000, first)]
    if type(task).sample_many is not AbstractTask.sample_many:  # which draws with a key for each
        streams.append(sampled_batch(task, jax.random.split(second, 1000)))
    for prompts in streams:
        leaves = [np.asarray(leaf, float).reshape(1000, -1) for leaf in jax.tree.leaves(prompts)]
        entries = np.concatenate(leaves, axis=1)
        assert_uncorrelated(entries[:-1:2], entries[1::2])


@pytest.mark.parametrize("name", ["item_label", "item_label_novel", "label_relations"])
def test_items_labels_and_places_of_a_prompt_are_uncorrelated(name):
    """The noise of two items, and the label and place of a prompt with the entries of its items."""
    task = TASKS[name]()
    prompts = sampled_many(task, 4000, jax.random.key(4))
    items, classes = np.asarray(prompts.items, float), np.asarray(prompts.classes)
    apart = (classes[:, 0] != classes[:, 1]) & (classes[:, :2] < 0).all(1)  # of novel classes, with fresh means
    if apart.sum() > 200:
        assert_uncorrelated(items[apart, 0], items[apart, 1])
        labels = np.asarray(prompts.labels)[apart, :2, None] == np.arange(task.class_count)
        place = np.asarray(prompts.shift, float)[apart, None]
        assert_uncorrelated(items[apart, 0], np.concatenate([labels[:, 0], labels[:, 1], place], axis=1))
    if (means := getattr(task, "means", None)) is not None:
        known = (classes >= 0).all(1)
        noise = items - np.asarray(means)[np.maximum(classes, 0)] / np.sqrt(1 + float(task.within_class_noise) ** 2)
        assert_uncorrelated(noise[known].reshape(known.sum(), -1))


def test_the_items_and_the_query_of_copying_are_uncorrelated():
    tokens = np.asarray(InContextCopying(items=6, labels=3, pairs=4).sample_many(4000, key=jax.random.key(5)).tokens)
    items, labels = tokens[:, 0:8:2], tokens[:, 1:8:2]
    place = (items == tokens[:, [8]]) @ np.arange(4)
    np.testing.assert_array_equal((items == tokens[:, [8]]).sum(1), 1)
    assert_uncorrelated(np.column_stack([items[:, :1], labels, place]))


# --- what is trained on, and held out --------------------------------------------------------------------------------

KEY, REGRESSION = jax.random.key(0), LinearRegression.convention("raventos", dim=2, length=3)
STREAMS = {
    "fresh": Fresh(),
    "reused": Fresh(reuse=2),
    "fixed": 8,
    "epochs": Fixed(16),
    "replacement": Fixed(16, minibatches="replacement"),
}


@pytest.mark.parametrize("name", [slow(name) if name in ("reused", "replacement") else name for name in STREAMS])
def test_held_out_prompts_are_none_that_are_trained_on_and_seeds_share_none(name):
    members = icl.ensemble(lambda key: LinearAttention.ahn(dim=2, layers=1, std=0.3, key=key), seeds=3, key=KEY)
    options = {"steps": 4, "batch": 4, "key": jax.random.key(6), "data": STREAMS[name]}
    with watched() as uses:
        icl.fit(members, REGRESSION, record=Record(held_out=16), **options)
    assert uses.faults() == []
    assert len(uses.trained) == 3
    for one, other in itertools.combinations([*uses.trained, set().union(*uses.held_out)], 2):
        assert not one & other


def test_held_out_prompts_that_are_drawn_with_the_key_of_the_training_are_noticed(monkeypatch):
    """The test above, for a bug: the prompts that are held out are the fixed set."""
    monkeypatch.setattr(fitting, "held_out_prompts", lambda record, task, constants, key: constants.data)
    with pytest.raises(AssertionError):
        test_held_out_prompts_are_none_that_are_trained_on_and_seeds_share_none("epochs")


def rows(prompts):
    return {row.tobytes() for row in np.asarray(prompts.x)}


@pytest.mark.parametrize("module", [measurements, layer_probe])
def test_candidates_and_probes_are_fitted_on_other_prompts_than_they_are_judged_on(module, monkeypatch):
    sets, sample = [], module.sample_prompts
    monkeypatch.setattr(module, "sample_prompts", lambda *a, **k: sets.append(sample(*a, **k)) or sets[-1])
    network = BUILT["transformer"](KEY)
    if module is measurements:
        split = PromptSplit(20, fitting=20)
        identify(network, {"ridge": algorithms.Ridge(0.5)}, REGRESSION, progress=False, prompts=split, key=KEY)
    else:
        descent = algorithms.GradientDescent(0.5, layers=1, dim=2, normalised=True, half=True)
        layer_probe.probe_layers(network, descent, REGRESSION, fitting=20, prompts=20, block=20, key=KEY)
    fitted, judged = map(rows, sets)
    assert len(fitted) == len(judged) == 20
    assert not fitted & judged


# --- chains ----------------------------------------------------------------------------------------------------------


def quadratic(w):
    return 0.5 * jnp.sum(jnp.array([1.0, 3.0]) * w**2)


def over_samples(w, sample):
    return quadratic(w) + jnp.mean(sample @ w)


HALF = np.random.default_rng(0).normal(size=(10, 2))
DATA = jnp.asarray(np.concatenate([HALF, -HALF]), jnp.float32)  # whose mean is zero
SAMPLERS = {"hmc": (HMC, {}), "mala": (MALA, {}), "nuts": (NUTS, {}), "sgld": (SGLD, {})}
SAMPLERS["sgld on batches"] = SGLD, {"batch": 5}


@pytest.mark.parametrize("name", [slow(name) if name == "nuts" else name for name in SAMPLERS])
def test_chains_are_uncorrelated(name):
    """Of one run, and of two keys; the scores count effective draws."""
    kind, options = SAMPLERS[name]
    sampler = kind(chains=6, warm_up=200, draws=600, **options)
    loss, data = (over_samples, {"data": DATA}) if options else (quadratic, {})
    at = {"nbeta": 50.0, "localization": 1.0} | data
    posterior = LocalPosterior.from_function(loss, jnp.zeros(2), **at)
    chains = [sampler.sample(posterior, key=jax.random.key(i)).parameters for i in range(2)]
    series = np.concatenate([np.asarray(c, float)[..., 0] for c in chains])
    assert len(np.unique(series[:, 0])) == len(series)
    share = np.mean([convergence.effective_draws(s[None]) / len(s) for s in series])
    scores = np.corrcoef(series)[np.triu_indices(len(series), 1)] * np.sqrt(min(share, 1.0) * series.shape[1])
    assert np.abs(scores).max() < norm.isf(RARELY / 2 / len(scores))


def test_chains_of_the_estimate_of_its_checks_and_of_halves_have_keys_of_their_own(monkeypatch):
    keys, draw = [], HMC.draw

    def watching(self, *arguments, key, **options):
        keys.append(tuple(np.asarray(jax.random.key_data(key)).ravel().tolist()))
        return draw(self, *arguments, key=key, **options)

    monkeypatch.setattr(HMC, "draw", watching)
    data = jnp.asarray(np.random.default_rng(0).normal(size=(20, 2)), jnp.float32)

    def loss(w, sample):
        return 0.5 * jnp.mean(jnp.sum((sample - w[None]) ** 2, axis=1))

    posterior = LocalPosterior.from_function(loss, jnp.mean(data, axis=0), data=data, n=100.0)
    sampler = HMC(chains=4, warm_up=20, draws=20)
    coefficient_at_temperature(posterior, sampler=sampler, key=jax.random.key(0))
    assert len(keys) > 4
    assert len(set(keys)) == len(keys)
