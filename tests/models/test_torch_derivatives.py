"""Derivatives of PyTorch modules in JAX, against those of the same function and against differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from icllab import diagnostics
from icllab.algorithms import Ridge
from icllab.core.errors import InputError, ResultWarning
from icllab.diagnostics.sampling.mala import MALA
from icllab.diagnostics.sampling.sgld import SGLD
from icllab.models import FromTorch
from icllab.models.torch_derivatives import with_autograd
from icllab.tasks import LinearRegression, Standardised

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

KEY = jax.random.key(0)
TASK = LinearRegression.convention("raventos", dim=3, length=5)


class Layers(nn.Module):
    """Layers of every kind whose second derivatives PyTorch has in some forms only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.read = nn.Linear(4, 8)
        self.state = nn.GRU(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.answer = nn.Linear(8, 1)

    def forward(self, x, y):
        hidden = torch.tanh(self.read(torch.cat([x, F.pad(y, (1, 0))[:, :-1, None]], -1)))
        hidden = self.state(hidden)[0]
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        hidden = hidden + self.attention(hidden, hidden, hidden, attn_mask=later, need_weights=False)[0]
        return self.answer(hidden)[..., 0]


class Mlp(nn.Module):
    """One hidden layer, whose function in JAX is a line."""

    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two = nn.Linear(4, width), nn.Linear(width, 1)

    def forward(self, x, y):
        return self.two(torch.tanh(self.one(torch.cat([x, F.pad(y, (1, 0))[:, :-1, None]], -1))))[..., 0]


class Ours(eqx.Module):
    """:class:`Mlp` in JAX."""

    parameters: dict

    def __call__(self, prompt):
        p = self.parameters
        tokens = jnp.concatenate([prompt.x, jnp.pad(prompt.y, (1, 0))[:-1, None]], 1)
        hidden = jnp.tanh(tokens @ p["one.weight"].T + p["one.bias"][None])
        return hidden @ p["two.weight"][0] + p["two.bias"]


def loss_of(predictor, prompts):
    """The loss as a function of one vector, and the vector."""
    params, static = eqx.partition(predictor, eqx.is_inexact_array)
    w, unravel = ravel_pytree(params)

    def loss(w):
        network = eqx.combine(unravel(w), static)
        return jnp.mean(jax.vmap(lambda p: TASK.loss(network(p), p))(prompts))

    return loss, w


def test_derivatives_are_those_of_differences_and_of_each_other():
    prompts, source = TASK.sample_many(4, key=KEY), FromTorch(Layers())
    network = with_autograd(source, prompts)
    np.testing.assert_allclose(jax.jit(jax.vmap(network))(prompts), source(prompts), atol=1e-6)
    loss, w = loss_of(network, prompts)
    v = jax.random.normal(KEY, w.shape) / w.size**0.5
    gradient = jax.jit(jax.grad(loss))
    np.testing.assert_allclose(v @ gradient(w), (loss(w + 1e-2 * v) - loss(w - 1e-2 * v)) / 2e-2, rtol=1e-2)
    forward = jax.jit(lambda w, v: jax.jvp(jax.grad(loss), (w,), (v,))[1])(w, v)
    difference = (gradient(w + 1e-2 * v) - gradient(w - 1e-2 * v)) / 2e-2
    np.testing.assert_allclose(forward, difference, atol=2e-4)
    np.testing.assert_allclose(jax.grad(lambda w: jnp.vdot(jax.grad(loss)(w), v))(w), forward, atol=1e-6)
    vectors = jnp.stack([v, 2 * v])
    rows = jax.jit(jax.vmap(lambda v: jax.jvp(jax.grad(loss), (w,), (v,))[1]))(vectors)
    np.testing.assert_allclose(rows, jnp.stack([forward, 2 * forward]), atol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(loss)))(jnp.stack([w, w]))[1], gradient(w), atol=1e-6)
    of_each = jax.vmap(lambda p: jax.grad(loss_of(network, jax.tree.map(lambda leaf: leaf[None], p))[0])(w))(prompts)
    np.testing.assert_allclose(of_each.mean(0), gradient(w), atol=1e-6)
    first = jax.tree.map(lambda leaf: leaf[0], prompts)

    def answer(x):
        return network(eqx.tree_at(lambda p: p.x, first, x))

    np.testing.assert_allclose(jax.jacrev(answer)(first.x), jax.jacfwd(answer)(first.x), atol=1e-6)


