"""What the contract tests run through: a new task, predictor, model or claim joins by adding one line.

Every case is built once, and drawn from by one program: eager calls compile every operation by itself.
"""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from character_tokenizer import CharacterTokenizer
from drawing import sampled

from icllab import algorithms
from icllab.algorithms import KernelRichardson, NormalisedDescent
from icllab.constructions import gradient_descent, kernel_richardson
from icllab.core.kernels import gaussian
from icllab.lab import registry
from icllab.models import (
    BlockOptions,
    DeepSets,
    FastWeights,
    GeneralisedAttention,
    GradientStep,
    Interleaved,
    ItemLabelNetwork,
    Joined,
    LinearAttention,
    LowRankAttention,
    MinimalHead,
    MultiHeadLinearAttention,
    Prefixed,
    PromptPerceptron,
    Recurrent,
    ScalarAttention,
    Transformer,
    edited,
    reduced,
)
from icllab.tasks import (
    Curriculum,
    FewShot,
    FixedPrompts,
    FunctionRegression,
    GaussianInputs,
    GaussianWeights,
    HierarchicalRegression,
    HigherOrderChain,
    InContextCopying,
    ItemBursts,
    ItemLabel,
    LabelRelations,
    LinearRegression,
    MarkovChain,
    MarkovPool,
    Mixture,
    NetworkRegression,
    PeriodicStrings,
    PromptMixture,
    RepeatedTokens,
    ShiftedQuery,
    SignLabels,
    SparseWeights,
    SphereInputs,
    StringPrograms,
    Table,
    Text,
    TreeRegression,
    WeightPool,
)
from icllab.tasks.text_files import Documents

KEY = jax.random.key(7)
CHARACTERS = CharacterTokenizer()
_PAIRS = (("hot", "cold"), ("up", "down"), ("in", "out"), ("wet", "dry"))
_KINDS = (("cat", "animal"), ("dog", "animal"), ("fly", "animal"), ("oak", "plant"), ("elm", "plant"))


def once(build):
    """A case that is made at the first call, in float32 whatever the precision of the test that calls first."""

    @functools.cache
    def made():
        with jax.enable_x64(False):
            return build()

    return made


def _pool_task():
    return LinearRegression.from_scaling(dim=4, alpha=2.0, kappa=1.0, rho=0.1, key=KEY)


def _full_covariances():
    covariance = jnp.eye(4) + 0.3
    pool = WeightPool.init(GaussianWeights(covariance), 5, 4, key=KEY)
    return LinearRegression(4, 6, GaussianInputs(covariance), pool, 0.2)


def _garg(weights=None, inputs=None):
    return LinearRegression(4, 6, inputs or GaussianInputs(1.0), weights or GaussianWeights(1.0), 0.0)


def _table():
    x, y = jax.random.normal(KEY, (9, 4)), jnp.arange(9.0)
    return Table(x, (y - 4) / jnp.std(y), length=6)


def _item_label(**fields):
    sizes = {"classes": 8, "labels": 4, "pairs": 4, "dim": 3, "position_dim": 11, "burstiness": 2}
    return ItemLabel.init(**(sizes | fields), key=KEY)


def _item_bursts(**fields):
    items = _item_label(classes=8)
    sizes = {"pairs": 5, "burstiness": 2, "distractors": 1, "noise_variance": 0.1}
    return ItemBursts(items.means[:, None], items.label_vectors, **(sizes | fields))


def _chain():
    rows = jnp.arange(27.0).reshape(9, 3) % 5 + 1
    return HigherOrderChain(rows / jnp.sum(rows, axis=1, keepdims=True), order=2, tokens=6)


