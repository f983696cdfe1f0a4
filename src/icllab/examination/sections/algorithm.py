"""Which algorithm: distances of the network to candidates, and a verdict that may be none of them.

Regression is asked by :func:`icllab.diagnostics.identify`. Of item labels and tokens a candidate is a rule that names a
class, and the number is the fraction of prompts in which the network names the same one, among prompts in which the
candidate differs from the others.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from icllab import algorithms
from icllab.algorithms.descent import GradientDescentPlusPlus, NormalisedDescent
from icllab.algorithms.estimators import NearestNeighbours
from icllab.algorithms.functional import KernelRichardson
from icllab.core.kernels import gaussian
from icllab.core.prompt import ItemLabelPrompt, RegressionPrompt, TokenPrompt
from icllab.core.protocols import AbstractPredictor, Predictor
from icllab.diagnostics import Fitted, identify
from icllab.diagnostics.behaviour.answers import sample_prompts
from icllab.diagnostics.identification.comparison import PromptSplit
from icllab.examination.measuring import Mean, bayes, outputs
from icllab.examination.section import UNDECIDED, Finding, Section, Size, tail
from icllab.examination.subject import Subject
from icllab.tasks import FunctionRegression, SignLabels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = (1, 2, 3, 4)
TIE = 0.1
"""Logits that differ by less are equal: one probability is at most a tenth above the other."""
_LOGITS = 2**26
AGREEMENT = 0.9
"""Fraction of prompts in which a rule of classes has to name what the network names."""
NEWEST, OLDEST = "induction, newest", "induction, oldest"
DECISIVE = 0.05
"""Of accepted candidates the one is named that leaves at most this fraction of what each of the others leaves."""
_ONE_FUNCTION = {"ridge, fitted": "ridge", "2 steps of GD++": "2 steps of descent"}  # a family, and a candidate within


class ScalarDescentPlusPlus(AbstractPredictor):
    """GD++ with one rate and one contraction, multiples of the identity, for all steps.

    Source: [vonOswald23].
    """

    rate: Float[Array, ""]
    contraction: Float[Array, ""]
    layers: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    def __call__(self, prompt: RegressionPrompt) -> Float[Array, " position"]:
        """The answer at every position."""
        options = {"layers": self.layers, "dim": self.dim, "normalised": True, "half": True}
        return GradientDescentPlusPlus.scalar(self.rate, self.contraction, **options)(prompt)


def candidates(subject: Subject) -> dict[str, Predictor | Fitted]:
    """Candidates of a regression: the Bayes predictors, families with fitted numbers, a neighbour and the mean."""
    prompt = jax.eval_shape(lambda k: subject.task.sample(key=k), jax.random.key(0))
    unit = float(_input_square(subject)) / prompt.dim
    rate = jnp.asarray(0.6 / unit)
    families: dict[str, Predictor | Fitted] = {"ridge, fitted": Fitted(algorithms.Ridge(unit), ["ridge"])}
    options = {"dim": prompt.dim, "normalised": True, "half": True}
    for steps in STEPS:
        family = algorithms.GradientDescent(rate, layers=steps, **options)
        families[f"{steps} steps of descent" if steps > 1 else "1 step of descent"] = Fitted(family, ["rate"])
    for steps in STEPS if isinstance(subject.task, SignLabels) else ():
        family = NormalisedDescent(rate / prompt.dim, layers=steps, dim=prompt.dim)
        families[f"{steps} steps on the exponential loss"] = Fitted(family, ["rate"])
    if isinstance(subject.task, FunctionRegression) and subject.task.kernel is gaussian:
        law: dict[str, Any] = {"kernel": gaussian, "temperature": subject.task.temperature}
        for steps in STEPS:
            families[f"{steps} steps of Richardson"] = Fitted(KernelRichardson(1.0, layers=steps, **law), ["ridge"])
    plus = ScalarDescentPlusPlus(rate, jnp.asarray(0.1), 2, prompt.dim)
    families["2 steps of GD++"] = Fitted(plus, ["rate", "contraction"])
    return {**bayes(subject), **families, "nearest": NearestNeighbours(1), "mean": Mean()}


def _input_square(subject: Subject) -> float:
    """Mean square of an input vector, from 64 prompts."""
    prompts = sample_prompts(subject.task, key=jax.random.key(0), prompts=64)
    return float(jnp.mean(jnp.sum(prompts.x**2, axis=-1)))


def measure(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """The Dataset of ``identify``, or agreements with rules of classes."""
    if subject.kind != "regression":
        return _agreements(subject, size, key)
    split = PromptSplit(size.prompts, size.fitting)
    dataset = identify(subject.network, candidates(subject), subject.task, key=key, prompts=split)
    if not np.isfinite(dataset["fraction_unexplained"]).any():
        dataset["of_mean"] = _of_mean(subject, size, key)
    kept = {name: value for name, value in dataset.attrs.items() if name in ("tolerance", "summary", "warnings")}
    return xr.Dataset(dict(dataset.data_vars), dict(dataset.coords), kept | {"kind": subject.kind})


def _of_mean(subject: Subject, size: Size, key: PRNGKeyArray) -> float:
    """Share of the answers' mean square that the mean label leaves at the last position; NaN if all answers are 0."""
    prompts = sample_prompts(subject.task, key=key, prompts=size.prompts)
    own, mean = (outputs(network, subject.task, prompts)[:, -1] for network in (subject.network, Mean()))
    return float(((own - mean) ** 2).mean() / (own**2).mean()) if own.any() else float("nan")


