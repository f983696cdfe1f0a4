r"""What a small transformer of tokens learns first: short contexts, on text and on a chain whose entropies are known.

A window of C tokens asks for C - 1 tokens, after contexts of l = 1, ..., C - 1 tokens, and the loss is the sum of the
losses :math:`L^{(l)}`. Two sources: the standard library of the running Python, byte by byte, and Markov chains of
order three, one for every seed, whose least losses :math:`h_{\min(l, 3)}` are known. All is measured on held-out
windows, in octaves of the context length: l = 1, 2, 3-4, 5-8, ...

- *Order of lengths*. The time of an octave is the first step at which its loss has made 95 per cent of its fall, from
  the start to the end of training. A share of the fall, since longer contexts have further to go. The rank correlation
  of these times with the length is taken for every seed. Of the chain nothing is to be gained beyond three tokens.
- *Order of n-grams*. The divergence of the network from the n-gram predictors, which use n - 1 tokens, is least at some
  step of the training: when the network is most like unigrams, bigrams, trigrams. (That a falling loss passes their
  losses in order is no finding.)
- *Divergences*. Of the chain the divergence :math:`K^{(l)}` from the truth is known without its entropies, as a mean of
  divergences of distributions, and :math:`L^{(l)} - K^{(l)}` must be the entropy.

At ``smoke`` networks are not trained: there only the entropies are compared.
"""

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from scipy.stats import rankdata

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.core.statistics import mean_and_error
from icllab.experiments import checks, estimates
from icllab.experiments.checks import Finding
from icllab.experiments.estimates import Estimate
from icllab.experiments.experiment import Control, Experiment
from icllab.figures import style

TEXT, CHAIN = "text", "Markov"
ORDER = 3  # of the chain
FALLEN = 0.95
LONG = 2000  # steps by which there is something to see
NEAR = 0.7  # logarithm of a factor two between times
FALLS = ((0, 1), (1, 3))  # octaves whose losses are compared: 1 token and 2, 2 and 5 to 8
NAMES = ("unigrams", "bigrams", "trigrams", "4-grams")


def check(dataset: xr.Dataset) -> list[Finding]:
    """Entropies of the chain from what is measured; which lengths and which n-grams are learned first."""
    findings = _entropies(dataset.sel(source=CHAIN, drop=True)) if CHAIN in dataset.source else []
    trained = int(dataset.step[-1]) >= LONG
    if trained and TEXT in dataset.source:
        findings += _of_text(dataset.sel(source=TEXT, drop=True))
    if trained and CHAIN in dataset.source:
        findings += _of_chain(dataset.sel(source=CHAIN, drop=True))
    seen = trained and {TEXT, CHAIN} <= set(dataset.source.values.tolist())
    return [*findings, *checks.complete("trained", "both sources, trained for long", seen)]


def _entropies(part: xr.Dataset) -> list[Finding]:
    """The loss less the divergence, at the end, at one token, two, and more."""
    last, findings = part.isel(step=-1, drop=True), []
    for tokens, places in (("1", [0]), ("2", [1]), ("3 or more", slice(2, None))):
        some = last.isel(position=places)
        # Positions of a window go together, seeds do not.
        errors = some["standard_error"].mean("position")
        apart = Estimate((some["loss"] - some["divergence"] - some["entropy"]).mean("position"), errors).average("seed")
        least, what = float(some["entropy"].mean()), "chain: loss - divergence"
        where = {"tokens": tokens}
        findings += checks.covers("entropy", what, apart + least, least, largest_error=0.03, at=where)
    return findings


