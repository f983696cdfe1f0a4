r"""A transformer that has seen synthetic regressions alone, asked in context about a real table.

It is trained on :class:`~icllab.tasks.hierarchical_regression.HierarchicalRegression`: columns and target of
variance 1, correlations, weights and the explained share :math:`h \sim \mathrm{U}(0, 1)` drawn anew for each
prompt. Nothing of the table enters training. Rows of the table are shown to it, and to all rivals, scaled with
the examples alone.

Least squares has very heavy tails near its peak, and is judged there by mean logarithms, all else by means. Every
network answers the same draws. Standard errors count both the draws, given this table, and the networks; how
other tables would differ they do not say.
"""

import functools

import numpy as np
import xarray as xr

from icllab.claims.asymptotics._tables import FITTED, diabetes, fitted_losses, log_losses
from icllab.core.statistics import crossed_mean_and_error, mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.figures.curves import Panel, panels

RIVALS = ("context mean", "least squares", "ridge")
ALL = (*RIVALS, *FITTED, "transformer")
SMALLER = 3.0  # the factor by which the network's typical error is below that of least squares, at the peak
NEAR = 0.05  # share of the target's variance by which the network may be behind ridge
GAINED = 0.05  # share of the target's variance, at least, by which every network beats the mean


def measure(point, *, key, trained=True, most_explained=1.0, shuffled=False):
    """One cell; in wrong worlds networks make one step only, labels are noise, or the table's targets permuted."""
    import jax
    import jax.numpy as jnp

    from icllab import algorithms
    from icllab.tasks import Table

    data, dim, lengths = diabetes(), point.dim, np.array(point.length)
    x, names = data.data[:, :dim], data.feature_names[:dim]
    table = Table(x, data.target, length=int(lengths.max()), columns=names, target="progression")
    of_training, of_table = jax.random.split(key)

    def drawn(seed):
        of_rows, of_shuffle = jax.random.split(jax.random.fold_in(of_table, seed))
        return (table.shuffled(key=of_shuffle) if shuffled else table).sample(key=of_rows)

    prompts = jax.jit(jax.vmap(drawn))(jnp.array(point.seed))

    losses = _compiled_once()
    members = _trained(point, of_training, trained, most_explained) if "transformer" in point.predictor else []
    estimators = {
        "context mean": _nothing,
        "least squares": algorithms.LeastSquares(),
        # The Bayes value where columns are independent, weights N(0, h/d) and h = 1/2.
        "ridge": algorithms.Ridge(float(dim)),
    }
    rows = []
    for name in point.predictor:
        if name == "transformer":
            own = [losses(member, prompts, table) for member in members]
            rows.append(np.stack([np.asarray(one)[lengths] for one in own], axis=1))
            continue
        if name in FITTED:
            one = np.array([fitted_losses(name, prompts, length, table) for length in point.length])
        else:
            one = np.asarray(losses(estimators[name], prompts, table))[lengths]
        rows.append(np.repeat(one[:, None], len(point.member), axis=1))
    return {"table_error": (("predictor", "length", "member", "seed"), np.stack(rows))}


@functools.cache
def _compiled_once():
    """The losses ``[position, seed]`` of a predictor that is shown scaled prompts; one function for all cells."""
    import equinox as eqx
    import jax

    from icllab.tasks import Standardised

    @eqx.filter_jit
    def losses(predictor, prompts, table):
        return jax.lax.map(lambda p: table.loss(Standardised(predictor)(p), p), prompts, batch_size=50).T

    return losses


def _nothing(prompt):
    """The answer 0, which after scaling is the mean of the examples."""
    return 0 * prompt.y


def _trained(point, key, trained, most_explained):
    """One network for every member, of prompts as long as the longest that is asked."""
    import jax

    import icllab as icl
    from icllab.tasks import HierarchicalRegression
    from icllab.training import Record, Sweep

    of_weights, of_prompts = jax.random.split(key)
    words = tuple(jax.random.key_data(of_weights).tolist())
    run = icl.fit(
        _networks(point.dim, point.width, point.layers, point.member, words),
        HierarchicalRegression(point.dim, max(point.length), factors=point.dim, most_explained=most_explained),
        steps=point.step if trained else 1,
        key=of_prompts,
        batch=point.batch,
        optimizer=_optimizer(point.rate, point.step),
        sweep=Sweep(mode="map"),
        record=Record([0], progress=False),
    )
    return [run.member(i) for i in range(run.size)]


@functools.lru_cache(maxsize=1)
def _networks(dim, width, layers, members, words):
    """The untrained networks. Compiling how they are drawn costs more than training tiny ones: once for all worlds."""
    import jax
    import jax.numpy as jnp

    import icllab as icl
    from icllab.models import BlockOptions, Transformer
    from icllab.models.networks.embedding import Joined

    def network(key):
        return Transformer(
            Joined(answers="every", causal=True, query_is_key=True),
            dim=dim,
            width=width,
            layers=layers,
            block=BlockOptions(heads=2, mlp=(2 * width,), norm="pre"),
            positions="none",
            key=key,
        )

    key = jax.random.wrap_key_data(jnp.array(words, "uint32"))
    return icl.ensemble(network, seeds=list(members), key=key)


