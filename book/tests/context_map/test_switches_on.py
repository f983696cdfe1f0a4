"""What is measured of maps along training, against closed forms; and the checks on made-up numbers."""

import itertools
from types import SimpleNamespace

import equinox as eqx
import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.context_map import _law, _laws
from iclbook.claims.context_map import _regression_transformers as regression
from iclbook.claims.context_map.simplest_model import claim as simplest
from iclbook.claims.context_map.switches_on import claim
from iclbook.claims.context_map.switches_on.measure import measure
from icllab.diagnostics.contexts.queries import join_prompt
from icllab.lab.checks import Outcome

POINT = SimpleNamespace(
    family="linear_attention", dim=2, length=4, queries=4, directions=2, draws=2, item_dim=7, stage=("start", "end")
)
POINT.seed, POINT.context, POINT.updates = (0, 1), (0, 1), 1
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
    settings = {"subspace": _laws.SUBSPACES["linear_attention"], "key": jax.random.key(2)}
    return _laws.measure_law(family, 1, POINT, **settings)


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


def test_the_jump_is_the_first_score_that_is_half_of_the_last(family):
    steps = (0, 10, 20, 30, 40, 60)
    along = family._replace(steps=steps, scores=np.array([-0.4, 0.1, 0.3, 0.2, 0.5, 0.8]))
    assert _laws.stage_indices(along) == {"start": 0, "before": 2, "jump": 4, "end": 5}
    assert _laws.stage_indices(family) == {"start": 0, "before": 0, "jump": 1, "end": 1}


def test_a_context_and_the_end_of_a_prompt_are_the_prompt():
    drawn = regression.sample_prompts(np.random.default_rng(0), 1, 3, dim=2, length=5, examples=2)
    context, prompts = _laws._split_context(jax.tree.map(lambda leaf: leaf[0], drawn), 2)
    assert context.length == 5
    for i in range(3):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], prompts)
        whole = join_prompt(context, one.alone(one.positions - 1, size=3))
        np.testing.assert_array_equal(whole.x, one.x)
        np.testing.assert_array_equal(whole.y, one.y)


@pytest.fixture(scope="module")
def items():
    return [_laws.item_labels(seed, POINT, key=jax.random.key(3), trained=False) for seed in (0, 0, 1)]


def test_queries_are_other_items_of_the_contexts_classes(items):
    for context, queries in items[0].tests:
        shown, asked = np.asarray(context.items[:-1]), np.asarray(queries.items[:, 0])
        assert asked.shape == (2 * COUNT, 7)
        assert len(np.unique(asked, axis=0)) == 2 * COUNT
        nearest = np.linalg.norm(asked[:, None] - shown[None], axis=2)
        assert nearest.min() > 0
        np.testing.assert_array_equal(
            np.asarray(context.labels[:-1])[nearest.argmin(axis=1)], np.asarray(queries.labels[:, 0])
        )


def test_a_seed_has_its_own_network_and_contexts(items):
    def numbers(family):
        kept = eqx.filter((family.networks, family.tests), eqx.is_array)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(kept)])

    first, again, other = map(numbers, items)
    np.testing.assert_array_equal(first, again)
    assert np.mean(first == other) < 0.1
    one, another = (np.asarray(asked.context.items) for asked in items[0].tests)
    assert (one != another).all()


@pytest.mark.slow
def test_networks_are_kept_along_training(items):
    point = SimpleNamespace(**vars(POINT) | {"updates": 4, "every": 2, "loss": 1e-3})
    family = _laws.item_labels(0, point, key=jax.random.key(3), trained=True)
    assert list(family.steps) == [0, 2, 4]
    assert len(family.scores) == 3
    readouts = [np.asarray(network.classifier.readout) for network in family.networks]
    np.testing.assert_array_equal(readouts[0], items[0].networks[0].classifier.readout)
    assert all((one != other).any() for one, other in itertools.pairwise(readouts))


def test_stages_are_read_in_their_order():
    point = SimpleNamespace(**vars(POINT) | {"stage": ("end",), "seed": (1,), "family": "dense"})
    result = measure(point, key=jax.random.key(4), exact=True)
    assert result["stage_step"][0] == ("seed", "stage")
    assert result["stage_step"][1].tolist() == [[1]]
    assert result["left"][1].shape == (1, 1, 2, 3, 3)