def _of_text(part: xr.Dataset) -> list[Finding]:
    loss = octaves(part["loss"])
    time, last = learning_times(loss), loss.isel(step=-1, drop=True)
    ends = part["loss"].isel(step=-1, position=slice(2, None)).mean("position")
    trigrams = part["ngram_loss"].sel(ngram=3, drop=True).isel(position=slice(2, None)).mean("position")
    order, at = estimates.mean(rank_correlation(time)), {"source": TEXT}
    longest = "time of the longest contexts / that of 2 tokens"
    few, more = (estimates.mean(last.isel(length=i, drop=True) - last.isel(length=j, drop=True)) for i, j in FALLS)
    below_trigrams = estimates.mean(trigrams - ends.drop_vars("step"))
    return [
        *checks.above("order", "rank correlation of the time of learning with the length", order, at=at),
        *checks.above("two_later", "time of 2 tokens / that of 1", _ratio(time, 1, 0), 1.0, at=at),
        *checks.above("longest_later", longest, _ratio(time, -1, 1), 1.0, at=at),
        *checks.above("two_help", "loss at 1 token - that at 2", few, at=at),
        *checks.above("more_help", "loss at 2 tokens - that at 5 to 8", more, at=at),
        *checks.above("below_trigrams", "loss of trigrams - that of the network", below_trigrams, at=at),
        *_likeness(part, TEXT, 3),
    ]


def _of_chain(part: xr.Dataset) -> list[Finding]:
    time, at = learning_times(octaves(part["loss"])), {"source": CHAIN}
    beyond, what = _ratio(time, -1, 2), "log(time of the longest contexts / that of 3 to 4 tokens)"
    size = Estimate(np.abs(beyond.value), beyond.error)
    return [
        *checks.above("two_later", "time of 2 tokens / that of 1", _ratio(time, 1, 0), 1.0, at=at),
        *checks.above("three_later", "time of 3 to 4 tokens / that of 2", _ratio(time, 2, 1), 1.0, at=at),
        *checks.below("no_later", f"size of {what}", size, NEAR, at=at),
        *_likeness(part, CHAIN, ORDER + 1),
    ]


def _likeness(part: xr.Dataset, source: str, most: int) -> list[Finding]:
    """When the network is most like each n-gram predictor, one after the other."""
    time, findings = nearest_times(part["ngram_distance"].sel(ngram=slice(1, most))), []
    for n in range(1, most):
        what = f"step most like {NAMES[n]} / that most like {NAMES[n - 1]}"
        findings += checks.above("likeness", what, _ratio(time, n, n - 1), 1.0, at={"source": source, "n": n + 1})
    return findings


def _ratio(time: xr.DataArray, one: int, other: int) -> Estimate:
    """The geometric mean over seeds of the time at one place over that at another, along what is not the seed."""
    (dim,) = (d for d in time.dims if d != "seed")
    return estimates.geometric_mean(time.isel({dim: one}, drop=True) / time.isel({dim: other}, drop=True))


def octaves(values: xr.DataArray) -> xr.DataArray:
    """Means over context lengths l = 1, 2, 3-4, 5-8, ...; their dimension has the last length of each."""
    length = values["position"].values + 1
    last = 2 ** np.ceil(np.log2(length)).astype(int)
    return values.assign_coords(position=last).groupby("position").mean().rename(position="length")


def learning_times(loss: xr.DataArray) -> xr.DataArray:
    """The first step at which a loss has made its fall, by a straight line in the logarithm of the step."""
    fall = loss.isel(step=0) - loss.isel(step=-1)
    left = ((loss - loss.isel(step=-1)) / fall.where(fall > 0)).transpose(..., "step").values - (1 - FALLEN)
    log = np.log(np.maximum(loss["step"].values, 0.5))
    after = np.maximum(np.argmax(left <= 0, axis=-1), 1)
    a, b = (np.take_along_axis(left, i[..., None], -1)[..., 0] for i in (after - 1, after))
    time = np.exp(log[after - 1] + a / (a - b) * (log[after] - log[after - 1]))
    return fall.copy(data=time)


