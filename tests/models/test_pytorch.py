"""PyTorch modules as predictors: by a stand-in of PyTorch's tensors, and by PyTorch itself where it is installed."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused, unchecked

from icllab import diagnostics
from icllab.core.errors import InputError
from icllab.core.prompt import RegressionPrompt, TokenPrompt
from icllab.models import FromTorch
from icllab.tasks import LinearRegression, RepeatedTokens, Standardised

KEY = jax.random.key(0)
TASK = LinearRegression.convention("raventos", dim=3, length=5)


class Tensor(np.ndarray):
    """NumPy's array with the methods of PyTorch's tensor that are used."""

    device = "cpu"

    def is_floating_point(self):
        return self.dtype.kind == "f"

    def to(self, device, dtype):
        assert device == "cpu"
        return self.astype(dtype)

    def detach(self):
        return self

    def cpu(self):
        return self

    def unsqueeze(self, axis):
        return np.expand_dims(self, axis)


class Module:
    """A module that counts its calls and keeps a mode."""

    def __init__(self, dtype=np.float32):
        self.training, self.calls, self.modes, self.dtype = True, [], [], dtype

    def parameters(self):
        return iter([np.zeros(1, self.dtype).view(Tensor)])

    def modules(self):
        return iter([self])

    def eval(self):
        return self.train(False)

    def train(self, mode=True):
        self.training = mode
        return self

    def __call__(self, *arguments):
        self.calls.append([argument.shape for argument in arguments])
        self.modes.append((self.training, [argument.dtype.name for argument in arguments]))
        return self.forward(*arguments)

    def forward(self, x, y):
        before = np.cumsum(y, axis=-1) - y
        return before / np.maximum(np.arange(y.shape[-1], dtype=y.dtype), 1)


class Ahead(Module):
    def forward(self, x, y):
        return y.mean(-1, keepdims=True) + 0 * y


@pytest.fixture(autouse=True)
def _torch(request, monkeypatch):
    if "of_pytorch" in request.node.name:  # PyTorch itself
        return
    torch = types.SimpleNamespace(
        Tensor=Tensor,
        from_numpy=lambda values: values.view(Tensor),
        get_default_dtype=lambda: np.float32,
        no_grad=lambda: np.errstate(),
        int64=np.int64,
        bfloat16="bfloat16",
    )
    monkeypatch.setitem(sys.modules, "torch", torch)


def mean_so_far(prompt):
    return (jnp.cumsum(prompt.y) - prompt.y) / jnp.maximum(jnp.arange(float(prompt.positions)), 1)


def mean_by_a_matrix(prompt):
    return jnp.tril(jnp.ones((6, 6)), -1) @ prompt.y


def test_it_is_called_once_for_each_block():
    module = Module()
    result = diagnostics.per_length(
        {"torch": FromTorch(module), "jax": mean_so_far}, TASK, key=KEY, prompts=40, block=16
    )
    np.testing.assert_allclose(result.loss[0], result.loss[1], rtol=1e-5)
    assert [shape for ((shape, _),) in zip(module.calls, strict=True) if shape[0] == 16] == [(16, 6, 3)] * 3
    assert len(module.calls) < 20
    assert set(map(str, module.modes)) == {"(False, ['float32', 'float32'])"}
    assert module.training


@pytest.mark.parametrize("batched", [True, False])
def test_one_prompt_and_a_stack_have_the_same_answers(batched):
    predictor = FromTorch(Module(), batched=batched)
    prompts = TASK.sample_many(3, key=KEY)
    first = jax.tree.map(lambda leaf: leaf[0], prompts)
    np.testing.assert_allclose(predictor(first), mean_so_far(first), rtol=1e-5, atol=1e-6)
    assert predictor(first).shape == (6,)
    if batched:
        np.testing.assert_allclose(predictor(prompts), jax.vmap(mean_so_far)(prompts), rtol=1e-5, atol=1e-6)
    loss = diagnostics.per_length({"torch": predictor}, TASK, key=KEY, prompts=6).loss
    np.testing.assert_allclose(loss[0], diagnostics.per_length(mean_so_far, TASK, key=KEY, prompts=6).loss, rtol=1e-5)


def test_every_diagnostic_of_answers_takes_it():
    predictor, small = FromTorch(Module()), {"key": KEY, "prompts": 10}
    split = diagnostics.PromptSplit(10, fitting=10)
    for measure in (
        lambda mine: diagnostics.icl_scores({"mine": mine}, TASK, **small),
        lambda mine: diagnostics.identify(mean_by_a_matrix, {"mine": mine}, TASK, key=KEY, prompts=split),
        lambda mine: diagnostics.per_length({"mine": Standardised(mine)}, TASK, **small),
        lambda mine: diagnostics.per_length(mine, TASK, against=mean_by_a_matrix, **small),
    ):
        ours, theirs = measure(mean_so_far), measure(predictor)
        for name in ("early_minus_late", "loss", "mean_difference", "difference"):
            if name in ours:
                np.testing.assert_allclose(theirs[name], ours[name], rtol=1e-4, atol=1e-5)


def test_dtypes_are_those_of_the_parameters():
    module = Module(np.float64)
    FromTorch(module)(TASK.sample(key=KEY))
    assert module.modes == [(False, ["float64", "float64"])]


def test_features_are_what_the_module_takes():
    module = Module()
    module.forward = lambda both: both[..., 0] * 2

    def features(prompt):
        return np.concatenate([prompt.x, prompt.y[..., None]], axis=-1).view(Tensor)

    predictor = FromTorch(module, features)
    prompts = TASK.sample_many(4, key=KEY)
    np.testing.assert_allclose(predictor(prompts), 2 * prompts.x[..., 0])
    assert module.calls == [[(4, 6, 4)]]


def test_tokens_are_integers_without_the_last():
    task, module = RepeatedTokens(vocabulary=4, period=3), Module()
    module.forward = lambda tokens: np.eye(4, dtype=np.float32)[tokens].view(Tensor)
    result = diagnostics.per_length(FromTorch(module), task, key=KEY, prompts=4)
    assert np.isfinite(result.loss).all()
    assert module.calls[0][0][-1] == 5
    assert module.modes[0] == (False, ["int64"])


def test_the_last_position_alone():
    module = Module()
    module.forward = lambda x, y: (y.sum(-1) - y[..., -1])[..., None]
    result = diagnostics.per_length({"last": FromTorch(module, positions="last")}, TASK, key=KEY, prompts=8)
    assert np.isfinite(result.loss[0, -1])
    assert np.isnan(result.loss[0, :-1]).all()
    every = FromTorch(Module(), positions="last")
    with pytest.raises(
        InputError, match=r"module Module: expected answers .*, \(4, 1\), got \(4, 6\); answers=lambda a: a\[:, -1:\]"
    ):
        diagnostics.per_length({"every": every}, TASK, key=KEY, prompts=8)


def test_what_looks_ahead_is_warned_of():
    with pytest.warns(UserWarning, match="predictor 'ahead' looks at its own target"):
        diagnostics.per_length({"ahead": FromTorch(Ahead())}, TASK, key=KEY, prompts=4)


def test_what_it_cannot_take_is_said():
    class NoModule:
        pass

    for wrong in (NoModule(), Module, lambda x, y: y):
        assert_refused(lambda wrong=wrong: FromTorch(wrong), "module: expected a torch.nn.Module, got")
    assert_refused(lambda: FromTorch(Module(), positions="all"), "positions: expected 'every' or 'last', got 'all'")
    assert_refused(lambda: FromTorch(Module(), batched=1), "batched: expected True or False, got 1")
    assert_refused(lambda: FromTorch(Module(), 3), "features: expected a function of a prompt, or None, got 'int'")
    module = Module()
    module.forward = lambda x, y: [0.0]
    with pytest.raises(InputError, match="module Module: expected a tensor of answers, got 'list'"):
        FromTorch(module)(TASK.sample(key=KEY))
    with pytest.raises(InputError, match=r"^features: expected a function for prompts of kind dict, got None"):
        FromTorch(Module())({"x": jnp.ones((2, 3))})


class Layer(Module):
    """A matrix of another width than its inputs have."""

    def __init__(self):
        super().__init__()
        self.weight = np.ones((2, 9)).view(Tensor)

    def named_parameters(self, recurse):
        return {"weight": self.weight}.items() if not recurse else None

    def forward(self, hidden):
        return hidden @ self.weight.T


class Outer(Module):
    def __init__(self):
        super().__init__()
        self.read = Layer()

    def named_modules(self):
        return [("", self), ("read", self.read)]

    def forward(self, x, y):
        return self.read(x)


def test_a_module_that_fails_says_which_tensor_had_which_shape():
    """Those of the innermost layer, by their names, and those of the prompt."""
    prompt = TASK.sample_many(4, key=KEY)
    with pytest.raises(InputError) as failure:
        FromTorch(Outer())(prompt)
    expected = "module Outer: expected an answer to a prompt of x (4, 6, 3), y (4, 6), got ValueError in Layer read "
    expected += "(hidden (4, 6, 3), weight (2, 9)): matmul: "
    assert str(failure.value).startswith(expected)
    assert str(failure.value).count("\n") == 4
    with pytest.raises(InputError, match=r"^module Outer: expected an answer to .* ValueError in Layer read \(hidden"):
        diagnostics.per_length({"mine": FromTorch(Outer())}, TASK, key=KEY, prompts=4)
    module = Module()
    module.forward = lambda x: x
    with pytest.raises(InputError, match=r"got TypeError in Module: .*; change its arguments with features="):
        FromTorch(module)(prompt)
    assert module.training
    with pytest.raises(InputError, match=r"got KeyError in features: 'z'$"):
        FromTorch(module, lambda prompt: vars(prompt)["z"])(prompt)


def test_a_bare_module_is_called_as_from_torch_calls_it():
    """One that answers prompts is called with these; within another predictor it is refused."""
    kind = type("Module", (Module,), {"__module__": "torch.nn.modules.module"})
    raw = type("Net", (kind,), {})()
    hint = "; models.FromTorch(module) gives a torch.nn.Module the tensors of a prompt"
    scaled = diagnostics.per_length(Standardised(FromTorch(raw)), TASK, key=KEY, prompts=4)
    np.testing.assert_allclose(
        diagnostics.per_length({"raw": raw, "jax": mean_so_far}, TASK, key=KEY, prompts=4).loss.diff("predictor"),
        0,
        atol=1e-5,
    )
    assert np.isfinite(scaled.loss).all()
    with pytest.raises(InputError, match=r"^predictor 'scaled': expected an array of answers to a prompt") as failure:
        diagnostics.per_length({"scaled": Standardised(raw)}, TASK, key=KEY, prompts=4)
    assert str(failure.value).endswith(hint)
    assert "\n" not in str(failure.value)
    with pytest.raises(InputError) as failure:
        diagnostics.per_length({"mine": Module()}, TASK, key=KEY, prompts=4)
    assert hint not in str(failure.value)
    type(raw).__call__ = lambda self, prompt: mean_so_far(prompt)
    losses = [diagnostics.per_length(one, TASK, key=KEY, prompts=4).loss for one in (raw, mean_so_far)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_a_prompt_of_tensors_is_refused():
    class OfTorch:
        detach, shape = None, (3,)

    hint = "expected an array of JAX or NumPy, got 'a OfTorch of PyTorch'; jnp.asarray("
    mask = jnp.ones(3, bool)
    assert_refused(lambda: RegressionPrompt(OfTorch(), jnp.ones(3)), f"x: {hint}x.numpy")
    assert_refused(lambda: RegressionPrompt(jnp.ones((3, 2)), OfTorch(), mask), f"y: {hint}y.numpy")
    assert_refused(lambda: TokenPrompt(OfTorch(), mask), f"tokens: {hint}tokens.numpy")
    with unchecked():
        assert RegressionPrompt(np.ones((3, 2)), np.ones(3)).positions == 3


@pytest.mark.slow
def test_layers_of_pytorch_are_named_with_their_shapes():
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(5, 1))

        def forward(self, x, y):
            return self.inner(x)[..., 0]

    shapes = r"x \(1, 6, 3\), y \(1, 6\), got RuntimeError in Linear inner.1 \(input \(1, 6, 4\), weight \(1, 5\), bias"
    with pytest.raises(InputError, match=shapes):
        FromTorch(Network())(TASK.sample(key=KEY))
    with pytest.raises(InputError, match=r"models\.FromTorch"):
        diagnostics.require_causal(Network(), TASK, key=KEY)
    with (
        unchecked(),
        pytest.raises(InputError, match="x: expected an array of JAX or NumPy, got 'a Tensor of PyTorch'"),
    ):
        RegressionPrompt(torch.ones(3, 2), torch.ones(3))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_transformer_of_pytorch(bidirectional):
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.read = torch.nn.Linear(4, 8)
            layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
            self.body = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
            self.answer = torch.nn.Linear(8, 1)

        def forward(self, x, y):
            tokens = torch.cat([x, torch.nn.functional.pad(y, (1, 0))[:, :-1, None]], -1)
            mask = None if bidirectional else torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.answer(self.body(self.read(tokens), mask=mask))[..., 0]

    torch.manual_seed(0)
    network = Network()
    predictor = FromTorch(network)
    prompts = TASK.sample_many(5, key=KEY)
    answers = predictor(prompts)
    single = jnp.stack([predictor(jax.tree.map(lambda leaf, i=i: leaf[i], prompts)) for i in range(5)])
    np.testing.assert_allclose(single, answers, atol=1e-5)
    assert network.training
    if not bidirectional:
        diagnostics.require_causal(predictor, TASK, key=KEY)
        diagnostics.require_causal(FromTorch(network.to(torch.bfloat16)), TASK, key=KEY)
        return
    with pytest.raises(InputError, match="looks at its own target or at later entries"):
        diagnostics.require_causal(predictor, TASK, key=KEY)
    with pytest.raises(InputError, match=r"expected answers .*, \(4, 1\), got \(4, 6\)"):
        diagnostics.require_causal(FromTorch(network, positions="last"), TASK, key=KEY)
