"""What is measured of maps along training, against closed forms; and the checks on made-up numbers."""

import itertools
from types import SimpleNamespace

import equinox as eqx
import jax
import numpy as np
import pytest
import xarray as xr
from judging import judged

from icllab.claims.context_map import _law_ratios, _laws
from icllab.claims.context_map import _regression_transformers as regression
from icllab.claims.context_map.simplest_model import claim as simplest
from icllab.claims.context_map.switches_on import claim
from icllab.claims.context_map.switches_on.measure import measure
from icllab.diagnostics.contexts.queries import join_prompt
from icllab.diagnostics.contexts.verdicts import MapOutcome
from icllab.lab.checks import Outcome

POINT = SimpleNamespace(
    family="fast_weights", dim=2, length=4, queries=4, directions=2, draws=2, item_dim=7, stage=("start", "end")
)
POINT.seed, POINT.context, POINT.updates = (0, 1), (0, 1), 1
COUNT = 4  # queries of each half


@pytest.fixture(scope="module")
def family():
    """Two fast weights as if they were before and after training."""
    first, second = (_laws.fast_weights(seed, POINT, key=jax.random.key(1), normalised=False) for seed in (0, 1))
    return first._replace(networks=[*first.networks, *second.networks], steps=[0, 7], scores=np.array([0.0, 1.0]))


@pytest.fixture(scope="module")
def at_the_end(family):
    how = {"subspace": lambda network: network.slow, "key": jax.random.key(2)}
    return {name: values for name, (_, values) in _laws.measure_maps(family, 1, POINT, **how).items()}


def written(network, context):
    """b + B A h in NumPy; the context's last row is not in it."""
    x, y = (np.asarray(part, np.float64)[:-1] for part in (context.x, context.y))
    down, up, slow = (np.asarray(part, np.float64) for part in (network.down, network.up, network.slow))
    return slow + up @ (down @ (y @ x))


def test_scores_are_those_of_the_closed_form_on_held_out_queries(family, at_the_end):
    network = family.networks[1]
    weights = [written(network, asked.context) for asked in family.tests]
    for i, (_, queries) in enumerate(family.tests):
        x, y = (np.asarray(part, np.float64)[COUNT:, -1] for part in (queries.x, queries.y))
        answered = (weights[i], weights[i], weights[1 - i], np.asarray(network.slow))
        expected = [1 - np.mean((x @ w - y) ** 2) / np.mean(y**2) for w in answered]
        np.testing.assert_allclose(at_the_end["score"][i], expected, rtol=1e-4, atol=1e-4)


def test_exact_weights_pass_both_tests_and_move_as_the_closed_form_does(family, at_the_end):
    network = family.networks[1]
    for name in ("gap", "derivative", "composition"):
        assert (at_the_end[f"map_{name}"] < 1e-8).all()
    slow = np.asarray(network.slow, np.float64)
    moved = [np.linalg.norm(written(network, asked.context) - slow) for asked in family.tests]
    np.testing.assert_allclose(at_the_end["map_norm"], moved / np.linalg.norm(slow), rtol=1e-4)


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


def test_a_test_stands_beside_the_least_of_both_nulls_and_the_norm_beside_the_largest():
    nulls = np.array([[0.3, 0.2], [0.5, np.nan]])
    data = {name: float(i) for i, name in enumerate(_laws.TESTS)}
    data |= {f"null_{name}": (("null", "draw"), (i + 1) * nulls) for i, name in enumerate(_laws.TESTS)}
    data["unmoved"] = 0.7
    row = _laws._numbers(SimpleNamespace(dataset=xr.Dataset(data), outcome=MapOutcome.CAPACITY, converged=True))
    assert row["unmoved"] == 0.7
    np.testing.assert_allclose([row[f"null_{name}"] for name in _laws.TESTS], [0.2, 0.4, 0.6, 2.0])
    assert [row[f"map_{name}"] for name in _laws.TESTS] == [0, 1, 2, 3]
    assert row["law"] == row["unconverged"] == 0


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
    point = SimpleNamespace(**vars(POINT) | {"stage": ("end",), "seed": (1,), "family": "regression"})
    found = measure(point, key=jax.random.key(4), exact=True)
    assert found["stage_step"][0] == ("seed", "stage")
    assert found["score"][1].shape == (1, 1, 2, 4)
    assert found["law"][1].all()