def nearest_times(distance: xr.DataArray) -> xr.DataArray:
    """The step at which a distance is least, by a parabola in the logarithm of the step."""
    values = distance.transpose(..., "step")
    some = values.isel(step=slice(1, None))
    log, y = np.log(some["step"].values), some.values
    middle = np.argmin(y, axis=-1)
    inner = np.clip(middle, 1, y.shape[-1] - 2)
    a, b, c = (np.take_along_axis(y, (inner + i)[..., None], -1)[..., 0] for i in (-1, 0, 1))
    x, left, right = log[inner], log[inner - 1] - log[inner], log[inner + 1] - log[inner]
    # Of y = b + s x + q x^2 through three points.
    q = ((c - b) / right - (a - b) / left) / (right - left)
    s = (c - b) / right - q * right
    vertex = np.clip(-s / np.where(q > 0, 2 * q, np.inf), left, right)
    time = np.where(np.isnan(y).any(-1), np.nan, np.exp(np.where(middle == inner, x + vertex, log[middle])))
    return values.isel(step=0, drop=True).copy(data=time)


def rank_correlation(time: xr.DataArray) -> xr.DataArray:
    """Spearman's, of each seed, with the length."""
    ordered = time.transpose("seed", "length")
    length = rankdata(ordered["length"].values)
    found = [np.corrcoef(rankdata(row), length)[0, 1] for row in ordered.values]
    return ordered.isel(length=0, drop=True).copy(data=np.array(found))


