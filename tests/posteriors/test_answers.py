"""Every stored number is computed again by a route that shares no code with the one that it is from."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from posteriors import second_routes as routes

from icllab import posteriors
from icllab.posteriors.problems import families

MOMENTS = ("level", "variance", "free_energy")
TABLED = {"layers_3_2_3_rank_1", "layers_3_2_2_3_rank_1", "layers_3_3_3_stratum_2_2"}
TABLED |= {"attention_3_2_rank_1", "superposition_5", "superposition_6", "transformer_small", "transformer_wide"}
CROSSINGS = {
    "crossing_1_1": [(1, 1)],
    "crossing_1_2": [(1, 2)],
    "crossing_2_2": [(2, 2)],
    "crossing_2_3": [(2, 3)],
    "crossing_1_1_1": [(1, 1, 1)],
    "powers": [(1,), (1,), (2,), (3,)],
    "crossing_beside_squares": [(1, 1), *[(1,)] * 6],
    "two_crossings": [(1, 1), (1, 2), (1,)],
}
NORMS = {
    "layers_4_1_4_rank_0": [(4, 1), (4, 1)],
    "layers_3_1_2_rank_0": [(3, 1), (2, 1)],
    "layers_3_1_1_2_rank_0": [(3, 1), (1, 1), (2, 1)],
    "layers_2_1_1_1_2_rank_0": [(2, 1), (1, 1), (1, 1), (2, 1)],
}
WISHART = {name: tuple(map(int, name.split("_")[1:4])) for name in ("layers_2_2_2", "layers_3_2_4", "layers_5_2_3")}
NORMAL = ("quadratic", "stiff", "flat_direction", "power_law_spectrum", "regression", "wide_regression")
NORMAL += ("losses_with_offsets", "beside_the_minimum", "at_the_truth", "leverage")
GRIDS = {"product_regression": 501, "tanh_unit": 501, "poisson": 401, "logistic": 401, "normal_scale": 401}
GRIDS |= {"two_means": 501, "cauchy_location": 3001, "tanh_1": 801}
EXACT = sorted(
    set(posteriors.names())
    - TABLED
    - {"layers_2_2_2_2_rank_0"}
    - {name for name in posteriors.names() if families()[name].difficulty == "refused"}
)


def second(problem, name):
    """Moments by the second route, and covariances or None."""
    draft, t, gamma = problem.draft, problem.nbeta, problem.localization
    if name in NORMAL:
        return routes.by_curvature(problem), routes.covariances_by_curvature(problem) if draft.rows else None
    if name in CROSSINGS:
        parts = [
            routes.by_convolution(scale, [(1, power) for power in term], t, gamma)
            for scale, term in zip(draft.arrays["scales"], CROSSINGS[name], strict=True)
        ]
        return np.sum(parts, axis=0), None
    if name == "power_of_norm":
        return routes.by_convolution(draft.arrays["scale"][0], [(4, 2)], t, gamma), None
    if name in NORMS:
        return routes.by_convolution(draft.arrays["scale"][0] / 2, NORMS[name], t, gamma), None
    if name.removesuffix("_rank_0") in WISHART:
        return routes.by_bartlett(WISHART[name.removesuffix("_rank_0")], draft.arrays["scale"][0], t, gamma), None
    if name in GRIDS:
        width = 0.3 * t**-0.5 if draft.rows is None else 0.1
        return routes.on_all(problem, width, GRIDS[name])
    if name == "softmax_pair":
        # The sum of both classes' weights moves no loss: it is left at the point.
        return routes.on_all(problem, 0.2, 301, turned=np.array([[1, 0, -1, 0], [0, 1, 0, -1]]) / np.sqrt(2))
    others = {
        "cusp": routes.in_the_valley,
        "two_phases": routes.by_panels,
        "mixture_divergence": functools.partial(routes.by_panels, panels=90, order=16),
        "tanh_2": routes.by_angles,
        "induction_saddle": routes.by_hermite,
        "layers_2_1_4_rank_1": functools.partial(routes.by_outer_layer, (2, 1, 4)),
        "attention_2_1_rank_1": functools.partial(routes.by_outer_layer, (2, 1, 2)),
    }
    return others[name](problem), None


@pytest.mark.parametrize("name", EXACT)
def test_every_moment_is_found_by_a_second_route(name):
    with jax.enable_x64(True):
        for setting in range(len(families()[name].settings)):
            problem = posteriors.problem(name, setting=setting)
            moments, covariances = second(problem, name)
            stated = np.array([problem.answers[key].value for key in MOMENTS])
            errors = np.array([problem.answers[key].error for key in MOMENTS])
            np.testing.assert_array_less(np.abs(np.asarray(moments) - stated), errors + 1e-5 * (1 + np.abs(stated)))
            if covariances is not None:
                scale = np.abs(covariances).max()
                np.testing.assert_allclose(problem.answers["influence"].value, -covariances, atol=1e-5 * scale)
                response = -problem.nbeta * problem.draft.tilt @ covariances
                bound = problem.answers["susceptibility"].error + 1e-5 * problem.nbeta * scale
                assert abs(problem.answers["susceptibility"].value - response) < bound


@pytest.mark.parametrize(
    "name", ["quadratic", "regression", "crossing_2_3", "layers_3_1_1_2_rank_0", "layers_2_2_2_rank_0"]
)
def test_every_moment_of_a_drawn_member_is_found_by_a_second_route(name):
    with jax.enable_x64(True):
        problem = posteriors.problem(name, key=jax.random.key(11), setting=1)
        moments, _ = second(problem, name)
        stated = np.array([problem.answers[key].value for key in MOMENTS])
        np.testing.assert_allclose(moments, stated, rtol=1e-5)


def singular_levels(problem, name, t):
    """The level at another temperature, by the second route."""
    arrays, gamma = problem.draft.arrays, problem.localization
    if name in CROSSINGS:
        terms = zip(arrays["scales"], CROSSINGS[name], strict=True)
        return sum(routes.by_convolution(c, [(1, power) for power in term], t, gamma)[0] for c, term in terms)
    if name == "power_of_norm":
        return routes.by_convolution(arrays["scale"][0], [(4, 2)], t, gamma)[0]
    return routes.by_convolution(arrays["scale"][0] / 2, NORMS[name], t, gamma)[0]


@pytest.mark.parametrize("name", sorted([*CROSSINGS, *NORMS, "power_of_norm"]))
def test_a_level_tends_to_the_coefficient_as_the_multiplicity_says(name):
    r"""At :math:`t\to\infty` it is :math:`\lambda - (m-1)/(\log t + c)`: the two numbers by no formula of theirs."""
    problem = posteriors.problem(name)
    coefficient, multiplicity = (problem.answers[key].value for key in ("coefficient", "multiplicity"))
    # The mass near the point, t to the power of minus lambda, is to stay above the rounding of a convolution.
    ends = (21.0, 29.0) if name in CROSSINGS else (18 / max(1.0, coefficient), 24 / max(1.0, coefficient))
    one, other = (coefficient - singular_levels(problem, name, math.exp(end)) for end in ends)
    if multiplicity == 1:
        assert abs(other) < 0.05 * coefficient
        assert abs(other) < 0.6 * abs(one) + 1e-4
    else:
        found = (ends[1] - ends[0]) / (1 / other - 1 / one)
        assert abs(found - (multiplicity - 1)) < 0.1


WITHOUT_LIMIT = {"beside_the_minimum", "at_the_truth"}
REGULAR = [name for name in posteriors.names() if families()[name].difficulty in ("regular", "data", "baseline")]
REGULAR = [name for name in REGULAR if name not in WITHOUT_LIMIT] + [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("superposition_5", "superposition_6", "transformer_small", "transformer_wide")
]


@pytest.mark.parametrize("name", REGULAR)
def test_a_coefficient_of_a_regular_point_is_half_the_rank_of_its_hessian(name):
    problem = posteriors.problem(name)
    with jax.enable_x64(True):
        loss = problem.loss if problem.data is None else lambda w: problem.loss(w, problem.data)
        h = np.linalg.eigvalsh(jax.hessian(loss)(jnp.asarray(problem.at)))
    assert problem.answers["coefficient"].value == (h > 1e-9 * h.max()).sum() / 2
    assert problem.answers["multiplicity"].value == 1


@pytest.mark.parametrize("name", sorted(TABLED))
def test_a_level_from_populations_is_that_of_the_committed_table(name):
    for setting, (nbeta, localization) in enumerate(families()[name].settings):
        problem = posteriors.problem(name, setting=setting)
        (row,) = (
            row
            for row in posteriors.stored.population_table()[name]
            if (row["nbeta"], row["localization"]) == (nbeta, localization)
        )
        np.testing.assert_allclose(problem.answers["level"].value, row["level"], rtol=1e-9)
        np.testing.assert_allclose(problem.answers["level"].error, row["level_error"], rtol=0.01)
        # The level rises towards the coefficient by its slope, level less variance.
        assert problem.answers["level"].error < 0.002 * problem.answers["level"].value
        assert 0.9 * problem.answers["coefficient"].value < problem.answers["level"].value
        assert problem.answers["level"].value < 1.02 * problem.answers["coefficient"].value


def test_three_layers_of_zero_are_those_of_a_quasi_random_mean():
    problem = posteriors.problem("layers_2_2_2_2_rank_0", setting=2)
    moments = routes.by_sobol(problem.draft.arrays["scale"][0], problem.nbeta, problem.localization)
    np.testing.assert_allclose(moments, [problem.answers[key].value for key in MOMENTS], atol=0.003)
