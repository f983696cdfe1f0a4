"""An attention head of two numbers and an MLP that can memorise, on items and labels of one prompt after another.

The answer's logit is the MLP's on the query plus w times the attention's mean of the labels, whose scores are beta
times the items' products with the query. Labels are 1 or -1, items unit vectors. A prompt has one item of the query's
class, the first, and others of classes drawn uniformly from the rest. Training is SGD at one rate for all weights on
fresh prompts of a fixed set of classes; k steps at rate eta are the time eta k.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MOST = 1536  # classes that are drawn, of which a run has some


class Parts(NamedTuple):
    """Settings of a run.

    Attributes:
        weights: ``mlp``, ``table`` (a number for each class) or ``none``: fresh classes in every prompt.
        context: Whether there is attention.
        frozen: Whether attention stays as it starts.
        reshuffled: Whether all labels of a prompt are turned at random.
    """

    weights: str = "mlp"
    context: bool = True
    frozen: bool = False
    reshuffled: bool = False


class Sizes(NamedTuple):
    """Counts of pairs, dimensions, hidden units and prompts of a batch, the rate, and the scale of the start.

    ``decay`` is that of the attention's two numbers, in a unit of time.
    """

    pairs: int
    dim: int
    hidden: int
    batch: int
    rate: float
    std: float
    decay: float = 0.0


@functools.partial(jax.jit, static_argnames=("sizes", "parts", "steps", "every"))
def train(
    classes: Any, keys: Any, *, sizes: Sizes, parts: Parts, steps: int, every: int, starts: Any = None
) -> dict[str, Any]:
    """Curves of runs, one for each pair of ``classes`` and ``keys``, [run, record]: means over ``every`` steps.

    ``starts`` are keys of items, labels and weights at the start; prompts are those of ``keys`` in any case.
    """
    runs = classes, keys, keys if starts is None else starts
    return jax.lax.map(lambda run: _run(run, sizes, parts, steps, every), runs)


def copy_logit(value: np.ndarray, match: np.ndarray, pairs: int) -> np.ndarray:
    """Logit from the item of the query's class: w times its attention, if items are orthogonal."""
    return value / (1 + (pairs - 1) * np.exp(-match))


def crossing(time: np.ndarray, curve: np.ndarray, level: float) -> float:
    """Time at which a curve first reaches a level, interpolated between records; infinite if it never does."""
    above = curve >= level
    k = int(above.argmax())
    if not above.any() or k == 0:
        return float(time[0]) if above.any() else np.inf
    return float(np.interp(level, curve[k - 1 : k + 1], time[k - 1 : k + 1]))


def _run(run: Any, sizes: Sizes, parts: Parts, steps: int, every: int) -> dict[str, Any]:
    classes, key, start = run
    of_items, of_labels, of_weights, of_attention = jax.random.split(jax.random.fold_in(start, 0), 4)
    of_prompts = jax.random.fold_in(key, 1)
    items = jax.random.normal(of_items, (MOST, sizes.dim))
    items = items / jnp.linalg.norm(items, axis=1, keepdims=True)
    order = jnp.where(jnp.arange(MOST) < classes, jax.random.uniform(of_labels, (MOST,)), 2.0)
    labels = jnp.where(jnp.argsort(jnp.argsort(order)) % 2 == 0, 1.0, -1.0)  # half of them each
    attention = sizes.std * jax.random.normal(of_attention, (2,))
    state = {"value": attention[0], "match": attention[1], "weights": _start(of_weights, sizes, parts)}

    def logit(state: Any, prompt: Any) -> tuple[Any, Any]:
        memorised = _memorised(state["weights"], prompt, parts)
        scores = jax.nn.softmax(state["match"] * prompt["products"], axis=-1) if parts.context else 0.0
        return memorised, memorised + (state["value"] * jnp.sum(scores * prompt["labels"], -1) if parts.context else 0)

    def loss(state: Any, prompt: Any) -> tuple[Any, Any]:
        memorised, whole = logit(state, prompt)
        target = prompt["labels"][:, 0]
        return jnp.mean(jax.nn.softplus(-target * whole)), jnp.mean(jax.nn.sigmoid(-target * memorised))

    def step(state: Any, key: Any) -> tuple[Any, Any]:
        prompt = _prompt(key, items, labels, classes, sizes, parts)
        (value, remaining), gradient = jax.value_and_grad(loss, has_aux=True)(state, prompt)
        if parts.frozen:
            gradient = gradient | {"value": 0.0, "match": 0.0}
        record = {"loss": value, "remaining": remaining, "value": state["value"], "match": state["match"]}
        moved = jax.tree.map(lambda w, g: w - sizes.rate * g, state, gradient)
        if sizes.decay:
            moved |= {name: moved[name] - sizes.rate * sizes.decay * state[name] for name in ("value", "match")}
        return moved, record

    def block(state: Any, keys: Any) -> tuple[Any, Any]:
        state, records = jax.lax.scan(step, state, keys)
        return state, jax.tree.map(jnp.mean, records)

    keys = jax.random.split(of_prompts, steps)
    return jax.lax.scan(block, state, keys.reshape(steps // every, every))[1]


def _prompt(key: Any, items: Any, labels: Any, classes: Any, sizes: Sizes, parts: Parts) -> dict[str, Any]:
    """A batch of prompts; the item of the query's class is the first."""
    of_query, of_others, of_signs, of_products = jax.random.split(key, 4)
    shape = (sizes.batch, sizes.pairs)
    if parts.weights == "none":
        products = jax.random.normal(of_products, shape) / jnp.sqrt(sizes.dim)  # of unit vectors, nearly
        signs = jax.random.rademacher(of_signs, shape, products.dtype)
        return {"products": products.at[:, 0].set(1.0), "labels": signs}
    query = jax.random.randint(of_query, (sizes.batch, 1), 0, classes)
    further = jax.random.randint(of_others, shape, 1, classes).at[:, 0].set(0)
    drawn = (query + further) % classes
    shown = labels[drawn]
    if parts.reshuffled:
        shown = shown * jax.random.rademacher(of_signs, (sizes.batch, 1), shown.dtype)
    prompt = {"query": items[query[:, 0]], "number": query[:, 0], "labels": shown}
    if parts.context:
        prompt["products"] = jnp.einsum("bd,bnd->bn", prompt["query"], items[drawn])
    return prompt


def _start(key: Any, sizes: Sizes, parts: Parts) -> Any:
    if parts.weights != "mlp":
        return jnp.zeros(MOST)
    widths = (sizes.dim, sizes.hidden, sizes.hidden, 1)
    layers = []
    for k, (fan_in, fan_out) in zip(jax.random.split(key, 3), itertools.pairwise(widths), strict=True):
        gain = 1.0 if fan_out == 1 else 2.0
        layers.append((jnp.sqrt(gain / fan_in) * jax.random.normal(k, (fan_in, fan_out)), jnp.zeros(fan_out)))
    return layers


def _memorised(weights: Any, prompt: Any, parts: Parts) -> Any:
    if parts.weights == "none":
        return jnp.zeros(prompt["labels"].shape[0])
    if parts.weights == "table":
        return weights[prompt["number"]]
    x = prompt["query"]
    for matrix, bias in weights[:-1]:
        x = jax.nn.relu(x @ matrix + bias[None])
    return (x @ weights[-1][0] + weights[-1][1][None])[:, 0]
