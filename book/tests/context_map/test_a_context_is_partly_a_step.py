"""What is measured of steps on contexts, against closed forms; and the check on made-up networks."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from judging import judged

from iclbook.claims.context_map.a_context_is_partly_a_step import claim
from iclbook.claims.context_map.a_context_is_partly_a_step import measure as module
from icllab.lab.checks import Outcome
from icllab.models import FastWeights

POINT = SimpleNamespace(
    architecture=claim.LINEAR, dim=2, length=4, width=4, heads=2, batch=4, step=(0, 3), part=("dense 1", claim.ALL)
)
POINT = SimpleNamespace(**vars(POINT), contexts=2, others=3, queries=12, seed=(3, 5))


@pytest.fixture(scope="module")
def measured():
    worlds = {"own": {}, "shuffled": {"shuffled": True}, "untrained": {"trained": False}}
    return {name: module.measure(POINT, key=jax.random.key(0), **world) for name, world in worlds.items()}


def linear(slow, up=None):
    up = np.eye(2) if up is None else up
    return FastWeights(jnp.eye(2), jnp.asarray(up), jnp.asarray(slow), normalised=True)


def compared(network, seed=0, **options):
    rng = np.random.default_rng(seed)
    prompts, others = (
        module.sampled(rng, 2, 24, POINT),
        jax.tree.map(lambda x: x[:, 0], module.sampled(rng, 3, 1, POINT)),
    )
    prompts, others = (jax.tree.map(lambda leaf: leaf.astype("float64"), both) for both in (prompts, others))
    key = jax.random.key(1)
    settings = {"shuffled": False, "labels": module.shuffled_labels, "key": key} | options
    found = module.compared(network, module.regression_task(POINT), prompts, others, lambda m: m.slow, **settings)
    values = {name: np.asarray(part[1] if isinstance(part, tuple) else part) for name, part in found.items()}
    return prompts, others, values


def steps(network, context):
    x, y = np.asarray(context.x)[:-1], np.asarray(context.y)[:-1]
    return (y - x @ np.asarray(network.slow)) @ x, y @ x


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_cosines_of_linear_attention_are_those_of_the_closed_form():
    """For w0 = 0 the cosine is 1; otherwise that of h with h - S w0; a turned readout turns the change."""
    with jax.enable_x64(True):
        turned = np.array([[0.6, -0.8], [0.8, 0.6]])
        for slow, up in (([0.0, 0.0], None), ([1.0, -0.5], None), ([1.0, -0.5], turned)):
            network = linear(slow, up)
            prompts, others, found = compared(network)
            rows = []
            for i in range(2):
                context = jax.tree.map(lambda leaf, i=i: leaf[i, 0], prompts)
                step, h = steps(network, context)
                change = np.asarray(network.up) @ h
                assert module.exact_cosine(network, context) == pytest.approx(cosine(change, step), abs=1e-12)
                y = np.asarray(context.y)
                wrong = (np.roll(y[:-1], 1) - np.asarray(context.x)[:-1] @ np.asarray(slow)) @ np.asarray(context.x)[
                    :-1
                ]
                each = [jax.tree.map(lambda leaf, j=j: leaf[j], others) for j in range(3)]
                rest = np.mean([cosine(change, steps(network, other)[0]) for other in each])
                rows.append([cosine(change, step), rest, cosine(change, wrong)])
            np.testing.assert_allclose(found["step_cosine"], np.mean(rows, axis=0), atol=1e-6)
            np.testing.assert_allclose(found["exact_cosine"], np.mean(rows, axis=0)[0], atol=1e-12)
            assert (found["best_step_gap"][0] < 1e-12) == (slow == [0.0, 0.0])
            assert found["unconverged"] == 0
            assert found["map_gap"] < 1e-9


def test_shuffled_labels_stand_for_the_context_in_the_control(measured):
    own, shuffled = (measured[name]["step_cosine"][1] for name in ("own", "shuffled"))
    np.testing.assert_array_equal(shuffled[..., 0], own[..., 2])
    np.testing.assert_array_equal(shuffled[..., 1:], own[..., 1:])
    y = module.shuffled_labels(jnp.asarray([1.0, 2.0, 3.0, 9.0]))
    np.testing.assert_array_equal(y, [3.0, 1.0, 2.0, 9.0])


def test_parts_that_a_network_lacks_are_left_out_and_training_changes_it(measured):
    own, untrained = measured["own"], measured["untrained"]
    assert own["step_cosine"][0] == ("seed", "step", "part", "examples")
    assert np.isnan(own["step_cosine"][1][:, :, 0]).all()
    assert np.isfinite(own["step_cosine"][1][:, :, 1]).all()
    np.testing.assert_array_equal(untrained["step_cosine"][1][:, 1], untrained["step_cosine"][1][:, 0])
    np.testing.assert_array_equal(untrained["step_cosine"][1][:, 0], own["step_cosine"][1][:, 0])
    assert not np.isclose(own["step_cosine"][1][:, 1, 1], own["step_cosine"][1][:, 0, 1]).all()
    assert not np.isclose(*own["step_cosine"][1][:, 0, 1, 0])


def test_fits_that_do_not_converge_are_left_out_and_counted(monkeypatch):
    with jax.enable_x64(True):
        compare, calls = module.gradient_step_comparison, []

        def first_lost(*arguments, **options):
            result = compare(*arguments, **options)
            calls.append(float(result["cosine"].sel(gradient="examples")))
            return result.assign(converged=len(calls) > 1)

        monkeypatch.setattr(module, "gradient_step_comparison", first_lost)
        _, _, found = compared(linear([1.0, -0.5]))
        assert found["unconverged"] == 0.5
        assert found["step_cosine"][0] == calls[1]
        monkeypatch.setattr(
            module, "gradient_step_comparison", lambda *a, **o: compare(*a, **o).assign(converged=False)
        )
        _, _, found = compared(linear([1.0, -0.5]))
        assert found["unconverged"] == 1.0
        assert np.isnan(found["step_cosine"]).all()


@pytest.mark.parametrize("architecture", claim.ARCHITECTURES[1:])
def test_parts_are_those_that_one_token_feels(architecture):
    network = module.transformer(architecture, POINT, jax.random.key(0))
    prompt = module.sampled(np.random.default_rng(0), 1, 1, POINT)
    prompt = jax.tree.map(lambda leaf: leaf[0, 0], prompt)
    assert network(prompt).shape == (POINT.length + 1,)
    found = module.parts(architecture)
    layers = module.LAYERS[architecture]
    assert {name.split()[-1] for name in found} == {*map(str, range(1, layers + 1)), claim.ALL}
    assert ("dense 1" in found) == (architecture != "attention only")
    assert set(found) <= set(claim.PARTS)
    for name, where in found.items():
        assert where is None or jax.tree.leaves(where(network)), name


def made_up(own=0.2, other=0.0, left=0.2, rest=0.85, linear_cosine=1.0, off=0.0, score=0.9, lost=0.0):
    """Ten seeds of linear attention and of a network of one layer."""
    rng = np.random.default_rng(0)
    shape = (2, 10, 1, 5, 3)
    dims = ("architecture", "seed", "step", "part", "examples")
    cosines = np.array([own, other, other]) + 0.003 * rng.normal(size=shape)
    cosines[0, ..., 0] = linear_cosine
    gaps = np.array([left, rest, rest]) * np.exp(0.05 * rng.normal(size=shape))
    lacking = [claim.PARTS.index(name) for name in ("attention 2", "dense 2")]
    cosines[:, :, :, lacking] = gaps[:, :, :, lacking] = np.nan
    rows = {
        "step_cosine": (dims, cosines),
        "best_step_gap": (dims, gaps),
        "exact_cosine": (dims[:4], cosines[..., 0] + off),
    }
    rows |= {"map_gap": (dims[:4], np.full(shape[:4], 0.01)), "unconverged": (dims[:4], np.full(shape[:4], lost))}
    rows["training_score"] = dims[:3], np.full(shape[:3], score)
    coords = {"architecture": [claim.LINEAR, "one layer"], "step": [1000], "part": list(claim.PARTS)}
    return xr.Dataset(rows, coords=coords | {"seed": range(10), "examples": list(claim.EXAMPLES)})


_, failing, outcome = judged(claim.check)


def names(dataset):
    return {name.split("[")[0] for name in failing(dataset)}


def test_the_check_tells_each_part_of_the_claim():
    assert outcome(made_up()) is Outcome.HOLDS
    assert names(made_up(own=0.0)) == {"nearer"}
    assert names(made_up(own=0.9)) == {"partly"}
    assert names(made_up(left=0.8)) == {"leaves_less"}
    assert len(failing(made_up(left=0.8))) == 3  # the parts that a network of one layer has
    assert names(made_up(linear_cosine=0.8)) == {"wholly"}
    assert names(made_up(off=0.01)) == {"closed_form"}
    for condition in ({"score": 0.3}, {"lost": 0.5}):
        assert outcome(made_up(**condition)) is Outcome.UNDECIDED


def test_a_network_that_has_not_learned_is_left_out():
    dataset = made_up()
    for name, value in (("training_score", 0.1), ("step_cosine", 0.3), ("exact_cosine", 0.3), ("best_step_gap", 3.0)):
        dataset[name][{"seed": 0}] = value
    assert outcome(dataset) is Outcome.HOLDS
    dataset["training_score"][{"seed": 0}] = 0.9
    assert "wholly" in names(dataset) or outcome(dataset) is not Outcome.HOLDS
