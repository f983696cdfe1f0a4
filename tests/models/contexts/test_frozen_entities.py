"""Attention over frozen and unfrozen entities: three reductions, their bounds, and where the bounds are tight."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.models import BlockOptions, Interleaved, Joined, Transformer
from icllab.models.contexts.frozen_entities import FrozenEntities, merge_errors, singular_values_within

RNG = np.random.default_rng(4)
FROZEN, OWN, DIM, WIDTH = 4, 3, 2, 3
VISIBLE = np.concatenate([np.ones((OWN, FROZEN), bool), np.tril(np.ones((OWN, OWN), bool))], axis=1)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def drawn(*shape, size=1.0):
    return size * RNG.normal(size=shape)


def head(*, size=1.0, values=None, keys=None, visible=VISIBLE):
    """A head of random queries, keys and values, some of them given."""
    keys = drawn(FROZEN + OWN, DIM) if keys is None else keys
    values = drawn(FROZEN + OWN, WIDTH) if values is None else values
    parts = (drawn(OWN, DIM), drawn(OWN, DIM, size=size), keys, values, visible)
    return FrozenEntities(*map(jnp.asarray, parts), frozen=FROZEN)


def errors(entities, reduction):
    """Norms of the differences of the updates, from the definition of attention."""
    scores = np.where(entities.visible, np.asarray(entities.queries) @ np.asarray(entities.keys).T, -np.inf)
    return np.linalg.norm(softmax(scores, axis=1) @ np.asarray(entities.values) - reduction.updates, axis=1)


@eqx.filter_jit
def reductions(entities):
    return entities.without(), entities.shared(), entities.winners()


@pytest.mark.parametrize("size", [0.3, 3.0])
def test_every_bound_holds_and_the_first_is_the_error(size):
    for _ in range(50):
        entities = head(size=size)
        without, shared, winners = reductions(entities)
        np.testing.assert_allclose(errors(entities, without), without.bound, atol=1e-14)
        for reduction in (shared, winners):
            assert (errors(entities, reduction) <= reduction.bound + 1e-14).all()
        total = np.abs(np.asarray(shared.pattern) - np.asarray(winners.pattern)).sum(axis=1) / 2
        assert (total <= np.asarray(winners.variation) + 1e-14).all()


def test_the_context_is_left_out_by_attending_to_the_rest():
    entities = head()
    scores = np.asarray(entities.queries) @ np.asarray(entities.keys)[FROZEN:].T
    rest = softmax(np.where(VISIBLE[:, FROZEN:], scores, -np.inf), axis=1)
    np.testing.assert_allclose(entities.without().updates, rest @ np.asarray(entities.values)[FROZEN:], rtol=1e-12)
    np.testing.assert_allclose(entities.mass, np.asarray(entities.pattern)[:, :FROZEN].sum(axis=1), rtol=1e-14)
    # Scores of zero are not enough: many frozen entities have much of the attention even so.
    silent = head(keys=np.concatenate([np.zeros((FROZEN, DIM)), drawn(OWN, DIM)]), size=0.1)
    assert (np.asarray(silent.mass) > 0.4).all()


def test_shared_values_are_merged_exactly_by_log_sum_exp():
    groups = np.array([0, 0, 2, 1])
    values = drawn(OWN, WIDTH)
    entities = head(values=np.concatenate([values[groups], values]), visible=np.ones_like(VISIBLE))
    shared = entities.shared()
    np.testing.assert_array_equal(entities.nearest(), np.broadcast_to(groups, (OWN, FROZEN)))
    np.testing.assert_allclose(errors(entities, shared), 0, atol=1e-14)
    np.testing.assert_allclose(shared.bound, 0, atol=1e-14)
    scores = np.asarray(entities.queries) @ np.asarray(entities.keys).T
    for j in range(OWN):
        members = [*np.flatnonzero(groups == j), FROZEN + j]
        np.testing.assert_allclose(shared.scores[:, j], logsumexp(scores[:, members], axis=1), rtol=1e-12)


def test_the_bound_of_sharing_is_the_error_where_all_differences_have_one_direction():
    groups, offsets = np.array([0, 0, 2, 1]), np.array([0.3, 1.0, 0.2, 2.0])
    values = drawn(OWN, WIDTH)
    apart = values[groups] + offsets[:, None] * np.array([0.6, 0.0, 0.8])
    entities = head(values=np.concatenate([apart, values]))
    shared = entities.shared(jnp.broadcast_to(jnp.asarray(groups), (OWN, FROZEN)))
    np.testing.assert_allclose(errors(entities, shared), shared.bound, rtol=1e-12)
    np.testing.assert_allclose(shared.bound, np.asarray(entities.pattern)[:, :FROZEN] @ offsets, rtol=1e-12)


def test_a_group_is_among_what_the_query_sees():
    entities = head()
    nearest = np.asarray(entities.nearest())
    np.testing.assert_array_equal(nearest[0], 0)
    assert nearest[1].max() <= 1
    distance = np.linalg.norm(entities.values[:FROZEN, None] - entities.values[None, FROZEN:], axis=2)
    np.testing.assert_array_equal(nearest[-1], distance.argmin(axis=1))


def test_the_variation_of_winners_is_reached_by_two_groups():
    """All frozen in the first group, of equal scores: log-sum-exp less maximum is log 5 there and 0 elsewhere."""
    wide = np.log(FROZEN + 1)
    # Both groups have probability one half at the mean of the two log-odds: there the bound is an equality.
    keys = np.array([[0, 0]] * (FROZEN + 1) + [[wide / 2, 0], [-50, 0]])
    entities = head(keys=keys, visible=np.ones_like(VISIBLE))
    entities = eqx.tree_at(lambda e: e.queries, entities, jnp.tile(jnp.asarray([[1.0, 0.0]]), (OWN, 1)))
    groups = jnp.zeros((OWN, FROZEN), int)
    shared, winners = entities.shared(groups), entities.winners(groups)
    total = np.abs(np.asarray(shared.pattern) - np.asarray(winners.pattern)).sum(axis=1) / 2
    np.testing.assert_allclose(winners.variation, np.tanh(wide / 4), rtol=1e-12)
    np.testing.assert_allclose(total, np.tanh(wide / 4), rtol=1e-12)


def test_a_winner_is_the_entity_of_the_largest_score_in_its_group():
    entities = head(size=2.0)
    winners, groups = entities.winners(), np.asarray(entities.nearest())
    scores = np.asarray(entities.scores)
    for i in range(OWN):
        for j in range(i + 1):
            members = [*np.flatnonzero(groups[i] == j), FROZEN + j]
            best = max(members, key=lambda t, i=i: scores[i, t])
            assert winners.winners[i, j] == best
            assert winners.scores[i, j] == scores[i, best]
    assert not np.isfinite(np.asarray(winners.scores)[0, 1:]).any()


def test_a_sharp_head_is_its_winners():
    """Where scores are far apart, log-sum-exp is the maximum and one frozen key takes the place of the unfrozen."""
    values = drawn(OWN, WIDTH)
    entities = head(size=200.0, values=np.concatenate([values[[0, 1, 2, 0]], values]), visible=np.ones_like(VISIBLE))
    winners = entities.winners()
    np.testing.assert_allclose(errors(entities, winners), 0, atol=1e-8)
    assert (np.asarray(winners.winners) < FROZEN).any()


def transformer(positions="learned", arrangement=None, **options):
    block = BlockOptions(heads=2, mlp=(5,), norm="pre", **options)
    fields = {"dim": 3, "width": 8, "layers": 2, "positions": positions, "length": 6}
    return Transformer(arrangement or Interleaved(), **fields, block=block, key=jax.random.key(0))


def regression(positions):
    return RegressionPrompt(x=jnp.asarray(drawn(positions, 3)), y=jnp.asarray(drawn(positions)))


@eqx.filter_jit
def heads(prompt):
    """Both heads of both layers, and the activations they are of."""
    model = transformer()
    of = [FrozenEntities.heads(model, prompt, frozen=4, layer=i) for i in range(2)]
    updates = [sum(head.updates for head in layer) for layer in of]
    return of, updates, model.trace(prompt).activations, model.blocks[0].attention.key


def test_the_heads_of_a_transformer_add_up_to_its_attention():
    """In the first layer all five unfrozen tokens have queries, in the last those that are read."""
    of, updates, found, key = heads(regression(5))
    for layer, rows in ((0, slice(4, None)), (1, slice(2, None))):
        np.testing.assert_allclose(updates[layer], found[f"block{layer}.attention"][rows], rtol=1e-12, atol=1e-14)
    first = of[0][1]
    assert (len(first.queries), len(first.entities), len(of[1][0].queries)) == (5, 5, 3)
    np.testing.assert_allclose(first.keys[4:], np.asarray(first.entities) @ np.asarray(key)[:, 1], rtol=1e-12)


def test_heads_that_are_no_frozen_softmax_are_refused():
    def of(frozen=4, **fields):
        model = eqx.filter_eval_shape(transformer, **fields)
        eqx.filter_eval_shape(lambda m: FrozenEntities.heads(m, regression(5), frozen=frozen, layer=0), model)

    with pytest.raises(InputError, match="frozen: expected an integer from 1 to 8, got 9"):
        of(frozen=9)
    with pytest.raises(InputError, match="softmax attention"):
        of(weighting="relu")
    with pytest.raises(InputError, match="rotary"):
        of(positions="rotary")
    with pytest.raises(InputError, match="sees no later tokens"):
        of(frozen=2, arrangement=Joined(answers="last", causal=False, query_is_key=True))
    with pytest.raises(InputError, match="query_is_key=True"):
        of(arrangement=Joined(answers="last", causal=True, query_is_key=False))


def test_singular_values_are_those_of_the_part_within_the_span():
    rows, span = drawn(5, 4), drawn(2, 4)
    basis, _ = np.linalg.qr(span.T)
    within = np.linalg.svd(rows @ basis @ basis.T, compute_uv=False)
    np.testing.assert_allclose(singular_values_within(jnp.asarray(rows), jnp.asarray(span)), within[:2], rtol=1e-12)
    # A row that is there twice adds no direction; a span of everything leaves all as it is.
    twice = np.concatenate([span, span[:1]])
    found = np.asarray(singular_values_within(jnp.asarray(rows), jnp.asarray(twice)))
    np.testing.assert_allclose(found, [*within[:2], 0], atol=1e-12)
    whole = singular_values_within(jnp.asarray(rows), jnp.asarray(drawn(6, 4)))
    np.testing.assert_allclose(whole, np.linalg.svd(rows, compute_uv=False), rtol=1e-12)


def test_merging_two_of_three_entities_is_the_best_merge_of_a_pair():
    pattern, values = softmax(drawn(7, 3), axis=1), drawn(3, 2)
    updates, best = pattern @ values, []
    for a, b in ((0, 1), (0, 2), (1, 2)):
        c = 3 - a - b
        groups = np.stack([pattern[:, a] + pattern[:, b], pattern[:, c]], axis=1)
        line = [s * values[a] + (1 - s) * values[b] for s in np.linspace(0, 1, 2001)]
        best.append(min(np.linalg.norm(updates - groups @ np.stack([value, values[c]])) for value in line))
    errors = merge_errors(pattern, values)
    np.testing.assert_allclose(errors[1], min(best) / np.linalg.norm(updates), rtol=1e-5)
    assert errors[2] == 0


def test_entities_of_equal_values_or_proportional_attention_merge_exactly():
    pattern, values = softmax(drawn(7, 6), axis=1), drawn(6, 4)
    values[3] = values[0]
    pattern[:, 4] = 2 * pattern[:, 1]
    errors = merge_errors(pattern, values)
    np.testing.assert_allclose(errors[3:], 0, atol=1e-7)
    assert errors[2] > 1e-3


def test_the_singular_values_of_the_updates_bound_the_error_of_every_coarse_graining():
    pattern, values = softmax(drawn(9, 8), axis=1), drawn(8, 6)
    sizes = np.linalg.svd(pattern @ values, compute_uv=False)
    least = [np.sqrt(np.sum(sizes[k:] ** 2) / np.sum(sizes**2)) for k in range(1, 9)]
    errors = merge_errors(pattern, values)
    assert (errors >= np.array(least) - 1e-12).all()
    assert errors[-1] == 0
    assert errors[0] > errors[3] > 0
