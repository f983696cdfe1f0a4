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
  divergences of laws, and :math:`L^{(l)} - K^{(l)}` must be the entropy.

At ``smoke`` networks are not trained: there only the entropies are compared.
"""

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.figures import style

TEXT, CHAIN = "text", "Markov"
ORDER = 3  # of the chain
FALLEN = 0.95
LONG = 2000  # steps by which there is something to see
NEAR = 0.7  # logarithm of a factor two between times
NAMES = ("unigrams", "bigrams", "trigrams", "4-grams")


def measure(point, *, key):
    """One cell: networks of all seeds on one source."""
    import jax

    from icllab.claims.singular.per_length import text as trained_text

    tokens, found, facts = max(point.position) + 2, [], {}
    for seed in point.seed:
        of_source, of_weights, of_training, of_test = jax.random.split(jax.random.fold_in(key, seed), 4)
        text = point.source == TEXT
        source = trained_text.text(tokens) if text else trained_text.chain(tokens, of_source)
        model = trained_text.network(source, width=point.width, layers=point.layers, key=of_weights)
        how = {"steps": point.step, "rate": point.learning_rate, "batch": point.batch, "key": of_training}
        kept = trained_text.trained(source, model, **how)
        one = trained_text.learned(source, kept, windows=point.windows, key=of_test)
        least = np.full(len(point.position), np.nan) if text else source.training.entropies()
        found.append((one, least))
        facts = source.facts
    each = [one for one, _ in found]
    laws = len(point.ngram)
    distance = np.full((len(found), laws, len(point.step)), np.nan)
    known = np.full((len(found), laws, len(point.position)), np.nan)
    for s, one in enumerate(each):
        distance[s, : len(one.divergence)], known[s, : len(one.ngram_loss)] = one.divergence.mean(-1), one.ngram_loss
    truth = [one.divergence[ORDER] if len(one.divergence) > ORDER else np.nan * one.loss for one in each]
    return {
        "loss": (("seed", "step", "position"), np.stack([one.loss for one in each])),
        "standard_error": (("seed", "step", "position"), np.stack([one.error for one in each])),
        "divergence": (("seed", "step", "position"), np.stack(truth)),
        "entropy": (("seed", "position"), np.stack([least for _, least in found])),
        "ngram_distance": (("seed", "ngram", "step"), distance),
        "ngram_loss": (("seed", "ngram", "position"), known),
        **{name: ((), value) for name, value in facts.items()},
    }


def check(dataset: xr.Dataset) -> list[Finding]:
    """Entropies of the chain from what is measured; which lengths and which n-grams are learned first."""
    findings = _entropies(dataset.sel(source=CHAIN, drop=True)) if CHAIN in dataset.source else []
    trained = int(dataset.step[-1]) >= LONG
    if trained and TEXT in dataset.source:
        findings += _of_text(dataset.sel(source=TEXT, drop=True))
    if trained and CHAIN in dataset.source:
        findings += _of_chain(dataset.sel(source=CHAIN, drop=True))
    seen = trained and {TEXT, CHAIN} <= set(dataset.source.values.tolist())
    return [*findings, exactly("both sources, trained for long", 1, seen, otherwise=Outcome.UNDECIDED)]


def _entropies(part: xr.Dataset) -> list[Finding]:
    """The loss less the divergence, at the end, at one token, two, and more."""
    last = part.isel(step=-1)
    found = []
    for name, places in (("1 token", [0]), ("2 tokens", [1]), ("3 tokens or more", slice(2, None))):
        some = last.isel(position=places)
        apart = (some["loss"] - some["divergence"] - some["entropy"]).mean()
        # Positions of a window go together, seeds do not.
        error = np.sqrt((some["standard_error"].mean("position") ** 2).sum()) / some.sizes["seed"]
        least = float(some["entropy"].mean())
        what = f"entropy of the chain after {name}, loss less divergence"
        found.append(agreement(what, least, least + float(apart), float(error), largest_error=0.03))
    return found


def _of_text(part: xr.Dataset) -> list[Finding]:
    loss = octaves(part["loss"])
    time = _log(learning_times(loss))
    last = loss.isel(step=-1)
    ends = part["loss"].isel(step=-1, position=slice(2, None)).mean("position")
    trigrams = part["ngram_loss"].sel(ngram=3).isel(position=slice(2, None)).mean("position")
    return [
        exceeds("text: rank correlation of the time of learning with the length", *_mean(rank_correlation(time))),
        exceeds("text: ln time of 2 tokens above that of 1", *_mean(_step(time, 0, 1))),
        exceeds("text: ln time of the longest contexts above that of 2", *_mean(_step(time, 1, -1))),
        exceeds("text: loss at 1 token above that at 2", *_mean(_step(last, 1, 0))),
        exceeds("text: loss at 2 tokens above that at 5 to 8", *_mean(_step(last, 3, 1))),
        exceeds("text: loss of trigrams above that of the network", *_mean(trigrams - ends)),
        *_likeness(part, "text", 3),
    ]


def _of_chain(part: xr.Dataset) -> list[Finding]:
    time = _log(learning_times(octaves(part["loss"])))
    beyond = NEAR - abs(_mean(_step(time, 2, -1))[0])
    return [
        exceeds("chain: ln time of 2 tokens above that of 1", *_mean(_step(time, 0, 1))),
        exceeds("chain: ln time of 3 to 4 tokens above that of 2", *_mean(_step(time, 1, 2))),
        exceeds(
            f"chain: {NEAR:g} above the distance of the ln times of 3 to 4 tokens and the longest",
            beyond,
            _mean(_step(time, 2, -1))[1],
        ),
        *_likeness(part, "chain", ORDER + 1),
    ]


def _likeness(part: xr.Dataset, where: str, most: int) -> list[Finding]:
    """When the network is most like each n-gram predictor, one after the other."""
    time = _log(nearest_times(part["ngram_distance"].sel(ngram=slice(1, most))))
    return [
        exceeds(f"{where}: ln step most like {NAMES[n]} above that of {NAMES[n - 1]}", *_mean(_step(time, n - 1, n)))
        for n in range(1, most)
    ]


def octaves(values: xr.DataArray) -> xr.DataArray:
    """Means over context lengths l = 1, 2, 3-4, 5-8, ...; their dimension has the last length of each."""
    length = values["position"].values + 1
    last = 2 ** np.ceil(np.log2(length)).astype(int)
    return values.assign_coords(position=last).groupby("position").mean().rename(position="length")


def learning_times(loss: xr.DataArray) -> xr.DataArray:
    """The first step at which a loss has made its fall, by a straight line in the logarithm of the step."""
    fall = loss.isel(step=0) - loss.isel(step=-1)
    left = ((loss - loss.isel(step=-1)) / fall).transpose(..., "step").values - (1 - FALLEN)
    log = np.log(np.maximum(loss["step"].values, 0.5))
    after = np.maximum(np.argmax(left <= 0, axis=-1), 1)
    a, b = (np.take_along_axis(left, i[..., None], -1)[..., 0] for i in (after - 1, after))
    time = np.exp(log[after - 1] + a / (a - b) * (log[after] - log[after - 1]))
    return fall.copy(data=np.where(fall.values > 0, time, np.nan))


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
    from scipy.stats import rankdata

    ordered = time.transpose("seed", "length")
    length = rankdata(ordered["length"].values)
    found = [np.corrcoef(rankdata(row), length)[0, 1] for row in ordered.values]
    return ordered.isel(length=0, drop=True).copy(data=np.array(found))


def _log(values: xr.DataArray) -> xr.DataArray:
    return values.copy(data=np.log(values.values))


def _step(values: xr.DataArray, first: int, then: int) -> xr.DataArray:
    """The value at one place less that at another, of the dimension that is not the seed."""
    (dim,) = (d for d in values.dims if d != "seed")
    return values.isel({dim: then}, drop=True) - values.isel({dim: first}, drop=True)


def _mean(values: xr.DataArray) -> tuple[float, float]:
    mean, error = mean_and_error(values.transpose("seed").values)
    return float(mean), float(error)


def figure(dataset: xr.Dataset):
    """Both sources: losses by length as training goes on, likeness to n-grams, times, and losses at the end."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

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
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set(xlabel="training step", ylabel=label, title=title)
    rulers = [axes.xaxis] if axes.get_yscale() == "linear" else [axes.xaxis, axes.yaxis]
    for ruler in rulers:
        ruler.set_major_locator(LogLocator(subs=(1.0,) if ruler is axes.xaxis else (1.0, 2.0, 5.0)))
        ruler.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ruler.set_minor_formatter(NullFormatter())


def _at_the_end(axes, part: xr.Dataset, name: str) -> None:
    """Of chains, each above its own entropy rate."""
    from matplotlib.ticker import FuncFormatter

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


def _at_the_rate(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.assign(entropy=dataset["entropy"].isel(position=-1, drop=True) + 0 * dataset["entropy"])


def _in_bits(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.assign(entropy=dataset["entropy"] / np.log(2))


STEPS = (0, *(int(t) for t in np.unique(np.rint(np.geomspace(4, 4000, 37)))))

experiment = Experiment(
    claim=(
        "A small transformer trained on bytes of Python sources learns to predict after short contexts first: the time "
        "at which its loss has made its fall rises with the number of tokens seen, and on the way it is most like "
        "unigrams, then bigrams, then trigrams. On Markov chains of order three, whose entropies are known, the order "
        "ends at three tokens."
    ),
    sources=("SLT22",),
    static=("source",),
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
            "seed": 8,
        },
    },
    precision="float32",
    measure=measure,
    check=check,
    figure=figure,
    worlds={
        "at_the_rate": World("the entropy is the entropy rate after one token already", theory=_at_the_rate),
        "in_bits": World("the entropies are in bits", theory=_in_bits),
    },
)
