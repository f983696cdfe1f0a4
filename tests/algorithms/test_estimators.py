"""Estimators of scikit-learn beside ours, and what they cannot fit."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused

from icllab.algorithms import FromSklearn, GradientDescent, LeastSquares, NearestNeighbours, Ridge
from icllab.core.errors import EnvironmentFault, InputError
from icllab.core.prompt import RegressionPrompt
from icllab.diagnostics import per_length
from icllab.tasks import ItemLabel, LinearRegression

linear_model = pytest.importorskip("sklearn.linear_model")
neighbors = pytest.importorskip("sklearn.neighbors")


@pytest.fixture
def prompt(getkey):
    with jax.enable_x64(True):
        x = jax.random.normal(getkey(), (12, 3), "float64")
        yield RegressionPrompt(x, x @ jnp.arange(3.0) + jax.random.normal(getkey(), (12,), "float64"))


def test_its_ridge_and_ours_are_one_predictor(prompt):
    theirs = FromSklearn(linear_model.Ridge(alpha=0.5, fit_intercept=False))
    np.testing.assert_allclose(theirs(prompt), Ridge(0.5)(prompt), rtol=1e-9, atol=1e-12)
    theirs = FromSklearn(linear_model.LinearRegression(fit_intercept=False))
    np.testing.assert_allclose(theirs(prompt), LeastSquares()(prompt), rtol=1e-9, atol=1e-12)


def test_nearest_neighbours_by_hand(prompt):
    prediction = FromSklearn(neighbors.KNeighborsRegressor(3), fewest=3, otherwise=-7.0)(prompt)
    x, y = np.asarray(prompt.x), np.asarray(prompt.y)
    np.testing.assert_array_equal(prediction[:3], -7)
    for i in range(3, 12):
        nearest = np.argsort(((x[:i] - x[i]) ** 2).sum(1))[:3]
        np.testing.assert_allclose(prediction[i], y[nearest].mean(), rtol=1e-12)


def test_the_last_position_alone(prompt):
    estimator = linear_model.Ridge(alpha=0.5)
    last = FromSklearn(estimator, positions="last")
    assert last.positions == "last"
    np.testing.assert_array_equal(last(prompt), FromSklearn(estimator)(prompt)[-1:])
    assert not hasattr(estimator, "coef_")  # only clones are fitted


def test_it_stands_beside_a_traceable_predictor_in_a_diagnostic(getkey):
    task = LinearRegression.convention("raventos", dim=3, length=4)
    predictors = {
        "ours": Ridge(0.25),
        "theirs": FromSklearn(linear_model.Ridge(alpha=0.25, fit_intercept=False)),
        "last": FromSklearn(linear_model.Ridge(alpha=0.25, fit_intercept=False), positions="last"),
    }
    losses = per_length(predictors, task, key=getkey(), prompts=8).loss.values
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    np.testing.assert_allclose(losses[2, -1], losses[1, -1], rtol=1e-5)
    assert np.isnan(losses[2, :-1]).all()


def test_any_object_with_fit_and_predict_will_do(prompt):
    class Mean:
        def fit(self, x, y):
            self.value = y.mean()
            return self

        def predict(self, x):
            return np.full(len(x), self.value)

    y = np.asarray(prompt.y)
    wanted = [0.0, *(y[:i].mean() for i in range(1, 12))]
    np.testing.assert_allclose(FromSklearn(Mean())(prompt), wanted, rtol=1e-12)


def test_too_few_examples_are_said(prompt):
    with pytest.raises(InputError) as caught:
        FromSklearn(neighbors.KNeighborsRegressor(3))(prompt)
    message = str(caught.value)
    assert message.startswith(
        "estimator: expected an estimator that fits 1 real-valued examples, got 'KNeighborsRegressor'; "
    )
    assert message.endswith("fewest=... leaves out positions with fewer examples")
    assert "\n" not in message


def test_what_is_no_estimator_is_refused(monkeypatch):
    with pytest.raises(InputError, match=r"expected an object with fit and predict, got 'object'; it has no fit$"):
        FromSklearn(object())
    with pytest.raises(InputError, match=r"got 'Ridge'; call it: FromSklearn\(Ridge\(\)\)$"):
        FromSklearn(linear_model.Ridge)
    with pytest.raises(InputError, match=r"^fewest: expected an integer of at least 1"):
        FromSklearn(linear_model.Ridge(), fewest=0)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(EnvironmentFault, match=r"expected scikit-learn, got none; .*pip install -e \S*\[tables\]"):
        FromSklearn(linear_model.Ridge())


def test_a_classifier_answers_labels_of_its_context(getkey):
    """The nearest item's label has the probability (n + 1/C) / (n + 1); after no example each has 1/C."""
    task = ItemLabel.init(classes=16, labels=4, pairs=3, dim=6, key=getkey())
    prompt = task.sample(key=getkey())
    answers = np.asarray(FromSklearn(neighbors.KNeighborsClassifier(1), classes=4)(prompt))
    items, labels = np.asarray(prompt.items), np.asarray(prompt.labels)
    np.testing.assert_allclose(answers[0], -np.log(4), rtol=1e-6)
    np.testing.assert_allclose(np.exp(answers).sum(1), 1, rtol=1e-6)
    for i in range(1, 4):
        nearest = labels[np.argmin(((items[:i] - items[i]) ** 2).sum(1))]
        wanted = (i * (np.arange(4) == nearest) + 0.25) / (i + 1)
        np.testing.assert_allclose(np.exp(answers[i]), wanted, rtol=1e-5)
    last = FromSklearn(neighbors.KNeighborsClassifier(1), classes=4, positions="last")
    np.testing.assert_array_equal(last(prompt), answers[-1:])
    assert np.isfinite(per_length({"1-NN": last}, task, key=getkey(), prompts=8).loss[0, -1])


