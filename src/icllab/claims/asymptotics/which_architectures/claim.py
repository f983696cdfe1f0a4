r"""The same regression in context by attention and by networks without it, at equal numbers of parameters.

.. math:: w \sim N(0, I_d), \quad x_i \sim N(0, I_d), \quad y_i = \langle w, x_i\rangle + \epsilon_i,
          \quad \epsilon_i \sim N(0, 1/4)

Every network answers every position of a prompt of :math:`\ell = \alpha d` examples, and learns from the same fresh
prompts in as many steps, at each of the same learning rates. It is as wide as a given number of parameters allows.
Ridge of strength 1/4 is the best predictor of this law, so the error of a network exceeds the least by

.. math:: E\,(T_i - \text{ridge}_i)^2 \;=\; E\,(T_i - y_i)^2 - E\,(\text{ridge}_i - y_i)^2,

of which the left side has the smaller variance and is what is measured. A learning rate is chosen for each seed by
what the *other* seeds reached with it, so that the choice favours none.

At ``medium`` attention of other depths and numbers of heads is among the networks: at as many parameters one layer is
wider than four. Smaller differences are judged there only.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.figures.curves import Panel, panels

BLOCKS = {  # layers and heads
    "attention 1 layer": (1, 2),
    "attention 2 layers": (2, 2),
    "attention 4 layers": (4, 2),
    "attention 1 head": (2, 1),
    "attention 4 heads": (2, 4),
}
WITHOUT = ("perceptron", "recurrent", "DeepSets")
PLAIN = ("no examples", "least squares")  # predictors without parameters
STANDARD = "attention 2 layers"
SETS = (STANDARD, "DeepSets")  # they do the same with every example, wherever it stands
LONG = 3000  # steps from which other differences are judged: before, seeds of one network differ as much
LEARNED = 0.5  # share of the way from no examples to ridge, at least
USED = 0.75  # share of the parameters allowed that a network has, at least


def measure(point, *, key, trained=True):
    """One cell: one kind of network at one number of parameters; in a wrong world it makes a single step."""
    import jax
    import jax.numpy as jnp

    import icllab as icl
    from icllab import algorithms
    from icllab.models.networks.parameters import parameter_count, width_for
    from icllab.tasks import LinearRegression
    from icllab.training import Record, Sweep

    dim, length, name = point.dim, round(point.alpha * point.dim), point.predictor
    task = LinearRegression.convention("raventos", dim=dim, length=length)
    of_weights, of_prompts, of_test = jax.random.split(key, 3)

    excess = _compiled_once()
    found = np.empty((len(point.rate), length + 1, len(point.seed)))
    plain = {"no examples": lambda prompt: jnp.zeros_like(prompt.y), "least squares": algorithms.LeastSquares()}
    if name in plain:
        predictors, used = [plain[name]] * len(point.rate) * len(point.seed), 0
    else:
        width = width_for(lambda width: built(name, width, dim=dim, length=length, key=of_weights), point.parameters)
        run = icl.fit(
            icl.ensemble(
                lambda key: built(name, width, dim=dim, length=length, key=key),
                seeds=list(point.seed),
                key=of_weights,
            ),
            task,
            steps=point.step if trained else 1,
            key=of_prompts,
            batch=point.batch,
            optimizer=_optimizer(point.step),
            sweep=Sweep({"optimizer.rate": point.rate}, mode="map"),
            record=Record([0], progress=False),
        )
        predictors, used = [run.member(i) for i in range(run.size)], parameter_count(run.member(0))
    for s, seed in enumerate(point.seed):
        keys = jax.random.split(jax.random.fold_in(of_test, seed), point.prompts)
        for r in range(len(point.rate)):
            found[r, :, s] = excess(predictors[s * len(point.rate) + r], task, keys)
    return {
        "excess": (("rate", "position", "seed"), found[:, list(point.position)]),
        "parameter_count": ((), np.asarray(float(used))),
    }


def built(name, width, *, dim, length, key):
    """A network of one kind and width; attention works on the whole width whatever the number of heads."""
    from icllab.models import BlockOptions, DeepSets, PromptPerceptron, Recurrent, Transformer
    from icllab.models.networks.embedding import Joined

    if name == "perceptron":
        hidden = (width, width)
        return PromptPerceptron(dim=dim, length=length, hidden=hidden, answers="every", nonlinearity="gelu", key=key)
    if name == "recurrent":
        return Recurrent(dim=dim, width=width, hidden=(width,), nonlinearity="gelu", key=key)
    if name == "DeepSets":
        return DeepSets(dim=dim, width=width, hidden=(width, width), pool="sum", nonlinearity="gelu", key=key)
    layers, heads = BLOCKS[name]
    return Transformer(
        Joined(answers="every", causal=True, query_is_key=True),
        dim=dim,
        width=width,
        layers=layers,
        block=BlockOptions(heads=heads, head_dim=max(1, width // heads), mlp=(2 * width,), norm="pre"),
        positions="none",
        key=key,
    )


@functools.cache
def _compiled_once():
    """A function for all cells, so that what is compiled for a kind of network is kept."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from icllab import algorithms

    @eqx.filter_jit
    def excess(predictor, task, keys):
        ridge = algorithms.bayes_optimal(task)

        def one(key):
            prompt = task.sample(key=key)
            return (predictor(prompt) - ridge(prompt)) ** 2

        return jnp.mean(jax.lax.map(one, keys, batch_size=256), axis=0)

    return excess


