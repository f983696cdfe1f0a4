r"""Few-shot prompts: do examples bring the form of the question, or the relation of labels to items?

With k right examples the log-likelihood of the right answer rises by the benefit

.. math:: B = \ell_k^{\text{right}} - \ell_0 = (\ell_k^{\text{shuffled}} - \ell_0)
    + (\ell_k^{\text{right}} - \ell_k^{\text{shuffled}}),

the part that shuffled labels bring too (*recognition* of words, form and table) and the part that right labels add.
New symbols in place of two answers have no meaning before the prompt: who chooses the right one more often than by
chance has learned it there.

Source: [Min22], [Pan23].
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import IclError
from icllab.core.spelling import with_error
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.examination.measuring import Paired, losses
from icllab.examination.section import Finding, Section, Size, decided
from icllab.examination.subject import Subject
from icllab.tasks import FewShot, pair_tables
from icllab.tasks.few_shot import FewShotPrompt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 0.1
"""A benefit below this fraction of the surprise without examples is none."""
SHOTS, SYMBOLS = (0, 2, 8), "symbols"
_PAIRS = {"right": pair_tables.ANTONYMS, "shuffled": pair_tables.ANTONYMS, SYMBOLS: pair_tables.KINDS}


def tasks_of(subject: Subject) -> dict[tuple[Any, int], FewShot]:
    """The tasks by labels and number of examples."""
    chosen: list[tuple[Any, int]] = (
        [("right", k) for k in SHOTS] + [("shuffled", k) for k in SHOTS[1:]] + [(SYMBOLS, SHOTS[-1])]
    )
    return {
        (labels, k): FewShot.from_pairs(
            _PAIRS[labels], subject.tokenizer, shots=k, labels=labels, balanced=labels == SYMBOLS,
            vocabulary=subject.task.vocabulary,
        )
        for labels, k in chosen
    }  # fmt: skip


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """Log-likelihoods of the answers by labels and examples, and choices between two new symbols."""
    tasks = tasks_of(subject)
    symbols = tasks.pop((SYMBOLS, SHOTS[-1]))
    prompts: dict[Any, FewShotPrompt] = {
        name: sample_prompts(task, key=key, prompts=size.texts) for name, task in tasks.items()
    }
    pair = _right_and_wrong(symbols, jax.random.split(jax.random.fold_in(key, 1), size.texts))
    prompts |= dict(zip(("right symbol", "wrong symbol"), pair, strict=True))
    # Prompts of one length are answered by one program.
    longest = max(prompt.tokens.shape[1] for prompt in prompts.values())
    padded = [_padded(prompt, longest) for prompt in prompts.values()]
    together = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *padded)
    values = -np.nansum(losses(subject.network, symbols, together), axis=1).reshape(len(padded), -1)
    rows = dict(zip(prompts, values, strict=True))
    alone, right, shuffled = rows["right", 0], rows["right", SHOTS[-1]], rows["shuffled", SHOTS[-1]]
    benefit, recognised = right - alone, shuffled - alone
    chosen = (1 + np.sign(rows["right symbol"] - rows["wrong symbol"])) / 2  # a tie counts a half
    learned = right - shuffled
    samples = {
        "benefit": benefit, "recognised": recognised, "learned": learned, "choice": chosen,
        "beyond_none": benefit + LEAST * alone, "beyond_half": learned - benefit / 2,
    }  # fmt: skip
    curves = np.full((2, 2, len(SHOTS)), np.nan)
    for labels, k in tasks:
        curves[:, int(labels == "shuffled"), SHOTS.index(k)] = Paired.of(-rows[labels, k])
    curves[:, 1, 0] = curves[:, 0, 0]  # without examples no label is shuffled
    axes = ("shown", "shots")
    variables: dict[str, Any] = {"surprise": (axes, curves[0]), "surprise_error": (axes, curves[1])}
    coords = {"shown": ["right", "shuffled"], "shots": list(SHOTS)}
    return xr.Dataset(variables | Paired.variables(samples), coords, {"kind": subject.kind, "warnings": []})


def _right_and_wrong(task: FewShot, keys: Any) -> list[FewShotPrompt]:
    """Prompts of two new symbols: with the right one as the answer, and with the other."""

    def one(key: PRNGKeyArray) -> list[FewShotPrompt]:
        examples, shown, query = task.draw(key=key)
        answers, of_query = task.shown_answers(key=jax.random.clone(key)), task.classes[query]
        labels = answers[task.classes[shown]]
        return [task.prompt(examples, labels, query, answers[answer]) for answer in (of_query, 1 - of_query)]

    return jax.vmap(one)(keys)


def _padded(prompts: FewShotPrompt, size: int) -> FewShotPrompt:
    """Pad prompts to ``size`` tokens; the loss ignores the padding."""
    return jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0), (0, size - leaf.shape[1]))), prompts)


def judge(dataset: xr.Dataset) -> Finding:
    """ "recognition", "learning", "no benefit", or undecided; the number is what right labels add."""
    shots = int(dataset["shots"][-1])
    names = ("benefit", "recognised", "choice")
    benefit, recognised, choice = ((float(dataset[name]), float(dataset[f"{name}_error"])) for name in names)
    verdict, p_value = decided(
        float(dataset["beyond_none"]), float(dataset["beyond_none_error"]), "benefit", "no benefit"
    )
    if verdict == "benefit":
        verdict, second = decided(
            float(dataset["beyond_half"]), float(dataset["beyond_half_error"]), "learning", "recognition"
        )
        p_value = max(p_value, second)
    alone = float(dataset["surprise"].sel(shown="right", shots=0))
    sentence = (
        f"{shots} right examples raise the log-likelihood of an opposite by {with_error(*benefit)} nats from "
        f"{-alone:.3g}, shuffled ones by {with_error(*recognised)}; of two new symbols the right one is preferred in "
        f"{choice[0]:.0%} ± {choice[1]:.0%} of the prompts."
    )
    number, error = (float(dataset[f"learned{suffix}"]) for suffix in ("", "_error"))
    what = "nats that right labels add to shuffled ones"
    null = "for symbols 50%; for labels the benefit of shuffled ones"
    change = "a part of right labels on the other side of a half" if verdict != "no benefit" else "a larger benefit"
    return Finding(verdict, sentence, number, error, what, null, f"{2.8 * error:.2g} nats", change, p_value)


def figure(dataset: xr.Dataset) -> "Figure":
    """Surprise at the right answer by number of examples."""
    from icllab.examination.drawing import lines

    return lines(dataset, "surprise", x="shots", hue="shown", first="right")


def lacks(subject: Subject) -> str:
    """The tokenizer, in which the prompts are written."""
    if subject.tokenizer is None:
        return "the network's tokenizer is not known: name the model's folder, or give the network a tokenizer"
    try:
        tasks_of(subject)
    except IclError as error:
        return f"the tokenizer cannot write its prompts ({' '.join(str(error).split())})"
    return ""


SECTION = Section(
    name="few_shot",
    question="Do examples show the form of a question, or are their labels learned?",
    measure=measure,
    judge=judge,
    lacks=lacks,
    code="diagnostics.per_length(network, tasks.FewShot.from_pairs(pairs, tokenizer, shots=8), key=key)",
    figure=figure,
    batches=3.0,
    programs=2,
    kinds=("language model",),
)
