"""Curvature of the answers and learning coefficients of four models at checkpoints before and after they learn."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from iclbook.claims.singular import _ranks as ranks
from iclbook.claims.singular._linear_attention import estimate_row
from iclbook.claims.singular.effective_dimension_across_the_cliff import divergences
from iclbook.claims.singular.effective_dimension_across_the_cliff.claim import (
    FOOT,
    LATE,
    MODELS,
    NETWORK_PAIRS,
    NETWORKS,
    STRENGTHS,
    TOP,
)
from icllab.core.grid import tabulated
from icllab.diagnostics import HMC, LocalPosterior, Quadrature, coefficient_at_temperature
from icllab.models import ItemLabelNetwork
from icllab.tasks import ItemLabel
from icllab.theory import induction_landscape
from icllab.training import Record

VERSION = 2

NETWORK = {"classes": None, "labels": 6, "pairs": NETWORK_PAIRS, "no_repeats": True}
EVERY = 25  # steps between two records of a network
SIZES = (1.0, 0.5, 0.25)  # of the tasks of linear attention, whose ranks come one after the other
HEAD_RATE, HEAD_STEPS = 0.2, 600  # of descent on the prompts of a head

sgd = functools.cache(optax.sgd)


def measure(
    point,
    *,
    key,
    formed=0.0,
    together=False,
    logits=False,
    backwards=False,
    later=False,
    items=False,
    wide=False,
):
    """One cell; with both attentions ``formed`` at the start, all ranks ``together``, or ``logits`` as answers.

    ``backwards``: stages in the reverse order; ``later``: every stage is the next; ``items``: random ones in the
    landscape; ``wide``: a localization of 1.
    """
    shapes = {
        "strengths": ("stage", "strength"),
        "label_loss": ("stage",),
        "effective_dimension": ("stage", "resolution"),
        "logit_dimension": ("stage", "resolution"),
        "flat_share": ("stage",),
        "resolved_coefficient": ("stage", "resolution"),
        "resolved_coefficient_error": ("stage", "resolution"),
        "learning_coefficient": ("stage",),
        "learning_coefficient_error": ("stage",),
        "learned_rank": ("stage",),
        "sampler_rhat": ("stage",),
        "sampler_warnings": ("stage",),
    }
    if wide:
        point = SimpleNamespace(**vars(point) | {"localization": 1.0})
    models = {
        "landscape": functools.partial(head if items else landscape, formed=formed),
        "head": functools.partial(head, formed=formed),
        "attention": functools.partial(attention, together=together),
    }
    models |= {name: functools.partial(network, dim=dim, logits=logits) for name, dim in NETWORKS.items()}
    model = models[point.model]
    columns = [STRENGTHS.index(name) for name in point.strength]

    def at(seed):
        seed_key = jax.random.fold_in(jax.random.fold_in(key, MODELS.index(point.model)), seed)
        checkpoints = model(point, seed, seed_key)
        if backwards:
            checkpoints = {max(checkpoints) - stage: values for stage, values in checkpoints.items()}
        if later:
            checkpoints = {stage: checkpoints[min(stage + 1, LATE)] for stage in checkpoints}
        whole = {}
        for name, dims in shapes.items():
            rows = np.full([len(getattr(point, dim)) for dim in dims], np.nan)
            for i, stage in enumerate(point.stage):
                if stage in checkpoints and name in checkpoints[stage]:
                    value = np.asarray(checkpoints[stage][name], float)
                    rows[i] = value[columns] if name == "strengths" else value
            whole[name] = (dims, rows)
        return whole

    return tabulated(at, seed=point.seed)


def crossing(losses, level):
    """First record at which a loss is below a level; the last if it never is."""
    below = np.flatnonzero(np.asarray(losses) < level)
    return int(below[0]) if len(below) else len(losses) - 1


def stages(losses, pairs):
    """Records half-way to the cliff, at its foot, and the last."""
    return crossing(losses, TOP * np.log(pairs)) // 2, crossing(losses, FOOT * np.log(pairs)), len(losses) - 1


def landscape(point, seed, key, *, formed):
    """Points of the flow in closed form."""
    sizes = {"pairs": point.pairs, "labels": point.label_count}
    start = np.random.default_rng([seed, *np.asarray(jax.random.key_data(key)).ravel()]).normal(0, 0.01, 3)
    start = start + formed * np.array([1.0, 1.0, 0.0])
    flow = induction_landscape.flow(start.tolist(), time=200.0, **sizes)
    times = np.linspace(0, 200.0, 4001)
    path = np.stack([np.interp(times, flow.time, row) for row in flow.parameters.T], axis=1)
    losses = induction_landscape.loss(*path.T, **sizes)
    answers = divergences.Landscape(**sizes)
    at = stages(losses, point.pairs)
    return {stage: strengths(point, answers, path[i], losses[i], key, late=stage == LATE) for stage, i in enumerate(at)}  # pyright: ignore[reportIndexIssue]


def head(point, seed, key, *, formed):
    """Points of descent on a fixed set of prompts with random items."""
    of_task, of_prompts, of_start = jax.random.split(key, 3)
    sizes = {"labels": point.label_count, "pairs": point.pairs, "dim": point.content}
    task = ItemLabel.init(classes=None, no_repeats=True, key=of_task, **sizes)
    prompts = task.sample_many(point.prompts, key=of_prompts)
    answers = divergences.Head.from_prompts(prompts, point.label_count)
    start = 0.01 * jax.random.normal(of_start, (3,)) + formed * jnp.array([1.0, 1.0, 0.0])
    path, losses = map(np.asarray, divergences.descend(answers, start, HEAD_RATE, HEAD_STEPS))
    at = stages(losses, point.pairs)
    return {stage: strengths(point, answers, path[i], losses[i], key, late=stage == LATE) for stage, i in enumerate(at)}


def strengths(point, answers, w, loss, key, *, late):
    """Curvature of a head of three strengths at a point and, unless ``late``, coefficients by quadrature."""
    w = jnp.asarray(w)
    steep, axes = np.linalg.eigh(np.asarray(divergences.information(answers, w)))
    values = {"strengths": w, "label_loss": loss, "flat_share": abs(steep[0]) / steep[-1]}
    values |= {"effective_dimension": dimensions(steep, point.resolution)}
    if late:
        return values
    along = divergences.Turned(answers, w, jnp.asarray(axes), answers(w))
    columns = {"coefficient": [], "error": [], "warnings": 0}
    for resolution in point.resolution:
        nbeta = point.localization / resolution
        route = Quadrature(points=point.points, scale=float((point.localization + nbeta * steep[-1]) ** -0.5))
        posterior = LocalPosterior.from_function(along, jnp.zeros(3), nbeta=nbeta, localization=point.localization)
        nodes = route.sample(posterior, key=key)
        differences = nodes.values(along.observed)[1]
        mean, error = nodes.mean(differences[:, 0])
        columns["coefficient"].append(nbeta * mean)
        columns["error"].append(nbeta * error)
        columns["warnings"] += bool(nodes.warnings(differences))
    names = ("resolved_coefficient", "resolved_coefficient_error", "sampler_warnings")
    return values | dict(zip(names, columns.values(), strict=True))


def dimensions(steep, resolutions):
    """Effective dimensions of a spectrum."""
    steep = np.clip(np.asarray(steep, float), 0, None)
    return [float(np.sum(steep / (steep + resolution))) for resolution in resolutions]


def attention(point, seed, key, *, together):
    """Rank of linear attention on each plateau, and its coefficient by Hamiltonian Monte Carlo."""
    of_start, of_chains = jax.random.split(key)
    machine = ranks.Machine.init(point.dim, point.length, [1.0] * len(SIZES) if together else SIZES)
    path = ranks.descend(machine, ranks.small_weights(of_start, point.dim, point.key_width))
    checkpoints = {}
    for stage, (w, loss, rank) in enumerate(ranks.plateaus(machine, path, point.key_width)):
        values = {"learned_rank": rank, "label_loss": loss}
        if rank == stage and stage in point.stage:
            sampler = HMC(chains=point.chains, warm_up=point.warm_up)
            divergence = ranks.Divergence(machine, machine(w))
            chains_key = jax.random.fold_in(of_chains, stage)
            posterior = LocalPosterior.from_function(divergence, w, nbeta=point.nbeta, localization=1.0)
            chains = coefficient_at_temperature(posterior, checks=(), sampler=sampler, key=chains_key)
            values |= estimate_row(chains)
        checkpoints[stage] = values
    return checkpoints


def network(point, seed, key, *, dim, logits):
    """Effective dimensions of the answers and the logits of a small item-label network at its stages."""
    of_task, of_network, of_training, of_test = jax.random.split(key, 4)
    task = ItemLabel.init(**NETWORK, dim=dim, key=of_task)
    steps = range(0, point.network_steps + 1, EVERY)
    run = icl.fit(
        ItemLabelNetwork.from_task(task, depth=0, key=of_network),
        task,
        steps=point.network_steps,
        key=of_training,
        batch=128,
        optimizer=sgd(point.network_rate),
        record=Record([0], keep=steps, progress=False),
    )
    prompts = task.sample_many(point.network_prompts, key=of_test)
    networks = [run.trajectory.at(step).member(0) for step in steps]
    losses = [float(divergences.mean_loss(model, task, prompts)) for model in networks]
    checkpoints = {}
    for stage, i in enumerate(stages(losses, task.pairs)):
        rows = map(np.asarray, divergences.rows(networks[i], prompts))
        answers, raw = (dimensions(np.linalg.eigvalsh(block @ block.T), point.resolution) for block in rows)
        checkpoints[stage] = {
            "label_loss": losses[i],
            "effective_dimension": raw if logits else answers,
            "logit_dimension": raw,
        }
    return checkpoints
