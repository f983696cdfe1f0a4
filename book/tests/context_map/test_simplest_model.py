"""What is measured of maps of linear attention, against closed forms; and the check on made-up numbers."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.context_map import _law, _laws
from iclbook.claims.context_map import _regression_transformers as regression
from iclbook.claims.context_map.simplest_model import claim
from iclbook.claims.context_map.simplest_model.measure import measure
from icllab.diagnostics.contexts.queries import join_prompt
from icllab.lab.checks import Outcome

POINT = SimpleNamespace(family="mean_attention", dim=2, length=4, queries=4, directions=2, seed=(0, 1), context=(0, 1))
POINT.batch, POINT.transformer_updates = 8, 1
COUNT = 4  # queries of each half


@pytest.fixture(scope="module")
def family():
    """Linear attention of two seeds as if it were before and after training."""
    settings = {"key": jax.random.key(1), "steps": (0,), "normalised": False}
    first, second = (_laws.linear_attention(seed, POINT, **settings) for seed in (0, 1))
    return first._replace(networks=[*first.networks, *second.networks], steps=[0, 7], scores=np.array([0.0, 1.0]))


@pytest.fixture(scope="module")
def at_the_end(family):
    return _laws.measure_law(family, 1, POINT, key=jax.random.key(2))


def written(network, context, rows=slice(-1)):
    """B A h in NumPy; the context's last row is not in it."""
    x, y = (np.asarray(part, np.float64)[rows] for part in (context.x, context.y))
    down, up = (np.asarray(part, np.float64) for part in (network.down, network.up))
    return up @ (down @ (y @ x))


def test_a_sum_leaves_nothing_and_another_context_what_the_closed_form_says(family, at_the_end):
    """Of the network asked for, on the held-out half of each context's own queries."""
    axes, left = at_the_end["left"]
    assert axes == ("context", "world", "test")
    assert left[:, [0, 2]].max() < 1e-10
    assert at_the_end["converged"][1].all()
    maps = [written(family.networks[1], test.context) for test in family.tests]
    for i, (_, queries) in enumerate(family.tests):
        x = np.asarray(queries.x, np.float64)[COUNT:, -1]
        expected = np.mean((x @ (maps[i] - maps[i - 1])) ** 2) / np.mean((x @ maps[i]) ** 2)
        np.testing.assert_allclose(left[i, 1, 0], expected, rtol=1e-4)


def test_a_context_and_the_end_of_a_prompt_are_the_prompt():
    drawn = regression.sample_prompts(np.random.default_rng(0), 1, 3, dim=2, length=5, examples=0)
    context, prompts = _laws._split_context(jax.tree.map(lambda leaf: leaf[0], drawn))
    for i in range(3):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], prompts)
        whole = join_prompt(context, one.alone(one.positions - 1, size=1))
        np.testing.assert_array_equal(whole.x, one.x)
        np.testing.assert_array_equal(whole.y, one.y)


def test_another_model_stands_in():
    """A mean does not compose, and a sum in its place does."""
    means, sums = (measure(POINT, key=jax.random.key(4), stand_in=name) for name in ("", "linear_attention"))
    assert means["left"][0] == ("seed", "context", "world", "test")
    assert sums["left"][1][:, :, 0].max() < 1e-10
    assert means["left"][1][:, :, 0, 2].min() > 1e-3


def test_linear_attention_is_trained_and_kept():
    point = SimpleNamespace(dim=2, length=4, batch=16, queries=4, context=(0, 1))
    family = _laws.linear_attention(0, point, key=jax.random.key(5), steps=(0, 40), normalised=True)
    assert [network.normalised for network in family.networks] == [True, True]
    assert family.scores[1] > family.scores[0]
    other = _laws.linear_attention(1, point, key=jax.random.key(5), steps=(0,), normalised=True)
    assert not np.array_equal(other.networks[0].slow, family.networks[0].slow)


def made_up(*, law=1e-9, mean=0.5, trained=0.9, planted=0.01, seeds=8):
    """Log-normal fractions of both models; the composition is what differs."""
    rng = np.random.default_rng(0)
    families, dims = (claim.SIMPLEST, claim.MEAN), ("family", "seed", "context", "world", "test")
    shape = (2, seeds, 2, 3, 3)
    left = np.full(shape, 0.01)
    left[..., 1, :] = 1.0
    left[..., 2, :] = planted
    left[0, ..., 0, :], left[1, ..., 0, 2] = law, mean
    left *= np.exp(0.1 * rng.normal(size=shape))
    variables = {"left": (dims, left), "converged": (dims, np.ones(shape))}
    variables |= {"training_score": (dims[:2], np.full(shape[:2], trained))}
    coordinates = {"family": list(families), "seed": list(range(seeds)), "context": [0, 1]}
    return xr.Dataset(variables, coords=coordinates | {"world": list(_law.WORLDS), "test": list(_law.TESTS)})


_, failing, outcome = judged(lambda dataset: claim.check(claim.theory(dataset)))


def test_the_check_tells_the_model_with_a_law():
    assert outcome(made_up()) is Outcome.HOLDS
    assert failing(made_up(mean=0.01)) == ["no_law[family=mean_attention]"]
    assert failing(made_up(law=0.5)) == ["law[family=linear_attention]"]
    for changes in ({"trained": 0.3}, {"planted": 0.3}, {"seeds": 5}):
        assert outcome(made_up(**changes)) is Outcome.UNDECIDED


def test_a_finding_has_the_least_share_and_every_network_counts_once():
    dataset = made_up(seeds=10)
    dataset["left"].loc[{"family": claim.SIMPLEST, "seed": 0, "test": "change", "world": "own"}] = 0.9
    finding = next(finding for finding in claim.check(dataset) if finding.name == "law")
    assert finding.measured == 9 / 10
    assert finding.predicted == 0.5
    assert finding.outcome is Outcome.HOLDS
    assert finding.advice.startswith("law: ")


def test_ratios_leave_out_contexts_whose_fits_have_not_converged():
    dataset = made_up(law=0.01)
    dataset["left"].loc[{"context": 0, "world": "own"}] = 1e3
    dataset["converged"].loc[{"context": 0}] = 0.0
    ratio = _law.with_ratios(dataset)["effect_ratio"].sel(family=claim.SIMPLEST)
    np.testing.assert_allclose(ratio, 0.01, rtol=0.6)
    dataset["converged"].loc[{"context": 0}] = 1.0
    assert float(_law.with_ratios(dataset)["effect_ratio"].sel(family=claim.SIMPLEST).min()) > 1
