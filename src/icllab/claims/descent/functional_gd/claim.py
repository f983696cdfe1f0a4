r"""Which weighting of attention is best for labels of which Gaussian process, at which depth.

Inputs are uniform on the unit sphere, labels are values of a Gaussian process with the linear, the rectified (its
matrix made positive) or the exponential kernel at T = 1, without noise. The answer is that of L layers

.. math:: u_j \leftarrow u_j - \eta_l \sum_{i \le n} u_i\, h(x_i, x_j), \qquad \hat y = -u_q,

with h linear, rectified, exponential or a softmax over the keys. Two ways of training it on a fixed set of prompts,
both to a minimum: ``steps``, where only :math:`\eta_l` are trained and h is the kernel itself at T = 1; and
``temperature``, where one T of all layers is trained too. For the linear and the rectified weighting these are the
same, since T is a factor of :math:`\eta_l`. In a third, ``everything``, all entries of V, B and C of one network are
trained by Adam from a random start: it is measured at one depth, with softmax, on exponential labels. Not every start
arrives where the construction is.

If :math:`h = K` and L is infinite, the answer is the posterior mean. The claim is about few layers. Predictors are
compared on the same test prompts.
"""

import functools
import itertools

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels

WEIGHTINGS = ("linear", "relu", "exponential", "softmax")
STEPS, HEATED, EVERYTHING = "steps", "temperature", "everything"
COOL = ("linear", "relu")  # for which a temperature changes nothing but the unit of the steps
BEST = {  # labels, way of training -> depth -> weighting
    ("linear", STEPS): {1: "linear", 3: "linear", 8: "linear"},
    ("linear", HEATED): {1: "linear", 3: "linear", 8: "linear"},
    ("relu", STEPS): {1: "relu", 3: "relu", 8: "relu"},
    ("relu", HEATED): {1: "softmax", 3: "relu", 8: "relu"},
    ("exponential", STEPS): {1: "relu", 8: "softmax"},
    ("exponential", HEATED): {1: "softmax", 3: "softmax"},
}
BEATEN = {STEPS: (1, 3, 8), HEATED: (1, 3)}  # depths at which another weighting is better on exponential labels


def measure(point, *, key, one_law=False):
    """One cell: all laws of labels at one depth. ``one_law``: all labels are linear, whatever they are called."""
    import jax

    from icllab.algorithms import bayes_optimal
    from icllab.claims.descent.functional_gd.training import squared_errors, started, trained

    shape = (len(point.labels), len(point.training), len(point.predictor), len(point.seed))
    errors, bayes = np.full(shape, np.nan), np.empty((shape[0], shape[3]))
    temperature, off = np.full(shape, np.nan), np.full(shape[3:], np.nan)
    for k, labels in enumerate(point.labels):
        task = task_of(labels, point.dim, point.length)
        best = bayes_optimal(task)
        for s, seed in enumerate(point.seed):
            of_prompts, of_weights = jax.random.split(jax.random.fold_in(key, seed))
            train, test = _drawn(task, of_prompts, point.fitting, point.prompts)
            if one_law:
                train, test = (_linear(prompts, of_weights) for prompts in (train, test))
            bayes[k, s] = float(np.mean(squared_errors(best, test)))
            for t, way in enumerate(point.training):
                for p, name in enumerate(point.predictor):
                    if way == EVERYTHING:
                        if (labels, name, point.layers) != ("exponential", "softmax", point.free_layers):
                            continue
                        found = _everything(point, task, of_prompts, of_weights)
                        off[s] = _off_identity(found)
                    elif way == HEATED and name in COOL and STEPS in point.training:
                        errors[k, t, p, s] = errors[k, point.training.index(STEPS), p, s]
                        continue
                    else:
                        heated = way == HEATED
                        start = started(name, layers=point.layers, train_temperature=heated, prompts=train)
                        found = trained(start, train)
                        temperature[k, t, p, s] = float(found.temperature)
                    errors[k, t, p, s] = float(np.mean(squared_errors(found, test)))
    every = ("labels", "training", "predictor", "seed")
    return {
        "function_error": (every, errors),
        "temperature": (every, temperature),
        "function_bayes": (("labels", "seed"), bayes),
        "identity_distance": (("seed",), off),
    }


