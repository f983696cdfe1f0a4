"""Changes of weights that stand for contexts, beside gradient steps on these contexts, in networks of four kinds."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from iclbook.claims.context_map import _regression_transformers as regression
from icllab.core.grid import tabulated
from icllab.diagnostics import MapSolver, gradient_step_comparison
from icllab.lab.networks import require_answers
from icllab.models import BlockOptions, FastWeights, Joined, Transformer
from icllab.models.torch_derivatives import with_autograd
from icllab.tasks import LinearRegression

VERSION = 1

LINEAR = "linear attention"
LAYERS = {"attention only": 2, "one layer": 1, "two layers": 2}  # of the transformers
SCORED = 512  # prompts by which a network is scored
SOLVER = MapSolver(method="gauss_newton", steps=60, products=80, tolerance=1e-2)
SLOPE = "examples"  # the gradient of a context's examples, each asked without the others
OWN, OTHER, SHUFFLED = EXAMPLES = ("own", "other", "shuffled")
NUMBERS = {"step_cosine": ("examples",), "best_step_gap": ("examples",)}
MEASURED = {"step_cosine": "cosine", "best_step_gap": "best_step_gap"}
NUMBERS |= {"map_gap": (), "unconverged": (), "exact_cosine": ()}


def measure(point, *, key, shuffled=False, negated=False, trained=True, exact=False, network=None):
    """Cosines and best steps of every seed before and after training, for each part of the weights.

    ``shuffled``: the context's step is that on its examples with shuffled labels. ``negated``: with labels of the wrong
    sign. Not ``trained``: networks are as they start, whatever the step. ``exact``: every network is linear attention
    with a direct term. ``network``: a user's, in the place of transformers.
    """
    architecture = LINEAR if exact else point.architecture
    options = {"shuffled": shuffled or negated, "labels": jnp.negative if negated else shuffled_labels}

    def of_seed(seed):
        of_network, of_prompts, of_maps = jax.random.split(jax.random.fold_in(key, seed), 3)
        rng = np.random.default_rng([seed, *np.asarray(jax.random.key_data(of_prompts))])
        task = regression_task(point)
        steps = [step if trained else 0 for step in point.step]
        if network is not None and architecture != LINEAR:
            require_answers(network, task)
            networks = dict.fromkeys(point.step, network)
        else:
            networks = dict(zip(point.step, stages(architecture, task, steps, point, key=of_network), strict=True))
        prompts = sampled(rng, point.contexts, 2 * point.queries, point)
        others = jax.tree.map(lambda leaf: leaf[:, 0], sampled(rng, point.others, 1, point))
        test = jax.tree.map(lambda leaf: leaf[:, 0], sampled(rng, SCORED, 1, point))

        def at(step, part):
            subspaces = parts(architecture)
            if part not in subspaces:
                return missing()
            return compared(networks[step], task, prompts, others, subspaces[part], key=of_maps, **options)

        scores = np.array([explained(network, test) for network in networks.values()])
        return tabulated(at, step=point.step, part=point.part) | {"training_score": (("step",), scores)}

    return tabulated(of_seed, seed=point.seed)


def regression_task(point):
    """Tasks around zero, so that without a context 0 is the best answer."""
    task = LinearRegression.convention("garg", dim=point.dim, length=point.length)
    return eqx.tree_at(lambda t: t.noise_variance, task, jnp.asarray(regression.NOISE))


def sampled(rng, contexts, queries, point):
    """Prompts [context, query], in float32."""
    prompts = regression.sample_prompts(rng, contexts, queries, dim=point.dim, length=point.length, examples=0)
    return jax.tree.map(lambda leaf: leaf.astype("float32"), prompts)


def parts(architecture):
    """The parts of the weights that may move and that a query of one token feels; None: all weights."""
    if architecture == LINEAR:
        return {"all": lambda network: network.slow}
    layers = range(LAYERS[architecture])
    rows = {
        f"attention {i + 1}": lambda m, i=i: (m.blocks[i].attention.value, m.blocks[i].attention.output) for i in layers
    }
    if architecture != "attention only":
        rows |= {f"dense {i + 1}": lambda m, i=i: m.blocks[i].mlp for i in layers}
    return rows | {"all": None}


def stages(architecture, task, steps, point, *, key):
    """A network after so many updates, which answers every query.

    Linear attention starts with A = B = 1 and a direct term of its own, so that its cosine is below 1.
    """
    of_weights, of_prompts = jax.random.split(key)
    if architecture == LINEAR:
        identity = jnp.eye(point.dim)
        network = FastWeights(identity, identity, jax.random.normal(of_weights, (point.dim,)), normalised=True)
    else:
        network = transformer(architecture, point, of_weights)
    if max(steps) == 0:
        return [network] * len(steps)
    run = regression.fit(network, task, point.batch, optax.adam(regression.RATE), max(steps), of_prompts, keep=steps)
    return [run.trajectory.at(step).member(0) for step in steps]


def transformer(architecture, point, key):
    """A transformer of pre-norm blocks without positions, which answers every query."""
    mlp = None if architecture == "attention only" else (2 * point.width,)
    sizes = {"dim": point.dim, "width": point.width, "layers": LAYERS[architecture], "positions": "none"}
    sizes["block"] = BlockOptions(heads=point.heads, mlp=mlp, norm="pre")
    every = Joined(answers="every", causal=True, query_is_key=True)
    return eqx.filter_jit(lambda key: Transformer(every, **sizes, key=key))(key)


def compared(network, task, prompts, others, where, *, shuffled, labels, key):
    """Means over the contexts whose fits have converged, with the fraction of those that have not."""
    rows = []
    for i in range(len(prompts.x)):
        queries = jax.tree.map(lambda leaf, i=i: leaf[i], prompts)
        context = jax.tree.map(lambda leaf: leaf[0], queries)
        wrong = eqx.tree_at(lambda prompt: prompt.y, context, labels(context.y))
        draws = jax.tree.map(lambda one, rest: jnp.concatenate([one[None], rest]), wrong, others)
        settings = {"queries": queries, "draws": draws, "solver": SOLVER, "key": key}
        result = gradient_step_comparison(network, task, context, subspace=where, **settings).sel(gradient=SLOPE)
        row: dict[str, Any] = {"map_gap": float(result["gap"]), "exact_cosine": exact_cosine(network, context)}
        for name, source in MEASURED.items():
            first, *rest = result[f"other_{source}"].values
            row[name] = np.array([first if shuffled else float(result[source]), np.mean(rest), first])
        if result["converged"]:
            rows.append(row)
    lost = 1 - len(rows) / len(prompts.x)
    if not rows:
        return missing() | {"unconverged": 1.0}
    return {name: (NUMBERS[name], np.mean([row[name] for row in rows], axis=0)) for name in rows[0]} | {
        "unconverged": lost
    }


def missing():
    """The numbers of what there is not: not a number."""
    return {name: (axes, np.full(len(EXAMPLES) * len(axes) or (), np.nan)) for name, axes in NUMBERS.items()}


def shuffled_labels(y):
    """Labels of the examples, each at the place of the next; the query's label stays."""
    return jnp.concatenate([jnp.roll(y[:-1], 1), y[-1:]])


def exact_cosine(network, context):
    r"""Of linear attention the cosine of :math:`BAh_c` with :math:`h_c - S_cb`, in closed form; else NaN."""
    if not isinstance(network, FastWeights):
        return np.nan
    x, y = np.asarray(context.x[:-1], float), np.asarray(context.y[:-1], float)
    change = np.asarray(network.up, float) @ np.asarray(network.down, float) @ (y @ x)
    step = (y - x @ np.asarray(network.slow, float)) @ x
    return float(change @ step / np.linalg.norm(change) / np.linalg.norm(step))


def explained(network, test):
    """The fraction of the labels' mean square that the last answers explain."""
    network = with_autograd(network)
    answers = np.asarray(eqx.filter_jit(jax.vmap(lambda prompt: network(prompt)[-1]))(test), float)
    y = np.asarray(test.y[:, -1], float)
    return float(1 - np.mean((answers - y) ** 2) / np.mean(y**2))