TASKS = {
    "lu_letey": _pool_task,
    "full_covariances": _full_covariances,
    "raventos": lambda: LinearRegression.convention("raventos", dim=4, length=6),
    "vonoswald": lambda: LinearRegression.convention("vonoswald", dim=4, length=6),
    "table": _table,
    "fixed_prompts": lambda: FixedPrompts.from_task(_pool_task(), 1000, key=KEY),
    "curriculum": lambda: Curriculum(LinearRegression.convention("garg", dim=4, length=6), dim=2, positions=3),
    "sparse_weights": lambda: _garg(SparseWeights(2)),
    "sparse_curriculum": lambda: Curriculum(_garg(SparseWeights(2)), dim=2, positions=3),
    "skewed_inputs": lambda: _garg(inputs=GaussianInputs.rotated([4.0, 2.0, 1.0, 0.0], key=KEY)),
    "orthogonal_query": lambda: _garg(inputs=ShiftedQuery(GaussianInputs(1.0), "orthogonal", 3)),
    "repeated_query": lambda: _garg(inputs=ShiftedQuery(GaussianInputs(1.0), "repeated")),
    "random_orthant": lambda: _garg(inputs=ShiftedQuery(GaussianInputs(1.0), "random_orthant")),
    "network_regression": lambda: NetworkRegression(4, 6, hidden=5, noise_variance=0.1),
    "tree_regression": lambda: TreeRegression(4, 6, depth=3),
    "sign_labels": lambda: SignLabels(_garg()),
    "sign_labels_curriculum": lambda: SignLabels(Curriculum(_garg(), dim=2, positions=3)),
    "function_regression": lambda: FunctionRegression(
        4, 6, SphereInputs(1.0), kernel="exponential", temperature=0.5, noise_variance=0.1
    ),
    "hierarchical_regression": lambda: HierarchicalRegression(dim=4, length=6, factors=3),
    "item_label": lambda: _item_label(mixture=PromptMixture(0.5, 0.5), zipf_exponent=1.0, no_repeats=True),
    "item_label_novel": lambda: _item_label(classes=None, burstiness=1),
    "item_label_code": lambda: dataclasses.replace(_item_label(), novel_classes=4, zipf_without_repeats=False),
    "item_bursts": lambda: _item_bursts(labelling="random"),
    "item_label_mixture": lambda: Mixture(
        (_item_bursts(remainder="apart"), _item_bursts(labelling="flipped")), [1.0, 2.0]
    ),
    "mixture": lambda: Mixture([LinearRegression.convention(n, dim=4, length=6) for n in ("garg", "ahn")], [0.3, 0.7]),
    "label_relations": lambda: LabelRelations.init(_item_label(burstiness=1, no_repeats=True), 3, key=KEY),
    "in_context_copying": lambda: InContextCopying(items=6, labels=3, pairs=4),
    "repeated_tokens": lambda: RepeatedTokens(vocabulary=5, period=4),
    "periodic_strings": lambda: PeriodicStrings(vocabulary=9, shortest=2, longest=4, tokens=7, held_out=1),
    "markov_chain": lambda: MarkovChain.init(vocabulary=3, tokens=6, key=KEY),
    "higher_order_chain": _chain,
    "markov_pool": lambda: MarkovPool.init(chains=4, vocabulary=3, tokens=6, key=KEY),
    "urns": lambda: MarkovPool(3, 6, 0, 0.5),
    "string_programs": lambda: StringPrograms.init(
        functions=3, symbols=3, lengths=(1, 3), programs=((0,), (2, 1), (1,)), noise=0.2, by_data=True, key=KEY
    ),
    "text": lambda: Text.from_documents(
        Documents(("a", "b"), (b"abracadabra", b"barbara and a drab crab")), tokens=6, alphabet=b"abcdr "
    ),
    "text_padded": lambda: Text.from_documents(
        Documents(("a", "b"), (b"abra", b"barbara and a drab crab")), tokens=6, tokenizer=CHARACTERS, pad=True
    ),
    "few_shot": lambda: FewShot.from_pairs(_PAIRS, CHARACTERS, shots=2, labels="shuffled"),
    "few_shot_symbols": lambda: FewShot.from_pairs(_KINDS, CHARACTERS, shots=2, labels="symbols", balanced=True),
}
TASKS = {name: once(build) for name, build in TASKS.items()}


def _reduced():
    return reduced.fit(_pool_task(), prompts=60, ridge=0.1, key=KEY)


def _linear(layers, answers, causal, query_is_key, form="tokens"):
    return LinearAttention.init(
        dim=4,
        layers=layers,
        std=0.5,
        sign=1,
        answers=answers,
        causal=causal,
        query_is_key=query_is_key,
        normalised=True,
        form=form,
        key=KEY,
    )


def _generalised():
    return GeneralisedAttention.init(
        dim=4,
        layers=2,
        std=0.5,
        similarity="softmax",
        temperature=1.0,
        sign=-1,
        answers="every",
        normalised=True,
        key=KEY,
    )


