"""Gradient descent of heads from a small start: when each component is learned, the loss, and the algorithm."""

import jax
import jax.numpy as jnp
import numpy as np

from iclbook.claims.descent import _heads, _plateaus
from iclbook.claims.descent._covariances import eigenvectors
from iclbook.claims.descent.components_one_by_one.claim import IDENTIFIED, rank_of
from icllab import algorithms, diagnostics
from icllab.core.grid import tabulated
from icllab.theory import preconditioners, saddles
from icllab.training import Ensemble

VERSION = 1


def measure(point, *, key, merged=False, start_factor=1.0, reference_length=None, least_squares=False):
    """One cell: heads of one rank on one distribution.

    ``merged``: keys and queries are one matrix. ``start_factor``: the start that times are predicted from, over the
    true one. ``reference_length``: the number of examples for which candidates are made. ``least_squares``: least
    squares on the components are identified, in the networks' place.
    """
    setting, rank = rank_of(point.setting)
    law, spectrum = _plateaus.law(setting), np.array(_plateaus.SETTINGS[setting][0])
    task, step = _heads.task_of(setting), np.asarray(point.step)
    of_training, of_judgement = jax.random.split(key)
    run = _heads.train(point, task, key=of_training, heads=point.heads, rank=None if merged else rank)
    networks, rows = [], {}
    for s, seed in enumerate(point.seed):
        values, matrices = _heads.read_heads(run, s)
        whole = np.einsum("th,thij->tij", values, matrices)
        loss = np.array([preconditioners.loss(matrix.T, **law) for matrix in whole])
        along = _plateaus.along_components(whole)
        learned = _plateaus.learned_steps(along, step, spectrum)
        records = _plateaus.flattest(loss, step, learned)
        networks += [run.trajectory.at(int(step[max(record, 0)])).member(s) for record in records[1:]]
        predicted = np.full(len(spectrum), np.nan)
        if rank == 1 and not merged:
            start = run.trajectory.at(0).member(s)
            arrays = (start_factor * np.asarray(part, float) for part in (start.values, start.keys, start.queries))
            v, k, q = arrays
            predicted = saddles.staged_drops(values=v, keys=k[:, 0], queries=q[:, 0], **law).time / point.rate
        plateaus = np.where(records < 0, np.nan, loss[records])
        rows[seed] = {
            "loss_curve": (("step",), loss),
            "component_weight": (("step", "component"), along[:, list(point.component)]),
            "learned_step": (("component",), learned[list(point.component)]),
            "start_step": (("component",), predicted[list(point.component)]),
            "plateau_loss": (("plateau",), plateaus[list(point.plateau)]),
        }
    table = tabulated(lambda seed: rows[seed], seed=point.seed)
    shape = len(point.seed), len(spectrum), len(point.candidate)
    unexplained = np.full(shape, np.nan)
    if point.setting == IDENTIFIED and not merged:
        candidates = rivals(law, reference_length or law["length"])
        if least_squares:
            networks = [candidates[f"least squares {m}"] for m in range(1, len(spectrum) + 1)] * len(point.seed)
        unexplained = identified(networks, candidates, task, of_judgement, point.judged).reshape(shape)
    unexplained = np.concatenate([np.full_like(unexplained[:, :1], np.nan), unexplained], axis=1)
    return table | {"unexplained": (("seed", "plateau", "candidate"), unexplained[:, list(point.plateau)])}


def rivals(law, length):
    """One step of regression on the first m components, least squares on them, for every m."""
    turn = eigenvectors(len(law["covariance"]))
    weights = saddles.component_weights(**law | {"length": length})
    candidates = {}
    for m in range(1, len(weights) + 1):
        matrix = jnp.asarray((turn[:, :m] * weights[:m]) @ turn[:, :m].T, jnp.float32)
        step = algorithms.PreconditionedDescent(matrix, layers=1, dim=len(weights), normalised=True, half=True)
        candidates[f"step {m}"] = step
        components = algorithms.PrincipalComponentRegression(jnp.asarray(turn[:, :m], jnp.float32))
        candidates[f"least squares {m}"] = components
    return candidates


def identified(networks, candidates, task, key, prompts):
    """Fraction of the variance of every network that each candidate leaves unexplained, [network, candidate]."""
    forms = {(jax.tree.structure(n), *(leaf.shape for leaf in jax.tree.leaves(n))) for n in networks}
    if len(forms) > 1:  # candidates of other shapes are no ensemble
        return np.concatenate([identified([network], candidates, task, key, prompts) for network in networks])
    members = Ensemble(jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks), {"seed": np.arange(len(networks))})
    split = diagnostics.PromptSplit(prompts, fitting=128)
    result = diagnostics.identify(members, candidates, task, key=key, prompts=split, progress=False)
    return result["fraction_unexplained"].transpose("member", "candidate").values
