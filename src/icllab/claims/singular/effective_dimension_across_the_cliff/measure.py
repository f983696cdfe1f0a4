"""Checkpoints of four models before and after they learn: curvature of their answers, and coefficients there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import icllab as icl
from icllab.claims.singular.effective_dimension_across_the_cliff import divergences, ranks
from icllab.claims.singular.effective_dimension_across_the_cliff.claim import (
    FOOT,
    LATE,
    MODELS,
    NETWORK_PAIRS,
    STRENGTHS,
    TOP,
)
from icllab.core.grid import tabulated
from icllab.diagnostics import HMC, Quadrature, learning_coefficient
from icllab.models import ItemLabelNetwork
from icllab.tasks import ItemLabel
from icllab.theory import induction_landscape
from icllab.training import Record

VERSION = 1

NETWORK = {"classes": None, "labels": 6, "pairs": NETWORK_PAIRS, "dim": 8, "no_repeats": True}
EVERY = 25  # steps between two records of a network
HEAD_RATE, HEAD_STEPS = 0.2, 600  # of descent on the prompts of a head

sgd = functools.cache(optax.sgd)


def measure(point, *, key, formed=0.0, together=False, logits=False):
    """One cell; with both attentions ``formed`` at the start, all ranks ``together``, or ``logits`` as answers."""
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
    of = {"landscape": landscape, "head": head, "attention": attention, "network": network}
    how = {"landscape": {"formed": formed}, "head": {"formed": formed}, "attention": {"together": together}}
    how |= {"network": {"logits": logits}}
    columns = [STRENGTHS.index(name) for name in point.strength]

    def at(seed):
        own = jax.random.fold_in(jax.random.fold_in(key, MODELS.index(point.model)), seed)
        found = of[point.model](point, seed, own, **how[point.model])
        whole = {}
        for name, dims in shapes.items():
            rows = np.full([len(getattr(point, dim)) for dim in dims], np.nan)
            for i, stage in enumerate(point.stage):
                if stage in found and name in found[stage]:
                    value = np.asarray(found[stage][name], float)
                    rows[i] = value[columns] if name == "strengths" else value
            whole[name] = (dims, rows)
        return whole

    return tabulated(at, seed=point.seed)


def crossing(losses, level):
    """The first record at which a loss is below a level; the last where it never is."""
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
    task = ItemLabel.drawn(classes=None, no_repeats=True, key=of_task, **sizes)
    prompts = task.sample_many(point.prompts, key=of_prompts)
    answers = divergences.Head.of(prompts, point.label_count)
    start = 0.01 * jax.random.normal(of_start, (3,)) + formed * jnp.array([1.0, 1.0, 0.0])
    path, losses = (np.asarray(one) for one in divergences.descended(answers, start, HEAD_RATE, HEAD_STEPS))
    at = stages(losses, point.pairs)
    return {stage: strengths(point, answers, path[i], losses[i], key, late=stage == LATE) for stage, i in enumerate(at)}


def strengths(point, answers, w, loss, key, *, late):
    """What a head of three strengths has at a point: curvature and, but late, coefficients by quadrature."""
    w = jnp.asarray(w)
    steep, turned = np.linalg.eigh(np.asarray(divergences.information(answers, w)))
    own = {"strengths": w, "label_loss": loss, "flat_share": abs(steep[0]) / steep[-1]}
    own |= {"effective_dimension": dimensions(steep, point.resolution)}
    if late:
        return own
    along = divergences.Turned(answers, w, jnp.asarray(turned), answers(w))
    found = {"coefficient": [], "error": [], "warnings": 0}
    for resolution in point.resolution:
        nbeta = point.localization / resolution
        route = Quadrature(points=point.points, scale=float((point.localization + nbeta * steep[-1]) ** -0.5))
        how = {"nbeta": nbeta, "localization": point.localization, "key": key}
        nodes = route.sample(along, jnp.zeros(3), **how)
        values = nodes.values(along.observed)[1]
        mean, error = nodes.mean(values[:, 0])
        found["coefficient"].append(nbeta * mean)
        found["error"].append(nbeta * error)
        found["warnings"] += bool(nodes.warnings(values))
    names = ("resolved_coefficient", "resolved_coefficient_error", "sampler_warnings")
    return own | dict(zip(names, found.values(), strict=True))


def dimensions(steep, resolutions):
    """Effective dimensions of a spectrum."""
    steep = np.clip(np.asarray(steep, float), 0, None)
    return [float(np.sum(steep / (steep + resolution))) for resolution in resolutions]


def attention(point, seed, key, *, together):
    """Plateaus of linear attention: the rank there, and the coefficient by Hamiltonian Monte Carlo."""
    of_start, of_chains = jax.random.split(key)
    machine = ranks.Machine.drawn(point.dim, point.length, point.key_width, equal=together)
    path = ranks.descended(machine, ranks.small(of_start, point.dim, point.key_width))
    found = {}
    for stage, (w, loss, rank) in enumerate(ranks.plateaus(machine, path, point.key_width)):
        own = {"learned_rank": rank, "label_loss": loss}
        if rank == stage and stage in point.stage:
            sampler = HMC(chains=point.chains, warm_up=point.warm_up)
            known = ranks.Divergence(machine, machine(w))
            how = {"nbeta": point.nbeta, "localization": 1.0, "sampler": sampler}
            sampled = learning_coefficient(
                known, w, key=jax.random.fold_in(of_chains, stage), estimand="at_temperature", **how
            )
            own |= {
                "learning_coefficient": float(sampled["estimate"]),
                "learning_coefficient_error": float(sampled["mcse"]),
                "sampler_rhat": float(sampled["rhat"]),
                "sampler_warnings": len(sampled.attrs["warnings"]),
            }
        found[stage] = own
    return found


def network(point, seed, key, *, logits):
    """Checkpoints of a small item-label network, and the spectra of its Fisher matrix and of its logits' metric."""
    of_task, of_network, of_training, of_test = jax.random.split(key, 4)
    task = ItemLabel.drawn(**NETWORK, key=of_task)
    steps = range(0, point.network_steps + 1, EVERY)
    run = icl.fit(
        ItemLabelNetwork.of(task, depth=0, key=of_network),
        task,
        steps=point.network_steps,
        key=of_training,
        batch=128,
        optimizer=sgd(point.network_rate),
        record=Record([0], keep=steps, progress=False),
    )
    prompts = task.sample_many(point.network_prompts, key=of_test)
    networks = [run.trajectory.at(step).member(0) for step in steps]
    losses = [float(divergences.mean_loss(one, task, prompts)) for one in networks]
    found = {}
    for stage, i in enumerate(stages(losses, task.pairs)):
        rows = (np.asarray(one) for one in divergences.rows(networks[i], prompts))
        answers, raw = (dimensions(np.linalg.eigvalsh(one @ one.T), point.resolution) for one in rows)
        found[stage] = {
            "label_loss": losses[i],
            "effective_dimension": raw if logits else answers,
            "logit_dimension": raw,
        }
    return found