def _transformer(arrangement, *, layers=1, positions="none", length=None, mlp=None, norm="none", **options):
    block = BlockOptions(heads=2, mlp=mlp, norm=norm, **options)
    shape = {"dim": 4, "width": 8, "layers": layers, "positions": positions, "length": length}
    return Transformer(arrangement, **shape, block=block, key=KEY)


def _items(arrangement, **options):
    block = BlockOptions(heads=2, **options)
    return Transformer(arrangement, dim=3, width=8, layers=2, positions="rotary", block=block, key=KEY)


def _prefixed():
    transformer = _transformer(Interleaved(), layers=2, mlp=(8,), norm="pre", positions="learned", length=12)
    return eqx.filter_jit(Prefixed.from_context)(transformer, sampled(_pool_task(), KEY).alone(3, size=4))


_EVERY = Joined(answers="every", causal=True, query_is_key=False)
_LAST = Joined(answers="last", causal=False, query_is_key=True)
_PREFIX = {"causal": False, "query_is_key": True}

MODELS = {
    "reduced_linear_attention": _reduced,
    "linear_attention": lambda: _linear(1, "every", False, True),
    "linear_attention_prefixes": lambda: _linear(2, "every", False, True),
    "linear_attention_last": lambda: LinearAttention.ahn(dim=4, layers=2, std=0.5, key=KEY),
    "linear_attention_gram": lambda: _linear(2, "every", False, True, form="gram"),
    "generalised_attention": _generalised,
    "scalar_attention": lambda: ScalarAttention.from_rates("softmax", jnp.array([0.3, 0.5]), temperature=2.0),
    "transformer_interleaved": lambda: _transformer(Interleaved(), mlp=(8,), norm="pre", positions="learned", length=8),
    "transformer_joined": lambda: _transformer(
        _EVERY, layers=2, norm="post", positions="rotary", weighting="relu", normalisation="examples"
    ),
    "transformer_parallel": lambda: _transformer(
        Interleaved(), mlp=(8,), norm="pre", norm_kind="rms", parallel=True, bias=True, window=3, positions="rotary"
    ),
    "transformer_grouped": lambda: _transformer(
        Interleaved(), mlp=(8,), norm="pre", gated=True, mlp_bias=False, bias="qkv", kv_heads=1, nonlinearity="silu"
    ),
    "multi_head": lambda: MultiHeadLinearAttention.init(
        dim=4, layers=2, heads=2, rank=2, std=0.5, sign=1, answers="every", normalised=True, **_PREFIX, key=KEY
    ),
    "low_rank": lambda: LowRankAttention.init(dim=4, heads=2, rank=2, std=0.5, softmax=False, key=KEY),
    "low_rank_softmax": lambda: LowRankAttention.init(dim=4, heads=2, rank=None, std=0.5, softmax=True, key=KEY),
    "transformer_last": lambda: _transformer(_LAST, mlp=(), similarity=lambda q, k: -jnp.sum((q - k) ** 2)),
    "prefixed": _prefixed,
    "prompt_perceptron": lambda: PromptPerceptron(dim=4, length=8, hidden=(8,), answers="every", key=KEY),
    "recurrent": lambda: Recurrent(dim=4, width=6, hidden=(5,), key=KEY),
    "deep_sets": lambda: DeepSets(dim=4, width=6, hidden=(5,), pool="mean", key=KEY),
    "fast_weights": lambda: FastWeights.init(dim=4, hidden=2, std=0.5, normalised=True, key=KEY),
    "gradient_step": lambda: GradientStep(jnp.array([0.5, -1.0, 0.2, 0.1]), jnp.asarray(0.7)),
    "item_label_network": lambda: ItemLabelNetwork(dim=3, position_dim=11, labels=4, depth=0, form="plain", key=KEY),
    "minimal_head": lambda: MinimalHead.init(dim=3, labels=4, beta1=1.0, alpha=2.0, beta2=0.5, depth=0, key=KEY),
    "transformer_items": lambda: _items(Interleaved(labels=4), norm="pre", mlp=(8,)),
    "transformer_joined_items": lambda: _items(Joined(answers="last", labels=4, **_PREFIX), norm="none", mlp=None),
    "edited": lambda: edited(_reduced(), lambda name, value: 2.0 * value if name == "weights" else value),
}
MODELS = {name: once(build) for name, build in MODELS.items()}