def task_of(labels, dim, length):
    """The law of prompts whose labels have one of the kernels as covariance."""
    from icllab.tasks import FunctionRegression, SphereInputs

    law = {"kernel": labels, "temperature": 1.0, "noise_variance": 0.0, "repair": labels == "relu"}
    return FunctionRegression(dim, length, SphereInputs(1.0), **law)


def _drawn(task, key, *counts):
    """Sets of prompts, of as many each."""
    import jax

    whole = _compiled_once()(task, jax.random.split(key, sum(counts)))
    ends = np.cumsum((0, *counts))
    return [jax.tree.map(lambda leaf, a=a, b=b: leaf[a:b], whole) for a, b in itertools.pairwise(ends)]


def _linear(prompts, key):
    """The same inputs with labels that are a linear function of them, another for each prompt."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    w = jax.random.normal(key, (len(prompts.x), prompts.x.shape[-1]))
    return eqx.tree_at(lambda p: p.y, prompts, jnp.einsum("pid,pd->pi", prompts.x, w))


@functools.cache
def _compiled_once():
    import equinox as eqx
    import jax

    @eqx.filter_jit
    def drawn(task, keys):
        return jax.lax.map(lambda key: task.sample(key=key), keys, batch_size=256)

    return drawn


def _everything(point, task, of_prompts, of_weights):
    """Softmax attention whose V, B and C are all trained, from a random start, on a set of prompts of its own."""
    import jax

    import icllab as icl
    from icllab.models import GeneralisedAttention
    from icllab.training import Record

    start = GeneralisedAttention.drawn(
        dim=point.dim,
        layers=point.layers,
        std=point.std,
        similarity="softmax",
        temperature=1.0,
        sign=-1,
        answers="last",
        normalised=False,
        key=of_weights,
    )
    (data,) = _drawn(task, jax.random.fold_in(of_prompts, 1), point.free_prompts)
    run = icl.fit(
        start,
        task,
        steps=point.steps,
        key=of_weights,
        batch=256,
        data=data,
        optimizer=_optimizer(point.steps, point.rate),
        positions="last",
        trainable=lambda m: (m.value, m.key, m.query),
        record=Record([0], progress=False),
    )
    return run.predictor


@functools.cache
def _optimizer(steps, rate):
    import optax

    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(rate, steps)))


def _off_identity(model):
    r"""The largest distance of :math:`B_l^\top C_l` from a multiple of the identity, relative to its norm."""
    scores = np.swapaxes(np.asarray(model.key), 1, 2) @ np.asarray(model.query)
    size = scores.shape[1]
    multiples = np.trace(scores, axis1=1, axis2=2)[:, None, None] / size * np.eye(size)
    return float(np.max(np.linalg.norm(scores - multiples, axis=(1, 2)) / np.linalg.norm(scores, axis=(1, 2))))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Which is best, by how much more the next best errs; how far from Bayes the kernel's own weighting is."""
    findings = []
    log = dataset["function_error"].copy(data=np.log(dataset["function_error"].values))
    for (labels, way), by_depth in BEST.items():
        for depth, best in by_depth.items():
            if labels in dataset.labels and way in dataset.training and depth in dataset.layers:
                part = log.sel(labels=labels, training=way, layers=depth)
                others = part.drop_sel(predictor=best).min("predictor")
                what = f"log error of the next best above that of {best}, {labels} labels, {way}, {depth} layers"
                findings.append(_above(what, (others - part.sel(predictor=best)).values))
    if "exponential" in dataset.labels:
        findings += _own_labels(dataset, log.sel(labels="exponential"))
    both = {STEPS, HEATED} <= set(dataset.training.values)
    findings.append(exactly("both ways of training", 1, both, otherwise=Outcome.UNDECIDED))
    return findings