def made_up(*, before=2.0, derivative=0.5, composition=0.5, exact=1e-6, trained=0.9, stages=claim.STAGES, unmoved=1.0):
    rng = np.random.default_rng(0)
    families, dims = (*claim.FAMILIES, _law_ratios.EXACT), ("family", "seed", "stage", "context")
    shape = (len(families), 3, len(stages), 2)
    noise = 1 + 0.02 * rng.normal(size=shape)
    is_exact = (np.arange(len(families)) == len(families) - 1).reshape(-1, 1, 1, 1)
    early = np.isin(stages, ("start", "before")).reshape(-1, 1)
    variables = {
        "map_derivative": np.where(is_exact, exact, np.where(early, before, derivative)) * 0.1 * noise,
        "map_composition": np.where(is_exact, exact, np.where(early, 0.5, composition)) * 0.2 * noise,
        "null_derivative": np.full(shape, 0.1),
        "null_composition": np.full(shape, 0.2),
        "unmoved": np.full(shape, unmoved),
    }
    named = {name: (dims, values) for name, values in variables.items()}
    named |= {"score": ((*dims, "answered_by"), np.full((*shape, 4), trained))}
    named |= {"training_score": (dims[:3], np.full(shape[:3], trained))}
    coordinates = {"family": list(families), "seed": [0, 1, 2], "stage": list(stages), "context": [0, 1]}
    return xr.Dataset(named, coords=coordinates | {"answered_by": list(_law_ratios.ANSWERED)})


outcomes, failing, outcome = judged(lambda dataset: claim.check(claim.theory(dataset)))


def names(**changed):
    return {name.partition("[")[0] for name in failing(made_up(**changed))}


def test_the_check_tells_a_law_that_switches_on_from_none_and_from_one_that_was_there():
    assert outcome(made_up()) is Outcome.HOLDS
    assert names(derivative=2.0) == names(composition=2.0) == {"after"}
    assert names(before=0.5) == {"before"}
    assert names(exact=3.0) == {"exact"}
    assert "after" in names(unmoved=0.03)  # the weights themselves carry as much as the map
    assert outcome(made_up(derivative=1.01)) is Outcome.UNDECIDED
    assert outcome(made_up(trained=0.3)) is Outcome.UNDECIDED


def test_at_the_start_nothing_is_said_of_networks():
    assert {name.partition("[")[0] for name in outcomes(made_up(stages=("start",), before=0.5))} == {"exact"}


def test_a_test_that_leaves_more_than_half_is_no_law_whatever_the_nulls():
    dataset = made_up(before=8.0, derivative=8.0).assign(null_derivative=lambda d: d["map_derivative"] * 3)
    ratio = _law_ratios.with_ratios(dataset)["law_ratio"].sel(family="regression")
    np.testing.assert_allclose(ratio, dataset["map_derivative"].sel(family="regression") / 0.5)


def of_sizes(**changed):
    """The same numbers for transformers of several sizes, at the end of training."""
    end = made_up(**changed).sel(stage="end", drop=True).drop_sel(family=_law_ratios.EXACT)
    return end.expand_dims(layers=[1, 2], heads=[1, 4], width=[8, 32])


def test_the_check_of_sizes_tells_a_law_from_none():
    _, fails, says = judged(lambda dataset: simplest.check(simplest.theory(dataset)))
    assert says(of_sizes(derivative=2.0)) is Outcome.HOLDS
    assert len(fails(of_sizes())) == 16