def test_a_module_is_called_once_for_all_prompts_and_is_left_as_it_was():
    module, prompts, calls = Mlp(), TASK.sample_many(6, key=KEY), []
    module.register_forward_hook(lambda _, inputs, __: calls.append((len(inputs[0]), module.training)))
    module.two.eval()
    network = with_autograd(FromTorch(module))
    loss, w = loss_of(network, prompts)
    gradient = jax.jit(jax.grad(loss))
    gradient(w)
    calls.clear()
    before = gradient(w)
    assert calls == [(6, False)]
    assert module.training
    assert module.one.training
    assert not module.two.training
    assert all(weight.requires_grad and weight.grad is None for weight in module.parameters())
    with torch.no_grad():
        module.one.weight.mul_(2)
    np.testing.assert_array_equal(gradient(w), before)  # parameters are copies, which a program takes as arguments


@pytest.mark.parametrize("batched", [True, False])
def test_gradients_and_spectra_are_those_of_jax(batched):
    module = Mlp()
    if not batched:
        stacked = module.forward
        module.forward = lambda x, y: stacked(x[None], y[None])[0]
    source = FromTorch(module, batched=batched)
    ours = Ours(with_autograd(source).parameters)
    prompts = TASK.sample_many(5, key=KEY)
    (theirs, w), (loss, _) = loss_of(with_autograd(source), prompts), loss_of(ours, prompts)
    np.testing.assert_allclose(theirs(w), loss(w), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(theirs)(w), jax.grad(loss)(w), atol=1e-5)
    np.testing.assert_allclose(jax.hessian(theirs)(w), jax.hessian(loss)(w), atol=1e-5)
    options = {"key": KEY, "data": 32}
    for measure in (diagnostics.hessian_spectrum, diagnostics.fisher_spectrum):
        spectra = [measure(network, TASK, **options).eigenvalue for network in (source, ours)]
        np.testing.assert_allclose(*spectra, atol=1e-5)
    bare = module if batched else source
    dimensions = [diagnostics.effective_dimension(n, TASK, resolution=0.1, **options).value for n in (bare, ours)]
    np.testing.assert_allclose(*dimensions, rtol=1e-4)


def test_coefficients_are_those_of_jax():
    source = FromTorch(Mlp(width=2))
    ours = Ours(with_autograd(source).parameters)
    estimates = []
    for network in (source, ours):
        posterior = diagnostics.LocalPosterior.from_network(
            network, TASK, key=KEY, data=64, nbeta=8.0, localization=1.0
        )
        sampler = MALA(chains=4, warm_up=30, draws=30)
        estimates.append(diagnostics.coefficient_at_temperature(posterior, key=KEY, sampler=sampler, checks=()))
    first, second = estimates
    assert abs(first.estimate - second.estimate) < 2 * np.hypot(first.mcse, second.mcse)
    np.testing.assert_allclose(first.baseline, second.baseline, rtol=1e-5)


def test_chains_of_batches_run_side_by_side():
    sampler = SGLD(chains=4, warm_up=10, draws=10, batch=16, mode="vmap")
    posterior = diagnostics.LocalPosterior.from_network(Mlp(), TASK, key=KEY, data=32, nbeta=4.0, localization=1.0)
    draws = sampler.sample(posterior, key=KEY)
    assert np.isfinite(draws.statistics["chain_estimate"][1]).all()


