"""What overlaps are of, those of independent directions, and the check on made-up overlaps."""

from types import SimpleNamespace

import equinox as eqx
import jax
import numpy as np
import pytest
import xarray as xr
from first_updates import adam_rate
from judging import judged

from iclbook.claims.routing import _transformers
from iclbook.claims.routing.disjoint_contexts import claim, measure
from icllab.diagnostics import ContextRank
from icllab.diagnostics.contexts.queries import join_prompt
from icllab.lab.checks import Outcome

KEY = jax.random.key(0)
SIZES = {"symbols": 3, "length": 2, "width": 4, "layers": 1, "heads": 1, "batch": 4, "prompts": 3, "updates": 2}
POINT = SimpleNamespace(**SIZES, zipf_exponent=1.0, programs="abc", contexts="ac", stage=("before", "after"), seed=(0,))
SHARED = np.eye(5)


def rank_of(rows, converged=True):
    return ContextRank(None, len(rows), 1.0, 3, np.ones(len(rows)), rows, converged, 0)


def test_a_query_after_its_context_is_a_prompt_of_the_program():
    task = _transformers.task(("a", "b", "ba"), POINT, exponent=1.0, key=KEY)
    halves = measure.halved_queries(task, np.random.default_rng(0))
    tokens = np.asarray(halves[0].tokens)
    for c, program in enumerate(task.program_tokens()):
        one = join_prompt(measure.program_alone(task, c), jax.tree.map(lambda leaf: leaf[3], halves[0]))
        assert np.asarray(one.tokens).tolist() == [*program, *tokens[3, :2], task.vocabulary - 1, 0]


def test_the_halves_share_no_string_and_each_is_fitted_on_all_of_its_own():
    task = _transformers.task(("a", "b"), POINT, exponent=1.0, key=KEY)
    halves = [np.asarray(half.tokens) for half in measure.halved_queries(task, np.random.default_rng(0))]
    strings = [{tuple(row) for row in half[:, :2].tolist()} for half in halves]
    assert [half.shape for half in halves] == [(8, 4)] * 2
    assert [len(rows) for rows in strings] == [4, 4]
    assert strings[0].isdisjoint(strings[1])
    for half in halves:
        np.testing.assert_array_equal(half[:4], half[4:])


def test_a_summary_has_means_over_pairs_between_the_halves():
    """First halves span directions 1, 2 and 3, 4, second halves 1, 5 and 3, 4, 5."""
    ranks = [[rank_of(SHARED[:2]), rank_of(SHARED[[0, 4]])], [rank_of(SHARED[2:4]), rank_of(SHARED[2:5])]]
    wanted = {"overlap": 0.0, "ceiling": (1 / 2 + 1) / 2, "independent": (3 + 2) / 2 / 5, "context_rank": 9 / 4}
    assert measure.summary(ranks) == pytest.approx(wanted | {"converged_share": 1.0})
    ranks[1][1] = rank_of(SHARED[:3])  # the second context's second half spans what the first context's first does
    assert measure.summary(ranks)["overlap"] == pytest.approx((1 + 0) / 2)
    assert measure.summary(ranks)["ceiling"] == pytest.approx(1 / 2)


def test_a_pair_counts_where_both_fits_have_converged():
    failed = rank_of(SHARED[:1], converged=False)
    ranks = [[rank_of(SHARED[:2]), failed], [rank_of(SHARED[2:4]), rank_of(SHARED[1:4])]]
    found = measure.summary(ranks)
    assert found["converged_share"] == 3 / 4
    assert found["ceiling"] == 1.0
    assert found["overlap"] == 1 / 2
    ranks[0][0] = failed
    assert np.isnan(measure.summary(ranks)["overlap"])
    assert measure.summary(ranks)["ceiling"] == 1.0


def test_directions_drawn_at_random_overlap_as_independent_ones_do():
    rng = np.random.default_rng(1)
    one, other = rank_of(np.eye(40)[:6]), rank_of(np.eye(40)[:9])
    found = []
    for _ in range(200):
        turned = [measure.randomise(rank, rng) for rank in (one, other)]
        np.testing.assert_allclose(turned[0].basis @ turned[0].basis.T, np.eye(6), atol=1e-12)
        found.append(measure.summary([[turned[0]] * 2, [turned[1]] * 2])["overlap"])
    error = np.std(found, ddof=1) / 200**0.5
    assert error < 0.01
    assert abs(np.mean(found) - measure.summary([[one] * 2, [other] * 2])["independent"]) < 4 * error


