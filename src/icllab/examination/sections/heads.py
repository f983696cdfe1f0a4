"""Which heads carry it: the loss that each ablation costs, scores, and what the heads that are not named add together.

A head is named if its ablation raises the loss by a tenth of the benefit of the context, with an error that allows for
all heads. At last the outputs of all heads that are not named are replaced by those on other prompts, together: the
change of the loss says how much the named heads leave unexplained.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

from icllab.core.errors import IclError
from icllab.core.protocols import position_losses
from icllab.diagnostics import head_effects, head_scores, probe_layers
from icllab.diagnostics.behaviour.answers import Question, answers_to, sample_prompts
from icllab.examination.measuring import Paired, bayes, eighth, latest
from icllab.examination.section import UNDECIDED, Finding, Section, Size, tail
from icllab.examination.subject import Subject
from icllab.models import FromTorch, ablated
from icllab.models.interventions.edits import unedited
from icllab.models.interventions.heads import head_outputs, heads_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 0.1
MOST = 64
"""Heads that are ablated one by one; of a model with more, those with the largest effects to first order."""


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """Effects of ablations, scores of heads, and the effect of all heads that are not named, together."""
    network: Any = subject.network
    of_prompts, of_other = (jax.random.fold_in(key, i) for i in range(2))
    prompts = sample_prompts(subject.task, key=of_prompts, prompts=size.heads)
    plain = _loss(subject, network, prompts)
    counts = head_counts(network, subject.task)
    pairs = [(block, head) for block, count in enumerate(counts) for head in range(count)]
    names = [f"block{block}.{head}" for block, head in pairs]
    costs = np.full((len(names), size.heads), np.nan)
    for i in _most_effective(subject, of_prompts, len(names)):
        mask = jnp.zeros((len(counts), max(counts))).at[pairs[i]].set(1.0)
        costs[i] = _loss(subject, ablated(network, heads=mask), prompts) - plain
    mean, error = costs.mean(1), costs.std(1, ddof=1) / np.sqrt(size.heads)
    alone = _loss_without_context(subject, prompts, plain)
    gain = Paired.of(alone - plain)
    least = LEAST * gain.mean
    p_values = np.array([tail(m - least, e) for m, e in zip(mean, error, strict=True)])
    named = (p_values * len(names) <= 0.05) & (gain.mean > 3 * gain.error)
    everything = jnp.zeros((len(counts), max(counts))).at[tuple(np.transpose(pairs))].set(1.0)
    rest = everything.at[tuple(np.transpose(pairs))].set(jnp.asarray(~named, float))
    other = sample_prompts(subject.task, key=of_other, prompts=size.heads)
    positions = jax.eval_shape(lambda k: subject.task.sample(key=k), key).positions
    late = slice(-eighth(positions) if subject.kind == "tokens" else -1, None)
    change, whole = (replaced(network, subject.task, w, prompts, other, late) - plain for w in (rest, everything))
    variables = {
        "ablation_effect": ("attention_head", mean),
        "ablation_effect_error": ("attention_head", error),
        "p_value": ("attention_head", p_values),
        "named": ("attention_head", named.astype(int)),
        "least": least,
        "gain": gain.mean,
        "gain_error": gain.error,
    }
    for name, samples in {"rest": change, "all_heads": whole, "loss": plain}.items():
        variables |= {name: samples.mean(), f"{name}_error": samples.std(ddof=1) / np.sqrt(len(samples))}
    dataset = xr.Dataset(variables, {"attention_head": names}, {"kind": subject.kind, "warnings": []})
    return dataset.assign(_scores(subject, of_prompts)).assign(_probes(subject, size, jax.random.fold_in(key, 2)))


def head_counts(network: Any, task: Any) -> list[int]:
    """Number of heads of each block, from a trace that is not computed."""
    key = jax.random.key(0)
    trace = eqx.filter_eval_shape(lambda m, k: m.trace(task.sample(key=k)).activations, network, key)
    return heads_in(trace)


def _most_effective(subject: Subject, key: PRNGKeyArray, count: int) -> list[int]:
    """Indices of the heads to ablate: all, or of many those with the largest effects to first order."""
    if count <= MOST:
        return list(range(count))
    effects = head_effects(subject.network, subject.task, key=key, prompts=8)["first_order_effect"].values
    return np.argsort(-np.abs(np.nan_to_num(effects)))[:MOST].tolist()


class Losses(Question):
    """Losses at every answered position, of a network that runs by its trace within a program of JAX."""

    traces = True

    def __call__(self, predictor: Any, task: Any, prompt: Any) -> Array:
        """The task's loss of the prediction."""
        return position_losses(task, predictor.trace(prompt).prediction, prompt)


def _loss(subject: Subject, network: Any, prompts: Any) -> np.ndarray:
    """Losses [prompt] where the network has seen the context."""
    return latest(subject.kind, answers_to(Losses(), network, subject.task, prompts))


def _loss_without_context(subject: Subject, prompts: Any, plain: np.ndarray) -> np.ndarray:
    """Losses [prompt] of zero or of equal logits."""
    if subject.kind == "regression":
        return np.asarray(prompts.y[:, -1]) ** 2
    return np.full(len(plain), np.log(subject.task.class_count))


