"""The contract of all problems: one loss in three libraries, answers with a basis, draws by a key."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import diagnostics, posteriors
from icllab.core.errors import InputError
from icllab.core.sources import reference
from icllab.posteriors.problems import DIFFICULTIES, families

DOCS = Path(__file__).parents[2] / "docs"
NAMES = posteriors.names()
SLOPED = {"beside_the_minimum", "at_the_truth", "on_a_slope", "at_a_wall"}
CHEAP = ("quadratic", "crossing_1_2", "layers_3_1_2_rank_0", "regression", "losses_with_offsets", "tanh_unit")


def jax_loss(problem, w):
    return problem.loss(w) if problem.data is None else problem.loss(w, problem.data)


def headings(page):
    return set(re.findall(r"^#+ (.+)$", (DOCS / page).read_text("utf-8"), re.MULTILINE))


def test_the_set_has_the_kinds_that_it_promises():
    kinds = [families()[name].difficulty for name in NAMES]
    assert len(NAMES) >= 40
    assert set(kinds) == set(DIFFICULTIES)
    assert kinds.count("data") >= 10
    assert sum(name.startswith(("layers", "attention")) for name in NAMES) >= 8
    assert kinds.count("network") >= 6
    assert kinds.count("baseline") >= 4
    assert kinds.count("refused") >= 4


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_keeps_the_contract(name):
    problem = posteriors.problem(name)
    assert isinstance(problem, diagnostics.LocalPosterior)
    assert problem.refused == (not problem.answers)
    for answer in problem.answers.values():
        assert np.isfinite(answer.value).all()
        assert 0 <= answer.error <= 0.01 * (1 + np.abs(answer.value).max())
        if answer.basis.startswith("Source: "):
            assert reference(re.fullmatch(r"Source: \[(\w+)\]\.", answer.basis)[1])
        else:
            page, heading = re.fullmatch(r"Derived: docs/([\w-]+\.md), (.+)\.", answer.basis).groups()
            assert heading in headings(page)
    rng = np.random.default_rng(0)
    place = problem.at + 0.1 * rng.normal(size=problem.at.shape)
    with jax.enable_x64(True):
        value, slope = jax.value_and_grad(lambda w: jax_loss(problem, w))(jnp.asarray(place))
        np.testing.assert_allclose(np.mean(problem.numpy_loss(place)), value, rtol=1e-9)
        at_point = jax.grad(lambda w: jax_loss(problem, w))(jnp.asarray(problem.at))
        assert (float(jnp.linalg.norm(at_point)) > 1e-6) == (name in SLOPED)
        step = 1e-6 * rng.normal(size=place.shape)
        if np.isfinite(value):
            difference = np.mean(problem.numpy_loss(place + step)) - np.mean(problem.numpy_loss(place - step))
            np.testing.assert_allclose(difference / 2, np.asarray(slope) @ step, rtol=1e-4, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_a_module_of_pytorch_has_the_same_loss_and_gradient(name, tmp_path):
    torch = pytest.importorskip("torch")
    problem = posteriors.problem(name)
    place = problem.at + 0.1 * np.random.default_rng(0).normal(size=problem.at.shape)
    module = posteriors.torch_module(problem)
    with torch.no_grad():
        module.w.copy_(torch.tensor(place))
    loss = module().mean()
    loss.backward()
    with jax.enable_x64(True):
        value, slope = jax.value_and_grad(lambda w: jax_loss(problem, w))(jnp.asarray(place))
    np.testing.assert_allclose(loss.item(), value, rtol=1e-9)
    if np.isfinite(value):
        np.testing.assert_allclose(module.w.grad.numpy(), slope, rtol=1e-7, atol=1e-9)


def test_a_key_draws_other_numbers_of_the_same_family():
    for name in CHEAP:
        fixed, one, again, other = (
            posteriors.problem(name, key=key) for key in (None, jax.random.key(1), jax.random.key(1), jax.random.key(2))
        )
        place = one.at + 0.3
        np.testing.assert_array_equal(one.numpy_loss(place), again.numpy_loss(place))
        assert np.abs(one.numpy_loss(place) - other.numpy_loss(place)).max() > 1e-6
        assert one.answers["level"] == again.answers["level"]
        assert len({float(p.answers["level"].value) for p in (fixed, one, other)}) == 3
        assert one.answers["coefficient"].value == fixed.answers["coefficient"].value


def test_a_setting_changes_the_temperature_and_not_the_loss():
    cold, warm = (posteriors.problem("crossing_1_1", setting=i) for i in (0, 1))
    place = cold.at + 0.3
    assert cold.numpy_loss(place) == warm.numpy_loss(place)
    assert (cold.nbeta, warm.nbeta) == (7e4, 1e3)
    assert cold.answers["level"].value > warm.answers["level"].value
    with pytest.raises(InputError, match="setting: expected an integer from 0 to 2, got 3"):
        posteriors.problem("crossing_1_1", setting=3)


def test_the_text_of_a_problem_has_its_numbers():
    text = repr(posteriors.problem("quadratic"))
    assert text.startswith("Problem(name: quadratic, difficulty: regular, parameters: 10, n beta: ")
    assert "coefficient: 5" in text


def test_an_unknown_problem_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="crossing_1_2"):
        posteriors.problem("crosing_1_2")


@pytest.mark.parametrize("name", CHEAP)
def test_stored_answers_are_those_that_are_computed(name):
    problem = posteriors.problem(name)
    for key, answer in problem.draft.answers().items():
        np.testing.assert_allclose(problem.answers[key].value, answer.value, rtol=1e-6, atol=1e-9)


def test_the_digest_is_of_every_answer_and_of_no_rounding():
    stored = posteriors.stored_answers()
    assert {name for name, _ in stored} == set(NAMES)
    assert posteriors.version() == 1
    assert posteriors.digest() == DIGEST
    changed = {**stored, ("quadratic", 0): {"level": posteriors.Answer(5.001, 0.0, "")}}
    assert posteriors.digest(changed) != posteriors.digest()
    level = stored["quadratic", 0]["level"]
    rounded = {**stored["quadratic", 0], "level": level._replace(value=level.value * (1 + 1e-13))}
    assert posteriors.digest({**stored, ("quadratic", 0): rounded}) == posteriors.digest()


DIGEST = "b174cc883370fa7212099829ffcc5755e87291b82335fac989d61851c6f1b7db"


def test_influence_tilts_and_levels_are_those_that_the_diagnostics_measure():
    """Signs and units are those of ``diagnostics.susceptibility``."""
    problem = posteriors.problem("product_regression")
    route = diagnostics.Quadrature(points=161)
    response = diagnostics.susceptibility(
        problem,
        tilted={"half": problem.tilted},
        observables={"query": problem.query},
        route=route,
        key=jax.random.key(0),
    )
    np.testing.assert_allclose(response["susceptibility"], problem.answers["susceptibility"].value, rtol=2e-3)
