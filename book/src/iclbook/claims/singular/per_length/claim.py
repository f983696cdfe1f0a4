"""A small transformer learns short contexts first, on text and on a chain with known entropies.

After contexts of l tokens a held-out window has losses :math:`L^{(l)}`, in octaves of l: 1, 2, 3-4, 5-8, ... The text
is the standard library of the running Python, byte by byte; a Markov chain of order three, one for every seed, has the
entropy :math:`L^{(l)} - K^{(l)}`, with :math:`K^{(l)}` the mean divergence from the truth. An octave is learned at the
first step at which its loss has made 95 per cent of its fall; the network is like an n-gram predictor when its
divergence from it is least. (A falling loss passes the predictors' losses in order anyway.)
"""

from dataclasses import replace

import numpy as np
import xarray as xr
from scipy.stats import spearmanr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.core.statistics import first_rise, lowest
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, Subject, checks, estimates

TEXT, CHAIN = "text", "Markov"
ORDER = 3  # of the chain
FALLEN = 0.95
LONG = 2000  # least number of steps for findings on training
NEAR = 0.7  # logarithm of a factor two between times
FALLS = ((0, 1), (1, 3))  # octaves whose losses are compared: 1 token and 2, 2 and 5 to 8
LIKENESSES = {TEXT: 3, CHAIN: ORDER + 1}  # number of n-grams that the network resembles in sequence
NAMES = ("unigrams", "bigrams", "trigrams", "4-grams")


def reduce(dataset: xr.Dataset) -> xr.Dataset:
    """Round curves to single precision; keep divergences and standard errors at the end of training only."""
    curves = dataset.drop_vars(["corpus_bytes", "corpus_digest"])
    last = {name: dataset[name].where(dataset.step == dataset.step[-1]) for name in ("divergence", "standard_error")}
    return dataset.assign(curves.assign(last).astype("float32").data_vars)


