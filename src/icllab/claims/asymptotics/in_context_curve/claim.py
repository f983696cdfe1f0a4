r"""Error against the number of examples, of networks beside the estimators of statistics, and past the trained length.

.. math:: w \sim N(0, C), \quad C_{jj} \propto r^{-j}, \;\; \mathrm{tr}\,C = d, \qquad
          x_i \sim N(0, I_d), \qquad y_i = \langle w, x_i\rangle + \epsilon_i, \;\; \epsilon_i \sim N(0, \rho)

The law of tasks is not isotropic, so three estimators differ: least squares knows nothing of it, ridge of strength
:math:`\rho` its mean variance, and the Bayes predictor all of C, which no prompt shows. A network that errs less than
ridge after few examples has learned C in training. Least squares has an infinite mean error at d - 1 to d + 1
examples, and is compared before that.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels

ESTIMATORS = ("least squares", "ridge", "Bayes")
TRANSFORMERS = {"no positions": "none", "learned positions": "learned", "rotary positions": "rotary"}
CLOSED = 0.9  # share of the way from no example to the Bayes predictor, at least, after the trained length
STARTED = 0.25  # the same of one layer of linear attention


def measure(point, *, key, trained=True, noise=False):
    """One cell; in wrong worlds networks make one step only, or are trained on labels that are noise."""
    import jax
    import jax.numpy as jnp

    import icllab as icl
    from icllab import algorithms, diagnostics
    from icllab.models import BlockOptions, LinearAttention, Transformer
    from icllab.models.networks.embedding import Joined
    from icllab.tasks import LinearRegression
    from icllab.tasks.regression_laws import GaussianInputs, GaussianWeights
    from icllab.training import Record, Sweep

    dim, longest, length = point.dim, max(point.position), round(point.alpha * point.dim)
    variances = np.asarray(point.ratio) ** -np.arange(dim)
    covariance = jnp.asarray(variances * dim / variances.sum(), jnp.ones(()).dtype)

    def task(length, covariance=covariance):
        one, rho = jnp.ones(()), jnp.asarray(point.rho, jnp.ones(()).dtype)
        return LinearRegression(dim, length, GaussianInputs(one), GaussianWeights(covariance), rho)

    def network(name):
        if name == "linear attention":
            return lambda key: LinearAttention.lu(dim=dim, std=0.1, answers="every", key=key)
        return lambda key: Transformer(
            Joined(answers="every", causal=True, query_is_key=True),
            dim=dim,
            width=point.width,
            layers=2,
            block=BlockOptions(heads=2, mlp=(2 * point.width,), norm="pre"),
            positions=TRANSFORMERS[name],
            length=longest,
            key=key,
        )

    seeds = list(point.seed)
    estimators = {
        "least squares": algorithms.LeastSquares(),
        "ridge": algorithms.Ridge(point.rho),
        "Bayes": algorithms.bayes_optimal(task(length)),
    }
    predictors = {name: [estimators[name]] * len(seeds) for name in point.predictor if name in estimators}
    optimizer = _optimizer(point.rate, point.step)
    of_weights, of_prompts, of_test = jax.random.split(key, 3)
    for name in point.predictor:
        if name in estimators:
            continue
        run = icl.fit(
            icl.ensemble(network(name), seeds=seeds, key=of_weights),
            task(length, 0 * covariance if noise else covariance),
            steps=point.step if trained else 1,
            key=of_prompts,
            batch=point.batch,
            optimizer=optimizer,
            sweep=Sweep(mode="map"),
            record=Record([0], progress=False),
        )
        predictors[name] = [run.member(i) for i in range(run.size)]
    losses = np.empty((len(point.predictor), len(point.position), len(seeds)))
    for s, seed in enumerate(seeds):
        asked = {name: predictors[name][s] for name in point.predictor}
        of_seed = jax.random.fold_in(of_test, seed)
        found = diagnostics.per_length(asked, task(longest), key=of_seed, prompts=point.prompts)
        losses[..., s] = found["loss"].sel(predictor=list(point.predictor), position=list(point.position)).values
    return {"loss": (("predictor", "position", "seed"), losses)}


@functools.cache
def _optimizer(rate, steps):
    """One object for all cells of so many steps, so that what is compiled for it is kept."""
    import optax

    return optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate, steps // 10, steps))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Of every network: between Bayes and ridge after few examples, how far it gets, and what more examples do."""
    findings = []
    fixed = fixed_values(dataset)
    for dim in dataset.dim.values:
        length = round(fixed["alpha"] * int(dim))
        loss = dataset["loss"].sel(dim=dim).isel(width=-1, step=-1).transpose("predictor", "position", "seed")
        for name in (name for name in TRANSFORMERS if name in loss.predictor):
            findings += _learned(loss, name, int(dim), length) + _beyond(loss, name, int(dim), length)
        if "linear attention" in loss.predictor:
            findings += _linear(loss, int(dim), length)
    missing = {*ESTIMATORS, "no positions", "learned positions", "linear attention"} - set(dataset.predictor.values)
    whole = exactly("predictors of the claim that are missing", 0, len(missing), otherwise=Outcome.UNDECIDED)
    findings.append(whole)
    return findings