@functools.cache
def _optimizer(steps):
    """A factory for every learning rate; one object for all cells, so that what is compiled for it is kept."""
    import optax

    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, steps // 10, steps)
    return lambda rate: optax.adam(lambda count: rate * shape(count))


def exchanged(dataset: xr.Dataset) -> xr.Dataset:
    """A wrong world: two predictors with each other's names."""
    names = {STANDARD: "perceptron", "perceptron": STANDARD}
    return dataset.assign_coords(predictor=[names.get(name, name) for name in dataset.predictor.values])


def chosen(excess: xr.DataArray) -> xr.DataArray:
    """For each seed the excess at the last position, at the learning rate that was best for the other seeds."""
    last = excess.isel(position=-1, drop=True).transpose(..., "rate", "seed")
    values = np.where(np.isfinite(last.values), last.values, np.inf)
    seeds = range(values.shape[-1])
    others = [np.delete(values, s, axis=-1) if len(seeds) > 1 else values for s in seeds]
    best = np.argmin(np.stack([some.mean(-1) for some in others], axis=-1), axis=-2)
    taken = np.take_along_axis(values, best[..., None, :], axis=-2)[..., 0, :]
    measured = ~np.isnan(last.values).all(axis=-2)
    return last.isel(rate=0, drop=True).copy(data=np.where(measured, taken, np.nan))


def check(dataset: xr.Dataset) -> list[Finding]:
    """What attention and DeepSets reach, against the perceptron; after longer training, what else matters."""
    findings = []
    for dim in dataset.dim.values:
        reached = chosen(dataset["excess"].sel(dim=dim).isel(step=-1))
        log = reached.copy(data=np.log(reached.values))
        for budget in dataset.parameters.values:
            named = {str(name): log.sel(predictor=name, parameters=budget).values for name in log.predictor.values}
            there = {name: own for name, own in named.items() if not np.isnan(own).any()}
            at = f"{budget} parameters, d={dim}"
            findings += _of_sets(there, at) + (_others(there, at) if dataset.step[-1] >= LONG else [])
        if dataset.step[-1] >= LONG:
            findings += _larger(log, f"d={dim}")
    used = dataset["parameter_count"] / dataset["parameters"]
    least = float(used.where(used > 0).min())
    findings.append(exceeds("share of the parameters allowed that a network has, least", least, 0.0, bound=USED))
    missing = {*SETS, "perceptron", "no examples"} - set(dataset.predictor.values)
    findings.append(exactly("predictors of the claim that are missing", 0, len(missing), otherwise=Outcome.UNDECIDED))
    return findings