def theory(dataset: xr.Dataset, *, turned: int = 0) -> xr.Dataset:
    """No prediction.

    ``turned``: of the first so many octaves of context lengths, losses of the first stand in the place of losses of the
    last, and so on; and so do distances from n-grams.
    """
    if not turned:
        return dataset
    octave = np.ceil(np.log2(dataset["position"].values + 1)).astype(int)
    turned = min(turned, octave.max() + 1)
    other = np.where(octave < turned, turned - 1 - octave, octave)
    positions = np.where(octave < turned, 2**other // 2, dataset["position"].values)  # the first of the other octave
    loss = dataset["loss"].isel(position=positions).assign_coords(position=dataset["position"])
    distance = dataset["ngram_distance"].isel(ngram=slice(None, None, -1)).assign_coords(ngram=dataset["ngram"])
    return dataset.assign(loss=loss, ngram_distance=distance)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Entropies of the chain; the order in which lengths and n-grams are learned."""
    parts = {name: dataset.sel(source=name, drop=True) for name in (CHAIN, TEXT) if name in dataset.source}
    findings = _entropies(parts[CHAIN]) if CHAIN in parts else []
    trained = int(dataset.step[-1]) >= LONG
    for name, part in parts.items() if trained else ():
        time, at = learning_times(octaves(part["loss"])), {"source": name}
        findings += checks.above("two_later", "time of 2 tokens / that of 1", _ratio(time, 1, 0), 1.0, at=at)
        findings += _of_text(part, time, at) if name == TEXT else _of_chain(time, at)
        findings += _likeness(part, name, LIKENESSES[name])
    return [*findings, *checks.complete("trained", "both sources, trained for long", trained and len(parts) == 2)]


def _entropies(part: xr.Dataset) -> list[Finding]:
    """At the end, loss minus divergence is the entropy, at one token, two, and more."""
    last, quantity, findings = part.isel(step=-1, drop=True), "chain: loss - divergence", []
    for tokens, places in (("1", [0]), ("2", [1]), ("3 or more", slice(2, None))):
        window = last.isel(position=places).mean("position")  # positions of a window go together, seeds do not
        entropy = Estimate(window["loss"] - window["divergence"] - window["entropy"], window["standard_error"]).average(
            "seed"
        )
        least = float(window["entropy"].mean())
        findings += checks.agrees(
            "entropy", quantity, entropy + least, least, largest_error=0.03, at={"tokens": tokens}
        )
    return findings


def _of_text(part: xr.Dataset, time: xr.DataArray, at: checks.At) -> list[Finding]:
    """Longer contexts are learned later and help, and the network ends below trigrams."""
    last = part.isel(step=-1, drop=True)
    loss = octaves(last["loss"])
    first_gain, second_gain = (
        loss.isel(length=before, drop=True) - loss.isel(length=after, drop=True) for before, after in FALLS
    )
    late = last.isel(position=slice(2, None))
    below = (late["ngram_loss"].sel(ngram=3, drop=True) - late["loss"]).mean("position")
    quantity, longest = "rank correlation of the time of learning with the length", "time of the longest contexts"
    return [
        *checks.above("order", quantity, estimates.mean(rank_correlation(time)), at=at),
        *checks.above("longest_later", f"{longest} / that of 2 tokens", _ratio(time, -1, 1), 1.0, at=at),
        *checks.above("two_help", "loss at 1 token - that at 2", estimates.mean(first_gain), at=at),
        *checks.above("more_help", "loss at 2 tokens - that at 5 to 8", estimates.mean(second_gain), at=at),
        *checks.above("below_trigrams", "loss of trigrams - that of the network", estimates.mean(below), at=at),
    ]


def _of_chain(time: xr.DataArray, at: checks.At) -> list[Finding]:
    """No length is learned later than three tokens."""
    beyond, quantity = _ratio(time, -1, 2), "size of log(time of the longest contexts / that of 3 to 4 tokens)"
    size = Estimate(np.abs(beyond.value), beyond.error, freedom=beyond.freedom)
    return [
        *checks.above("three_later", "time of 3 to 4 tokens / that of 2", _ratio(time, 2, 1), 1.0, at=at),
        *checks.below("no_later", quantity, size, NEAR, at=at),
    ]


def _likeness(part: xr.Dataset, source: str, count: int) -> list[Finding]:
    """The network resembles the n-gram predictors in sequence."""
    time, findings = nearest_times(part["ngram_distance"].sel(ngram=slice(1, count))), []
    for n in range(1, count):
        quantity = f"step most like {NAMES[n]} / that most like {NAMES[n - 1]}"
        findings += checks.above("likeness", quantity, _ratio(time, n, n - 1), 1.0, at={"source": source, "n": n + 1})
    return findings


def _ratio(time: xr.DataArray, numerator: int, denominator: int) -> Estimate:
    """Geometric mean over seeds of the time at one index over that at another, along the other axis."""
    (dim,) = (d for d in time.dims if d != "seed")
    return estimates.geometric_mean(time.isel({dim: numerator}, drop=True) / time.isel({dim: denominator}, drop=True))


def octaves(values: xr.DataArray) -> xr.DataArray:
    """Means over context lengths l = 1, 2, 3-4, 5-8, ...; their dimension has the last length of each."""
    length = values["position"].values + 1
    last = 2 ** np.ceil(np.log2(length)).astype(int)
    return values.assign_coords(position=last).groupby("position").mean().rename(position="length")


def learning_times(loss: xr.DataArray) -> xr.DataArray:
    """First step at which a loss has completed its fall, interpolated linearly in the logarithm of the step."""
    last = loss.isel(step=-1, drop=True)
    still = ((1 - FALLEN) * (loss.isel(step=0, drop=True) - last) - (loss - last)).transpose(..., "step")
    return last.copy(data=np.exp(first_rise(np.log(np.maximum(loss["step"].values, 0.5)), still.values)))


def nearest_times(distance: xr.DataArray) -> xr.DataArray:
    """Step at which a distance is least, by a parabola in the logarithm of the step."""
    values = distance.transpose(..., "step")
    time = np.exp(lowest(np.log(values["step"].values[1:]), values.values[..., 1:]))
    return values.isel(step=0, drop=True).copy(data=time)


def rank_correlation(time: xr.DataArray) -> xr.DataArray:
    """Spearman's correlation of the time with the length, for each seed."""
    pair, dims = (time, time.length), [["length"]] * 2
    return xr.apply_ufunc(lambda a, b: spearmanr(a, b)[0], *pair, input_core_dims=dims, vectorize=True)


def figure(dataset: xr.Dataset):
    """Draw losses by length, likeness to n-grams, times of learning and losses at the end for each source."""
    sources, loss = [name for name in (TEXT, CHAIN) if name in dataset.source], octaves(dataset["loss"])
    last = dataset.isel(step=-1, drop=True).assign_coords(position=dataset["position"] + 1)
    last = last.rename(position="tokens_seen")
    values = {"final_loss": last["loss"], "final_loss_line": last["ngram_loss"].mean("seed")}
    rows = [Panel("final_loss", "final_loss_line", x="tokens_seen", hue="ngram")]
    if dataset.sizes["step"] > 1:
        lines = {"loss_line": loss, "ngram_distance_line": dataset["ngram_distance"]}
        values |= {name: line.isel(step=slice(1, None)).mean("seed") for name, line in lines.items()}
        values |= {"learning_time": learning_times(loss)}
        rows = [
            Panel(None, "loss_line", hue="length"),
            Panel(None, "ngram_distance_line", hue="ngram", yscale="log"),
            Panel("learning_time", x="length", yscale="log"),
            *rows,
        ]
    rows = [replace(row, at={"source": name}) for row in rows for name in sources]
    return panels(xr.Dataset(values, attrs=dataset.attrs), rows, x="step", xscale="log", columns=len(sources))


STEPS = (0, *(int(t) for t in np.unique(np.rint(np.geomspace(4, 4000, 37)))))
BOTH = {"source": (CHAIN, TEXT), "ngram": (1, 2, 3, 4), "step": STEPS}

claim = Claim(
    title="Short contexts are learned first",
    sentence=(
        "The network learns short contexts first: it resembles unigrams, bigrams, then trigrams, and ends below their "
        "loss; trained on Markov chains of order three, one stops at three tokens."
    ),
    conditions=(
        "Transformers of two layers of width 32 on windows of Python sources, byte by byte, and of chains whose "
        "entropies are known; Adam at a rate that does not decay. A length is learned when its loss has made 95 % of "
        "its fall."
    ),
    sources=("SLT22",),
    axes=(Axis("ngram", "n", "tokens of an n-gram", least=1), Axis("tokens_seen", "l", "tokens seen", least=1)),
    quantities=(
        "loss",
        "standard_error",
        "divergence",
        "entropy",
        Quantity("ngram_distance", "K_n", "divergence of the network from an n-gram predictor", "nats"),
        Quantity("learning_time", "T_l", "time of learning", "steps"),
        Quantity("final_loss", "L^{(l)}", "loss at the end", "nats"),
        Quantity("ngram_loss", "L_n", "cross-entropy of an n-gram predictor", "nats"),
        Quantity("corpus_bytes", "|T|", "bytes of the corpus"),
        Quantity("corpus_digest", r"\mathrm{SHA}", "first 13 hexadecimal digits of the corpus's digest, as a number"),
    ),
    static=("source",),
    outputs=("ngram", "step", "position"),
    fixed={"width": 32, "layers": 2, "learning_rate": 0.003, "batch": 32, "windows": 2048},
    sizes={
        "smoke": {"source": (CHAIN,), "ngram": (1, 2, 3, 4), "step": (0,), "position": tuple(range(4)), "seed": 2},
        "small": BOTH | {"position": tuple(range(32)), "seed": 10},
        "medium": BOTH
        | {"step": (*STEPS, 5657, 8000, 11314, 16000), "position": tuple(range(64)), "seed": Seeds(8, block=2)},
    },
    key=1,
    subject=Subject("tokens", "transformers of two layers on Python sources", run=True, controls=("turned",)),
    controls={
        "untrained": Control(
            "the network stays as it began",
            measure={"untrained": True},
            axes={"source": (TEXT,), "step": (0, 10, 100, 1000, LONG), "position": tuple(range(8))},
        ),
        "turned": Control("the longest contexts and n-grams are the shortest", theory={"turned": 6}),
        "first_turned": Control("contexts of 3 to 4 tokens are those of one", theory={"turned": 3}),
    },
)
