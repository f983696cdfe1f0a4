"""Which heads carry the repetition of random tokens: scores of all heads, and the loss without the best of them.

The named heads are the three in a hundred with the largest induction scores, on prompts that nothing else is measured
on. The loss on the second block without them stands beside that without as many other heads of the same blocks, drawn
three times, none of which is among the best previous-token heads. At last the outputs of all heads that are not named
are replaced by those on other prompts, together.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import IclError
from icllab.core.spelling import with_error
from icllab.diagnostics import head_scores
from icllab.diagnostics.behaviour.answers import answers_to, sample_prompts
from icllab.examination.measuring import Paired, losses
from icllab.examination.section import Finding, Section, Size, decided
from icllab.examination.sections.heads import Losses, head_counts, replaced
from icllab.examination.sections.repeats import repeated
from icllab.examination.subject import Subject
from icllab.models import ablated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST, SHARE, DRAWS, CHOICE, MOST = 0.1, 0.03, 3, 4, 16
Pair: TypeAlias = tuple[int, int]
_SCORES = {
    "induction": "induction_score",
    "previous-token": "previous_token_score",
    "duplicate": "duplicate_token_score",
}


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """Scores, and rises of the loss on the second block without named heads, without others, and with both replaced."""
    network: Any = subject.network
    of_choice, of_prompts, of_other, of_draws = jax.random.split(key, 4)
    task = repeated(subject)
    scores = head_scores(network, task, key=of_choice, prompts=CHOICE)
    counts = head_counts(network, task)
    pairs = [(block, head) for block, count in enumerate(counts) for head in range(count)]
    best, previous = (
        np.argsort(-scores[_SCORES[kind]].values)[: max(1, round(SHARE * len(pairs)))]
        for kind in ("induction", "previous-token")
    )
    named, kept = [pairs[i] for i in best], [pairs[i] for i in (*best, *previous)]
    prompts, other = (sample_prompts(task, key=k, prompts=size.texts // 2) for k in (of_prompts, of_other))
    late = slice(1 - task.task.period, None)

    def weights(heads: list[Pair]) -> Any:
        return jnp.zeros((len(counts), max(counts))).at[tuple(np.transpose(heads))].set(1.0)

    def without(heads: list[Pair]) -> np.ndarray:
        return answers_to(Losses(), ablated(network, heads=weights(heads)), task, prompts)[:, late].mean(1) - plain

    plain = losses(network, task, prompts)[:, late].mean(1)
    last = prompts.tokens.shape[1] - task.task.period
    mixed = eqx.tree_at(lambda p: p.tokens, prompts, prompts.tokens.at[:, :last].set(other.tokens[:, :last]))
    gain = losses(network, task, mixed)[:, late].mean(1) - plain
    rng = np.random.default_rng(np.asarray(jax.random.key_data(of_draws)))
    rise, others = without(named), np.stack([without(_others(pairs, named, kept, rng)) for _ in range(DRAWS)])
    rest = weights([pair for pair in pairs if pair not in named])
    samples = {
        "gain": gain, "rise": rise, "rise_of_others": others.mean(0), "difference": rise - others.mean(0),
        "beyond": rise - others.mean(0) - LEAST * gain,
        "rest": replaced(network, task, rest, prompts, other, late) - plain,
        "all_heads": replaced(network, task, weights(pairs), prompts, other, late) - plain,
    }  # fmt: skip
    numbers = Paired.variables(samples)
    for name in ("difference", "beyond"):  # of other heads there are few draws
        numbers[f"{name}_error"] = float(np.hypot(numbers[f"{name}_error"], others.mean(1).std(ddof=1) / DRAWS**0.5))
    flags = np.isin(np.arange(len(pairs)), best).astype(int)
    dataset = scores.assign(numbers).assign(named=("attention_head", flags), order=("choice", best))
    return dataset.assign_attrs(kind=subject.kind)


def _others(pairs: list[Pair], named: list[Pair], kept: list[Pair], rng: Any) -> list[Pair]:
    """For each named head another of its block, or of the nearest block that has one left; none that is kept."""
    drawn: list[Pair] = []
    for block, _ in named:
        left = [pair for pair in pairs if pair not in kept and pair not in drawn]
        nearest = min(abs(pair[0] - block) for pair in left)
        drawn.append(left[rng.choice([i for i, pair in enumerate(left) if abs(pair[0] - block) == nearest])])
    return drawn


def judge(dataset: xr.Dataset) -> Finding:
    """ "carried by induction heads", "not carried by induction heads", "nothing to carry", or undecided."""
    names = [str(name) for name in dataset["attention_head"].values]
    pairs = {
        name: (float(dataset[name]), float(dataset[f"{name}_error"])) for name in ("gain", "rise", "rest", "difference")
    }
    verdict, p_value = decided(
        float(dataset["beyond"]), float(dataset["beyond_error"]),
        "carried by induction heads", "not carried by induction heads",
    )  # fmt: skip
    if not pairs["gain"][0] > 3 * pairs["gain"][1]:
        verdict, p_value = "nothing to carry", None
    order = dataset["order"].values.tolist()
    listed = ", ".join(names[i] for i in order[:3]) + (f" and {len(order) - 3} more" if len(order) > 3 else "")
    tops = []
    for kind, name in _SCORES.items():
        top = int(np.nanargmax(dataset[name].values))
        tops.append(f"{kind} {float(dataset[name][top]):.2f} ({names[top]})")
    sentence = (
        f"Without {listed}, of the largest induction scores, the repeated loss rises by {with_error(*pairs['rise'])} "
        f"nats, without as many others of their blocks by {float(dataset['rise_of_others']):.2g}; the largest scores "
        f"are {', '.join(tops)}; with the outputs of all others replaced the loss changes by "
        f"{with_error(*pairs['rest'])}."
    )
    null = (
        f"without other heads of the same blocks {float(dataset['rise_of_others']):.2g} nats; with the outputs of all "
        f"heads replaced {float(dataset['all_heads']):.3g}; repetition saves {with_error(*pairs['gain'])}"
    )
    number, error = pairs["difference"]
    change = f"a difference {'below' if float(dataset['beyond']) > 0 else 'above'} {LEAST * pairs['gain'][0]:.2g} nats"
    what = "nats by which the named heads matter more than others"
    return Finding(verdict, sentence, number, error, what, null, f"{2.8 * error:.2g} nats", change, p_value)


def figure(dataset: xr.Dataset) -> "Figure":
    """The largest induction scores."""
    from icllab.examination.drawing import bars

    largest = np.argsort(-np.nan_to_num(dataset["induction_score"].values))[:MOST]
    return bars(dataset.isel(attention_head=largest), "induction_score", "attention_head")


def lacks(subject: Subject) -> str:
    """Heads with patterns, whose outputs can be replaced."""
    network: Any = subject.network
    if not hasattr(network, "trace"):
        return "the network shows no activations"
    try:
        counts = head_counts(network, repeated(subject))
    except IclError as error:
        return f"no heads are known ({' '.join(str(error).split())})"
    return (
        "" if sum(counts) > 2 else "it has no heads beside an induction head and a previous-token head to compare with"
    )


SECTION = Section(
    name="induction_heads",
    question="Which heads carry the repetition?",
    measure=measure,
    judge=judge,
    lacks=lacks,
    code="diagnostics.head_scores(network, tasks.RepeatedTokens(vocabulary, period=32), key=key)",
    figure=figure,
    batches=3.0,
    programs=5,
    kinds=("language model",),
)
