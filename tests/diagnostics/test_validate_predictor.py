"""A function of NumPy or of another library is found out by trying once; what cannot answer is refused by name."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import icllab as icl
from icllab import algorithms, diagnostics
from icllab.core.errors import InputError, require_key
from icllab.core.protocols import AbstractPredictor
from icllab.diagnostics.validate_predictor import OnHost, validate_predictor
from icllab.models import BlockOptions, Interleaved, LinearAttention, Transformer, ablated
from icllab.tasks import LinearRegression, Standardised
from icllab.training.ensembles import alone

KEY = jax.random.key(0)
TASK = LinearRegression.convention("raventos", dim=3, length=5)


def with_numpy(prompt):
    """The mean label so far; NumPy refuses what JAX traces."""
    y = np.asarray(prompt.y)
    return np.array([y[:i].mean() if i else 0.0 for i in range(len(y))])


def with_jax(prompt):
    sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(prompt.y)[:-1]])
    return sums / jnp.maximum(jnp.arange(float(prompt.positions)), 1)


def with_a_branch(prompt):
    return with_jax(prompt) if float(prompt.y[0]) > -100 else None


def test_numpy_gives_the_numbers_of_jax():
    predictors = {"numpy": with_numpy, "jax": with_jax, "branch": with_a_branch, "ridge": algorithms.Ridge(0.1)}
    result = diagnostics.per_length(predictors, TASK, key=KEY, prompts=8)
    for name in ("numpy", "branch"):
        np.testing.assert_allclose(result.loss.sel(predictor=name), result.loss.sel(predictor="jax"), rtol=1e-5)
    alone = diagnostics.per_length(with_numpy, TASK, key=KEY, prompts=8)
    np.testing.assert_array_equal(alone.loss, result.loss.sel(predictor="numpy"))


def test_only_what_cannot_be_traced_is_taken_to_the_host():
    ridge = algorithms.Ridge(0.1)
    result = validate_predictor({"numpy": with_numpy, "jax": with_jax, "ridge": ridge}, TASK, key=KEY)
    assert isinstance(result["numpy"], OnHost)
    assert result["jax"] is with_jax
    assert result["ridge"] is ridge


class Tensor:
    """As PyTorch's: an array only once it is detached."""

    def __init__(self, values):
        self.values = values

    def detach(self):
        return self.values


def test_a_tensor_with_a_gradient_is_detached():
    result = OnHost(lambda prompt: Tensor(np.asarray(prompt.y)))(TASK.sample(key=KEY))
    assert isinstance(result, jax.Array)


@pytest.mark.parametrize(
    ("predictor", "message"),
    [
        (lambda prompt: prompt.z, "predictor '<lambda>': expected an array of answers to a prompt .*, got Attr"),
        (lambda prompt: None, "predictor '<lambda>': expected an array of answers"),
        (lambda prompt: [0.0] * 6, "predictor '<lambda>': expected an array of answers, got 'list'; numpy.array or"),
        (lambda prompt: tuple(prompt.y), "predictor '<lambda>': expected an array of answers, got 'tuple'"),
        (
            Standardised(with_numpy),
            "predictor 'Standardised': expected .*; traceable = False keeps a function of NumPy",
        ),
    ],
)
def test_what_cannot_answer_is_refused_by_name(predictor, message):
    with pytest.raises(InputError, match=message):
        diagnostics.per_length(predictor, TASK, key=KEY, prompts=4)


def test_a_model_of_another_dimension_is_refused_in_a_line():
    model = LinearAttention.lu(dim=4, std=0.1, answers="every", key=KEY)
    with pytest.raises(
        InputError, match=r"^predictors: expected predictors for prompts .*, got LinearAttention, [^\n]*$"
    ):
        diagnostics.per_length(model, TASK, key=KEY, prompts=4)


def test_a_seed_is_no_key_and_a_list_no_predictor():
    ridge = algorithms.Ridge(0.1)
    for wrong, came in ((0, "0"), (np.zeros(2), "'ndarray'"), (jax.random.split(KEY), r"'key<fry> of shape \(2,\)'")):
        with pytest.raises(InputError, match=rf"key: expected one random key of JAX, got {came}; jax.random.key\(0\)"):
            require_key(wrong)
    with pytest.raises(InputError, match="predictors: expected a predictor, a mapping of names to predictors"):
        diagnostics.per_length([ridge], TASK, key=KEY, prompts=4)
    with pytest.raises(InputError, match="prompts: expected an integer of at least 2, got 0"):
        diagnostics.per_length(ridge, TASK, key=KEY, prompts=0)


