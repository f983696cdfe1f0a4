"""Which entries are trained and which stay, what runs an algorithm, and ratios of losses on shared prompts."""

import dataclasses
from types import SimpleNamespace

import equinox as eqx
import jax
import numpy as np
import pytest
from drawing import prompt_of

from iclbook.claims.descent import _layers as trained_layers
from icllab import algorithms, constructions
from icllab.core.errors import InputError
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.tasks import LinearRegression

TASK = LinearRegression.convention("ahn", dim=2, length=5)
SHAPE = {"layers": 2, "dim": 2, "normalised": True, "half": True}


@pytest.mark.parametrize(
    "form", ["sparse", *(pytest.param(form, marks=pytest.mark.slow) for form in ("blocks", "full"))]
)
def test_what_a_form_does_not_have_starts_at_its_constant_and_stays_there(form, getkey):
    key = getkey()
    point = SimpleNamespace(std=0.5, seed=[3, 4], step=2, batch=4, rate=0.1, clip=1.0)
    run = trained_layers.train(point, TASK, form, layers=2, key=key, keep=[0])
    begin = run.trajectory.at(0)
    of_p, of_q = (np.asarray(mask[0], bool) for mask in trained_layers.trained_entries(form, 2))
    for member in range(2):
        before, after = begin.member(member), run.member(member)
        for name, mask in (("p", of_p), ("q", of_q)):
            old, new = (np.asarray(getattr(one, name)) for one in (before, after))
            assert (old[:, mask] != 0).all()
            if name == "p" or form != "full":
                constant = np.zeros((3, 3))
                constant[2, 2] = name == "p" and form != "full"
                np.testing.assert_array_equal(new[:, ~mask], np.broadcast_to(constant[~mask], new[:, ~mask].shape))
        assert not np.array_equal(np.asarray(before.q), np.asarray(after.q))
    assert not np.array_equal(np.asarray(begin.member(0).q), np.asarray(begin.member(1).q))


def test_a_form_of_another_name_is_refused():
    with pytest.raises(InputError, match="form"):
        trained_layers.trained_entries("blockz", 3)


def test_the_algorithm_and_the_attention_that_runs_it_answer_alike():
    prompt = prompt_of(0, positions=6, dim=2)
    rates, contractions = np.array([0.4, 1.1]), np.array([0.7, 0.0])
    algorithm, attention = trained_layers.step_models(rates, contractions, dim=2)
    found, wanted = (np.asarray(eqx.filter_jit(one)(prompt))[-1] for one in (attention, algorithm))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert not np.asarray(trained_layers.step_models(rates, dim=2)[0].contraction).any()


def test_the_blocks_of_a_construction_are_its_matrices():
    rates, contractions = np.array([0.25, 2.0]), np.array([0.5, 0.0])
    a, b = trained_layers.blocks(trained_layers.step_models(rates, contractions, dim=3)[1])
    np.testing.assert_array_equal(a, rates[:, None, None] * np.eye(3))
    np.testing.assert_array_equal(b, contractions[:, None, None] * np.eye(3))


def test_one_layer_read_as_a_step_is_its_matrix_in_every_gauge(getkey):
    network = trained_layers.start("full", dim=3, layers=1, std=1.0, key=getkey())
    matrix, rest = trained_layers.as_step(network)
    scaled = dataclasses.replace(network, p=-4.0 * network.p, q=network.q / -4.0)
    again, also = trained_layers.as_step(scaled)
    np.testing.assert_allclose(again, matrix, rtol=1e-6)
    np.testing.assert_allclose(also, rest, rtol=1e-6)
    assert rest > 0
    a = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    step = algorithms.PreconditionedDescent(a, **{**SHAPE, "dim": 3, "layers": 1})
    found, nothing = trained_layers.as_step(constructions.gradient_descent(step, answers="last", form="gram"))
    np.testing.assert_array_equal(found, a)
    assert nothing == 0


def test_a_ratio_of_losses_and_its_paired_error():
    """The error against the spread of 400 repetitions, which is known to 3.5 %."""
    rng = np.random.default_rng(0)
    base = rng.exponential(size=(400, 500))
    terms = 1.3 * base * np.exp(0.2 * rng.normal(size=base.shape))
    found = np.array([trained_layers.ratio(a, b) for a, b in zip(terms, base, strict=True)])
    np.testing.assert_allclose(found[:, 1].mean(), found[:, 0].std(ddof=1), rtol=0.12)
    assert trained_layers.ratio(2 * base[0], base[0]) == (2.0, 0.0)
    # Two losses of one prompt vary together: the error is far below that of independent ones.
    alone = np.hypot(*(one.std(ddof=1) / one.mean() for one in (terms[0], base[0]))) / np.sqrt(500)
    assert found[:, 1].mean() < 0.3 * alone


def test_models_are_asked_the_same_prompts(getkey):
    _, attention = trained_layers.step_models(np.array([0.5]), dim=2)
    key = getkey()
    terms = trained_layers.on_shared_prompts([attention, attention], TASK, key=key, prompts=8)
    assert terms.shape == (2, 8)
    np.testing.assert_array_equal(*terms)
    assert len(np.unique(terms[0])) == 8
    assert trained_layers.heaviest(np.ones(1000)) == pytest.approx(0.01)


def test_networks_are_those_of_their_seeds_whichever_others_are_there():
    """Trained and untrained: cells may be cut into blocks of seeds."""
    for learn in (True, False):
        found = [
            trained_layers.networks(
                SimpleNamespace(seed=seeds, std=0.5, step=2, batch=4, rate=0.1, clip=1.0),
                TASK,
                "sparse",
                layers=2,
                key=jax.random.key(0),
                learn=learn,
            )
            for seeds in ((3, 4), (4,))
        ]
        assert list(found[0]) == [3, 4]
        np.testing.assert_allclose(found[0][4].q, found[1][4].q, rtol=1e-5)
        assert not np.allclose(found[0][3].q, found[0][4].q)


def test_a_task_has_the_covariances_and_the_noise_that_are_named():
    of_inputs, of_tasks = np.array([[2.0, 1.0], [1.0, 3.0]]), np.diag([0.5, 4.0])
    task = trained_layers.regression(7, of_inputs, of_tasks, 0.25)
    assert (task.dim, task.length, float(task.noise_variance)) == (2, 7, 0.25)
    np.testing.assert_array_equal(task.inputs.covariance, of_inputs)
    np.testing.assert_array_equal(task.weights.covariance, of_tasks)


def test_ordinary_prompts_are_all_but_those_with_the_largest_eigenvalues_among_the_shared_ones(getkey):
    key = getkey()
    kept = trained_layers.ordinary(TASK, key=key, prompts=2000)
    x = np.asarray(sample_prompts(TASK, key=key, prompts=2000).x)[:, :5]
    largest = np.linalg.norm(x, ord=2, axis=(1, 2))
    assert set(np.flatnonzero(~kept)) == set(np.argsort(largest)[-2:])
