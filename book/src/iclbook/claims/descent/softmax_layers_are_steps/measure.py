"""Answers of constructed and trained blocks after each application, beside descents and solves in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from iclbook.claims.descent import _softmax_steps
from icllab import constructions
from icllab.algorithms import KernelRichardson, NormalisedDescent
from icllab.constructions.softmax import Classifier, SignedExamples, with_weights
from icllab.core.grid import tabulated
from icllab.core.kernels import gaussian
from icllab.core.prompt import RegressionPrompt
from icllab.models import BlockOptions
from icllab.models.interventions.recording import Recorder

VERSION = 1
ATTENTION = {"heads": 1, "mlp": None, "norm": "none", "scale": 1.0}
SCALES = (-1.0, 1.7)  # logarithms of the sizes of classifiers in training
FAST, SLOW = 5.0, 2.0  # logarithms of the fall of the error between which its rate is measured


def measure(point, *, key, plain=False, exchanged=False, warmer=1.0, narrow=False, grows=False, learn=True):
    """One cell: all depths, widths and ridges on the prompts of every seed.

    ``plain``: the constructed attention does not divide the weights of examples by their sum. ``exchanged``: its keys
    and queries are exchanged. ``warmer``: factor of its temperature. ``narrow``: ReLU layers keep the least width.
    ``grows``: they are built for products that grow with the square of the examples. Not ``learn``: the trained block
    stays as it starts.
    """
    descent = NormalisedDescent(point.rate, layers=1, dim=point.dim)
    constructed = changed(constructions.gradient_descent(descent, answers="last"), plain, exchanged)
    trained = train(point, jax.random.fold_in(key, 1), learn)
    steps = {int(n): int(n) for n in point.layers}
    short = [n for n in steps if n <= point.repeated]

    def measure_seed(seed):
        rng = np.random.default_rng([*np.asarray(jax.random.key_data(key)).tolist(), seed])
        inputs, labels = separable(rng, point.prompts, point.examples, point.dim)
        inputs /= np.linalg.norm(inputs, axis=2, keepdims=True)
        signed = labels[..., None] * inputs
        exact = _softmax_steps.classifiers(signed, point.rate, max(steps))[[n - 1 for n in steps]]
        own = classifiers_of(constructed, inputs, labels, max(steps))[[n - 1 for n in steps]]
        largest = np.array([_softmax_steps.largest_margin(part) for part in signed])
        gap = 1 - _softmax_steps.margins(signed, own) / largest
        scaled = gap * point.rate * largest**2 * np.array(list(steps))[:, None]
        wide = np.linspace(0.5, 1.5, point.dim)
        others, signs = separable(rng, point.prompts, 2 * point.examples, point.dim, wide)  # pyright: ignore[reportArgumentType]
        target = _softmax_steps.classifiers(signs[..., None] * others, point.rate, max(short))
        repeated = classifiers_of(member(trained, point.seed.index(seed)), others, signs, max(short))
        off = np.array([distance(repeated[n - 1], target[n - 1]) if n in short else np.nan for n in steps])
        return {
            "step_distance": (("layers",), [distance(a, b) for a, b in zip(own, exact, strict=True)]),
            "margin_gap": (("layers",), np.median(gap, axis=1)),
            "margin_scaled": (("layers",), scaled.max(axis=1)),
            "trained_distance": (("layers",), off),
            **tabulated(lambda ridge, length: kernel_part(ridge, length, rng), ridge=point.ridge, length=point.length),
        }

    def kernel_part(ridge, length, rng):
        inputs = rng.uniform(-1, 1, (point.prompts, length + 1, point.inputs))
        labels = np.clip(rng.normal(size=(point.prompts, length)), -1, 1)
        parts = [(x, y, ridge, point.temperature) for x, y in zip(inputs, labels, strict=True)]
        limit, contraction = np.array([_softmax_steps.kernel_ridge(*part) for part in parts]).T
        count = max(n for n in steps if n <= point.blocks)
        iterated = np.array([_softmax_steps.richardson(*part, count) for part in parts])
        law = {"kernel": gaussian, "temperature": warmer * point.temperature, "layers": 1}
        prompts = jax.vmap(RegressionPrompt)(jnp.asarray(inputs), jnp.asarray(np.pad(labels, ((0, 0), (0, 1)))))

        def measure_pieces(pieces):
            size = point.size * ((length / min(point.length)) ** 2 if grows else 1.0)
            width = min(point.pieces) if narrow else pieces
            one = constructions.kernel_richardson(
                KernelRichardson(ridge, **law), dim=point.inputs, pieces=width, size=size
            )
            answers = np.asarray(looped(changed(one, False, exchanged), prompts, count))
            errors = np.abs(answers - limit)
            rates = [rate_of(e, c) for e, c in zip(errors.T, contraction, strict=True)]
            rows = [errors[n - 1].max() if n <= count else np.nan for n in steps]
            dense = np.sqrt(np.mean((answers[-1] - iterated[:, count - 1]) ** 2))
            return {"ridge_error": (("layers",), rows), "dense_error": dense, "rate_ratio": np.nanmedian(rates)}

        return {
            **tabulated(measure_pieces, pieces=point.pieces),
            "product_size": iterated[:, -1].max() / point.size,
            "slowest": np.median(contraction),
        }

    return tabulated(measure_seed, seed=point.seed)


def separable(rng, prompts, examples, dim, scales=1.0):
    """Inputs [prompt, example, dim] with these standard deviations, and their signs by a random direction."""
    inputs = scales * rng.normal(size=(prompts, examples, dim))
    return inputs, np.sign(np.einsum("pnd,pd->pn", inputs, rng.normal(size=(prompts, dim))))


def distance(one, other):
    """Root mean square distance of classifiers, over the root mean square of the second."""
    return float(np.sqrt(np.sum((one - other) ** 2) / np.sum(other**2)))


def rate_of(errors, contraction):
    """Measured rate of the error over the rate of the slowest direction; NaN if there are too few blocks."""
    first, last = (int(np.ceil(fall / -np.log(contraction))) for fall in (SLOW, FAST))
    if last > len(errors):
        return np.nan
    return np.log(errors[first - 1] / errors[last - 1]) / (last - first) / -np.log(contraction)


def changed(network, plain, exchanged):
    """A network of one block whose softmax is an exponential, or whose queries are its keys and the reverse."""
    if plain:
        options = {"dim": network.embedding.arrangement.dim, "layers": 1}
        block = BlockOptions(**ATTENTION, head_dim=options["dim"], weighting="exponential")
        leaves = jax.tree.leaves(network)
        network = with_weights(Classifier, network.embedding.arrangement, block, leaves, leaves[0].dtype, **options)
    if not exchanged:
        return network
    attention = network.blocks[0].attention
    parts = attention.key, attention.query
    return eqx.tree_at(lambda n: (n.blocks[0].attention.query, n.blocks[0].attention.key), network, parts)


def classifiers_of(network, inputs, labels, count):
    """Classifiers [block, prompt, dim] of a network, from its answers to queries along each axis."""
    prompts, _, dim = inputs.shape
    queries = np.broadcast_to(np.eye(dim)[:, None], (prompts, dim, 1, dim))
    x = np.concatenate([np.broadcast_to(inputs[:, None], (prompts, dim, *inputs.shape[1:])), queries], axis=2)
    y = np.pad(np.broadcast_to(labels[:, None], (prompts, dim, labels.shape[1])), ((0, 0), (0, 0), (0, 1)))
    parts = (jnp.asarray(part.reshape(prompts * dim, *part.shape[2:])) for part in (x, y))
    stacked = jax.vmap(RegressionPrompt)(*parts)
    return np.asarray(looped(network, stacked, count)).reshape(count, prompts, dim)


@eqx.filter_jit
def looped(network, prompts, count):
    """Answers [block, prompt] after each of ``count`` applications of the one block of a network."""

    def depths(prompt):
        stream, layout = network.embedding(prompt)

        def step(stream, _):
            stream = network.blocks[0](stream, layout, Recorder(), "block0", None)
            return stream, network.answers(stream[layout.read])[0]

        return jax.lax.scan(step, stream, None, length=count)[1]

    return jax.vmap(depths, out_axes=1)(prompts)


def member(networks, index):
    """One network of a stack."""
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_inexact_array(leaf) else leaf, networks)


def train(point, key, learn):
    """Train one block for each seed to imitate a step from random classifiers; a stack of networks."""
    readout = constructions.gradient_descent(NormalisedDescent(point.rate, layers=1, dim=point.dim)).readout  # pyright: ignore[reportAttributeAccessIssue]
    options = BlockOptions(**ATTENTION, head_dim=point.dim)
    arrangement = SignedExamples(answers="last", causal=False, query_is_key=False, dim=point.dim)
    schedule = optax.cosine_decay_schedule(point.learning_rate, point.updates)
    optimizer, middle = optax.adam(schedule), slice(point.dim, 2 * point.dim)

    def start(key):
        fields = {"dim": point.dim, "width": None, "layers": 1, "block": options, "positions": "none", "std": 0.3}
        return eqx.tree_at(lambda n: n.readout, Classifier(arrangement, **fields, key=key), readout)  # pyright: ignore[reportCallIssue]

    def loss(network, key):
        of_inputs, of_task, of_size, of_classifier = jax.random.split(key, 4)
        x = jax.random.normal(of_inputs, (point.examples + 1, point.dim))
        x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
        y = jnp.sign(x @ jax.random.normal(of_task, (point.dim,)))
        stream, layout = network.embedding(RegressionPrompt(x, y))
        size = jnp.exp(jax.random.uniform(of_size, (), minval=SCALES[0], maxval=SCALES[1]))
        w = size * jax.random.normal(of_classifier, (len(stream), point.dim))
        stream, w = stream.at[:, middle].set(w), w[-1]  # no token may see the classifier of another
        added = network.blocks[0](stream, layout, Recorder(), "block0", layout.read) - stream[layout.read]
        signed = y[:-1, None] * x[:-1]
        target = jnp.zeros_like(added).at[0, middle].set(point.rate * jax.nn.softmax(-signed @ w) @ signed)
        return jnp.sum((added - target) ** 2)

    def one(key):
        of_start, of_prompts = jax.random.split(key)
        arrays, static = eqx.partition(start(of_start).blocks, eqx.is_inexact_array)
        network = start(of_start)

        def update(state, key):
            arrays, memory = state

            def mean_loss(arrays):
                whole = eqx.tree_at(lambda n: n.blocks, network, eqx.combine(arrays, static))
                return jnp.mean(jax.vmap(lambda k: loss(whole, k))(jax.random.split(key, point.batch)))

            gradient = jax.grad(mean_loss)(arrays)
            with jax.numpy_dtype_promotion("standard"):
                changes, memory = optimizer.update(gradient, memory)
            return (optax.apply_updates(arrays, changes), memory), None

        keys = jax.random.split(of_prompts, point.updates if learn else 0)
        (arrays, _), _ = jax.lax.scan(update, (arrays, optimizer.init(arrays)), keys)
        return eqx.tree_at(lambda n: n.blocks, network, eqx.combine(arrays, static))

    keys = jnp.stack([jax.random.fold_in(key, seed) for seed in point.seed])
    return eqx.filter_jit(eqx.filter_vmap(one))(keys)