def _scores(subject: Subject, key: PRNGKeyArray) -> dict[str, Any]:
    """Scores of the heads' patterns; none if the network shows no patterns."""
    try:
        scores = head_scores(subject.network, subject.task, key=key, prompts=64)
    except IclError:
        return {}
    return {str(name): scores[name] for name in scores.data_vars}


def _probes(subject: Subject, size: Size, key: PRNGKeyArray) -> dict[str, Any]:
    """R² [layer] of linear probes for ridge's answer in the query's stream, 0 the embedding; none without a stream."""
    try:
        ridge = bayes(subject)["ridge"]
        counts = {"prompts": size.prompts, "fitting": 4 * size.prompts}
        found = probe_layers(subject.network, [ridge], subject.task, key=key, **counts)
    except (IclError, KeyError):
        return {}
    of_query = found.sel(slot="query").isel(algorithm_step=1)
    return {
        name: ("layer", of_query[part].values)
        for name, part in {"probe": "r_squared", "probe_error": "r_squared_error"}.items()
    }


def replaced(network: Any, task: Any, weights: Array, prompts: Any, others: Any, late: slice) -> np.ndarray:
    """Losses [prompt] at ``late`` positions, with the outputs of weighted heads replaced by those on other prompts."""

    def one(network: Any, weights: Array, prompt: Any, other: Any) -> Array:
        model = ablated(network, heads=weights, outputs=head_outputs(network, other))
        return jnp.nanmean(position_losses(task, model(prompt), prompt)[late])

    # A PyTorch module answers all prompts of a block in one call.
    block = 64 if isinstance(unedited(network), FromTorch) else 8

    @eqx.filter_jit
    def whole(network: Any, *arguments: Any) -> Array:
        return jax.lax.map(lambda pair: one(network, arguments[0], *pair), arguments[1:], batch_size=block)

    return np.asarray(whole(network, weights, prompts, others), float)


def judge(dataset: xr.Dataset) -> Finding:
    """ "carried by ..." if heads are named, "no head alone" if none is and all together matter, or undecided."""
    names = [str(name) for name in dataset["attention_head"].values]
    effects, errors = dataset["ablation_effect"].values, dataset["ablation_effect_error"].values
    order = np.argsort(-np.nan_to_num(effects, nan=-np.inf))
    named = [names[i] for i in order if dataset["named"].values[i]]
    top = int(order[0])
    least = float(dataset["least"])
    rest, rest_error = float(dataset["rest"]), float(dataset["rest_error"])
    together, together_error = float(dataset["all_heads"]), float(dataset["all_heads_error"])
    bounded = tail(least - float(effects[top]), float(errors[top]))
    if named:
        verdict, p_value = "carried by heads", float(min(1.0, len(names) * dataset["p_value"].values[top]))
    elif not float(dataset["gain"]) > 3 * float(dataset["gain_error"]):
        verdict, p_value = "nothing to carry", None
    elif bounded * len(names) <= 0.05:
        verdict, p_value = "no head alone", bounded * len(names)
    else:
        verdict, p_value = UNDECIDED, min(1.0, bounded * len(names))
    listed = ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")
    start = f"Ablation of {names[top]} costs most, {float(effects[top]):.3g} ± {float(errors[top]):.1g}"
    middle = f"; named are {listed}" if named else "; no head is named"
    sentence = (
        f"{start}{middle}; with the outputs of all others replaced the loss changes by {rest:.3g} ± {rest_error:.1g}"
        f"{_read(dataset)}."
    )
    null = f"with the outputs of all heads replaced it changes by {together:.3g} ± {together_error:.1g}"
    what = f"rise of the loss without {names[top]}"
    smallest = f"a rise of {2.8 * float(errors[top]):.2g}"
    change = f"a head whose ablation costs {least:.2g}, a tenth of the benefit of the context"
    return Finding(verdict, sentence, float(effects[top]), float(errors[top]), what, null, smallest, change, p_value)


def _read(dataset: xr.Dataset) -> str:
    """The layers from which a linear probe reads ridge's answer, in words."""
    if "probe" not in dataset:
        return ""
    values = dataset["probe"].values
    numbers = ", ".join(f"{value:.2f}" for value in values)
    return f"; a linear probe reads ridge's answer from the embedding and each layer with R² {numbers}"


def figure(dataset: xr.Dataset) -> "Figure":
    """Effects of the ablation of each head."""
    from icllab.examination.drawing import bars

    return bars(dataset, "ablation_effect", "attention_head", line=float(dataset["least"]))


def lacks(subject: Subject) -> str:
    """Heads whose outputs can be replaced."""
    network: Any = subject.network
    if not hasattr(network, "trace"):
        return "the network shows no activations"
    try:
        head_counts(network, subject.task)
    except IclError as error:
        return f"no heads are known ({' '.join(str(error).split())})"
    return ""


SECTION = Section(
    name="heads",
    question="Which heads carry it?",
    measure=measure,
    judge=judge,
    lacks=lacks,
    code="diagnostics.head_effects(network, task, heads=[(0, 0)], key=key)",
    figure=figure,
    batches=80.0,
    programs=25,
)
