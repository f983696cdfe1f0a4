"""Every argument of a closed form is refused by name, in one line, before it becomes a NaN."""

import math

import numpy as np
import pytest
from refusals import assert_refused, unchecked

from icllab.theory import (
    attention_flow,
    descent,
    dmmse,
    finite_wishart,
    free_energy,
    independent_inputs,
    induction_factors,
    induction_landscape,
    label_relations,
    linear_attention,
    posterior_integrals,
    preconditioners,
    quadratic_posterior,
    random_covariances,
    sample_covariance,
    superposition,
    task_alignment,
    wishart,
)
from icllab.theory import learning_coefficients as coefficients
from icllab.theory.free_energy import Phase
from icllab.theory.learning_coefficients import LearningCoefficient

AT_LEAST_1 = "expected an integer of at least 1, got"
POSITIVE, POSITIVE_OR_INF = "expected a finite number > 0, got", "expected a number > 0 (inf is allowed), got"
NON_NEGATIVE = "expected a finite number >= 0, got"
FLAT, EYE = Phase(0.0, LearningCoefficient(1.0)), np.eye(2)
SIGMA = np.array([0.5, 1.0, 2.0])


def ratios(**change):
    return {"tau": 0.5, "alpha": 1.0, "kappa": 1.0, "rho": 0.1, "ridge": 0.0} | change


def fresh_error(**change):
    return dmmse.icl_error(**{"dim": 3, "alpha": 1.0, "kappa": 1.0, "rho": 0.1, "draws": 2} | change)


def factor_flow(start=(0.1,) * 3, **change):
    return induction_factors.flow(start, **{"time": 1.0, "pairs": 4, "labels": 16} | change)


def landscape_loss(**change):
    return induction_landscape.loss(**{"beta": 0, "alpha": 0, "xi": 0, "pairs": 4, "labels": 8} | change)


def landscape_flow(start=(0.0, 0.0, 0.0), **change):
    return induction_landscape.flow(start, **{"pairs": 4, "labels": 8, "time": 1} | change)


def best_step(variances=SIGMA, **change):
    return independent_inputs.optimal(variances, **{"kurtosis": 2.0, "length": 4} | change)


def cusp(**change):
    return posterior_integrals.cusp(**{"side": "left", "n": 1.0, "split": 1.0, "tilt": 0.0, "free": 1.0} | change)


def gated(**change):
    fields = {"phase": "rich", "means": np.zeros(3), "n": 1.0, "barrier": 3.0, "effect": 0.15}
    return posterior_integrals.gated(**fields | change)


def units(**change):
    return posterior_integrals.shared_units(**{"terms": 1, "units": 2, "outputs": 3, "nbeta": 1.0} | change)


def drawn(first=(1.0, 1.0), second=(2.0, 2.0), third=(6.0, 6.0), **change):
    return random_covariances.optimal(first, second, third, **{"length": 4} | change)


def layer_flow(**change):
    return attention_flow.flow(**{"time": 1.0, "start": 0.1, "dim": 2, "length": 4} | change)


def parts(hessians, **change):
    return quadratic_posterior.contributions(hessians, **{"nbeta": 1.0} | change)


def spectra(train, test=1.0):
    return sample_covariance.in_eigenbasis(train, test)


@pytest.mark.parametrize("name", ["icl_error", "idg_error", "effective_ridge"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tau": 0}, f"tau: {POSITIVE_OR_INF} 0"),
        ({"tau": -1.0}, f"tau: {POSITIVE_OR_INF} -1.0"),
        ({"alpha": np.inf}, f"alpha: {POSITIVE} inf; "),
        ({"alpha": 0.0}, f"alpha: {POSITIVE} 0.0; "),
        ({"kappa": np.nan}, f"kappa: {POSITIVE_OR_INF} nan"),
        ({"kappa": "many"}, f"kappa: {POSITIVE_OR_INF} 'many'"),
        ({"rho": -0.01}, f"rho: {NON_NEGATIVE} -0.01"),
        ({"rho": [0.1, np.inf]}, f"rho: {NON_NEGATIVE} inf; element [1] of shape (2,)"),
        ({"ridge": 1j}, f"ridge: {NON_NEGATIVE} 1j"),
        ({"ridge": None}, f"ridge: {NON_NEGATIVE} None"),
        ({"kappa": [1, 2], "tau": [1, 2, 3]}, "tau, alpha, kappa, rho, ridge"),
    ],
)
def test_the_ratios_of_pretraining(name, change, message):
    assert_refused(lambda: getattr(linear_attention, name)(**ratios(**change)), message)
    covariances = ([1.0, 2.0], 1.0) if name == "icl_error" else ([1.0, 2.0],)
    assert_refused(lambda: getattr(task_alignment, name)(*covariances, **ratios(**change)), message)


