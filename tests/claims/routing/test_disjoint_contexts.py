"""What overlaps are of, those of independent directions, and the check on made-up overlaps."""

from types import SimpleNamespace

import equinox as eqx
import jax
import numpy as np
import pytest
import xarray as xr
from first_updates import adam_rate
from judging import judged

from icllab.claims.routing import _transformers
from icllab.claims.routing.disjoint_contexts import claim, measure
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
    asked = measure.queries(task, np.random.default_rng(0))
    tokens = np.asarray(asked.tokens)
    assert tokens.shape == (18, 4)
    np.testing.assert_array_equal(tokens[:9], tokens[9:])
    assert len({tuple(row) for row in tokens[:9, :2].tolist()}) == 9
    for c, program in enumerate(task.program_tokens()):
        one = join_prompt(measure.program_alone(task, c), jax.tree.map(lambda leaf: leaf[4], asked))
        assert np.asarray(one.tokens).tolist() == [*program, *tokens[4, :2], task.vocabulary - 1, 0]


def test_a_summary_has_means_over_pairs_and_contexts():
    ranks = [rank_of(SHARED[:2]), rank_of(SHARED[1:4]), rank_of(SHARED[3:4], converged=False)]
    found = measure.summary(ranks)
    assert found == pytest.approx(
        {"overlap": (1 / 2 + 0 + 1) / 3, "independent": (3 + 2 + 3) / 5 / 3, "context_rank": 2.0, "converged": 0.0}
    )
    assert measure.summary(ranks[:2])["converged"] == 1


def test_directions_drawn_at_random_overlap_as_independent_ones_do():
    rng = np.random.default_rng(1)
    one, other = rank_of(np.eye(40)[:6]), rank_of(np.eye(40)[:9])
    found = []
    for _ in range(200):
        turned = [measure.randomise(rank, rng) for rank in (one, other)]
        np.testing.assert_allclose(turned[0].basis @ turned[0].basis.T, np.eye(6), atol=1e-12)
        found.append(measure.summary(turned)["overlap"])
    error = np.std(found, ddof=1) / 200**0.5
    assert error < 0.01
    assert abs(np.mean(found) - measure.summary([one, other])["independent"]) < 4 * error


def test_ranks_are_of_the_network_before_and_after_training(monkeypatch):
    asked, optimizers, trained = [], [], _transformers.train

    def kept(*args, **how):
        optimizers.append(how["optimizer"])
        return trained(*args, **how)

    def counted(model, task, context, **how):
        asked.append((model, np.asarray(context.tokens).tolist(), how["query_length"]))
        return rank_of(SHARED[:2])

    monkeypatch.setattr(measure, "context_rank", counted)
    monkeypatch.setattr(_transformers, "train", kept)
    found = measure.measure(POINT, key=KEY)
    assert found["overlap"][0] == ("seed", "stage")
    np.testing.assert_array_equal(found["overlap"][1], 1)
    assert np.isnan(found["largest_loss"][1][0, 0])
    assert found["largest_loss"][1][0, 1] > claim.LEARNED
    assert [tokens for _, tokens, _ in asked] == [[3, 0, 0], [5, 0, 0]] * 2
    assert {size for *_, size in asked} == {3}
    weights = [np.asarray(model.readout.weight) for model, *_ in asked if eqx.is_array(model.readout.weight)]
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[2], weights[3])
    assert not np.array_equal(weights[0], weights[2])
    assert [adam_rate(one) for one in optimizers] == pytest.approx([0.003], rel=1e-4)
    assert measure.measure(POINT, key=KEY, independent=True)["overlap"][1].max() < 1


def made_up(before=0.7, after=0.3, independent=0.01, loss=0.01, converged=1.0, seeds=10, stages=("before", "after")):
    rng = np.random.default_rng(0)
    noise = np.exp(0.1 * rng.normal(size=(1, 1, seeds, 2)))
    dims, ones = ("layers", "width", "seed", "stage"), np.ones((1, 1, seeds, 2))
    rows = {"overlap": np.array([before, after]) * noise, "independent": independent * ones}
    rows |= {"largest_loss": np.array([np.nan, loss]) * ones, "converged": converged * ones, "context_rank": ones}
    coords = {"layers": [2], "width": [16], "seed": range(seeds), "stage": ["before", "after"]}
    found = xr.Dataset({name: (dims, values) for name, values in rows.items()}, coords=coords)
    return found.sel(stage=list(stages))


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert names(made_up(after=0.7)) == {"lower"}
    assert names(made_up(after=0.05)) == {"not_disjoint"}
    assert names(made_up(independent=0.1)) == {"not_disjoint"}


def test_the_check_is_undecided_where_the_data_do_not_tell():
    doubtful = made_up()
    doubtful["converged"][0, 0, :2] = 0
    doubtful["overlap"][0, 0, :2] = 1e-4
    assert outcome(doubtful) is Outcome.HOLDS
    assert outcome(made_up(loss=0.5)) is outcome(made_up(converged=0.0)) is Outcome.UNDECIDED