def test_ranks_are_of_the_network_before_and_after_training(monkeypatch):
    asked, queries, optimizers, tasks, trained = [], [], [], [], _transformers.train

    def kept(task, *args, **how):
        tasks.append(task)
        optimizers.append(how["optimizer"])
        return trained(task, *args, **how)

    def counted(model, task, context, **how):
        queries.append(np.asarray(how["queries"].prompts.tokens).tolist())
        asked.append((model, np.asarray(context.tokens).tolist(), how["queries"].length))
        return rank_of(SHARED[:2])

    monkeypatch.setattr(measure, "context_rank", counted)
    monkeypatch.setattr(_transformers, "train", kept)
    found = measure.measure(POINT, key=KEY)
    assert found["overlap"][0] == ("seed", "stage")
    np.testing.assert_array_equal(found["overlap"][1], 1)
    assert np.isnan(found["largest_loss"][1][0, 0])
    assert found["largest_loss"][1][0, 1] > claim.LEARNED
    assert [tokens for _, tokens, _ in asked] == [[3, 0, 0], [3, 0, 0], [5, 0, 0], [5, 0, 0]] * 2
    assert queries[0] != queries[1]
    assert queries == queries[:2] * 4
    assert {size for *_, size in asked} == {3}
    weights = [np.asarray(model.readout.weight) for model, *_ in asked if eqx.is_array(model.readout.weight)]
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[0], weights[3])
    np.testing.assert_array_equal(weights[4], weights[7])
    assert not np.array_equal(weights[0], weights[4])
    assert [adam_rate(one) for one in optimizers] == pytest.approx([0.003], rel=1e-4)
    assert measure.measure(POINT, key=KEY, independent=True)["overlap"][1].max() < 1
    measure.measure(POINT, key=KEY, alike=True)
    for task, alike in zip(tasks, (False, False, True), strict=True):
        assert bool(np.all(task.tables == task.tables[:1])) is alike


def made_up(before=0.9, after=0.4, overlap=0.3, independent=0.01, loss=0.01, seeds=12):
    """Shared ratios before and after of seeds with an overlap after training."""
    rng = np.random.default_rng(0)
    noise = np.exp(0.1 * rng.normal(size=(1, 1, seeds, 2)))
    dims, ones = ("layers", "width", "seed", "stage"), np.ones((1, 1, seeds, 2))
    overlaps = np.array([0.6, overlap]) * noise
    rows = {"overlap": overlaps, "ceiling": overlaps / (np.array([before, after]) * noise[..., ::-1])}
    rows |= {"largest_loss": np.array([np.nan, loss]) * ones, "independent": independent * ones}
    rows |= {"context_rank": ones, "converged_share": ones}
    coords = {"layers": [2], "width": [16], "seed": range(seeds), "stage": ["before", "after"]}
    return xr.Dataset({name: (dims, values) for name, values in rows.items()}, coords=coords)


_, failing, outcome = judged(lambda dataset: claim.check(claim.theory(dataset)))


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_the_check_tells_each_part_of_the_claim():
    """A low overlap is no sign where the same context has as low a one."""
    assert outcome(made_up()) is Outcome.HOLDS
    assert names(made_up(after=0.9)) == {"lower"}
    assert names(made_up(overlap=0.03)) == {"not_disjoint"}
    assert names(made_up(independent=0.1)) == {"not_disjoint"}


def test_networks_without_a_fit_or_that_have_not_learned_are_left_out():
    doubtful = made_up()
    doubtful["overlap"][0, 0, :2, 0] = np.nan
    doubtful["overlap"][0, 0, :2, 1] = 1e-4
    doubtful["largest_loss"][0, 0, 2, 1] = 0.5
    doubtful["overlap"][0, 0, 2, 1] = 50.0
    assert outcome(doubtful) is Outcome.HOLDS
    doubtful["largest_loss"][0, 0, 2:5, 1] = 0.5
    assert outcome(doubtful) is Outcome.UNDECIDED
    assert outcome(made_up(loss=0.5)) is Outcome.UNDECIDED