def test_linear_attention_is_trained_and_kept():
    point = SimpleNamespace(dim=2, length=4, batch=16, queries=4, context=(0, 1))
    family = _laws.linear_attention(0, point, key=jax.random.key(5), steps=(0, 40), normalised=True)
    assert [network.normalised for network in family.networks] == [True, True]
    assert family.scores[1] > family.scores[0]
    other = _laws.linear_attention(1, point, key=jax.random.key(5), steps=(0,), normalised=True)
    assert not np.array_equal(other.networks[0].slow, family.networks[0].slow)


def made_up(*, before=0.5, after=0.01, exact=1e-9, trained=0.9, stages=claim.STAGES, planted=0.01, seeds=6):
    """Log-normal fractions of three families and linear attention; the change is what differs before and after."""
    rng = np.random.default_rng(0)
    families, dims = (*claim.FAMILIES, claim.EXACT), ("family", "seed", "stage", "context", "world", "test")
    shape = (len(families), seeds, len(stages), 2, 3, 3)
    left = np.full(shape, 0.01)
    left[..., 1, :] = 1.0
    left[..., 2, :] = planted
    left[:-1, :, :, :, 0, 1] = np.where(np.asarray(stages) == "end", after, before)[:, None]
    left[-1, ..., 0, :] = exact
    left *= np.exp(0.1 * rng.normal(size=shape))
    variables = {"left": (dims, left), "converged": (dims, np.ones(shape))}
    variables |= {"training_score": (dims[:3], np.full(shape[:3], trained))}
    coordinates = {"family": list(families), "seed": list(range(seeds)), "stage": list(stages), "context": [0, 1]}
    return xr.Dataset(variables, coords=coordinates | {"world": list(_law.WORLDS), "test": list(_law.TESTS)})


outcomes, failing, outcome = judged(lambda dataset: claim.check(claim.theory(dataset)))


def names(**changed):
    return {name.partition("[")[0] for name in failing(made_up(**changed))}


def test_the_check_tells_a_law_that_switches_on_from_none_and_from_one_that_was_there():
    assert outcome(made_up()) is Outcome.HOLDS
    assert names(after=0.5) == {"after"}
    assert names(before=0.01) == {"before"}
    assert names(exact=0.5) == {"exact"}
    assert outcome(made_up(after=0.1)) is Outcome.UNDECIDED
    assert outcome(made_up(trained=0.3)) is Outcome.UNDECIDED
    assert outcome(made_up(planted=0.3)) is Outcome.UNDECIDED
    assert outcome(made_up(seeds=1)) is not Outcome.FAILS


def test_a_finding_has_the_worst_ratio_and_every_network_counts_once():
    found = {finding.id: finding for finding in claim.check(made_up(after=0.03))}
    finding = found["after[family=dense,stage=end]"]
    assert finding.measured == pytest.approx(0.03, rel=0.1)
    assert finding.predicted == 0.1
    assert finding.advice.startswith("law: ")
    assert len(found) == 3 + 3 + 3 + 1


def test_at_the_start_nothing_is_said_of_networks():
    assert {name.partition("[")[0] for name in outcomes(made_up(stages=("start",)))} == {"exact"}


def test_ratios_leave_out_contexts_whose_fits_have_not_converged():
    dataset = made_up(after=0.01)
    dataset["left"].loc[{"context": 0, "world": "own"}] = 1e3
    dataset["converged"].loc[{"context": 0}] = 0.0
    ratio = _law.with_ratios(dataset)["effect_ratio"].sel(family="dense")
    np.testing.assert_allclose(ratio, 0.01, rtol=0.6)
    dataset["converged"].loc[{"context": 0}] = 1.0
    assert float(_law.with_ratios(dataset)["effect_ratio"].sel(family="dense").min()) > 1


def of_models(**changed):
    """The same numbers for models of one and two layers, at the end of training."""
    end = made_up(**changed).sel(stage="end", drop=True)
    parts = {"dense": "dense", "attention": "attention", simplest.MEAN: "item_label", simplest.SIMPLEST: claim.EXACT}
    end = end.sel(family=list(parts.values())).assign_coords(family=list(parts))
    return end.expand_dims(layers=[1, 2])


def test_the_check_of_models_tells_the_simplest_with_a_law():
    _, fails, says = judged(lambda dataset: simplest.check(simplest.theory(dataset)))
    assert says(of_models(after=0.5)) is Outcome.HOLDS
    assert len(fails(of_models())) == 5
    assert fails(of_models(after=0.5, exact=0.5)) == ["law[family=linear_attention,layers=1]"]
