r"""Does the loss on a text fall with context: by position, and against the context of another window.

The last eighth of each window is predicted after its own context, after that of another window that does not show it,
and after its own in random order; the targets and the tokens just before them are the same. The benefit is
:math:`D = E\,(L_{\text{other}} - L_{\text{own}})` in nats, and what words alone tell is the loss of the text's counts.
"""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.spelling import with_error
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.examination.measuring import Paired, losses, table_of
from icllab.examination.section import Finding, Section, Size, decided
from icllab.examination.subject import Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN = 5
LEAST = 0.02
"""A benefit below this fraction of the loss after another window's context is none."""


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """Losses by position, and of the last eighth of the positions after other contexts."""
    of_prompts, of_order = jax.random.split(key)
    windows = sample_prompts(subject.task, key=of_prompts, prompts=size.texts)
    tokens, begin = windows.tokens, len(subject.task.beginning)
    late = max(1, (tokens.shape[1] - 1) // 8)
    context = slice(begin, tokens.shape[1] - late - 1)
    keys = jax.random.split(of_order, size.texts)
    contexts = {
        "other": tokens[_partners(np.asarray(tokens), context)][:, context],
        "shuffled": jax.vmap(jax.random.permutation)(keys, tokens[:, context]),
    }
    own = losses(subject.network, subject.task, windows)
    counts = subject.task.counts(1)[0] + 1.0
    unigram = -np.log(counts / counts.sum())[np.asarray(tokens[:, 1:])]
    ends = {
        "late_loss": own[:, -late:].mean(1),
        "first_loss": own[:, :late].mean(1),
        "unigram": unigram[:, -late:].mean(1),
    }
    for name, other in contexts.items():
        changed = eqx.tree_at(lambda w: w.tokens, windows, tokens.at[:, context].set(other))
        ends[name] = losses(subject.network, subject.task, changed)[:, -late:].mean(1)
    ends["benefit"] = ends["other"] - ends["late_loss"]
    ends["beyond"] = ends["benefit"] - LEAST * ends["other"]
    table = table_of({subject.name: own, "counts of tokens": unigram}).assign(samples=("prompt", ends["late_loss"]))
    return table.assign(Paired.variables(ends)).assign_attrs(
        kind=subject.kind, network=subject.name, late=late, warnings=_warnings(subject, size)
    )


def _partners(tokens: np.ndarray, context: slice) -> np.ndarray:
    """Choose for each window the next one whose context shares no run of five tokens with its last positions."""

    def runs(row: np.ndarray) -> set[bytes]:
        return {row[i : i + RUN].tobytes() for i in range(len(row) - RUN + 1)}

    count = len(tokens)
    shown, predicted = [runs(row[context]) for row in tokens], [runs(row[context.stop :]) for row in tokens]
    order = [[(i + step) % count for step in range(1, count)] for i in range(count)]
    return np.array([next((j for j in o if not shown[j] & predicted[i]), o[0]) for i, o in enumerate(order)])


def _warnings(subject: Subject, size: Size) -> list[str]:
    """A warning if the text is so short that its windows overlap."""
    there, needed = len(subject.task.symbols), size.texts * subject.task.tokens
    if there >= needed:
        return []
    return [f"the text has {there} tokens, fewer than {size.texts} windows: windows overlap, and errors are too small"]


def judge(dataset: xr.Dataset) -> Finding:
    """ "uses its context", "does not use its context", or undecided."""
    names = ("late_loss", "first_loss", "unigram", "other", "shuffled", "benefit")
    numbers = {name: float(dataset[name]) for name in names}
    error, beyond = float(dataset["benefit_error"]), float(dataset["beyond"])
    verdict, p_value = decided(beyond, float(dataset["beyond_error"]), "uses its context", "does not use its context")
    late, positions = dataset.attrs["late"], dataset.sizes["position"]
    sentence = (
        f"In the last {late} of {positions} positions of the text the loss is "
        f"{with_error(numbers['late_loss'], float(dataset['late_loss_error']))} nats, after another window's context "
        f"{numbers['other']:.3g}; in the first {late} it is {numbers['first_loss']:.3g}, by the counts of tokens "
        f"{numbers['unigram']:.3g}."
    )
    null = f"with its own context in random order the loss is {numbers['shuffled']:.3g}"
    change = f"a benefit {'below' if beyond > 0 else 'above'} {LEAST * numbers['other']:.2g} nats"
    what = "benefit of the window's own context over another's, nats"
    return Finding(verdict, sentence, numbers["benefit"], error, what, null, f"{2.8 * error:.2g} nats", change, p_value)


def figure(dataset: xr.Dataset) -> "Figure":
    """Loss by position."""
    from icllab.examination.drawing import lines

    tokens = dataset.rename(position="tokens read")
    return lines(tokens, "loss", x="tokens read", hue="predictor", first=dataset.attrs["network"])


SECTION = Section(
    name="text",
    question="Does the loss on the text fall with context?",
    measure=measure,
    judge=judge,
    lacks=lambda subject: "" if subject.task.sizes is None else "it needs windows of one length, without pad=true",
    code="diagnostics.per_length(network, task, key=key)",
    figure=figure,
    batches=3.0,
    programs=2,
    kinds=("language model",),
)
