"""What is left of effects, changes and compositions, against formulas of models whose map is known."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icllab import tasks
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics.contexts import laws
from icllab.diagnostics.contexts.laws import context_law, normal_like
from icllab.diagnostics.contexts.solvers import MapSolver
from icllab.diagnostics.contexts.verdicts import LawOutcome, law
from icllab.models.contexts.exact_family import FastWeights

DIM, LENGTH, COUNT = 3, 4, 6
TASK = tasks.LinearRegression.convention("timaeus", dim=DIM, length=LENGTH)
SOLVER = MapSolver(method="dense", steps=20, tolerance=1e-6)


class Direct(AbstractPredictor):
    """The answer x.b and nothing of the context; or x.(b + sin(7 A h)), in which contexts do not compose."""

    slow: jax.Array
    down: jax.Array
    kind: str

    def __call__(self, prompt):
        """The answers at every position."""
        terms = prompt.y[:, None] * prompt.x
        h = jnp.cumsum(terms, axis=0) - terms
        if self.kind == "product":  # no weights have it
            return prompt.x @ self.slow + jnp.prod(prompt.x, axis=1) * jnp.sum(h, axis=1)
        return jnp.sum(prompt.x * (self.slow[None] + jnp.sin(7 * h @ self.down)), axis=1)


def drawn(queries=24):
    rng = np.random.default_rng(0)
    contexts = [
        RegressionPrompt(jnp.asarray(rng.normal(size=(LENGTH + 1, DIM))), jnp.asarray(rng.normal(size=LENGTH + 1)))
        for _ in range(COUNT)
    ]
    asked = [
        jax.vmap(RegressionPrompt)(jnp.asarray(rng.normal(size=(2 * queries, 1, DIM))), jnp.zeros((2 * queries, 1)))
        for _ in range(COUNT)
    ]
    return contexts, asked


def law_tests(model, contexts=None, **changes):
    drawn_contexts, asked = drawn()
    settings = {"subspace": lambda m: m.slow, "key": jax.random.key(0), "queries": asked, "directions": 2}
    return context_law(model, TASK, contexts or drawn_contexts, **settings | {"solver": SOLVER} | changes)


def fast(normalised):
    rng = np.random.default_rng(1)
    down, up, b = rng.normal(size=(2, DIM)), rng.normal(size=(DIM, 2)), rng.normal(size=DIM)
    return FastWeights(jnp.asarray(down), jnp.asarray(up), jnp.asarray(b), normalised=normalised)


@pytest.fixture(autouse=True)
def _in_float64():
    with jax.enable_x64(True):
        yield


@functools.cache
def measured(kind):
    """The tests of a model, made at the first call."""
    rng = np.random.default_rng(2)
    b, down = jnp.asarray(rng.normal(size=DIM)), jnp.asarray(rng.normal(size=(DIM, DIM)))
    return law_tests(fast(kind == "mean") if kind in ("sum", "mean") else Direct(b, down, kind))


def h_of(context, rows):
    x, y = (np.asarray(part)[rows] for part in (context.x, context.y))
    return y @ x


def held_out(asked):
    return [np.asarray(queries.x[24:, 0]) for queries in asked]


def test_the_sum_is_a_law_and_what_others_leave_is_the_formula():
    """The map of context i - 1 stands for another: x.B A (h_c - h_c') of x.B A h_c, and its first half's."""
    contexts, asked = drawn()
    model = fast(False)
    written = [np.asarray(model.up @ (model.down @ h_of(c, slice(0, LENGTH)))) for c in contexts]
    first = [np.asarray(model.up @ (model.down @ h_of(c, slice(0, LENGTH // 2)))) for c in contexts]
    left = measured("sum")["left"]
    assert float(left.sel(world=["own", "planted"]).max()) < 1e-12
    assert bool(measured("sum")["converged"].all())
    for i, x in enumerate(held_out(asked)):
        whole = np.mean((x @ written[i]) ** 2)
        expected = np.mean((x @ (written[i] - written[i - 1])) ** 2) / whole
        np.testing.assert_allclose(left.sel(context=i, world="other", test="effect"), expected, rtol=1e-6)
        expected = np.mean((x @ (first[i] - first[i - 1])) ** 2) / whole
        np.testing.assert_allclose(left.sel(context=i, world="other", test="composition"), expected, rtol=1e-6)
    assert law(measured("sum")).outcome is LawOutcome.LAW


def test_a_mean_has_effects_and_changes_and_does_not_compose():
    """Halves weigh twice as much as in the whole: exactly 1 is left."""
    left = measured("mean")["left"].sel(world="own")
    assert float(left.sel(test=["effect", "change"]).max()) < 1e-12
    np.testing.assert_allclose(left.sel(test="composition"), 1.0, rtol=1e-6)
    assert law(measured("mean")).outcome is LawOutcome.CAPACITY


@pytest.mark.slow
def test_a_lawless_map_passes_all_but_composition():
    left = measured("sine")["left"].sel(world="own")
    assert float(left.sel(test=["effect", "change"]).max()) < 1e-12
    assert float(left.sel(test="composition").min()) > 0.05
    assert law(measured("sine")).outcome is LawOutcome.CAPACITY


def test_a_model_without_a_map_is_none():
    left = measured("product")["left"].sel(world="own")
    assert float(left.sel(test="effect").min()) > 0.5
    assert law(measured("product")).outcome is LawOutcome.NONE


def test_changes_are_those_of_the_formula():
    """Of d(b + B A h) another context's map leaves d(B A)(h_c - h_c')."""
    contexts, asked = drawn()
    model, left = fast(False), measured("sum")["left"].sel(world="other", test="change")
    with jax.enable_x64(True):
        of_directions = jax.random.split(jax.random.split(jax.random.key(0))[1])[0]
        ways = [normal_like(model, key) for key in jax.random.split(of_directions, 2)]
    for i, x in enumerate(held_out(asked)):
        residual, whole = [], []
        for d in ways:

            def of(h, d=d):
                return np.asarray(d.up @ (model.down @ h) + model.up @ (d.down @ h))

            here, there = (of(h_of(contexts[j], slice(0, LENGTH))) for j in (i, i - 1))
            residual.append(np.mean((x @ (here - there)) ** 2))
            whole.append(np.mean((x @ (np.asarray(d.slow) + here)) ** 2))
        np.testing.assert_allclose(left.sel(context=i), np.mean(residual) / np.mean(whole), rtol=1e-6)


def test_contexts_in_turn_leave_what_contexts_at_once_leave(monkeypatch):
    at_once = measured("mean")
    monkeypatch.setattr(laws, "LOGITS", 1)
    with jax.enable_x64(True):
        in_turn = law_tests(fast(True))
    np.testing.assert_allclose(in_turn.left, at_once.left, rtol=1e-6, atol=1e-12)
    np.testing.assert_array_equal(in_turn.converged, at_once.converged)


def test_directions_have_the_size_of_every_array():
    """4 standard errors of the mean square of 4000 normal numbers; an array of zeros has that of the whole."""
    params = {"a": 3.0 * jnp.ones(4000), "b": jnp.zeros(4000), "c": jnp.ones((40, 100))}
    drawn_params = normal_like(params, jax.random.key(0))
    for name, size in (("a", 9.0), ("b", 10 / 3), ("c", 1.0)):
        assert float(jnp.mean(drawn_params[name] ** 2)) == pytest.approx(size, rel=4 * (2 / 4000) ** 0.5)
    assert abs(float(jnp.corrcoef(drawn_params["a"], drawn_params["b"])[0, 1])) < 0.07


def test_the_same_key_gives_the_same_and_another_key_other_plants():
    with jax.enable_x64(True):
        again, other = (law_tests(fast(False), key=jax.random.key(seed))["left"] for seed in (0, 1))
    np.testing.assert_array_equal(again, measured("sum")["left"])
    assert not np.allclose(other.sel(world="other", test="change"), again.sel(world="other", test="change"))


def test_bad_contexts_are_refused():
    contexts, _ = drawn()
    with pytest.raises(InputError, match="contexts: expected at least two contexts, got 1"):
        law_tests(fast(False), contexts[:1])
    with pytest.raises(InputError, match="queries: expected stacked prompts for each of 2 contexts, got 6"):
        law_tests(fast(False), contexts[:2])
    short = [jax.tree.map(lambda leaf: leaf[:2], context) for context in contexts]
    with pytest.raises(InputError, match="contexts: expected at least two examples"):
        law_tests(fast(False), short)
    with pytest.raises(InputError, match="contexts: expected contexts and queries of one shape"):
        law_tests(fast(False), [*contexts[:5], jax.tree.map(lambda leaf: leaf[:4], contexts[5])])


class Sine(AbstractPredictor):
    """The sine of x.(b + A h): an exact map, and answers with many minima in the weights."""

    slow: jax.Array
    down: jax.Array

    def __call__(self, prompt):
        """The answers at every position."""
        terms = jnp.tanh(prompt.y)[:, None] * prompt.x
        h = jnp.cumsum(terms, axis=0) - terms
        return jnp.sin(jnp.sum(prompt.x * (self.slow[None] + h @ self.down), axis=1))


def test_a_fit_from_several_points_finds_weights_that_one_from_the_network_misses():
    rng = np.random.default_rng(2)
    model = Sine(jnp.asarray(rng.normal(size=DIM)), jnp.asarray(rng.normal(size=(DIM, DIM)) / 2))
    one, several = (
        law_tests(model, solver=MapSolver(method="dense", steps=30, starts=starts)).sel(world="own", test="effect")
        for starts in (1, 7)
    )
    assert (one["left"] > 0.3).sum() == 3
    assert one["converged"].all()
    assert (several["left"] > 0.3).sum() < 3
    easy = one["left"] < 1e-6
    np.testing.assert_array_equal(several["left"][easy], one["left"][easy])
