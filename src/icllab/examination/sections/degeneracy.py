"""Degeneracy: the local learning coefficient of the network's weights, with the warnings of its estimate."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.diagnostics import SGLD, LocalPosterior, coefficient_at_temperature
from icllab.examination.section import UNDECIDED, Finding, Section, Size, tail
from icllab.examination.subject import Subject
from icllab.models.torch_derivatives import with_autograd

CHAINS, BATCH = 4, 64


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """The coefficient at the temperature of the sample, by chains of SGLD."""
    of_prompts, of_chains = jax.random.split(key)
    posterior = LocalPosterior.from_network(subject.network, subject.task, key=of_prompts, data=size.prompts)
    sampler = SGLD(chains=CHAINS, warm_up=size.moves, draws=size.moves, batch=BATCH)
    estimate = coefficient_at_temperature(posterior, sampler=sampler, key=of_chains, checks=())
    names = [name for name in ("estimate", "mcse", "rhat", "ess") if name in estimate]
    attributes = {"kind": subject.kind, "warnings": list(estimate.attrs.get("warnings", ()))}
    return estimate[names].assign(parameters=parameters(subject.network)).assign_attrs(attributes)


def parameters(network: Any) -> int:
    """Number of floating-point weights."""
    arrays = eqx.filter(with_autograd(network), eqx.is_inexact_array)
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(arrays))


def judge(dataset: xr.Dataset) -> Finding:
    """Degenerate if the coefficient is below half the number of parameters, or regular, or no estimate."""
    estimate, error = float(dataset["estimate"]), float(dataset["mcse"])
    half = float(dataset["parameters"]) / 2
    warned = dataset.attrs["warnings"]
    warned = [warned] if isinstance(warned, str) else list(warned)
    below, at = tail(0.9 * half - estimate, error), tail(estimate - 0.9 * half, error)
    verdict, p_value = UNDECIDED, max(min(below, at), 0.0)
    if not np.isfinite(estimate) or estimate < 0:
        verdict, p_value = "no estimate", None
    elif below <= 0.05:
        verdict, p_value = "degenerate", below
    elif at <= 0.05:
        verdict, p_value = "regular", at
    extra = f"; {len(warned)} warning{'s' * (len(warned) > 1)}, first: {warned[0]}" if warned else ""
    sentence = (
        f"The learning coefficient is {estimate:.4g} ± {error:.2g} with {int(dataset['parameters'])} weights; a "
        f"regular model has half as much, {half:.4g}{extra}."
    )
    null = f"a regular model of as many weights: {half:.4g}"
    change = "a smaller error, or an estimate beyond 0.9 of the regular value"
    what = "local learning coefficient at the temperature of the sample"
    return Finding(verdict, sentence, estimate, error, what, null, f"{2.8 * error:.2g}", change, p_value)


def lacks(subject: Subject) -> str:
    """Weights that move, and a loss that can be differentiated."""
    if parameters(subject.network) == 0:
        return "the network shows no weights to JAX"
    network = with_autograd(subject.network)
    if not (getattr(network, "traceable", True) and getattr(network, "differentiable", True)):
        return "the network cannot be differentiated"
    return ""


SECTION = Section(
    name="degeneracy",
    question="How degenerate is the minimum?",
    measure=measure,
    judge=judge,
    lacks=lacks,
    code="diagnostics.learning_coefficient(diagnostics.LocalPosterior.from_network(network, task, key=key), key=key)",
    batches=0.0,
    programs=25,
    gradients=lambda size: 2 * CHAINS * 2 * size.moves,  # at the whole step and at half of it
)