def _learned(loss: xr.DataArray, name: str, dim: int, length: int) -> list[Finding]:
    own, few = loss.sel(predictor=name), np.arange(1, max(dim // 2, 1) + 1)
    bayes = loss.sel(predictor="Bayes")
    seen = loss.position.values[(loss.position.values > 0) & (loss.position.values <= length)]
    closed = _closed(own, bayes, length)
    at = f"{name}, {few[-1]} examples or fewer, d={dim}"
    rivals = [rival for rival in ("ridge", "least squares") if rival in loss.predictor]
    return [
        *(
            _above((loss.sel(predictor=rival) - own).sel(position=few).mean("position"), f"error of {rival} above {at}")
            for rival in rivals
        ),
        _above((own - bayes).sel(position=seen).mean("position"), f"error of {name} above Bayes, d={dim}"),
        _above(closed, f"share of the way to Bayes, {name}, {length} examples, d={dim}", bound=CLOSED),
    ]


def _beyond(loss: xr.DataArray, name: str, dim: int, length: int) -> list[Finding]:
    """After more examples than in training: without positions the error goes on falling; learned ones harm."""
    after = loss.position.where(loss.position > length, drop=True)
    if not after.size or name == "rotary positions":
        return []
    what = f"from {length} examples to the mean up to {int(after.max())}, {name}, d={dim}"
    if name == "no positions":
        own = loss.sel(predictor=name)
        return [
            _above(own.sel(position=length) - own.sel(position=after).mean("position"), f"fall of the error {what}")
        ]
    ratio = loss.sel(predictor=name) / loss.sel(predictor="Bayes")
    excess = ratio.copy(data=np.log(ratio.values))
    growth = excess.sel(position=after).mean("position") - excess.sel(position=length)
    return [_above(growth, f"growth of the log error above Bayes {what}")]


def _linear(loss: xr.DataArray, dim: int, length: int) -> list[Finding]:
    """One layer of linear attention uses its context, and stays far above ridge."""
    own, bayes = loss.sel(predictor="linear attention"), loss.sel(predictor="Bayes")
    excess = (own / loss.sel(predictor="ridge")).sel(position=length)
    what = f"{length} examples, d={dim}"
    return [
        _above(_closed(own, bayes, length), f"share of the way to Bayes, linear attention, {what}", bound=STARTED),
        _above(excess, f"error of linear attention over ridge's, {what}", bound=2.0),
    ]


def _closed(own: xr.DataArray, bayes: xr.DataArray, length: int) -> xr.DataArray:
    """What share of the fall of the Bayes predictor's error is reached."""
    first, last = bayes.sel(position=0), bayes.sel(position=length)
    return (first - own.sel(position=length)) / (first - last)


def _above(samples: xr.DataArray, what: str, bound: float = 0.0) -> Finding:
    mean, error = mean_and_error(samples.values)
    return exceeds(what, float(mean), float(error), bound=bound)


def figure(dataset: xr.Dataset):
    """Every predictor's error against the examples seen, at the largest d; the dashed line is the trained length."""
    shown = dataset.isel(dim=-1, width=-1, step=-1)
    length = round(fixed_values(dataset)["alpha"] * int(shown.dim))
    rho = fixed_values(dataset)["rho"]
    rows = [Panel("loss", yscale="log", ylim=(0.9 * rho, 8.0))]
    return panels(shown, rows, x="position", hue="predictor", vertical=length)


experiment = Experiment(
    claim=(
        "Trained on fresh tasks of an anisotropic law, a transformer errs less than ridge and least squares after few "
        "examples, as only one that has learned the law can, and goes nine tenths of the way to the Bayes predictor by "
        "the trained length. Past it the error goes on falling without positions, and with learned ones parts from "
        "that of Bayes. One layer of linear attention keeps more than twice the error of ridge."
    ),
    sources=("Garg22", "Raventos23", "Lu24"),
    static=("dim", "width", "step"),
    fixed={"alpha": 3.0, "ratio": 4.0, "rho": 0.25, "batch": 64, "rate": 3e-3, "prompts": 2048},
    sizes={
        "smoke": {
            "dim": (3,),
            "width": (32,),
            "step": (1000,),
            "predictor": ("ridge", "Bayes", "linear attention"),
            "position": (0, 1, 3, 9),
            "seed": 3,
        },
        "small": {
            "dim": (4,),
            "width": (32,),
            "step": (1500,),
            "predictor": (*ESTIMATORS, "no positions", "learned positions", "linear attention"),
            "position": (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24),
            "seed": 4,
        },
        "medium": {
            "dim": (4,),
            "width": (32,),
            "step": (20000,),
            "predictor": (*ESTIMATORS, *TRANSFORMERS, "linear attention"),
            "position": tuple(range(25)),
            "seed": 6,
        },
    },
    precision="float32",
    measure=measure,
    check=check,
    figure=figure,
    worlds={
        "untrained": World("the networks make a single step", measure=functools.partial(measure, trained=False)),
        "labels_of_noise": World(
            "training labels are noise, without a task", measure=functools.partial(measure, noise=True)
        ),
    },
)