# What is no regression has prompts of its own.
_ITEMS = ("item_label_network", "minimal_head", "transformer_items", "transformer_joined_items")
_COUNTS = ("pool_posterior", "dirichlet_counts", "dirichlet_counts_of_pairs")
TASK_OF = dict.fromkeys(_ITEMS, "item_label") | dict.fromkeys(_COUNTS, "markov_pool") | {"n_gram": "higher_order_chain"}


def task_of(name):
    """A task whose prompts the predictor or model of that name answers."""
    return TASKS[TASK_OF.get(name, "lu_letey")]()


_STEPS = {"layers": 2, "dim": 4, "normalised": True}
_KERNEL = {"kernel": "exponential", "temperature": 0.5}


def _neighbours(positions="every"):
    from sklearn.neighbors import KNeighborsRegressor

    return algorithms.FromSklearn(KNeighborsRegressor(2), positions=positions, fewest=2)


def _trained_network(optimizer, **batch):
    network = eqx.nn.MLP(4, "scalar", 5, 1, key=KEY)
    return algorithms.TrainedNetwork(network, optimizer, steps=3, **batch)


PREDICTORS = {
    **MODELS,
    "least_squares": algorithms.LeastSquares,
    "ridge": lambda: algorithms.Ridge(0.1),
    "ridge_without": lambda: algorithms.Ridge(0.0),
    "principal_components": lambda: algorithms.PrincipalComponentRegression.from_covariance(jnp.eye(4) + 0.3, 2),
    "lasso": lambda: algorithms.Lasso(0.05),
    "nearest_neighbours": algorithms.NearestNeighbours,
    "nearest_neighbours_weighted": lambda: algorithms.NearestNeighbours(2, weighting="distance"),
    "trained_network": lambda: _trained_network(optax.adam(0.05, eps_root=1e-8)),
    "trained_network_batches": lambda: _trained_network(optax.sgd(0.05), batch=2, key=KEY),
    "gaussian_posterior": lambda: algorithms.bayes_optimal(_pool_task().fresh()),
    "gaussian_posterior_diagonal": lambda: algorithms.GaussianPosterior(jnp.array([1.0, 0.5, 2.0, 0.1]), 0.1),
    "gaussian_posterior_full": lambda: algorithms.GaussianPosterior(jnp.eye(4) + 0.3, 0.0),
    "gradient_descent_plus_plus": lambda: algorithms.GradientDescentPlusPlus.scalar(0.3, 0.2, **_STEPS, half=True),
    "functional_descent": lambda: algorithms.FunctionalDescent(0.3, **_KERNEL, **_STEPS, noise_variance=0.1),
    "descending_classifier": lambda: gradient_descent(NormalisedDescent(0.3, layers=2, dim=4)),
    "richardson_transformer": lambda: kernel_richardson(
        KernelRichardson(0.3, kernel=gaussian, temperature=2.0, layers=2), dim=4, pieces=4, size=2.0
    ),
    "normalised_descent": lambda: NormalisedDescent(0.3, layers=2, dim=4),
    "kernel_richardson": lambda: KernelRichardson(0.3, **_KERNEL, layers=2),
    "kernel_ridge": lambda: algorithms.KernelRidge(0.1, **_KERNEL),
    "gaussian_process": lambda: algorithms.GaussianProcess(0.1, **_KERNEL),
    "repaired_process": lambda: algorithms.RepairedProcess(0.1, kernel="relu", temperature=1.0),
    "softmax_limit": lambda: algorithms.SoftmaxLimit(0.1),
    "n_gram": lambda: algorithms.NGram.knowing(_chain()),
    "pool_posterior": lambda: algorithms.PoolPosterior.bigrams(TASKS["markov_pool"]()),
    "dirichlet_counts": lambda: algorithms.DirichletCounts(1.0, 3, 0),
    "dirichlet_counts_of_pairs": lambda: algorithms.DirichletCounts(0.5, 3, 1),
    "discrete_mmse": lambda: algorithms.bayes_optimal(_pool_task()),
    "sklearn": _neighbours,
    "sklearn_last": lambda: _neighbours("last"),
}
PREDICTORS = {name: MODELS.get(name) or once(build) for name, build in PREDICTORS.items()}

CLAIMS = sorted(registry.claims())


def cast(tree, dtype):
    """Every floating-point leaf in the given type."""
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x, dtype)) if eqx.is_inexact_array(x) else x, tree)


def part(tree, index):
    """Of every leaf, what stands at an index of the first axis."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[index]), tree)
