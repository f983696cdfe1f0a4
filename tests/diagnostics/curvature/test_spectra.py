"""Spectra of losses: against matrices that are written out, and against ranks that are known."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawing import with_normal_weights
from jax.flatten_util import ravel_pytree

from icllab.core.errors import InputError
from icllab.diagnostics.curvature import products
from icllab.diagnostics.curvature.spectra import SpectrumSolver, effective_dimension, fisher_spectrum, hessian_spectrum


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


WIDTHS = (3, 4, 2)


def network(samples=40):
    """A small network of two layers, its data of two classes, and parameters."""
    rng = np.random.default_rng(0)
    at = {"a": jnp.asarray(rng.normal(size=(4, 3))), "b": [jnp.asarray(rng.normal(size=(2, 4))), jnp.zeros(2)]}
    return at, (jnp.asarray(rng.normal(size=(samples, 3))), jnp.asarray(rng.integers(2, size=samples)))


def logits(parameters, batch):
    hidden = jnp.tanh(batch[0] @ parameters["a"].T)
    matrix, shift = parameters["b"]
    return hidden @ matrix.T + jnp.broadcast_to(shift, (len(hidden), 2))


def cross_entropy(z, batch):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), batch[1][:, None], axis=1))


def loss(parameters, batch):
    return cross_entropy(logits(parameters, batch), batch)


def gradients(at, data):
    centre, unravel = ravel_pytree(at)
    row = jax.vmap(lambda item: jax.grad(lambda w: loss(unravel(w), jax.tree.map(lambda a: a[None], item)))(centre))
    return np.asarray(jax.jit(row)(data))


def written_out(at, data):
    """The three matrices, each by another way than products."""
    centre, unravel = ravel_pytree(at)

    @jax.jit
    def derivatives(w):
        return (
            jax.hessian(lambda w: loss(unravel(w), data))(w),
            jax.jacrev(lambda w: logits(unravel(w), data))(w),
            logits(unravel(w), data),
        )

    hessian, slopes, z = map(np.asarray, derivatives(centre))
    row = gradients(at, data)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    bent = np.eye(2) * p[:, :, None] - p[:, :, None] * p[:, None, :]
    gauss_newton = np.einsum("nip,nij,njq->pq", slopes, bent, slopes) / len(z)
    return {"hessian": hessian, "gauss_newton": gauss_newton, "empirical_fisher": row.T @ row / len(row)}


@functools.cache
def wanted_matrices():
    return written_out(*network())


@pytest.mark.slow
@pytest.mark.parametrize("batch", [16, None])
def test_products_are_those_of_the_matrices_written_out(batch):
    at, data = network()
    target = wanted_matrices()
    matrix_in = {
        "hessian": products.Hessian(loss, at, data, batch),
        "empirical_fisher": products.EmpiricalFisher(loss, at, data, batch),
        "gauss_newton": products.GaussNewton(cross_entropy, at, data, batch, outputs=logits),
    }
    for name, product in matrix_in.items():
        result = jax.jit(jax.vmap(product))(jnp.eye(22))
        np.testing.assert_allclose(result, target[name], atol=1e-12)


def test_spectra_are_exact_where_the_matrix_is_small_and_within_errors_where_not():
    """Of 40 samples, 16 at a time: the last block is a smaller one."""
    at, data = network()
    target = {name: np.linalg.eigvalsh(matrix)[::-1] for name, matrix in wanted_matrices().items()}
    spectra = {
        "hessian": functools.partial(hessian_spectrum, loss),
        "empirical_fisher": functools.partial(fisher_spectrum, loss),
        "gauss_newton": functools.partial(fisher_spectrum, cross_entropy, outputs=logits),
    }
    for name, spectrum in spectra.items():
        exact = spectrum(at, key=jax.random.key(1), data=data, batch=16)
        assert exact.attrs == {"matrix": name, "parameters": 22, "exact": 1}
        np.testing.assert_allclose(exact["eigenvalue"], target[name], atol=1e-12)
        assert float(exact["trace_error"]) == float(exact["hessian_rank_error"]) == 0
        assert abs(float(exact["trace"]) - target[name].sum()) < 1e-12
    random_values = hessian_spectrum(
        loss,
        at,
        key=jax.random.key(1),
        data=data,
        solver=SpectrumSolver(extreme=2, probes=96, order=22, threshold=0.01, dense=4),
    )
    h = target["hessian"]
    np.testing.assert_allclose(random_values["eigenvalue"], h[[0, 1, -2, -1]], atol=1e-9)
    assert random_values["mode"].values.tolist() == [0, 1, 20, 21]
    for name, value in (("trace", h.sum()), ("hessian_rank", np.sum(h > 0.01))):
        assert abs(float(random_values[name]) - value) < 3 * float(random_values[f"{name}_error"]) < 0.5 * abs(value)
    np.testing.assert_allclose(random_values["node_weight"].sum("node"), 1, atol=1e-12)
    # The density of the nodes has the moments of the spectrum; the gap is the change by the last half of the products.
    nodes, weights = random_values["node_value"], random_values["node_weight"]
    np.testing.assert_allclose(22 * (nodes * weights).sum("node").mean(), random_values["trace"], rtol=1e-9)
    squares = 22 * (nodes**2 * weights).sum("node")
    assert abs(float(squares.mean()) - np.sum(h**2)) < 4 * float(squares.std(ddof=1)) / 96**0.5
    assert abs(float(random_values["trace_gap"])) < 1e-9  # Lanczos has the first moment with any number of products


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_hessian_of_two_linear_layers_has_the_rank_of_their_fibre(rank):
    """Of y = BAx at the plainest solution of rank r: r(M+N) - r^2, by eigenvalues and by probes."""
    inputs, hidden, outputs = 4, 3, 5
    units = np.arange(5) < rank
    a, b = (jnp.asarray(np.eye(*shape) * units[: shape[1]]) for shape in ((hidden, inputs), (outputs, hidden)))
    truth = np.asarray(b) @ np.asarray(a)
    target = rank * (inputs + outputs) - rank**2

    def distance(layers):
        return jnp.sum((layers[1] @ layers[0] - truth) ** 2) / 2

    exact = hessian_spectrum(distance, (a, b), key=jax.random.key(0))
    assert float(exact["hessian_rank"]) == float(exact["rank_low"]) == float(exact["rank_high"]) == target
    if rank == 2:
        random_values = hessian_spectrum(
            distance, (a, b), key=jax.random.key(0), solver=SpectrumSolver(dense=0, probes=64, order=12, extreme=1)
        )
        assert (
            abs(float(random_values["hessian_rank"]) - target)
            < 3 * float(random_values["hessian_rank_error"])
            < 0.15 * target
        )
        assert abs(float(random_values["hessian_rank_gap"])) < 1e-9


def test_an_effective_dimension_counts_directions_by_their_share():
    h = np.append(-0.5, np.geomspace(1e-4, 10, 60)[1:])

    def quadratic(w):
        return jnp.stack([jnp.sum(h[:30] * w[:30] ** 2), jnp.sum(h[30:] * w[30:] ** 2)]) / 2

    exact = float(np.sum(np.clip(h, 0, None) / (np.clip(h, 0, None) + 0.01)))
    result = effective_dimension(quadratic, jnp.ones(60), resolution=0.01, key=jax.random.key(0))
    assert abs(result.value - exact) < 1e-10
    assert result.error == 0
    # Random signs see a diagonal matrix without error; what is left is the quadrature.
    random_values = effective_dimension(
        quadratic, jnp.ones(60), resolution=0.01, key=jax.random.key(0), solver=SpectrumSolver(dense=0, order=60)
    )
    assert abs(random_values.value - exact) < 1e-6


def test_a_module_with_functions_in_it_is_a_tree_like_any_other():
    """Activations are no arrays; the Gauss-Newton matrix of squares is that of the Jacobian."""
    key = jax.random.key(2)
    at = with_normal_weights(lambda: eqx.nn.MLP(2, 1, 3, 1, activation=jax.nn.relu, key=key), seed=0)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(7, 2)))
    y = jnp.asarray(np.sin(x)[:, :1])

    def answers(model, data):
        return jax.vmap(model)(data[0])

    def squares(z, data):
        return jnp.mean((z - data[1]) ** 2) / 2

    flat, remainder = eqx.partition(at, eqx.is_inexact_array)
    centre, unravel = ravel_pytree(flat)

    @jax.jit
    def written_out(w):
        def of(w):
            return answers(eqx.combine(unravel(w), remainder), (x, y))

        return jax.jacrev(of)(w)[:, 0], jax.hessian(lambda w: squares(of(w), (x, y)))(w)

    slopes, bent = map(np.asarray, written_out(centre))
    result = fisher_spectrum(squares, at, outputs=answers, data=(np.asarray(x), y), key=key)
    np.testing.assert_allclose(result["eigenvalue"], np.linalg.eigvalsh(slopes.T @ slopes / 7)[::-1], atol=1e-12)
    result = hessian_spectrum(lambda model: squares(answers(model, (x, y)), (x, y)), at, key=key)
    np.testing.assert_allclose(result["eigenvalue"], np.linalg.eigvalsh(bent)[::-1], atol=1e-12)


@pytest.mark.parametrize(("dense", "count"), [(0, 3), (1500, 9)])
def test_derivatives_that_are_not_finite_are_refused(dense, count):
    message = f"^loss: expected finite derivatives at the point given, got '{count} numbers that are not'$"
    with pytest.raises(InputError, match=message):
        hessian_spectrum(
            lambda w: jnp.sqrt(jnp.sum(w**2)), jnp.zeros(3), key=jax.random.key(0), solver=SpectrumSolver(dense=dense)
        )


def test_data_that_cannot_be_are_refused():
    key = jax.random.key(0)
    for outputs in (None, logits):
        with pytest.raises(InputError, match=r"^data: expected arrays with one leading axis .*, got None; hessian_"):
            fisher_spectrum(loss, network()[0], key=key, data=None, outputs=outputs)
    at, (x, y) = network()
    for spectrum in (hessian_spectrum, fisher_spectrum):
        with pytest.raises(InputError, match=r"^data: expected arrays with one leading axis .*, got \[39, 40\]"):
            spectrum(loss, at, key=key, data=(x, np.asarray(y)[1:]))


def test_what_cannot_be_is_refused():
    for resolution in (0.0, np.inf, np.nan):
        with pytest.raises(InputError, match=rf"^resolution: expected a finite number > 0, got {resolution}$"):
            effective_dimension(jnp.sum, jnp.ones(2), resolution=resolution, key=jax.random.key(0))
    with pytest.raises(InputError, match=r"^at: expected a tree of arrays of one floating-point type, got"):
        hessian_spectrum(jnp.sum, jnp.ones(2, int), key=jax.random.key(0))
    with pytest.raises(InputError, match=r"^batch: expected an integer of at least 1, or None, got 0$"):
        hessian_spectrum(jnp.sum, jnp.ones(2), key=jax.random.key(0), data=jnp.ones(3), batch=0)
    for name, value in (("extreme", 0), ("probes", 0), ("order", 0), ("threshold", -1.0), ("dense", -1)):
        with pytest.raises(InputError, match=rf"^{name}: expected .*, got {value}$"):
            SpectrumSolver(**{name: value})
        with pytest.raises(
            InputError, match=rf"^hessian_spectrum: {name}= is now solver=SpectrumSolver\({name}=...\)$"
        ):
            hessian_spectrum(jnp.sum, jnp.ones(2), key=jax.random.key(0), **{name: value})


def test_the_matrix_over_some_weights_is_the_block_of_the_whole():
    """Over b: the entries from 12 on, of the Hessian, of the gradients' products, and of the Gauss-Newton matrix."""
    at, data = network()
    options = {"key": jax.random.key(0), "data": data, "weights": lambda tree: tree["b"]}
    results = {
        "hessian": hessian_spectrum(loss, at, **options),
        "empirical_fisher": fisher_spectrum(loss, at, **options),
        "gauss_newton": fisher_spectrum(cross_entropy, at, outputs=logits, **options),
    }
    for name, result in results.items():
        block = wanted_matrices()[name][12:, 12:]
        np.testing.assert_allclose(result.eigenvalue, np.linalg.eigvalsh(block)[::-1], atol=1e-10)
        assert result.attrs["parameters"] == 10