@functools.cache
def _optimizer(rate, steps):
    """One object for all cells of so many steps, so that what is compiled for it is kept."""
    import optax

    return optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate, steps // 10, steps))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Of the longest training: beside least squares at its peak, ridge, the mean, and scikit-learn."""
    findings = []
    for dim in dataset.dim.values:
        errors = dataset["table_error"].sel(dim=dim).isel(width=-1, layers=-1, step=-1)
        errors = errors.transpose("predictor", "length", "member", "seed")
        if "transformer" in errors.predictor:
            findings += _beside(errors, int(dim)) + _fitted(errors, int(dim))
    missing = set(ALL) - set(dataset.predictor.values)
    whole = exactly("predictors of the claim that are missing", 0, len(missing), otherwise=Outcome.UNDECIDED)
    return [*findings, whole]


def _beside(errors: xr.DataArray, dim: int) -> list[Finding]:
    """Least squares at its peak and in the end; ridge and the mean on average past d examples."""
    lengths, last = errors.length.values, int(errors.length.max())
    many, peak = lengths[lengths > dim], dim + 1
    lead = {name: errors.sel(predictor=name) - errors.sel(predictor="transformer") for name in _rivals(errors)}
    findings, over = [], f"{min(many, default=last)} to {last} examples"
    if "least squares" in lead:
        if peak in lengths:
            logs = log_losses(errors.sel(predictor=["least squares", "transformer"], length=peak).values)
            what = f"log error of least squares above the transformer's at {peak} examples, {dim} columns"
            findings.append(_above(logs[0] - logs[1], what, bound=np.log(SMALLER)))
        what = f"error of least squares above the transformer's, {last} examples, {dim} columns"
        findings.append(_above(lead["least squares"].sel(length=last).values, what))
    if "ridge" in lead and many.size:
        what = f"error of ridge above the transformer's, mean over {over}, {dim} columns"
        findings.append(_above(lead["ridge"].sel(length=many).mean("length").values, what, bound=-NEAR))
    if "context mean" in lead and many.size:
        what = f"error of the context's mean above the worst network's, mean over {over}, {dim} columns"
        means, uncertain = mean_and_error(lead["context mean"].sel(length=many).mean("length").values)
        worst = int(np.argmin(means))
        findings.append(exceeds(what, float(means[worst]), float(uncertain[worst]), bound=GAINED))
    return findings


def _fitted(errors: xr.DataArray, dim: int) -> list[Finding]:
    """On average over all lengths, the transformer beside each predictor of scikit-learn."""
    own, first, last = errors.sel(predictor="transformer"), errors.length.min(), errors.length.max()
    return [
        _above(
            (errors.sel(predictor=name) - own).mean("length").values,
            f"error of {name} above the transformer's, mean over {first:d} to {last:d} examples, {dim} columns",
        )
        for name in FITTED
        if name in errors.predictor
    ]


def _rivals(errors: xr.DataArray) -> list[str]:
    return [name for name in RIVALS if name in errors.predictor]


def _above(samples: np.ndarray, what: str, bound: float = 0.0) -> Finding:
    mean, error = crossed_mean_and_error(samples)
    return exceeds(what, float(mean), float(error), bound=float(bound))


def figure(dataset: xr.Dataset):
    """Mean errors over draws and networks, and below it the differences draw by draw, which have smaller errors.

    Bars are standard errors over draws. Least squares leaves both frames around its peak.
    """
    shown = dataset.isel(dim=-1, width=-1, layers=-1, step=-1).mean("member")
    shown = shown.sel(predictor=[name for name in shown.predictor.values if name != "context mean"])
    excess = shown["table_error"] - shown["table_error"].sel(predictor="transformer", drop=True)
    shown = shown.assign(table_excess=excess.where(shown.predictor != "transformer"))
    rows = [Panel("table_error", ylim=(0.6, 1.8)), Panel("table_excess", ylim=(-0.1, 0.6))]
    return panels(shown, rows, x="length", hue="predictor", xscale="log", vertical=int(dataset.dim.values[-1]) + 1)


experiment = Experiment(
    claim=(
        "A transformer trained on synthetic linear regressions alone, of correlations, weights and noise drawn at "
        "random, predicts rows of a real table from examples in context: without the peak of least squares, on "
        "average no more than a twentieth of the variance behind ridge of a fixed strength, and with less error than "
        "the examples' mean, nearest neighbours, a random forest and cross-validated ridge."
    ),
    sources=("Garg22", "Efron04"),
    static=("dim", "width", "layers", "step"),
    fixed={"batch": 64, "rate": 3e-3},
    sizes={
        "smoke": {
            "dim": (5,),
            "width": (16,),
            "layers": (1,),
            "step": (500,),
            # Compiling each costs seconds; without the others some findings are left undecided.
            "predictor": ("context mean", "transformer"),
            "length": (8, 14),
            "member": 2,
            "seed": 400,
        },
        "small": {
            "dim": (5,),
            "width": (32,),
            "layers": (2,),
            "step": (2000,),
            "predictor": ALL,
            "length": (5, 6, 8, 10, 15, 20),
            "member": 4,
            "seed": 1000,
        },
        "medium": {
            "dim": (5,),
            "width": (32,),
            "layers": (2,),
            "step": (20000,),
            "predictor": ALL,
            "length": (5, 6, 7, 8, 10, 12, 15, 20, 30, 40),
            "member": 4,
            "seed": 2000,
        },
    },
    precision="float32",
    measure=measure,
    check=check,
    figure=figure,
    worlds={
        "untrained": World("the networks make a single step", measure=functools.partial(measure, trained=False)),
        "labels_of_noise": World(
            "in training the inputs explain nothing of the labels",
            measure=functools.partial(measure, most_explained=0.0),
        ),
        "shuffled_targets": World(
            "the table's targets are permuted among its rows", measure=functools.partial(measure, shuffled=True)
        ),
    },
)
