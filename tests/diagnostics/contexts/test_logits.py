"""Maps of answers that are logits, where they are known up to what a softmax does not feel; queries of three tokens."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import models, tasks
from icllab.core.errors import InputError
from icllab.core.prompt import TokenPrompt
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics.contexts import nulls
from icllab.diagnostics.contexts.distances import divergence, divergence_kind, metric_root, squared_size
from icllab.diagnostics.contexts.map_tests import MapTests
from icllab.diagnostics.contexts.maps import context_map
from icllab.diagnostics.contexts.queries import queries_for
from icllab.diagnostics.contexts.ranks import context_rank
from icllab.diagnostics.contexts.solvers import unused_parameters
from icllab.diagnostics.contexts.subspaces import parameter_mask

SIZE = 4
FEW = MapTests(directions=2, draws=2)
TASK = tasks.InContextCopying(items=2, labels=2, pairs=2)


class Votes(AbstractPredictor):
    """The logits after a token, and a vote of every token before it: f_c adds the votes to the bias."""

    own: jax.Array
    votes: jax.Array
    bias: jax.Array

    def __call__(self, prompt):
        """The logits at every position."""
        tokens = jax.nn.one_hot(prompt.tokens[:-1], SIZE, dtype=self.bias.dtype)
        before = jnp.cumsum(tokens, axis=0) - tokens
        return self.bias[None] + tokens @ self.own + before @ self.votes


@pytest.fixture(scope="module")
def votes():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        model = Votes(*(jnp.asarray(rng.normal(size=shape)) for shape in ((SIZE, SIZE), (SIZE, SIZE), (SIZE,))))
        context = TokenPrompt(tokens=jnp.asarray([0, 2, 2, 3, 1, 0]))  # the last two are its own query and target
        queries = jax.vmap(TokenPrompt)(jnp.asarray(rng.integers(0, SIZE, size=(24, 2))))
        options = {"subspace": lambda m: m.bias, "key": jax.random.key(0), "queries": queries}
        yield model, context, context_map(model, TASK, context, tests=FEW, **options), options


def test_votes_go_to_the_bias_and_what_a_softmax_does_not_feel_stays(votes):
    model, _, result, _ = votes
    change = np.asarray(result.weights.bias - model.bias)
    target = np.asarray(model.votes)[[0, 2, 2, 3]].sum(0)
    np.testing.assert_allclose(change, target - target.mean(), atol=1e-5)
    assert result.gap < 1e-10
    assert result.derivative < 1e-10
    assert result.composition < 1e-10
    assert result.dataset.attrs["head"] == "logits"


def test_the_rank_leaves_out_the_direction_that_a_softmax_does_not_feel(votes):
    """All of the votes' rows that the context names move the bias, each in the three directions that are felt."""
    model, context, _, options = votes
    with jax.enable_x64(True):
        result = context_rank(model, TASK, context, weights=lambda m: m.votes, **options)
    assert result.rank == SIZE - 1
    # The rows of votes count as often as their token is in the context: (1, 0, 2, 1).
    weights = np.einsum(
        "ri,rj->ij", result.basis.reshape(-1, SIZE, SIZE).sum(2), result.basis.reshape(-1, SIZE, SIZE).sum(2)
    )
    np.testing.assert_allclose(weights, 0.0, atol=1e-8)
    sizes = (result.basis.reshape(-1, SIZE, SIZE) ** 2).sum((0, 2))
    np.testing.assert_allclose(sizes, (SIZE - 1) * np.array([1, 0, 4, 1]) / 6, atol=1e-8)


def test_the_metric_is_the_curvature_of_the_divergence():
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        t, v = jnp.asarray(rng.normal(size=SIZE)), jnp.asarray(rng.normal(size=SIZE))
        for kind in ("squares", "logits"):
            step = 1e-4
            curved = 2 * float(divergence(kind, t, t + step * v)) / step**2
            assert float(squared_size(kind, t, v)) == pytest.approx(curved, rel=1e-3)
            assert float(jnp.sum(metric_root(kind, t, v) ** 2)) == pytest.approx(float(squared_size(kind, t, v)))
        p, q = (np.exp(np.asarray(z)) / np.exp(np.asarray(z)).sum() for z in (t, v))
        assert float(divergence("logits", t, v)) == pytest.approx((p * np.log(p / q)).sum())


def test_queries_of_three_tokens_feel_queries_and_keys():
    model = models.Transformer(
        models.Tokens(SIZE),
        dim=SIZE,
        width=4,
        layers=1,
        block=models.BlockOptions(heads=1, mlp=None, norm="none"),
        positions="none",
        key=jax.random.key(0),
    )
    rng = np.random.default_rng(2)
    context = TokenPrompt(tokens=jnp.asarray(rng.integers(0, SIZE, size=5), jnp.int32))
    queries = jax.vmap(TokenPrompt)(jnp.asarray(rng.integers(0, SIZE, size=(8, 4)), jnp.int32))
    mask = parameter_mask(model, lambda m: (m.blocks[0].attention.query, m.blocks[0].attention.value))
    message = {}
    for size in (1, 3):
        query_set = queries_for(context, TASK, count=queries, size=size, key=jax.random.key(0))
        case = eqx.filter_jit(nulls.own_case)(model, mask, context, query_set, "logits")
        message[size] = unused_parameters(case.fit, size)
    assert message == {1: ["no query feels blocks[0].attention.query"], 3: []}


def test_an_answer_has_one_axis_at_most():
    """A number is a regression's; a matrix is refused."""
    regression = tasks.LinearRegression.convention("timaeus", dim=2, length=3)
    assert divergence_kind(regression, jax.ShapeDtypeStruct((), jnp.float32)) == "squares"
    assert divergence_kind(TASK, jax.ShapeDtypeStruct((SIZE,), jnp.float32)) == "logits"
    with pytest.raises(
        InputError, match=r"model: expected an answer of real numbers along one axis, got 'float32\[2, 3\]'"
    ):
        divergence_kind(regression, jax.ShapeDtypeStruct((2, 3), jnp.float32))