def _of_sets(log: dict[str, np.ndarray], at: str) -> list[Finding]:
    """At one number of parameters: how far a network gets, how much further than the perceptron; what depth adds."""
    findings = []
    for name in (name for name in SETS if name in log):
        share = 1 - np.exp(log[name] - log["no examples"])
        findings.append(_above(share, f"share of the way to ridge, {name}, {at}", LEARNED))
        findings.append(_above(log["perceptron"] - log[name], f"log excess error of perceptron above {name}, {at}"))
    shallow, deep = "attention 1 layer", "attention 4 layers"
    if {shallow, deep} <= set(log):
        findings.append(_above(log[shallow] - log[deep], f"log excess error of {shallow} above {deep}, {at}"))
    return findings


def _others(log: dict[str, np.ndarray], at: str) -> list[Finding]:
    """Against two layers of attention: one layer, and the networks without attention."""
    return [
        _above(log[name] - log[STANDARD], f"log excess error of {name} above {STANDARD}, {at}")
        for name in ("attention 1 layer", "recurrent", "DeepSets")
        if name in log
    ]


def _larger(log: xr.DataArray, at: str) -> list[Finding]:
    """More parameters, for attention of each kind."""
    findings = []
    few, many = (int(log.parameters[i]) for i in (0, -1))
    for name in (name for name in BLOCKS if name in log.predictor and few < many):
        fall = (log.sel(predictor=name, parameters=few) - log.sel(predictor=name, parameters=many)).values
        if not np.isnan(fall).any():
            what = f"fall of the log excess error of {name} from {few} to {many} parameters, {at}"
            findings.append(_above(fall, what))
    return findings


def _above(samples: np.ndarray, what: str, bound: float = 0.0) -> Finding:
    mean, error = mean_and_error(samples)
    return exceeds(what, float(mean), float(error), bound=bound)


def figure(dataset: xr.Dataset):
    """The excess error after the whole prompt against the number of parameters."""
    last = chosen(dataset["excess"].isel(dim=-1, step=-1))
    names = [name for name in (*BLOCKS, *WITHOUT) if name in last.predictor]
    shown = xr.Dataset({"excess": last.sel(predictor=names)})
    if "least squares" in last.predictor:
        line = last.sel(predictor="least squares", drop=True).mean()
        shown["excess_line"] = xr.full_like(last.parameters, float(line), dtype=float)
    rows = [Panel("excess", "excess_line" if "excess_line" in shown else None, yscale="log")]
    return panels(
        shown, rows, x="parameters", hue="predictor", line_x="parameters", line_name="least squares", xscale="log"
    )


experiment = Experiment(
    claim=(
        "Trained on the same prompts in as many steps and with equally many parameters, networks that do the "
        "same with every example, two layers of attention and DeepSets, go more than half of the way to ridge and come "
        "nearer to it than a perceptron on the whole prompt."
    ),
    sources=("Garg22", "Zaheer17"),
    static=("dim", "predictor", "parameters", "step"),
    fixed={"alpha": 2.0, "batch": 64, "prompts": 2048},
    sizes={
        "smoke": {
            "dim": (2,),
            "predictor": (STANDARD, "perceptron", "no examples"),
            "parameters": (2048,),
            "step": (400,),
            "rate": (1e-2,),
            "position": (0, 4),
            "seed": 3,
        },
        "small": {
            "dim": (4,),
            "predictor": (STANDARD, *WITHOUT, *PLAIN),
            "parameters": (2048, 8192),
            "step": (1500,),
            "rate": (3e-3, 1e-2, 3e-2),
            "position": tuple(range(9)),
            "seed": 3,
        },
        "medium": {
            "dim": (4,),
            "predictor": (*BLOCKS, *WITHOUT, *PLAIN),
            "parameters": (2048, 8192, 32768),
            "step": (3000,),
            "rate": (3e-3, 1e-2, 3e-2),
            "position": tuple(range(9)),
            "seed": 3,
        },
    },
    precision="float32",
    measure=measure,
    check=check,
    figure=figure,
    worlds={
        "untrained": World("the networks make a single step", measure=functools.partial(measure, trained=False)),
        "exchanged": World("what is called attention is the perceptron, and the other way round", theory=exchanged),
    },
)