def test_infinite_contexts_have_a_hint():
    for call, hint in (
        (lambda: linear_attention.icl_error(**ratios(alpha=np.inf)), "for alpha -> inf see large_context_limit"),
        (lambda: task_alignment.idg_error(1.0, **ratios(alpha=np.inf)), "contexts of infinite length are for test_alp"),
        (lambda: linear_attention.ridge_error(alpha=np.inf, rho=1.0), "as alpha -> inf the ridge"),
    ):
        assert_refused(call, f"alpha: {POSITIVE} inf; {hint}")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear_attention.icl_error(**ratios(test_alpha=0)), f"test_alpha: {POSITIVE_OR_INF} 0"),
        (lambda: linear_attention.idg_error(**ratios(test_alpha=0)), f"test_alpha: {POSITIVE_OR_INF} 0"),
        (lambda: task_alignment.icl_error(1.0, 1.0, **ratios(test_alpha=0)), f"test_alpha: {POSITIVE_OR_INF} 0"),
        (
            lambda: linear_attention.large_context_limit(kappa=1, rho=1, alpha_over_tau=-1),
            f"alpha_over_tau: {NON_NEGATIVE} -1",
        ),
        (lambda: descent.loss([], dim=2, length=3), "rates: expected a list of numbers, one for each layer"),
        (lambda: descent.loss([0.1], [0.1, 0.2], dim=2, length=3), "contractions: expected 1 numbers, one for each"),
        (lambda: descent.loss([np.nan], dim=2, length=3), "rates: expected a finite number"),
        (lambda: descent.free_steps(dim=2, length=3, layers=0), f"layers: {AT_LEAST_1} 0"),
        (lambda: descent.tied_steps(dim=2, length=0, layers=1), f"length: {AT_LEAST_1} 0"),
        (lambda: descent.plus_plus(dim=2, length=3, layers=1, spectra=np.ones((5, 3))), "spectra: expected eigenv"),
        (lambda: fresh_error(dim=0), f"dim: {AT_LEAST_1} 0"),
        (lambda: fresh_error(draws=1), "draws: expected an integer of at least 2, got 1"),
        (lambda: fresh_error(seed=-1), "seed: expected an integer of at least 0, got -1"),
        (lambda: fresh_error(alpha=0.0), f"alpha: {POSITIVE} 0.0"),
        (lambda: fresh_error(kappa=math.inf), f"kappa: {POSITIVE} inf"),
        (lambda: fresh_error(rho=-0.1), f"rho: {NON_NEGATIVE} -0.1"),
        (lambda: finite_wishart.moments(0, 3, 2), f"dim: {AT_LEAST_1} 0"),
        (lambda: finite_wishart.moments(2, -1, 2), f"length: {AT_LEAST_1} -1"),
        (lambda: finite_wishart.gauss_rule(2, 3, 0), f"nodes: {AT_LEAST_1} 0"),
        (lambda: finite_wishart.gauss_rule(2, 3, 2, 2), "tilt: expected 0 or 1, got 2"),
        (lambda: finite_wishart.sample_rule(np.ones(9), 3), "values: expected more than 3 different numbers, got 1"),
        (lambda: free_energy.asymptotic(FLAT, 1), "n: expected a finite number > 1"),
        (lambda: free_energy.asymptotic(Phase(math.nan, LearningCoefficient(1.0)), 9), "loss: expected a finite num"),
        (lambda: free_energy.posterior_weights([], 10), "phases: expected at least one"),
        (lambda: free_energy.crossings(FLAT, FLAT), "phases: expected two different phases"),
        (lambda: drawn(length=0), f"length: {AT_LEAST_1} 0"),
        (lambda: drawn(noise_variance=-1), f"noise_variance: {NON_NEGATIVE} -1"),
        (lambda: drawn(first=(1.0, 0.0)), f"first: {POSITIVE} 0.0"),
        (lambda: drawn(1.0, 2.0, 6.0), "first: expected a vector with a number for each dimension"),
        (lambda: drawn(second=(2.0, 0.9)), "second: expected moments of at least [1.0, 1.0]"),
        (lambda: drawn(third=(6.0, 3.9)), "third: expected moments of at least [4.0, 4.0]"),
        (lambda: random_covariances.exponential([1.0, -1.0], length=4), f"means: {POSITIVE} -1.0"),
        (lambda: layer_flow(time=-1.0), f"time: {NON_NEGATIVE} -1.0"),
        (lambda: layer_flow(start=0.0), f"start: {POSITIVE} 0.0"),
        (lambda: layer_flow(dim=0), f"dim: {AT_LEAST_1} 0"),
        (lambda: layer_flow(length=2.5), f"length: {AT_LEAST_1} 2.5"),
        (lambda: layer_flow(variance=0.0), f"variance: {POSITIVE} 0.0"),
        (lambda: layer_flow(alignment=-1.0), "alignment: expected a finite number > -1 and <= 1, got -1.0; at -1"),
        (lambda: layer_flow(dim=1, alignment=0.5), "alignment: expected 1 in one dimension, got 0.5"),
        (
            lambda: best_step(kurtosis=0.9),
            "kurtosis: expected a finite number >= 1, got 0.9; a random sign has the smallest kurtosis",
        ),
        (lambda: best_step(np.array([1.0, -1.0])), f"variances: {POSITIVE} -1.0"),
        (lambda: best_step(EYE + 1), "variances: expected a vector"),
        (lambda: best_step(length=0), f"length: {AT_LEAST_1} 0"),
        (lambda: best_step(task_covariance=EYE), "task_covariance: expected dimension 3"),
        (lambda: independent_inputs.loss(EYE, SIGMA, kurtosis=2.0, length=4), "preconditioner: expected a matrix [3"),
        (lambda: factor_flow(attention="linear"), "unknown attention 'linear'"),
        (lambda: factor_flow(objective="hinge"), "unknown objective 'hinge'"),
        (lambda: factor_flow(pairs=1), "pairs: expected an integer of at least 2, got 1"),
        (lambda: factor_flow(labels=3), "labels: expected at least 4, one for each pair, got 3"),
        (lambda: factor_flow(factors=0), f"factors: {AT_LEAST_1} 0"),
        (lambda: factor_flow((0.0, 0.1, 0.1), factors=2), f"start: {POSITIVE} 0.0"),
        (lambda: factor_flow((0.1, 0.1)), "start: expected"),
        (lambda: factor_flow(levels=(0.0,)), f"levels: {POSITIVE} 0.0"),
        (lambda: landscape_loss(pairs=0), f"pairs: {AT_LEAST_1} 0"),
        (lambda: landscape_loss(labels=3), "labels: expected at least 4, one for each pair, got 3"),
        (lambda: landscape_loss(alpha=np.nan), "alpha: expected a finite number, got nan"),
        (lambda: landscape_flow((0, 0)), "start: expected beta, alpha, xi, and optionally beta2"),
        (lambda: landscape_flow(pairs=1), "pairs: expected an integer of at least 2, got 1"),
        (lambda: landscape_flow(time=0), f"time: {POSITIVE} 0"),
        (lambda: landscape_flow(rates=(1, 1)), "rates: expected 3 numbers, as in start"),
        (lambda: label_relations.agreements(pairs=3, labels=2), "labels: expected at least 3, one for each pair, got"),
        (lambda: label_relations.agreements(pairs=0, labels=2), f"pairs: {AT_LEAST_1} 0"),
        (
            lambda: label_relations.recognition_on_a_new_relation(1.5, pairs=2, labels=4),
            f"relations: {AT_LEAST_1} 1.5",
        ),
        (
            lambda: label_relations.recognition_on_an_unseen_item(2, pairs=4, labels=4),
            "labels: expected more than the 4 pairs, got 4",
        ),
        (lambda: coefficients.regular(-1), "parameters: expected an integer of at least 0"),
        (lambda: coefficients.normal_crossing((0, 0)), "powers: expected at least one above 0"),
        (lambda: coefficients.normal_crossing((-1,)), "powers: expected an integer"),
        (lambda: coefficients.normal_crossing((1, 2), (0,)), "weights: expected one for each of the 2 powers"),
        (lambda: coefficients.normal_crossing((1,), (-1,)), "weights: expected a finite number > -1"),
        (lambda: coefficients.quasi_homogeneous(()), "weights: expected at least one"),
        (lambda: coefficients.reduced_rank_regression(3, 2, 3, 3), "rank: expected an integer from 0 to 2, the small"),
        (
            lambda: coefficients.reduced_rank_stratum(3, 3, 3, 2, rank_in=3, rank_out=3),
            "rank_out: expected rank_in + rank_out",
        ),
        (
            lambda: coefficients.reduced_rank_stratum(3, 3, 3, 1, rank_in=0, rank_out=1),
            "rank_in: expected an integer from 1",
        ),
        (lambda: coefficients.deep_linear((3,), 0), "widths: expected at least two"),
        (lambda: coefficients.tanh_network(0), f"hidden: {AT_LEAST_1} 0"),
        (lambda: coefficients.gaussian_mixture(3), "free_means: expected 1 or 2"),
        (lambda: coefficients.linear_attention(4, 2, 3), "rank: expected an integer from 0 to 2"),
        (lambda: coefficients.of_sum(), "terms: expected at least one"),
        (lambda: LearningCoefficient(1.0).at(1.0), "nbeta: expected a finite number > 1"),
        (lambda: cusp(side="middle"), "side: expected 'left' or"),
        (lambda: cusp(n=0.0), f"n: {POSITIVE} 0.0"),
        (lambda: posterior_integrals.circle(0.0, radius=1.0), f"n: {POSITIVE} 0.0"),
        (lambda: posterior_integrals.circle(1.0, radius=-1.0), f"radius: {NON_NEGATIVE} -1.0"),
        (lambda: posterior_integrals.cusp_line(n=1.0, split=1.0, free=1e4), "cusp_line: expected equal shares at a ti"),
        (lambda: gated(phase="left"), "phase: expected 'simple' or 'rich'"),
        (lambda: gated(layers=3), "layers: expected 1 or 2"),
        (lambda: units(units=3), "units: expected 1 or 2"),
        (lambda: units(outputs=1), "outputs: expected an integer of at"),
        (lambda: preconditioners.optimal(2.0, length=3), "covariance: expected a vector [d] or a symmetric matrix [d,"),
        (lambda: preconditioners.optimal([1.0, -1.0], length=3), "covariance: expected eigenvalues >= 0, got -"),
        (lambda: preconditioners.optimal([[1.0, 0.5], [0.0, 1.0]], length=3), "covariance: expected a symmetric mat"),
        (lambda: preconditioners.optimal([1.0], length=0), f"length: {AT_LEAST_1} 0"),
        (lambda: preconditioners.optimal([1.0], length=2, noise_variance=-1.0), f"noise_variance: {NON_NEGATIVE}"),
        (
            lambda: preconditioners.optimal([1.0], length=2, task_covariance=[1.0, 1.0]),
            "task_covariance: expected dimension 1, to match the",
        ),
        (
            lambda: preconditioners.loss(np.eye(3), [1.0], length=2),
            "preconditioner: expected a matrix [1, 1], to match the",
        ),
        (lambda: preconditioners.family([1.0, 0.0], [0.1]), "covariance: expected a positive definite matrix"),
        (lambda: preconditioners.family([1.0], [0.1], [0.1, 0.2]), "contractions: expected a number for each rate"),
        (lambda: preconditioners.identity_distance([1.0]), "matrices: expected square matrices"),
        (
            lambda: preconditioners.identity_distance(EYE, [1.0]),
            "covariance: expected dimension 2, to match the matrices",
        ),
        (lambda: quadratic_posterior.gaussian_coefficient([2.0], nbeta=0.0), f"nbeta: {POSITIVE}"),
        (
            lambda: quadratic_posterior.gaussian_coefficient([2.0], nbeta=1.0, localization=-1),
            f"localization: {NON_NEGATIVE}",
        ),
        (
            lambda: quadratic_posterior.gaussian_coefficient([2.0], nbeta=1.0, step_size=2.0),
            "step_size: expected below 2, where the chain diverges",
        ),
        (lambda: parts(np.eye(3)), "hessians: expected square matrices, one for each term"),
        (lambda: parts(np.array([[[1.0, 2.0], [0.0, 1.0]]])), "hessians: expected symmetric matrices"),
        (lambda: parts([-EYE]), "hessians: expected a sum that is positive definite"),
        (lambda: parts([EYE], gradients=np.array([[1.0, 0.0]])), "gradients: expected vectors that sum to zero"),
        (lambda: parts([EYE], gradients=np.array([[1.0]])), "gradients: expected one vector for each"),
        (lambda: superposition.polygon(3), "vertices: expected an integer of at least 4, got 3"),
        (lambda: superposition.polygon(7, features=8), "vertices: expected an integer from 4 to 6, got 7"),
        (lambda: superposition.polygon(5, positive=2), "positive: expected at most the 1 features without a corner, g"),
        (lambda: superposition.loss(np.ones((2, 6)), np.ones(5)), "bias: expected one for each column of weights, 6,"),
        (lambda: spectra([[1.0, 2.0, 3.0]]), "train: expected a number, a vector [d] or a matrix [d, d], got 'shape "),
        (lambda: spectra([]), "train: expected a number, a vector [d] or a matrix [d, d], got 'shape (0,)'"),
        (lambda: spectra([1.0, np.nan]), "train: expected a finite number, got nan; element [1] of shape (2,)"),
        (lambda: spectra([[1.0, 0.5], [0.4, 1.0]]), "train: expected a symmetric matrix, got 'entries that differ by"),
        (lambda: spectra([[1.0, 2.0], [2.0, 1.0]]), "train: expected eigenvalues >= 0, got -1.0"),
        (lambda: spectra([1.0, -0.5]), "train: expected eigenvalues >= 0, got -0.5"),
        (lambda: spectra(0.0), "train: expected a covariance that is not zero, got 0.0"),
        (lambda: spectra(1.0, -1.0), "test: expected eigenvalues >= 0, got -1.0"),
        (
            lambda: spectra([1.0, 2.0], [1.0, 2.0, 3.0]),
            "test: expected a covariance of dimension 2, to match train, got",
        ),
        (lambda: spectra("C"), "train: expected a finite number, got 'C'"),
        (lambda: sample_covariance.power_law(0, 1.0), f"dim: {AT_LEAST_1} 0"),
        (lambda: sample_covariance.power_law(3, -1.0), f"exponent: {NON_NEGATIVE} -1.0"),
        (lambda: sample_covariance.resolvent_trace(1.0, 0, 1.0), f"q: {POSITIVE} 0"),
        (lambda: sample_covariance.resolvent_trace(1.0, 1.0, -1), f"kappa: {POSITIVE_OR_INF} -1"),
        (lambda: wishart.stieltjes(-0.1, 1.0), f"q: {NON_NEGATIVE} -0.1"),
        (lambda: wishart.stieltjes_derivative(np.inf, 1.0), f"q: {NON_NEGATIVE} inf"),
        (lambda: wishart.stieltjes(1.0, [0, 1]), f"kappa: {POSITIVE_OR_INF} 0; element [0] of shape (2,)"),
        (lambda: wishart.stieltjes_derivative([1, 2, 3], [1, 2]), "q, kappa: expected shapes that broadcast together"),
    ],
)
def test_other_arguments(call, message):
    assert_refused(call, message)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: superposition.loss([[1.0, 0.0], [0.0, 1.0]], [0.0]), "bias: expected one for each column of weights"),
        (lambda: superposition.loss([1.0, 2.0], [0.0, 0.0]), "bias: expected one for each column of weights"),
        (lambda: superposition.loss([[1.0], [0.0, 1.0]], [0.0]), "weights: expected a finite number, or a rectangular"),
        (lambda: parts([np.eye(2), np.eye(3)]), "hessians: expected a finite number, or a rectangular array of these"),
        (lambda: free_energy.asymptotic(3.0, 10), "phase: expected a Phase(loss, coefficient), got 'float'"),
        (lambda: free_energy.crossings(FLAT, 2), "phase: expected a Phase(loss, coefficient), got 'int'"),
        (lambda: free_energy.posterior_weights([1, 2], 10), "phase: expected a Phase(loss, coefficient), got 'int'"),
        (lambda: dmmse.posterior_mean([1.0], [2.0], [[3.0]], 0.1), "x, y, pool: expected inputs [example, dim]"),
        (lambda: dmmse.posterior_mean(np.ones((3, 2)), np.ones(2), np.ones((4, 2)), 0.1), "x, y, pool: expected"),
    ],
)
def test_arrays_that_do_not_fit_are_told(call, said):
    assert_refused(call, said)


def test_lists_are_arrays():
    with unchecked():
        loss = superposition.loss([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
        mean = dmmse.posterior_mean([[1.0]], [2.0], [[3.0], [1.0]], 0.5)
    assert loss == superposition.loss(np.eye(2), np.zeros(2))
    arrays = np.ones((1, 1)), np.full(1, 2.0), np.array([[3.0], [1.0]])
    np.testing.assert_array_equal(mean, dmmse.posterior_mean(*arrays, 0.5))
