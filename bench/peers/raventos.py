"""The predictors, the generator and the transformer of Raventós et al., on equal prompts and with equal weights."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from icllab import algorithms, models, tasks
from icllab.core.prompt import RegressionPrompt
from icllab.models.networks.embedding import Interleaved
from icllab.tasks.regression_distributions import WeightPool

PEER = "mansheej/icl-task-diversity"
DIM, POINTS, POOL, BATCH = 8, 16, 64, 4096
FILES = ("icl/models.py", "icl/tasks.py", "icl/utils.py", "icl/gpt2.py")
SETTING = {"n_dims": DIM, "n_points": POINTS, "data_scale": 1.0, "task_scale": 1.0, "noise_scale": 0.5}
SEEDS = {"data_seed": 104, "task_seed": 105, "noise_seed": 106}  # of the evaluation in their example
RANDOM = "random weights"


def VERSION(checkout):
    """The commit."""
    from peers import blobs

    return blobs(checkout, *FILES)


def row(case, theirs, ours, difference, unit="absolute", tolerance=1e-4, note=""):
    """A row; differences of answers are those of 32 bits."""
    fields = {"case": case, "theirs": theirs, "ours": ours, "difference": difference}
    return fields | {"unit": unit, "tolerance": tolerance, "note": note}


def largest(ours, theirs):
    """The largest difference."""
    return np.abs(np.asarray(ours) - np.asarray(theirs)).max()


def answers(predictor, x, y):
    """Predictions here of a batch."""
    return jax.vmap(lambda x, y: predictor(RegressionPrompt(x, y)))(x, y)


def apart(ours, theirs):
    """The largest number of standard errors between two means over the first axis."""
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    errors = np.hypot(ours.std(0) / len(ours) ** 0.5, theirs.std(0) / len(theirs) ** 0.5)
    return np.max(np.abs(ours.mean(0) - theirs.mean(0)) / errors)


def squared_errors(task, predictor, batches):
    """Error of a predictor from the noiseless answer, over dim, at every position of prompts drawn here."""

    def one(key):
        prompt = task.sample(key=key)
        w = task.weights.sample(DIM, key=jax.random.split(key, 3)[0])  # the task vector of these prompts
        return (predictor(prompt) - prompt.x @ w) ** 2 / DIM

    batch = jax.jit(jax.vmap(one))
    return np.concatenate([batch(jax.random.split(jax.random.key(i), BATCH)) for i in range(batches)])


def network(params, options):
    """Our transformer with the weights of theirs, whose tokens have the label in the first coordinate."""
    kernel = params["_in"]["kernel"]
    width, backbone = kernel.shape[1], params["_h"]
    heads, zeros = options["heads"], jnp.zeros(kernel.shape[1])
    model = eqx.filter_eval_shape(
        lambda: models.Transformer(
            Interleaved(),
            dim=DIM,
            width=width,
            layers=2,
            block=models.BlockOptions(mlp=(4 * width,), norm="pre", **options),
            positions="learned",
            length=POINTS - 1,
            key=jax.random.key(0),
        )
    )
    arrays = [jnp.concatenate([kernel[1:], kernel[:1]]), zeros, backbone["wpe"]["embedding"][: 2 * POINTS - 1]]
    for i in range(2):
        block = backbone[f"hs_{i}"]
        qkv, out = block["attn"]["c_attn"], block["attn"]["c_proj"]
        arrays += [part.reshape(width, heads, -1) for part in jnp.split(qkv["kernel"], 3, axis=1)]
        arrays += [out["kernel"].reshape(heads, -1, width)]
        if options["bias"]:
            arrays += [part.reshape(heads, -1) for part in jnp.split(qkv["bias"], 3)] + [out["bias"]]
        arrays += [block["mlp"][name][part] for name in ("c_fc", "c_proj") for part in ("kernel", "bias")]
        arrays += [block[name][part] for name in ("ln_1", "ln_2") for part in ("scale", "bias")]
    arrays += [backbone["ln_f"]["scale"], backbone["ln_f"]["bias"], params["_out"]["kernel"], jnp.zeros(1)]
    leaves, structure = jax.tree.flatten(model)
    for leaf, array in zip(leaves, arrays, strict=True):
        if leaf.shape != array.shape:
            raise ValueError(f"expected an array {leaf.shape}, got {array.shape}")
    return jax.tree.unflatten(structure, arrays)


def transformers(get_model, x, y):
    """Two layers of width 16: at their first weights, and where every weight is random."""
    theirs = get_model(name="transformer", n_points=POINTS, n_layer=2, n_embd=16, n_head=2, seed=0, dtype=jnp.float32)
    first = theirs.init(jax.random.key(0), x, y)["params"]
    leaves, structure = jax.tree.flatten(first)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [leaf + 0.3 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    weights = {"their first weights": first, RANDOM: jax.tree.unflatten(structure, drawn)}
    for name, params in weights.items():
        wanted = theirs.apply({"params": params}, x, y)
        for bias, ours in ((False, "models.Transformer.raventos"), (True, "models.BlockOptions(bias=True, ...)")):
            model = network(params, {"heads": 2, "bias": bias})
            note = "their attention has biases, which are trained; raventos() here has none" if not bias else ""
            note = note if name == RANDOM else ""
            difference = largest(answers(model, x, y), wanted)
            text = f"{name}, {'with' if bias else 'without'} biases of attention here"
            yield row(f"transformer, {text}", 'get_model("transformer")', ours, difference, note=note)


def cases(checkout):
    """Predictors on equal prompts, the generator's moments, the error of ridge on 400,000 prompts, networks."""
    sys.path.insert(0, str(checkout))
    import icl.utils  # noqa: F401  # before models, as the two import each other
    from icl.models import get_model
    from icl.tasks import get_task

    def task_of(n_tasks):
        return get_task(
            "noisy_linear_regression", n_tasks=n_tasks, batch_size=BATCH, **SETTING, **SEEDS, dtype=jnp.float32
        )

    generator = "NoisyLinearRegression(n_tasks=0)"
    pooled, fresh = task_of(POOL), task_of(0)
    x, _, y = pooled.sample_batch(1)
    x, y = x[:256], y[:256]
    theirs = get_model("ridge", lam=0.25, dtype=jnp.float32).apply({}, x, y)
    ridge = algorithms.Ridge(0.25)
    yield row(
        "ridge on equal prompts",
        'get_model("ridge", lam=...)',
        "algorithms.Ridge(0.25)",
        largest(answers(ridge, x, y), theirs),
    )

    task = tasks.LinearRegression.convention("raventos", dim=DIM, length=POINTS - 1)
    pool = WeightPool(pooled.task_pool[:, :, 0], task.weights)
    pool_task = eqx.tree_at(lambda task: task.weights, task, pool, is_leaf=lambda node: node is task.weights)
    theirs = get_model("discrete_mmse", scale=0.5, task_pool=pooled.task_pool, dtype=jnp.float32).apply({}, x, y)
    bayes = algorithms.bayes_optimal(pool_task)
    name = 'get_model("discrete_mmse", scale=..., task_pool=...)'
    yield row(
        "dMMSE of 64 tasks on equal prompts",
        name,
        "algorithms.bayes_optimal(task)",
        largest(answers(bayes, x, y), theirs),
    )

    sample = jax.jit(jax.vmap(lambda key: task.sample(key=key)))(jax.random.split(jax.random.key(2), BATCH))
    x, _, y = fresh.sample_batch(1)
    for case, ours, there in (
        ("mean of the labels' squares", sample.y**2, y**2),
        ("mean of the labels' fourth powers", sample.y**4, y**4),
        ("mean of the inputs' squares", sample.x**2, x**2),
        ("mean of products of labels", sample.y[:, 1:] * sample.y[:, :-1], y[:, 1:] * y[:, :-1]),
    ):
        flat = (np.asarray(values, float).reshape(BATCH, -1).mean(1) for values in (ours, there))
        yield row(
            case, generator, 'tasks.LinearRegression.convention("raventos", ...)', apart(*flat), "standard errors", 4.0
        )

    model = get_model("ridge", lam=0.25, dtype=jnp.float32)

    @jax.jit
    def theirs_at(step):
        x, w, y = fresh.sample_batch(step)
        return (model.apply({}, x, y) - fresh.evaluate_oracle(x, w)) ** 2 / DIM

    there = np.concatenate([theirs_at(step) for step in range(1, 101)])
    case = "error of ridge at each of 16 positions, 409,600 prompts drawn by each"
    name = 'get_model("ridge", lam=...), NoisyLinearRegression(n_tasks=0)'
    yield row(
        case, name, "algorithms.Ridge(0.25)", apart(squared_errors(task, ridge, 100), there), "standard errors", 4.0
    )
    yield from transformers(get_model, *(values[:64] for values in pooled.sample_batch(2)[::2]))