def _own_labels(dataset: xr.Dataset, log: xr.DataArray) -> list[Finding]:
    """On exponential labels: the exponential is beaten, is above Bayes, and comes nearer to it with depth."""
    findings = []
    for way in (way for way in BEATEN if way in dataset.training):
        for depth in (depth for depth in BEATEN[way] if depth in dataset.layers):
            part = log.sel(training=way, layers=depth)
            behind = part.sel(predictor="exponential") - part.drop_sel(predictor="exponential").min("predictor")
            what = f"log error of exponential above the best other, exponential labels, {way}, {depth} layers"
            findings.append(_above(what, behind.values))
    own = dataset["function_bayes"].sel(labels="exponential")
    bayes = own.copy(data=np.log(own.values))
    above = log.sel(predictor="exponential", training=STEPS) - bayes
    for depth in dataset.layers.values:
        what = f"log error of exponential above Bayes, exponential labels, {depth} layers"
        findings.append(_above(what, above.sel(layers=depth).values))
    if dataset.sizes["layers"] > 1:
        fall = (above.isel(layers=0) - above.isel(layers=-1)).values
        depths = f"{dataset.layers.values[0]} to {dataset.layers.values[-1]} layers"
        findings.append(_above(f"fall of the log error of exponential, exponential labels, {depths}", fall))
    depth = fixed_values(dataset)["free_layers"]
    if EVERYTHING in dataset.training and depth in dataset.layers:
        free = log.sel(predictor="softmax", training=EVERYTHING) - bayes
        what = f"log error of softmax with every weight trained, above Bayes, {depth} layers"
        findings.append(_above(what, free.sel(layers=depth).values))
    return findings


def _above(what: str, samples: np.ndarray) -> Finding:
    return exceeds(what, *map(float, mean_and_error(samples)))


def figure(dataset: xr.Dataset):
    """The error above that of Bayes against depth, one panel for each law of labels."""
    excess = dataset["function_error"] - dataset["function_bayes"]
    curves = {name: excess.sel(predictor=name, training=STEPS) for name in COOL if name in dataset.predictor}
    for name, short in (("exponential", "exp"), ("softmax", "softmax")):
        for way, said in ((STEPS, ""), (HEATED, ", trained $T$")):
            if name in dataset.predictor and way in dataset.training:
                curves[short + said] = excess.sel(predictor=name, training=way)
    parts = [own.drop_vars(["predictor", "training"]) for own in curves.values()]
    joined = xr.concat(parts, dim="predictor").assign_coords(predictor=list(curves))
    shown = xr.Dataset({"function_excess": joined, "function_line": joined.mean("seed")})
    rows = [
        Panel("function_excess", "function_line", "log", at={"labels": labels})
        for labels in ("linear", "relu", "exponential")
        if labels in dataset.labels
    ]
    return panels(shown, rows, x="layers", hue="predictor", line_x="layers", line_name="means", xscale="log")


def _exchanged(dataset: xr.Dataset) -> xr.Dataset:
    names = {"exponential": "relu", "relu": "exponential"}
    return dataset.assign_coords(predictor=[names.get(str(name), str(name)) for name in dataset.predictor.values])


experiment = Experiment(
    claim=(
        "Attention with keys and queries the identity and trained step sizes errs least with the weighting that is "
        "the kernel of the labels if that is linear, at any depth up to 8, and if it is rectified, but at one layer "
        "softmax of a trained temperature is better. On labels of the exponential kernel another is better than the "
        "exponential: at T = 1 at 1, 3 and 8 layers, the rectified at the first and softmax at the last; with T "
        "trained softmax, at 1 and 3 layers."
    ),
    sources=("Cheng24",),
    static=("layers",),
    fixed={
        "dim": 5,
        "length": 20,
        "fitting": 768,
        "prompts": 4096,
        "free_layers": 3,
        "free_prompts": 16384,
        "std": 0.3,
        "steps": 2500,
        "rate": 0.03,
    },
    sizes={
        "smoke": {
            "layers": (1,),
            "labels": ("exponential",),
            "training": (STEPS,),
            "predictor": WEIGHTINGS,
            "seed": 3,
        },
        "small": {
            "layers": (1, 3, 8),
            "labels": ("linear", "relu", "exponential"),
            "training": (STEPS, HEATED, EVERYTHING),
            "predictor": WEIGHTINGS,
            "seed": 3,
        },
        "medium": {
            "layers": (1, 2, 3, 5, 8, 12),
            "labels": ("linear", "relu", "exponential"),
            "training": (STEPS, HEATED, EVERYTHING),
            "predictor": WEIGHTINGS,
            "seed": 8,
        },
    },
    precision="float32",
    measure=measure,
    check=check,
    figure=figure,
    worlds={
        "one_law": World("all labels are linear", measure=functools.partial(measure, one_law=True)),
        "exchanged": World("what is called exponential is rectified, and the other way round", theory=_exchanged),
    },
)