def test_shares_of_the_gradient_are_those_of_jax():
    source = FromTorch(Mlp())
    networks = {"torch": source, "jax": Ours(with_autograd(source).parameters)}
    shares = [diagnostics.gradient_shares(n, TASK, key=KEY, prompts=32, groups=8) for n in networks.values()]
    np.testing.assert_allclose(shares[0].gradient_square, shares[1].gradient_square, rtol=1e-4)


def test_input_gradients_are_compared():
    split = diagnostics.PromptSplit(10, fitting=10)
    source = FromTorch(Mlp())
    ours = Ours(with_autograd(source).parameters)
    ridge = {"ridge": Ridge(0.1)}
    of_jax = diagnostics.identify(ours, ridge, TASK, key=KEY, prompts=split)
    for network in (source, Mlp(), Mlp().double()):
        result = diagnostics.identify(network, ridge, TASK, key=KEY, prompts=split)
        for name in ("input_gradient_discrepancy", "prediction_discrepancy", "cosine"):
            np.testing.assert_allclose(result[name], of_jax[name], rtol=1e-4)
    scaled = [diagnostics.identify(Standardised(n), ridge, TASK, key=KEY, prompts=split) for n in (source, ours)]
    np.testing.assert_allclose(*(one.input_gradient_discrepancy for one in scaled), rtol=1e-4)


class Detached(Mlp):
    def forward(self, x, y):
        with torch.no_grad():
            return super().forward(x, y)


class WithNumpy(Mlp):
    def forward(self, x, y):
        return super().forward(x, torch.from_numpy(y.numpy() * 1)) + torch.from_numpy(self.two.bias.numpy()).sum()


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value * 1

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient


class OnceDifferentiable(Mlp):
    def forward(self, x, y):
        return Once.apply(super().forward(x, y)) ** 2


class Dropping(Mlp):
    def forward(self, x, y):
        return F.dropout(super().forward(x, y), 0.5, training=True)


class Short(Mlp):
    def forward(self, x, y):
        return torch.where(torch.arange(y.shape[-1]) < 4, super().forward(x, y), torch.nan)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Detached(), r"answers that depend on the parameters by autograd, got 'a gradient of zero'"),
        (WithNumpy(), r"RuntimeError in WithNumpy .*: Can't call numpy\(\)"),
        (
            OnceDifferentiable(),
            "answers that autograd differentiates twice, got 'RuntimeError: a backward is once_differentiable'",
        ),
        (Dropping(), "one answer to a prompt, got 'two'; it draws random numbers"),
        (Short(), r"finite answers, got \[4, 5\]; these positions have others"),
        (Mlp().bfloat16(), r"parameters of float32 for derivatives, got 'bfloat16'; module.float\(\) makes them"),
    ],
)
def test_modules_without_derivatives_are_refused_in_a_line(module, message):
    with pytest.raises(InputError, match=rf"^module \w+: expected .*{message}") as failure:
        diagnostics.LocalPosterior.from_network(module, TASK, key=KEY, data=8)
    assert len(str(failure.value).split("\n")) in (1, 5)


def test_input_gradients_that_are_missing_have_a_reason():
    split = diagnostics.PromptSplit(10, fitting=10)
    for module, reason in (
        (Detached(), "autograd finds no dependence on the inputs"),
        (Mlp().bfloat16(), "module Mlp: expected parameters of float32"),
    ):
        with pytest.warns(ResultWarning, match=f"input gradients are not compared: {reason}"):
            diagnostics.identify(module, {"ridge": Ridge(0.1)}, TASK, key=KEY, prompts=split)


def test_checkpoints_of_a_module_are_modules_of_their_own():
    early, late = Mlp(), Mlp()
    with torch.no_grad():
        late.two.bias.add_(3)
    result = diagnostics.transitions({1: early, 2: late}, TASK, key=KEY, plateau=0.0, end=1.0)
    assert result.sizes["member"] == 1
    with pytest.raises(InputError, match="one network at several steps"):
        diagnostics.transitions({1: early, 2: FromTorch(early)}, TASK, key=KEY)