def _rules(prompts: Any) -> dict[str, np.ndarray]:
    """Classes [prompt, position] that each rule names; -1 where it names none."""
    if isinstance(prompts, ItemLabelPrompt):
        items, labels = np.asarray(prompts.items), np.asarray(prompts.labels)
        context, query = items[:, :-1], items[:, -1:]
        cosines = (context * query).sum(-1) / np.linalg.norm(context, axis=-1) / np.linalg.norm(query, axis=-1)
        nearest = np.take_along_axis(labels[:, :-1], cosines.argmax(1)[:, None], 1)
        counts = (labels[:, :-1, None] == labels[:, None, :-1]).sum(-1)
        common = np.take_along_axis(labels[:, :-1], counts.argmax(1)[:, None], 1)
        return {"nearest item": nearest, "commonest label": common, "last label": labels[:, -2:-1]}
    tokens = np.asarray(prompts.tokens)
    shown, positions = tokens[:, :-1], tokens.shape[1] - 1
    newest, oldest, often, same = (np.full((len(tokens), positions), -1) for _ in range(4))
    for i in range(1, positions):
        earlier = shown[:, :i] == shown[:, i : i + 1]
        found = earlier.any(1)
        last, first = i - 1 - earlier[:, ::-1].argmax(1), earlier.argmax(1)
        rows = np.arange(len(tokens))
        newest[:, i] = np.where(found, tokens[rows, last + 1], -1)
        oldest[:, i] = np.where(found, tokens[rows, first + 1], -1)
        counts = (shown[:, : i + 1, None] == shown[:, None, : i + 1]).sum(-1)
        often[:, i] = shown[rows, counts.argmax(1)]
    same[:] = shown
    return {NEWEST: newest, OLDEST: oldest, "commonest token": often, "same token": same}