def test_one_label_alone_and_labels_out_of_range(getkey):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2)), jnp.float32)
    of_logistic = FromSklearn(linear_model.LogisticRegression(), classes=3)
    answers = np.exp(of_logistic(RegressionPrompt(x, jnp.array([1.0, 1.0, 1.0, 0.0]))))
    np.testing.assert_allclose(answers[3], np.array([1 / 3, 3 + 1 / 3, 1 / 3]) / 4, rtol=1e-5)
    for wrong in (3.0, -1.0, 0.5):
        with pytest.raises(InputError, match=r"^prompt: expected labels from 0 to 2, got"):
            of_logistic(RegressionPrompt(x, jnp.array([1.0, wrong, 1.0, 0.0])))


def test_what_is_no_classifier_is_refused(getkey):
    task = ItemLabel.init(classes=16, labels=4, pairs=3, dim=6, key=getkey())
    with pytest.raises(
        InputError, match=r"expected an object with fit and predict_proba, got 'Ridge'; it has no predict_"
    ):
        FromSklearn(linear_model.Ridge(), classes=4)
    with pytest.raises(InputError, match="classes: expected the number of labels, for item-label prompts, got None"):
        FromSklearn(neighbors.KNeighborsRegressor(1))(task.sample(key=getkey()))
    with pytest.raises(InputError, match="classes: expected an integer of at least 2, got 1"):
        FromSklearn(neighbors.KNeighborsClassifier(1), classes=1)


@pytest.mark.parametrize(("k", "weighting"), [(1, "uniform"), (3, "uniform"), (3, "distance"), (50, "distance")])
def test_nearest_neighbours_are_those_of_scikit_learn(prompt, k, weighting):
    """Of each prefix with min(i, k) neighbours; 0 before."""
    answers = jax.jit(NearestNeighbours(k, weighting=weighting))(prompt)
    assert answers[0] == 0
    for i in range(1, prompt.positions):
        theirs = neighbors.KNeighborsRegressor(min(i, k), weights=weighting).fit(prompt.x[:i], prompt.y[:i])
        np.testing.assert_allclose(answers[i], theirs.predict(prompt.x[i : i + 1])[0], rtol=1e-10)


def test_examples_with_the_querys_own_input_are_averaged_alone():
    x, y = jnp.array([[0.0], [1.0], [0.0], [2.0], [0.0]]), jnp.array([1.0, 5.0, 2.0, 7.0, 0.0])
    answers = NearestNeighbours(3, weighting="distance")(RegressionPrompt(x, y))
    np.testing.assert_allclose(answers, [0.0, 1.0, 1.0, (1 / 2 + 2 / 2 + 5) / 2, 1.5], rtol=1e-6)
    np.testing.assert_allclose(NearestNeighbours(3)(RegressionPrompt(x, y))[4], (1 + 2 + 5) / 3, rtol=1e-6)


def test_one_averaging_step_is_the_mean_of_y_times_x(prompt):
    averaging = GradientDescent(1.0, layers=1, dim=3, normalised=True, half=True)(prompt)
    x, y = np.asarray(prompt.x), np.asarray(prompt.y)
    wanted = [0.0] + [x[i] @ np.mean(y[:i, None] * x[:i], axis=0) for i in range(1, len(y))]
    np.testing.assert_allclose(averaging, wanted, rtol=1e-10)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: NearestNeighbours(0), "neighbours: expected an integer of at least 1, got 0"),
        (lambda: NearestNeighbours(weighting="inverse"), "unknown weighting 'inverse'"),
    ],
)
def test_what_has_no_neighbours_is_refused(make, said):
    assert_refused(make, said)