def figure(dataset: xr.Dataset):
    """Both sources: losses by length as training goes on, likeness to n-grams, times, and losses at the end."""
    sources = [name for name in (TEXT, CHAIN) if name in dataset.source]
    with style.context():
        # Without training there is the end only.
        parts = (_over_training, _likenesses, _at_the_end) if dataset.sizes["step"] > 1 else (_at_the_end,)
        figure = Figure(figsize=(2 * style.COLUMN, 0.5 + 2.1 * len(sources)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(sources), len(parts), squeeze=False)
        for row, name in zip(grid, sources, strict=True):
            for axes, draw in zip(row, parts, strict=True):
                draw(axes, dataset.sel(source=name, drop=True), name)
    return figure


def _over_training(axes, part: xr.Dataset, name: str) -> None:
    known = name == CHAIN
    values = octaves(part["divergence" if known else "loss"]).isel(step=slice(1, None))
    values = values.transpose("length", "step", "seed")
    step, lengths = values["step"].values, values["length"].values.tolist()
    times = learning_times(octaves(part["loss"])).transpose("length", "seed").values
    for row, time, length, colour in zip(values.values, times, lengths, style.colours(lengths), strict=True):
        first = length // 2 + 1
        mean = row.mean(axis=-1)
        axes.plot(step, mean, color=colour, label=f"{length}" if first == length else f"{first}-{length}")
        if int(step[-1]) >= LONG:
            at = np.exp(np.log(time).mean())
            height = np.interp(np.log(at), np.log(step), mean)
            axes.plot([at], [height], "o", color=colour, markeredgecolor="white", markeredgewidth=0.35, zorder=4)
    if known:
        axes.set_yscale("log")
        axes.set_ylim(values.values.min() / 4, None)
    _dress(axes, "divergence from the truth [nats]" if known else "loss [nats]", f"{name}: by context length")
    axes.legend(title="tokens seen; dot: 95 % of the fall", ncols=3 if known else 2, fontsize=6, title_fontsize=6)


def _likenesses(axes, part: xr.Dataset, name: str) -> None:
    distance = part["ngram_distance"].isel(step=slice(1, None))
    step = distance["step"].values
    for i, n in enumerate(distance["ngram"].values):
        mean, error = mean_and_error(distance.sel(ngram=n).transpose("step", "seed").values)
        if np.isnan(mean).all():
            continue
        colour, least = style.CATEGORIES[i], int(np.argmin(mean))
        axes.plot(step, mean, color=colour, linestyle=style.dashes(i), label=NAMES[int(n) - 1])
        axes.fill_between(step, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
        axes.plot(step[least], mean[least], "o", color=colour, markeredgecolor="white", zorder=4)
    axes.set_yscale("log")
    _dress(axes, "divergence from n-grams [nats]", f"{name}: likeness to n-grams")
    axes.set_ylim(np.nanmin(distance.values) / 5, None)
    axes.legend(title="dot: most like", ncols=2, fontsize=6, title_fontsize=6, loc="lower left")


def _dress(axes, label: str, title: str) -> None:
    axes.set_xscale("log")
    axes.set(xlabel="training step", ylabel=label, title=title)
    rulers = [axes.xaxis] if axes.get_yscale() == "linear" else [axes.xaxis, axes.yaxis]
    for ruler in rulers:
        ruler.set_major_locator(LogLocator(subs=(1.0,) if ruler is axes.xaxis else (1.0, 2.0, 5.0)))
        ruler.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ruler.set_minor_formatter(NullFormatter())


def _at_the_end(axes, part: xr.Dataset, name: str) -> None:
    """Of chains, each above its own entropy rate."""
    last, length = part.isel(step=-1), part["position"].values + 1
    rate = part["entropy"].isel(position=-1, drop=True) if name == CHAIN else 0.0
    for i, n in enumerate(part["ngram"].values[:3]):
        known = (part["ngram_loss"].sel(ngram=n) - rate).mean("seed").values
        axes.plot(length, known, color=style.CATEGORIES[i], linestyle=style.dashes(i), linewidth=0.8)
    if name == CHAIN:
        exact = (part["entropy"] - rate).mean("seed")
        axes.plot(length, exact, color=style.INK, drawstyle="steps-mid", linewidth=0.9, label="exact entropy")
    mean, error = mean_and_error((last["loss"] - rate).transpose("position", "seed").values)
    axes.errorbar(length, mean, error, fmt="o", color=style.INK, markersize=2.4, linewidth=0.7, label="network")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    label = "loss above the entropy rate [nats]" if name == CHAIN else "loss [nats]"
    axes.set(xlabel="tokens seen, $l$", ylabel=label, title=f"{name}: at the end")
    axes.legend(fontsize=6, loc="center right", bbox_to_anchor=(1.0, 0.27 if name == CHAIN else 0.75))


STEPS = (0, *(int(t) for t in np.unique(np.rint(np.geomspace(4, 4000, 37)))))

experiment = Experiment(
    claim=(
        "A small transformer learns short contexts first: it resembles unigrams, bigrams, then trigrams, and ends "
        "below their loss; on Markov chains of order three this stops at three tokens."
    ),
    conditions=(
        "Two layers of width 32 on windows of Python sources, byte by byte, and of chains whose entropies are known; "
        "Adam at a rate that does not decay. A length is learned when its loss has made 95 % of its fall."
    ),
    sources=("SLT22",),
    axes=(Axis("ngram", "n", "tokens of an n-gram", least=1),),
    quantities=(
        "loss",
        "standard_error",
        "divergence",
        "entropy",
        Quantity("ngram_distance", "K_n", "divergence of the network from an n-gram predictor", "nats"),
        Quantity("ngram_loss", "L_n", "cross-entropy of an n-gram predictor", "nats"),
        Quantity("corpus_bytes", "|T|", "bytes of the corpus"),
        Quantity("corpus_digest", r"\mathrm{SHA}", "first 13 hexadecimal digits of the corpus's digest, as a number"),
    ),
    static=("source",),
    outputs=("ngram", "step", "position"),
    fixed={"width": 32, "layers": 2, "learning_rate": 0.003, "batch": 32, "windows": 2048},
    sizes={
        "smoke": {"source": (CHAIN,), "ngram": (1, 2, 3, 4), "step": (0,), "position": tuple(range(4)), "seed": 2},
        "small": {
            "source": (CHAIN, TEXT),
            "ngram": (1, 2, 3, 4),
            "step": STEPS,
            "position": tuple(range(32)),
            "seed": 5,
        },
        "medium": {
            "source": (CHAIN, TEXT),
            "ngram": (1, 2, 3, 4),
            "step": (*STEPS, 5657, 8000, 11314, 16000),
            "position": tuple(range(64)),
            "seed": Seeds(8, block=2),
        },
    },
    precision="float32",
    check=check,
    figure=figure,
    controls={
        "untrained": Control(
            "the network stays as it began",
            measure={"untrained": True},
            axes={"source": (TEXT,), "step": (0, 10, 100, 1000, LONG), "position": tuple(range(8))},
        ),
    },
)