def test_numpy_stands_beside_what_is_measured():
    ridge, small = algorithms.Ridge(0.1), {"key": KEY, "prompts": 10}
    by_numpy = diagnostics.per_length({"ridge": ridge}, TASK, against=with_numpy, **small)
    by_jax = diagnostics.per_length({"ridge": ridge}, TASK, against=with_jax, **small)
    np.testing.assert_allclose(by_numpy.difference, by_jax.difference, rtol=1e-4, atol=1e-5)
    assert by_numpy.attrs["against"] == "with_numpy"
    candidates = {"numpy": with_numpy, "jax": with_jax}
    split = diagnostics.PromptSplit(10, fitting=10)
    result = diagnostics.identify(ridge, candidates, TASK, key=KEY, prompts=split).prediction_discrepancy
    np.testing.assert_allclose(result.sel(candidate="numpy"), result.sel(candidate="jax"), rtol=1e-4)
    with pytest.raises(
        InputError, match=r"rivals\['numpy'\]: expected a candidate that can be traced, got 'with_numpy'"
    ):
        diagnostics.identify(ridge, {"numpy": diagnostics.Fitted(with_numpy, ["a"])}, TASK, key=KEY, prompts=split)


def test_what_says_that_it_is_on_the_host_may_answer_a_list():
    class Listed:
        traceable = False

        def __call__(self, prompt):
            return with_numpy(prompt).tolist()

    result = validate_predictor(Listed(), TASK, key=KEY)(TASK.sample(key=KEY))
    np.testing.assert_allclose(result, with_jax(TASK.sample(key=KEY)), rtol=1e-5)


