r"""Does a language model repeat random tokens that it has read?

A prompt is a block of uniform tokens and the same block again. The gain is the fall of the loss on the second block
against the same tokens after another first block, in nats a token; its first token cannot be foreseen and is left out.
A model that copies all tokens gains all of :math:`L_{\text{other}}`, and one that ignores what it has read gains none.
"""

from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.spelling import with_error
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.examination.measuring import Paired, losses, table_of
from icllab.examination.section import Finding, Section, Size, decided
from icllab.examination.subject import Subject
from icllab.tasks import RepeatedTokens
from icllab.tasks.token_ids import TokenIds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 0.1
"""A gain below this fraction of the loss without the repetition is none."""
PERIOD = 32


def repeated(subject: Subject) -> TokenIds:
    """Two equal blocks of uniform tokens, of at most 32 tokens each, as long as a window of the text affords."""
    task = subject.task
    period = max(2, min(PERIOD, (task.tokens - len(task.beginning)) // 2))
    return TokenIds(RepeatedTokens(task.vocabulary, period), first=next(iter(task.beginning), None))


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """Losses by position of repeated tokens, and of the same tokens after another first block."""
    task = repeated(subject)
    period = task.task.period
    prompts = sample_prompts(task, key=key, prompts=size.texts)
    last = prompts.tokens.shape[1] - period
    first = jnp.roll(prompts.tokens, 1, axis=0)[:, :last]
    others = eqx.tree_at(lambda p: p.tokens, prompts, prompts.tokens.at[:, :last].set(first))
    rows = {"repeated": losses(subject.network, task, prompts), "not repeated": losses(subject.network, task, others)}
    own, other = (samples[:, 1 - period :].mean(1) for samples in rows.values())
    samples = {"gain": other - own, "other": other, "own": own, "beyond": other - own - LEAST * other}
    samples["influence"] = (other - own - other * np.mean(other - own) / np.mean(other)) / np.mean(other)
    table = table_of(rows).assign(samples=("prompt", own)).assign(Paired.variables(samples))
    return table.assign_attrs(kind=subject.kind, period=period, warnings=[])


def judge(dataset: xr.Dataset) -> Finding:
    """ "repeats", "does not repeat", or undecided; the number is the part of the loss that the repetition saves."""
    other, error = float(dataset["other"]), float(dataset["influence_error"])
    gain, gain_error = float(dataset["gain"]), float(dataset["gain_error"])
    beyond = float(dataset["beyond"])
    verdict, p_value = decided(beyond, float(dataset["beyond_error"]), "repeats", "does not repeat")
    sentence = (
        f"On the second of two equal blocks of {dataset.attrs['period']} random tokens the loss is "
        f"{with_error(float(dataset['own']), float(dataset['own_error']))} nats; after another first block it is "
        f"{other:.3g}, so that the repetition saves {with_error(gain, gain_error)}."
    )
    null = f"after another first block {other:.3g} nats"
    what = "part of the loss that the repetition saves: 0 for no use of it, 1 for perfect copies"
    change = f"a saving {'below' if beyond > 0 else 'above'} {LEAST:.0%} of the loss"
    return Finding(verdict, sentence, gain / other, error, what, null, f"{2.8 * error:.2g}", change, p_value)


def figure(dataset: xr.Dataset) -> "Figure":
    """Loss by position."""
    from icllab.examination.drawing import lines

    tokens = dataset.rename(position="tokens read")
    return lines(tokens, "loss", x="tokens read", hue="predictor", first="repeated")


SECTION = Section(
    name="repeats",
    question="Does the network repeat random tokens that it has read?",
    measure=measure,
    judge=judge,
    lacks=lambda subject: "",
    code="diagnostics.icl_scores(network, tasks.RepeatedTokens(vocabulary, period=32), key=key)",
    figure=figure,
    batches=1.0,
    programs=1,
    kinds=("language model",),
)