def _agreements(subject: Subject, size: Size, key: PRNGKeyArray) -> xr.Dataset:
    """Fractions of prompts in which the network names the class of a rule, and those in which rules differ."""
    prompts = sample_prompts(subject.task, key=key, prompts=size.prompts)
    prompt = jax.tree.map(lambda leaf: leaf[0], prompts)
    most = max(16, _LOGITS // (prompt.positions * subject.task.class_count))
    prompts = jax.tree.map(lambda leaf: leaf[:most], prompts)
    logits = outputs(subject.network, subject.task, prompts)
    named = logits.argmax(-1)
    rules = {name: classes[:, -named.shape[1] :] for name, classes in _rules(prompts).items()}
    rules = {name: np.where(classes < logits.shape[-1], classes, -1) for name, classes in rules.items()}
    levels = {
        name: np.take_along_axis(logits, np.maximum(classes, 0)[..., None], -1)[..., 0]
        for name, classes in rules.items()
    }
    names = list(rules)
    rates, errors = np.full((2, len(names), len(names)), np.nan)
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            apart = (rules[one] >= 0) & ((rules[one] != rules[other]) | (i == j))
            hits = named == rules[one]
            if i != j:  # two classes of nearly equal logits are named alike
                hits &= levels[one] - levels[other] > TIE
            rates[i, j], errors[i, j] = _rate(hits, apart)
    axes = ("candidate", "other_candidate")
    first = rules[names[0]]
    variables: dict[str, Any] = {"agreement": (axes, rates), "agreement_error": (axes, errors)}
    variables["of_other_prompts"] = _rate(named == first[::-1], first >= 0)[0]
    if isinstance(prompts, TokenPrompt):
        followers = _names_a_follower(np.asarray(prompts.tokens), named)
        variables["followers"], variables["followers_error"] = _rate(followers, rules[NEWEST] >= 0)
    return xr.Dataset(variables, {"candidate": names, "other_candidate": names}, {"kind": subject.kind, "warnings": []})


def _names_a_follower(tokens: np.ndarray, named: np.ndarray) -> np.ndarray:
    """Mask of named tokens [prompt, position] that have followed an earlier place of the present token."""
    positions = named.shape[1]
    hits = np.zeros(named.shape, bool)
    for i in range(1, positions):
        earlier = tokens[:, :i] == tokens[:, i : i + 1]
        hits[:, i] = (earlier & (tokens[:, 1 : i + 1] == named[:, i : i + 1])).any(1)
    return hits


def _rate(hits: np.ndarray, where: np.ndarray) -> tuple[float, float]:
    """Fraction of hits among marked entries, and its standard error, prompts being independent."""
    weights = where.sum(1)
    if weights.sum() < 10:
        return np.nan, np.nan
    share = (hits & where).sum() / weights.sum()
    residual = ((hits & where).sum(1) - share * weights) / weights.mean()
    return float(share), max(float(residual.std(ddof=1) / np.sqrt(len(weights))), 0.5 / float(weights.sum()))


def judge(dataset: xr.Dataset) -> Finding:
    """The verdict of ``identify``; of classes the rule that agrees in nine prompts of ten, or none of these."""
    return _of_regression(dataset) if dataset.attrs["kind"] == "regression" else _of_classes(dataset)


def _of_regression(dataset: xr.Dataset) -> Finding:
    fractions = dataset["fraction_unexplained"]
    names, values = [str(name) for name in dataset["candidate"].values], fractions.values
    among = [name for name, is_among in zip(names, dataset["among"].values, strict=True) if is_among]
    tolerance = float(dataset.attrs["tolerance"])
    verdict = str(dataset["verdict"].item())
    if "of_mean" in dataset:
        return _of_baselines(dataset, tolerance)
    order = np.argsort(values)
    best, second = names[order[0]], names[order[1]]
    intervals = dataset["fraction_unexplained_interval"].values
    if verdict == "indistinguishable":
        functions = {_ONE_FUNCTION.get(name, name) for name in among}
        others = [i for i, name in enumerate(names) if name in among and i != order[0]]
        if len(functions) == 1:
            verdict = functions.pop()
        elif intervals[order[0], 1] <= DECISIVE * intervals[others, 0].min():
            verdict = best
    error = float(np.diff(intervals[order[0]]).item()) / 3.92
    least = float(values[order[0]])
    nearest = f"{best} leaves {least:.2%} of the variance and {second} {float(values[order[1]]):.2%}"
    start = {
        "none of these": f"None of the {len(names)} candidates",
        "indistinguishable": "Not told apart: " + " and ".join(among),
        "undecided": "Undecided",
    }.get(verdict, f"The network implements {verdict}")
    sentence = f"{start}: {nearest}; accepted is at most {tolerance:.0%}."
    change = f"a candidate that leaves at most {tolerance:.0%}" if verdict == "none of these" else "more prompts"
    null = f"the baselines explain {float(dataset['baseline_explained']):.2%} of the answers' mean square"
    p_value = tail(abs(least - tolerance), error)
    smallest = f"{2.8 * error:.2%} of the variance"
    what = f"fraction of variance that {best} leaves unexplained"
    return Finding(verdict, sentence, least, error, what, null, smallest, change, p_value)


def _of_baselines(dataset: xr.Dataset, tolerance: float) -> Finding:
    """The verdict on answers that the baselines explain exactly: zero, the mean label, or another baseline."""
    left = float(dataset["of_mean"])
    verdict = "zero" if np.isnan(left) else "mean" if left <= tolerance else "a baseline"
    sentence = "The answers are a constant, a multiple of the query and of the mean label, and combine no examples"
    if verdict != "a baseline":
        sentence += f": they are {'0' if verdict == 'zero' else 'the mean label'}"
    what = "fraction of the answers' mean square that the mean label leaves"
    null = "the baselines explain all of the answers' mean square"
    change = "answers that combine examples and query"
    return Finding(verdict, f"{sentence}.", left, 0.0, what, null, f"{tolerance:.0%} of the mean square", change, 0.0)


def _of_classes(dataset: xr.Dataset) -> Finding:
    names = [str(name) for name in dataset["candidate"].values]
    rates, errors = dataset["agreement"].values, dataset["agreement_error"].values
    own = np.diagonal(rates)
    best = int(np.nanargmax(np.where(np.isnan(own), -1, own)))
    rate, error = float(own[best]), float(errors[best, best])
    # A rule has to be named where it differs from each other rule too, if there are such prompts.
    apart = np.delete(rates[best], best)
    lowest = float(np.nanmin([rate, *apart[~np.isnan(apart)]]))
    lowest_error = float(np.nanmax([error, *np.delete(errors[best], best)]))
    verdict, numbers = names[best], (lowest, lowest_error)
    if (
        "followers" in dataset
        and not tail(AGREEMENT - float(dataset["followers"]), float(dataset["followers_error"])) <= 0.05
    ):
        ambiguous = np.isnan(rates[names.index(NEWEST), names.index(OLDEST)])
        if ambiguous or tail(AGREEMENT - lowest, lowest_error) <= 0.05:  # any earlier place, or none is to be preferred
            verdict, numbers = "induction", (float(dataset["followers"]), float(dataset["followers_error"]))
    lowest, lowest_error = numbers
    accepted, rejected = tail(lowest - AGREEMENT, lowest_error), tail(AGREEMENT - lowest, lowest_error)
    p_value = min(accepted, rejected)
    if p_value > 0.05:
        verdict = UNDECIDED
    elif rejected <= 0.05:
        verdict = "none of these"
    beside = ", ".join(f"{name} {value:.2f}" for name, value in zip(names, own, strict=True) if name != names[best])
    sentence = f"The network names what {names[best]} names in {rate:.3f} ± {error:.1g} of the cases; {beside}."
    null = f"with the rule of other prompts {float(dataset['of_other_prompts']):.2f}"
    what = f"agreement with {names[best]}; where it differs from another rule at least {lowest:.2f}"
    change = f"an agreement {'below' if accepted <= 0.05 else 'above'} {AGREEMENT}"
    return Finding(verdict, sentence, lowest, lowest_error, what, null, f"{2.8 * lowest_error:.2g}", change, p_value)


def figure(dataset: xr.Dataset) -> "Figure":
    """Fractions unexplained, or agreements, of all candidates."""
    from icllab.examination.drawing import bars

    if dataset.attrs["kind"] == "regression":
        return bars(dataset, "fraction_unexplained", "candidate", line=float(dataset.attrs["tolerance"]))
    own = xr.Dataset(
        {name: ("candidate", np.diagonal(dataset[name].values)) for name in ("agreement", "agreement_error")},
        {"candidate": dataset["candidate"].values},
    )
    return bars(own, "agreement", "candidate", line=AGREEMENT)


SECTION = Section(
    name="algorithm",
    question="Which algorithm does the network implement?",
    measure=measure,
    judge=judge,
    lacks=lambda subject: "",
    code="diagnostics.identify(network, examination.sections.algorithm.candidates(subject), task, key=key)",
    figure=figure,
    batches=12.0,
    programs=45,
)
