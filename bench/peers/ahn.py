"""Linear attention of Ahn et al. with random and with constructed weights: answers, losses, gradients."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch

from icllab import algorithms, constructions
from icllab.core.prompt import RegressionPrompt
from icllab.models import LinearAttention
from icllab.models.linear.linear_attention import MASKED

PEER = "chengxiang/LinearTransformer"
DIM, LENGTH, PROMPTS, LAYERS = 5, 20, 50, 3


def VERSION(checkout):
    """The commit."""
    from peers import commit

    return f"{commit(checkout, 'linear_transformer.py')}, PyTorch {torch.__version__}"


def padded(matrices, corner):
    """Matrices [layer, d, d] with a row and a column for the labels."""
    full = jnp.pad(matrices, ((0, 0), (0, 1), (0, 1)))
    return full.at[:, DIM, DIM].set(corner)


def ours(allparam):
    """The same network here: their tokens are rows, so that Q is turned."""
    p, q = padded(allparam[:, 0, 0], 1.0), padded(allparam[:, 0, 1].swapaxes(1, 2), 0.0)
    return LinearAttention(p, q, **MASKED, answers="last", normalised=True)


def answers(predictor, x, y):
    """Predictions at the last position."""
    return jax.vmap(lambda x, y: predictor(RegressionPrompt(x, y))[-1])(x, y)


def cases(checkout):
    """Fifty prompts, in 32 bits as theirs has them."""
    sys.path.insert(0, str(checkout))
    from linear_transformer import Transformer_F, in_context_loss

    rng = np.random.default_rng(0)
    x = rng.normal(size=(PROMPTS, LENGTH + 1, DIM))
    y = np.einsum("pid,pd->pi", x, rng.normal(size=(PROMPTS, DIM)))
    tokens = np.concatenate([x, y[:, :, None]], axis=2)
    tokens[:, -1, -1] = 0
    z, targets = torch.tensor(tokens, dtype=torch.float32), torch.tensor(y[:, -1], dtype=torch.float32)
    x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)

    def row(case, theirs, name, ours, wanted):
        wanted = np.asarray(wanted.detach())
        difference = np.abs(np.asarray(ours) - wanted).max() / np.abs(wanted).max()
        fields = {"case": case, "theirs": theirs, "ours": name, "difference": difference}
        return fields | {"unit": "relative", "tolerance": 1e-5, "note": ""}

    network = Transformer_F(LAYERS, 1, DIM, 0.2)
    with torch.no_grad():
        network.allparam.copy_(torch.tensor(0.2 * rng.normal(size=(LAYERS, 1, 2, DIM, DIM))))
    weights = jnp.asarray(network.allparam.detach().numpy())
    wanted = -network(z)[:, LENGTH, DIM]
    yield row(
        "answers, three layers of random P and Q",
        "Transformer_F",
        "models.LinearAttention.ahn",
        answers(ours(weights), x, y),
        wanted,
    )

    def loss(weights):
        return jnp.mean((answers(ours(weights), x, y) - y[:, -1]) ** 2)

    value, gradient = jax.value_and_grad(loss)(weights)
    theirs = in_context_loss(network, z, targets)
    theirs.backward()
    yield row("loss", "in_context_loss, Transformer_F", "models.LinearAttention.ahn", value, theirs)
    yield row("gradient of the loss", "Transformer_F", "models.LinearAttention.ahn", gradient, network.allparam.grad)

    rates = jnp.array([0.4, 0.7, 0.2])
    algorithm = algorithms.GradientDescent(rates, dim=DIM, layers=LAYERS, normalised=True, half=True)
    built = constructions.gradient_descent(algorithm, answers="last")
    with torch.no_grad():
        network.allparam[:, 0, 0].zero_()
        network.allparam[:, 0, 1].copy_(torch.tensor(np.asarray(built.q[:, :DIM, :DIM]).swapaxes(1, 2)))
    wanted = -network(z)[:, LENGTH, DIM]
    name = "constructions.gradient_descent(GradientDescent(rates, ...))"
    yield row("their network with the weights built here", "Transformer_F", name, answers(built, x, y), wanted)
    text = "three steps of gradient descent, their network with the weights built here"
    yield row(text, "Transformer_F", "algorithms.GradientDescent", answers(algorithm, x, y), wanted)
