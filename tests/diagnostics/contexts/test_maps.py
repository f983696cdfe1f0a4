"""The map of a context where it is known in closed form, its derivative, its nulls, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from icllab import diagnostics, models, tasks
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics.contexts import nulls, solvers
from icllab.diagnostics.contexts.distances import divergence
from icllab.diagnostics.contexts.map_tests import FittedMap, MapMeasurements, MapTests, _cut, _rows, fit_map
from icllab.diagnostics.contexts.maps import _warnings, context_map
from icllab.diagnostics.contexts.queries import QuerySource, answers_alone, queries_for
from icllab.diagnostics.contexts.solvers import MapSolver, Solution, _continue_with_adam, _Origin, _solution, solve
from icllab.diagnostics.contexts.subspaces import parameter_mask, parameters, random_direction
from icllab.models.contexts.exact_family import FastWeights, GradientStep

DIM, LENGTH = 3, 4


def slow(model):
    return model.slow


def drawn(seed=0, length=LENGTH):
    """A context, and stacked queries of which each half has mean zero, by NumPy."""
    rng = np.random.default_rng(seed)
    context = RegressionPrompt(
        x=jnp.asarray(rng.normal(size=(length + 1, DIM))), y=jnp.asarray(rng.normal(size=length + 1))
    )
    half, remainder = rng.normal(size=(2, 12, 1, DIM))
    x = jnp.asarray(np.concatenate([half, -half, remainder, -remainder]))
    queries = jax.vmap(RegressionPrompt)(x, jnp.asarray(np.zeros((48, 1))))
    return context, queries


def asked_of(exact):
    """The context, its queries, and the mask of the direct term."""
    options = {"count": exact["queries"], "size": 1, "key": jax.random.key(0)}
    return exact["context"], queries_for(exact["context"], exact["task"], **options), parameter_mask(family(), slow)


def family(seed=1, normalised=False):
    rng = np.random.default_rng(seed)
    down, up, b = rng.normal(size=(2, DIM)), rng.normal(size=(DIM, 2)), rng.normal(size=DIM)
    return FastWeights(jnp.asarray(down), jnp.asarray(up), jnp.asarray(b), normalised=normalised)


@pytest.fixture(scope="module")
def exact():
    """Maps of the sum and of the mean, in float64."""
    with jax.enable_x64(True):
        context, queries = drawn()
        task = tasks.LinearRegression.convention("timaeus", dim=DIM, length=LENGTH)
        few = MapTests(draws=2, directions=2)
        options = {"subspace": slow, "key": jax.random.key(0), "queries": queries, "tests": few}
        yield {
            name: context_map(family(normalised=mean), task, context, **options)
            for name, mean in (("sum", False), ("mean", True))
        } | {"context": context, "queries": queries, "task": task}


def test_the_exact_family_is_found_as_its_formula(exact):
    result, model = exact["sum"], family()
    context = exact["context"]
    h = (context.y[:-1, None] * context.x[:-1]).sum(0)
    target = np.asarray(model.slow + model.up @ (model.down @ h))
    np.testing.assert_allclose(result.weights.slow, target, atol=1e-6 * np.abs(target).max())
    assert result.gap < 1e-10
    assert result.converged
    np.testing.assert_array_equal(result.weights.up, model.up)
    size = np.linalg.norm(target - np.asarray(model.slow)) / np.linalg.norm(model.slow)
    assert result.norm == pytest.approx(size, rel=1e-6)


def test_the_sum_composes_and_the_mean_does_not(exact):
    assert exact["sum"].composition < 1e-10
    assert exact["sum"].derivative < 1e-10
    assert exact["mean"].gap < 1e-10
    assert exact["mean"].derivative < 1e-10
    # The mean of each half weighs twice as much as in the mean of the whole, which is linear in h: exactly 1.
    assert exact["mean"].composition == pytest.approx(1.0, abs=1e-6)


def test_what_the_weights_themselves_carry_is_what_the_context_adds_to_a_change(exact):
    """Of d(b + BAh) it is db; x has mean zero on both halves, so that only second moments enter."""
    model, context = family(), exact["context"]
    h = (context.y[:-1, None] * context.x[:-1]).sum(0)
    x = np.asarray(exact["queries"].x[24:, 0])
    left, whole = [], []
    for i in range(2):
        d = random_direction(parameters(model), jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 2), i))
        extra_loss = x @ np.asarray(d.up @ (model.down @ h) + model.up @ (d.down @ h))
        left.append(np.mean(extra_loss**2))
        whole.append(np.mean((x @ np.asarray(d.slow) + extra_loss) ** 2))
    assert float(exact["sum"].dataset["unmoved"]) == pytest.approx(np.mean(left) / np.mean(whole), rel=1e-5)


def test_unrelated_targets_pass_all_but_composition(exact):
    """Every linear function is within the subspace: a gap of zero says nothing."""
    result = exact["sum"].dataset.sel(null="unrelated")
    assert float(result["null_gap"].max()) < 1e-10
    assert float(result["null_derivative"].max()) < 1e-10
    assert float(result["null_composition"].min()) > 1e-2


def test_the_derivative_is_that_of_finite_differences():
    with jax.enable_x64(True):
        context, queries = drawn()
        task = tasks.LinearRegression.convention("timaeus", dim=DIM, length=LENGTH)
        model, direction = family(), parameters(family(seed=3))
        query_set = queries_for(context, task, count=queries, size=1, key=jax.random.key(0))
        mask = parameter_mask(model, slow)

        def case_at(step):
            present = jax.tree.map(lambda w, d: w + step * d, parameters(model), direction)
            return nulls.own_case(
                FastWeights(present.down, present.up, present.slow, normalised=False),
                mask,
                context,
                query_set,
                "squares",
            )

        options = MapSolver()
        ends = [solve(case_at(step).fit, options)[0].free.slow for step in (1e-4, -1e-4)]
        target = np.asarray(ends[0] - ends[1]) / 2e-4
        case = case_at(0.0)
        free = solve(case.fit, options)[0].free
        fit = nulls.own_case(
            FastWeights(model.down, model.up, free.slow, normalised=False), mask, context, query_set, "squares"
        ).fit
        fit = type(fit)(fit.model, mask, fit.queries, case.fit.targets, "squares")
        change, _ = case.changes(context, query_set, direction)
        result = solvers.carry(fit, direction, change, options)
        np.testing.assert_allclose(result.direction.slow, target, rtol=1e-6)
        np.testing.assert_array_equal(result.direction.up, direction.up)
        # And the closed form.
        flat = np.concatenate([np.ravel(direction.down), np.ravel(direction.up), np.ravel(direction.slow)])
        np.testing.assert_allclose(result.direction.slow, model.jacobian(context) @ flat, rtol=1e-6)


@pytest.mark.parametrize("kind", ["squares", "logits"])
def test_an_unrelated_target_is_as_far_as_the_context_moves(kind):
    with jax.enable_x64(True):
        rng = np.random.default_rng(4)
        base, change = jnp.asarray(rng.normal(size=(30, 3))), jnp.asarray(rng.normal(size=(30, 3)))
        target = jnp.asarray(0.3)
        factor = nulls._factor(kind, base, change, target)
        assert float(jnp.mean(divergence(kind, base + factor * change, base))) == pytest.approx(0.3, rel=1e-9)


def test_two_solvers_agree_where_nothing_is_left():
    with jax.enable_x64(True):
        context, queries = drawn()
        task = tasks.LinearRegression.convention("timaeus", dim=DIM, length=LENGTH)
        model = family()
        query_set = queries_for(context, task, count=queries, size=1, key=jax.random.key(0))
        mask = parameter_mask(model, lambda m: (m.slow, m.up))  # B is not felt, and stays
        fit = nulls.own_case(model, mask, context, query_set, "squares").fit
        ends = [solve(fit, MapSolver(method=method, adam_steps=4000))[0] for method in ("gauss_newton", "adam")]
        answers = [
            answers_alone(FastWeights(model.down, e.free.up, e.free.slow, normalised=False), query_set.held_out)
            for e in ends
        ]
        np.testing.assert_allclose(answers[0], answers[1], atol=1e-6)
        np.testing.assert_array_equal(ends[0].free.up, model.up)


def test_of_two_solvers_the_lower_is_taken_and_gradients_are_over_that_at_the_start():
    """Where the first one ended Adam goes on, or nothing is changed; twice a gradient is a ratio of two."""
    with jax.enable_x64(True):
        context, queries = drawn()
        task = tasks.LinearRegression.convention("timaeus", dim=DIM, length=LENGTH)
        model = family()
        query_set = queries_for(context, task, count=queries, size=1, key=jax.random.key(0))
        fit = nulls.own_case(model, parameter_mask(model, slow), context, query_set, "squares").fit
        flat = ravel_pytree(fit.free)[0]
        first = jnp.asarray([1e-3, 2e-3, -1e-3])
        start = _solution(fit, _Origin(jnp.asarray(1.0), first), flat, 2 * first, jnp.asarray(0))
        assert float(start.gradient) == pytest.approx(2, rel=1e-12)
        assert start.divergence == start.start > 0
        options = MapSolver(adam_steps=300)
        lower = _continue_with_adam(fit, start, options)
        assert lower.divergence < start.divergence / 2
        least = lower._replace(divergence=jnp.asarray(0.0))
        assert _continue_with_adam(fit, least, options) is least


def test_results_show_themselves(exact):
    result = exact["sum"]
    assert repr(result).startswith("ContextMap(gap: ")
    least = ", ".join(f"{null} {min(result.null_gaps.sel(null=null).values):.2g}" for null in nulls.NULLS)
    assert f"gap: {result.gap:.2g} (least of nulls: {least})" in repr(result)
    assert "query_length" in result._repr_html_()
    assert result.dataset.attrs["positions"] == "restart"
    assert result.null_gaps.dims == ("null", "draw")
    assert result.gradient < 1e-3
    # A change of a vector has no rank: nothing is cut.
    assert result.rank_curve.values == pytest.approx([result.gap], abs=1e-12)


def test_the_gap_is_on_queries_that_were_not_fitted(exact):
    """Weights given by hand: gap and norm by NumPy from the second half of the queries alone."""
    with jax.enable_x64(True):
        model, context, query_set, mask = family(), *asked_of(exact)
        case = nulls.own_case(model, mask, context, query_set, "squares")
        shifted_model = eqx.tree_at(slow, model, model.slow + jnp.asarray([0.3, -0.2, 0.5]))
        free = eqx.filter(shifted_model, mask)
        zero = jnp.asarray(0.0)
        item = FittedMap(case, shifted_model, Solution(free, zero, zero, zero, jnp.asarray(1)), "gauss_newton", 1e-3)
        tests = MapMeasurements(context, query_set, mask, "squares", MapSolver(), 2, jax.random.key(0))
        result = tests.measure(item, reference=item, partner=item)
        whole = np.asarray(model.mapped(context).slow)
        x = np.asarray(exact["queries"].x[24:, 0])
        left, start = ((x @ (whole - np.asarray(w))) ** 2 for w in (shifted_model.slow, model.slow))
        ratio = left.mean() / start.mean()
        error = np.std(left - ratio * start, ddof=1) / len(x) ** 0.5 / start.mean()
        np.testing.assert_allclose(result["gap"], [ratio, error])
        size = np.linalg.norm([0.3, -0.2, 0.5]) / np.linalg.norm(model.slow)
        assert result["norm"][0] == pytest.approx(size)
        # The halves compose to the whole, from which these weights are as far as they are in the gap.
        assert result["composition"][0] == pytest.approx(ratio, rel=1e-6)


def test_halves_are_taken_in_their_order(exact):
    """Gradient steps do not commute: the gap is that of the step on the later half after the one on the earlier."""
    with jax.enable_x64(True):
        context, query_set, _ = asked_of(exact)
        model = GradientStep(jnp.asarray([0.5, -1.0, 0.7]), jnp.asarray(0.9))
        mask = parameter_mask(model, lambda m: m.start)
        item = fit_map(nulls.own_case(model, mask, context, query_set, "squares"), MapSolver(tolerance=1e-6))
        tests = MapMeasurements(context, query_set, mask, "squares", MapSolver(tolerance=1e-6), 2, jax.random.key(0))
        result = tests.measure(item, reference=item, partner=item)["composition"][0]

        def stepped(w, rows):
            a, b = np.asarray(context.x)[rows], np.asarray(context.y)[rows]
            return w + 0.9 * a.T @ (b - a @ w) / len(b)

        x, start = np.asarray(exact["queries"].x[24:, 0]), np.asarray(model.start)
        whole = stepped(start, slice(0, 4))
        gaps = []
        for first, later in ((slice(0, 2), slice(2, 4)), (slice(2, 4), slice(0, 2))):
            pair = stepped(stepped(start, first), later)
            gaps.append(((x @ (whole - pair)) ** 2).mean() / ((x @ (whole - start)) ** 2).mean())
        assert abs(gaps[0] - gaps[1]) > 1e-2
        assert result == pytest.approx(gaps[0], rel=1e-6)


def test_an_unrelated_target_has_no_mean_change_and_the_same_divergence(exact):
    with jax.enable_x64(True):
        model, context, query_set, mask = family(), *asked_of(exact)
        case = nulls.own_case(model, mask, context, query_set, "squares")
        result = nulls.unrelated_case(case, family(seed=5), context, query_set)
        base = np.asarray(query_set.fitted.x[:, 0] @ model.slow)
        change = np.asarray(result.fit.targets[:, 0]) - base
        assert change.mean() == pytest.approx(0.0, abs=1e-12)
        assert (change**2).mean() == pytest.approx(((np.asarray(case.fit.targets[:, 0]) - base) ** 2).mean())
        second = np.asarray(query_set.fitted.x[:, 0] @ family(seed=5).mapped(context).slow)
        assert abs(np.corrcoef(change, second)[0, 1]) == pytest.approx(1.0)


def test_untrained_networks_have_the_same_numbers_in_another_order():
    model = family()
    item, second = nulls.null_networks(model, 2, untrained=None, key=jax.random.key(0))
    for name in ("down", "up", "slow"):
        present, shifted_model = np.asarray(getattr(model, name)), np.asarray(getattr(item, name))
        np.testing.assert_array_equal(np.sort(present.ravel()), np.sort(shifted_model.ravel()))
    assert not np.array_equal(item.up, model.up)
    assert not np.array_equal(item.up, second.up)
    with pytest.raises(InputError, match="untrained: expected a function of a key"):
        next(nulls.null_networks(model, 1, untrained=lambda key: MODEL, key=jax.random.key(0)))


def test_a_change_is_cut_to_a_rank_as_the_most_square_matrix():
    change = np.random.default_rng(0).normal(size=(6, 2, 3))
    u, s, v = np.linalg.svd(change.reshape(6, 6))
    target = ((u[:, :2] * s[:2]) @ v[:2]).reshape(6, 2, 3)
    np.testing.assert_allclose(_cut(jnp.asarray(change, jnp.float32), 2), target, atol=1e-5)
    np.testing.assert_allclose(_cut(jnp.asarray(change, jnp.float32), 6), change, atol=1e-5)
    assert _rows((2, 3, 6)) == 6


def test_what_went_wrong_is_said(exact):
    result = exact["sum"].dataset
    assert exact["sum"].warnings == ()
    wrong = result.assign(converged=False, gradient=0.5, solve=0.4).assign_attrs(context_length=1)
    wrong["null_converged"][0, 1] = False
    wrong["null_gap"][1, 0] = np.nan
    message = " | ".join(_warnings(wrong))
    for part in ("the fit has not converged", "1 of 4 fits of nulls", "singular", "changes no answer", "cannot be cut"):
        assert part in message


TASK = tasks.LinearRegression.convention("timaeus", dim=DIM, length=LENGTH)
MODEL = models.Transformer.raventos(dim=DIM, length=LENGTH, width=8, layers=1, heads=1, key=jax.random.key(0))


def refused(match, **changes):
    value = {
        "model": MODEL,
        "context": drawn32(),
        "subspace": lambda m: m.blocks[0].mlp,
        "key": jax.random.key(0),
        "queries": 2,
    }
    value |= changes
    with pytest.raises(InputError, match=match) as warning_records:
        context_map(value.pop("model"), TASK, value.pop("context"), **value)
    assert "\n" not in str(warning_records.value)


def drawn32(length=LENGTH):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(length + 1, DIM)), rng.normal(size=length + 1)
    return RegressionPrompt(x=jnp.asarray(x, jnp.float32), y=jnp.asarray(y, jnp.float32))


def test_a_subspace_that_no_query_of_one_token_feels_is_refused():
    parts = lambda m: (m.blocks[0].attention.query, m.blocks[0].attention.key)  # noqa: E731
    refused("subspace: expected weights that a query feels, got .* exactly 0.*length=3", subspace=parts)


def test_bad_input_is_refused_in_one_line():
    refused("subspace: expected parts of the model with floating-point arrays", subspace=lambda m: ())
    refused("subspace: expected parts of the model, as in equinox.tree_at", subspace=lambda m: m.embedding.length)
    refused("subspace: expected parts of the model, as in equinox.tree_at", subspace=lambda m: m.heads)
    refused("context: expected at least one example", context=drawn32(0))
    refused("at most 4 examples before the query, got 5", context=drawn32(LENGTH + 1))
    refused("queries: expected an integer of at least 2", queries=1)
    refused("queries.length: expected at most 5", queries=QuerySource(2, 6))
    refused("context: expected a RegressionPrompt", context=diagnostics_tokens())
    for name in ("draws", "directions"):
        with pytest.raises(InputError, match=f"{name}: expected an integer of at least 2, got 1"):
            MapTests(**{name: 1})


def test_arguments_that_moved_are_named_with_their_new_spelling():
    refused(r"context_map: draws= is now tests=MapTests\(draws=...\)", draws=2)
    refused(r"context_map: query_length= is now queries=QuerySource\(prompts, length\)", query_length=2)


def diagnostics_tokens():
    from icllab.core.prompt import TokenPrompt

    return TokenPrompt(tokens=jnp.zeros(5, int))


def test_a_context_that_changes_nothing_is_refused():
    weights = jnp.zeros((2, DIM), jnp.float32), jnp.zeros((DIM, 2), jnp.float32), jnp.ones(DIM, jnp.float32)
    still = FastWeights(*weights, normalised=False)
    refused("context: expected examples that change the model's answers", model=still, subspace=slow)


def test_it_is_a_diagnostic():
    assert diagnostics.context_map is context_map
