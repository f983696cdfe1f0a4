"""The constructed weights of von Oswald et al. in their attention, and the steps of gradient descent that they make."""

import sys

import haiku
import jax
import jax.numpy as jnp
import numpy as np

from icllab import algorithms, constructions, tasks
from icllab.core.prompt import RegressionPrompt

PEER = "google-research/self-organising-systems"
FOLDER = "transformers_learn_icl_by_gd"
DIM, LENGTH, PROMPTS, RATE = 10, 10, 4096, 0.7


def VERSION(checkout):
    """The commit."""
    from peers import commit

    return f"{commit(checkout, f'{FOLDER}/src/attn.py', f'{FOLDER}/src/data.py')}, Haiku {haiku.__version__}"


def row(case, theirs, ours, difference, unit="relative", tolerance=1e-5, note=""):
    """A row; differences of answers are those of 32 bits."""
    fields = {"case": case, "theirs": theirs, "ours": ours, "difference": difference}
    return fields | {"unit": unit, "tolerance": tolerance, "note": note}


def answers(predictor, x, y):
    """Predictions at the last position."""
    return jax.vmap(lambda x, y: predictor(RegressionPrompt(x, y))[-1])(x, y)


def cases(checkout):
    """One and three steps on prompts of theirs, and the moments of the generator."""
    sys.path.insert(0, str(checkout / FOLDER))
    from src.attn import MultiHeadAttention
    from src.data import create_reg_data, create_weights

    def drawn(input_range):
        draw = jax.vmap(lambda key: create_reg_data(key, DIM, LENGTH, 0, input_range, 1.0))
        return draw(jax.random.split(jax.random.PRNGKey(1), PROMPTS))

    def attention(h):
        width = DIM + 1
        layer = MultiHeadAttention(1, width, w_init=haiku.initializers.Constant(0.0), model_size=width)
        return h + layer(h, h[:, :-1], h[:, :-1])[0]  # the query is no key, as in their transformer

    layer = haiku.without_apply_rng(haiku.transform(attention))
    built = create_weights(DIM, 1, LENGTH, RATE, jnp.zeros([1, 1, DIM]))
    weights = {name.removeprefix("Transformer_gd/"): value for name, value in built.items()}
    tokens, target, _ = drawn(2.0)
    x = tokens[:, :, :DIM]
    y = jnp.concatenate([tokens[:, :-1, DIM], target[:, None, DIM]], axis=1)
    stream = tokens
    for steps in range(1, 4):
        stream = layer.apply(weights, stream)
        if steps == 2:
            continue
        wanted = -np.asarray(stream[:, -1, -1])
        algorithm = algorithms.GradientDescent(RATE, dim=DIM, layers=steps, normalised=True, half=True)
        network = constructions.gradient_descent(algorithm, answers="last")
        for name, predictor in (
            ("constructions.gradient_descent(GradientDescent(rate, ...))", network),
            ("algorithms.GradientDescent", algorithm),
        ):
            difference = np.abs(np.asarray(answers(predictor, x, y)) - wanted).max() / np.abs(wanted).max()
            text = f"{steps} step{'s' * (steps > 1)}, {name.partition('(')[0]}"
            yield row(text, "create_weights, MultiHeadAttention", name, difference)

    task = tasks.LinearRegression.convention("vonoswald", dim=DIM, length=LENGTH)
    sample = jax.jit(jax.vmap(lambda key: task.sample(key=key)))(jax.random.split(jax.random.key(2), PROMPTS))
    note = "their configuration has the range 1, inputs between -1/2 and 1/2; ours is that of their docstring, (-1, 1)"
    for text, there, explained in (("range 2", x, ""), ("range 1", drawn(1.0)[0][:, :, :DIM], note)):
        means = [np.asarray(values, float).reshape(PROMPTS, -1) ** 2 for values in (sample.x, there)]
        means = [values.mean(1) for values in means]
        error = np.hypot(*(values.std() / PROMPTS**0.5 for values in means))
        difference = abs(means[0].mean() - means[1].mean()) / error
        name = 'tasks.LinearRegression.convention("vonoswald", ...)'
        yield row(
            f"mean of the inputs' squares, {text}",
            "create_reg_data",
            name,
            difference,
            "standard errors",
            4.0,
            explained,
        )
    means = [np.asarray(values, float) for values in (sample.y[:, -1] ** 2, y[:, -1] ** 2)]
    difference = abs(means[0].mean() - means[1].mean()) / np.hypot(*(values.std() / PROMPTS**0.5 for values in means))
    name = 'tasks.LinearRegression.convention("vonoswald", ...)'
    yield row("mean of the targets' squares, range 2", "create_reg_data", name, difference, "standard errors", 4.0)