def test_predictors_of_the_library_are_not_called(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("called")

    monkeypatch.setattr("icllab.diagnostics.validate_predictor.examine", refuse)
    network = Transformer(
        Interleaved(),
        dim=3,
        width=8,
        layers=1,
        block=BlockOptions(heads=2, mlp=None, norm="none"),
        positions="none",
        key=KEY,
    )
    ridge = algorithms.Ridge(0.1)
    options = {"kernel": "exponential", "temperature": 4.0, "dim": 3, "normalised": True, "noise_variance": 0.0}
    kernel = algorithms.FunctionalDescent(0.3, layers=2, **options)
    for value in (network, ablated(network, 1), Standardised(ridge), kernel, alone(network)):
        assert validate_predictor(value, TASK, key=KEY) is value
    assert validate_predictor({"ridge": ridge}, TASK, key=KEY) == {"ridge": ridge}


@pytest.mark.parametrize(("against", "came"), [(5, "int"), ([with_jax], "list"), (algorithms.Ridge, "Ridge")])
def test_what_is_no_reference_is_refused_in_a_line(against, came):
    with pytest.raises(InputError, match=rf"^against: expected a predictor, or the name of one, got '{came}'$"):
        inspect.unwrap(diagnostics.per_length)(algorithms.Ridge(0.1), TASK, against=against, key=KEY, prompts=4)


class Stacked:
    """The mean so far of stacked prompts, by NumPy; counts its calls."""

    traceable = False
    batched = True

    def __init__(self):
        self.sizes = []

    def __call__(self, prompts):
        y = np.asarray(prompts.y)
        self.sizes.append(len(y))
        return self.answers(y)

    def answers(self, y):
        return (np.cumsum(y, axis=1) - y) / np.maximum(np.arange(y.shape[1]), 1)


class StackedJax(Stacked):
    traceable = True

    def __call__(self, prompts):
        assert prompts.y.ndim == 2
        return jax.vmap(with_jax)(prompts)


class Unsaid(Stacked):
    """Says nothing of tracing."""

    traceable = True


@pytest.mark.parametrize("kind", [Stacked, StackedJax, Unsaid])
def test_stacked_prompts_have_the_answers_of_single_ones(kind):
    small = {"key": KEY, "prompts": 20, "block": 8}
    single = diagnostics.per_length(with_jax, TASK, **small)
    predictor = kind()
    result = diagnostics.per_length({"mine": predictor}, TASK, **small, against=with_jax)
    np.testing.assert_allclose(result.loss[0], single.loss, rtol=1e-5)
    np.testing.assert_allclose(result.difference, 0, atol=1e-5)
    if kind is not StackedJax:
        assert predictor.sizes[-3:] == [8, 8, 8]
    if kind is Unsaid:
        return  # as of any function of NumPy in a wrapper, that it is not traceable must be said
    scaled = diagnostics.per_length(Standardised(kind()), TASK, **small)
    np.testing.assert_allclose(
        scaled.loss, diagnostics.per_length(Standardised(with_jax), TASK, **small).loss, rtol=1e-4
    )


class Mixing(Stacked):
    """Batch normalisation in training mode."""

    def answers(self, y):
        return super().answers(y) - super().answers(y).mean(0)


class MixingJax(StackedJax):
    def __call__(self, prompts):
        answers = super().__call__(prompts)
        return answers - answers.mean(0, keepdims=True)


class Collapsed(Stacked):
    def answers(self, y):
        return super().answers(y)[0]


class Transposed(Stacked):
    def answers(self, y):
        return super().answers(y).T


class Noisy(Stacked):
    """Dropout in training mode."""

    def answers(self, y):
        return super().answers(y) * np.random.default_rng(len(self.sizes)).integers(2, size=y.shape)


class Shifting(Stacked):
    """Equal within a call, another number in the next."""

    def answers(self, y):
        return super().answers(y) + len(self.sizes)


class Ahead(Stacked):
    def answers(self, y):
        return super().answers(y) + 1e-3 * y


class Wide(Stacked):
    def answers(self, y):
        return super().answers(y)[..., None]


@pytest.mark.parametrize(
    ("predictor", "message"),
    [
        (
            Mixing(),
            "predictor 'mine': expected the same answer to a prompt alone and in a stack, got 'another'; batched",
        ),
        (MixingJax(), "predictor 'mine': expected the same answer to a prompt alone and in a stack, got 'another'"),
        (
            Collapsed(),
            r"predictor 'mine': expected 9 stacked answers to 9 prompts, got \(6,\); batched = True says that",
        ),
        (Transposed(), r"predictor 'mine': expected 9 stacked answers to 9 prompts, got \(6, 9\)"),
        (Wide(), r"predictor 'mine': prediction: expected \(6,\), got \(6, 1\); squeeze"),
    ],
)
def test_the_declaration_of_stacked_prompts_is_checked(predictor, message):
    with pytest.raises(InputError, match=message):
        diagnostics.per_length({"mine": predictor}, TASK, key=KEY, prompts=4)


@pytest.mark.parametrize(
    ("predictor", "complaint"),
    [(Noisy(), "gives two answers"), (Shifting(), "gives two answers"), (Ahead(), "looks at its own target")],
)
def test_stacked_prompts_are_examined_as_single_ones_are(predictor, complaint):
    with pytest.warns(UserWarning, match=f"predictor 'mine' {complaint}"):
        diagnostics.per_length({"mine": predictor}, TASK, key=KEY, prompts=4)


def test_training_and_ensembles_are_of_single_prompts():
    class Line(AbstractPredictor):
        slope: jax.Array
        batched = True

        def __call__(self, prompts):
            return self.slope * prompts.x[..., 0]

    line = Line(jnp.ones(()))
    with pytest.raises(
        InputError, match="predictor: expected a predictor of one prompt, got 'Line'; set batched = False"
    ):
        icl.fit(line, TASK, steps=1, key=KEY)
    with pytest.raises(InputError, match="predictors: expected members that answer one prompt at a time, got 'Line'"):
        diagnostics.per_length(alone(line), TASK, key=KEY, prompts=4)
    gradient = diagnostics.identify(
        line, {"one": Line(jnp.full((), 2.0))}, TASK, key=KEY, prompts=diagnostics.PromptSplit(10, fitting=10)
    )
    np.testing.assert_allclose(gradient.cosine, 1.0, rtol=1e-5)
