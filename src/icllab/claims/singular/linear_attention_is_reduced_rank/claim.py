r"""Linear attention with keys of width k is, as a learning machine, reduced-rank regression with k hidden units.

One head with :math:`W_QW_K^\top = BA` answers :math:`x^\top BAh` with :math:`h = \frac1\ell\sum_ix_iy_i`, so that for
inputs with :math:`E[xx^\top] = I` and a query independent of its context

.. math:: L(A, B) - L^* = \frac12\bigl\lVert(BA - M^*)\,E[hh^\top]^{1/2}\bigr\rVert^2,
          \qquad M^* = E[wh^\top]\,E[hh^\top]^{-1} .

The simulation is the attention of :mod:`icllab.models`, head and tokens, over *all* prompts of a finite law, so that
its loss is the population's, without sampling: inputs are :math:`\sqrt d\,e_i`, uniformly, and tasks span r directions
that are not those of the inputs. Its coefficient is sampled at the solution that divides the singular values evenly.

Derived: docs/singular-learning.md, Linear attention is reduced-rank regression.
"""

import dataclasses
import functools
import itertools

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from icllab.core.axes import quantity
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures import style
from icllab.theory import learning_coefficients as exact

REMAINDER = 0.03  # of the coefficient: what the expansion in 1 / log nbeta leaves out, at most
ROUNDING = 1e-10
LARGEST = 0.02  # standard error, as a share of the coefficient


def measure(point, *, key):
    """One cell: the distance of the two losses at random weights, and the sampled coefficient."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from icllab.core.prompt import RegressionPrompt
    from icllab.diagnostics import HMC, learning_coefficient
    from icllab.models import Attention, Joined

    dim, width, rank = point.dim, point.key_width, point.task_rank
    x, y, context, task = _all_prompts(dim, point.length, rank, np.random.default_rng(point.seed_of_law))
    of_head, of_weights, of_chains = jax.random.split(key, 3)
    joined = Joined(answers="last", causal=False, query_is_key=False)
    layout = joined.layout(point.length + 1)
    head = Attention(dim + 1, 1, dim=width, weighting="linear", scale=1.0, normalisation="examples", key=of_head)
    value = jnp.zeros((dim + 1, 1, width)).at[dim, 0, 0].set(1)  # of a token: its label
    head = eqx.tree_at(lambda a: (a.value, a.output), head, (value, jnp.moveaxis(value, 0, -1)))
    prompts = jax.vmap(lambda x, y: RegressionPrompt(x=x, y=y))(jnp.asarray(x), jnp.asarray(y))

    def loss(weights):
        inputs_alone = [jnp.pad(weights[name], ((0, 1), (0, 0)))[:, None] for name in ("queries", "keys")]
        own = eqx.tree_at(lambda a: (a.query, a.key), head, tuple(inputs_alone))
        answer = jax.vmap(lambda prompt: own(joined.tokens(prompt), layout, rows=slice(-1, None))[0, -1])(prompts)
        return jnp.mean((answer - prompts.y[:, -1]) ** 2) / 2

    moments = context.T @ context / len(context)
    best = np.linalg.solve(moments, context.T @ task / len(task)).T
    u, s, v = np.linalg.svd(best)
    some = min(width, dim)
    at = {
        name: jnp.zeros((dim, width)).at[:, :some].set(side[:, :some] * np.sqrt(s[:some]) * (s[:some] > 1e-9))
        for name, side in (("queries", u), ("keys", v.T))
    }
    least = np.mean(np.sum((context @ best.T - task) ** 2, axis=1)) / 2

    def mismatch(key):
        found = jax.random.normal(key, (2, dim, width))
        apart = np.asarray(found[0] @ found[1].T) - best
        wanted = np.sum((apart @ moments) * apart) / 2
        return abs(float(loss({"queries": found[0], "keys": found[1]})) - least - wanted) / wanted

    worst = max(mismatch(one) for one in jax.random.split(of_weights, 5))
    estimate = learning_coefficient(
        loss,
        at,
        n=point.samples,
        localization=1.0,
        key=of_chains,
        sampler=HMC(chains=point.chains, warm_up=point.warm_up, draws=point.draws),
    )
    return {
        "loss_mismatch": ((), worst),
        "learning_coefficient": ((), float(estimate["estimate"])),
        "learning_coefficient_error": ((), float(estimate["mcse"])),
        "sampler_rhat": ((), float(estimate["rhat"])),
        "sampler_warnings": ((), len(estimate.attrs["warnings"])),
    }


def _all_prompts(dim, length, rank, rng):
    """Every prompt of the law, equally likely: inputs, labels, and of each its h and its task."""
    inputs = np.sqrt(dim) * np.eye(dim)
    tasks = np.sqrt(rank) * np.linalg.qr(rng.normal(size=(dim, dim)))[0][:rank]
    x, task = [], []
    for *places, t in itertools.product(*(range(dim),) * (length + 1), range(rank)):
        x.append(inputs[places])
        task.append(tasks[t])
    x, task = np.stack(x), np.stack(task)
    y = np.einsum("pid,pd->pi", x, task)
    return x, y, np.einsum("pid,pi->pd", x[:, :-1], y[:, :-1]) / length, task


def theory(dataset: xr.Dataset, coefficient=exact.linear_attention) -> xr.Dataset:
    """lambda - (m - 1) / log nbeta of every cell with r <= k."""
    n = fixed_values(dataset)["samples"]
    names = ("dim", "key_width", "task_rank")
    values = np.full([dataset.sizes[name] for name in names], np.nan)
    for at, (dim, width, rank) in zip(
        np.ndindex(values.shape), itertools.product(*(dataset[name].values.tolist() for name in names)), strict=True
    ):
        if rank <= min(width, dim):
            values[at] = coefficient(dim, width, rank).at(n / np.log(n))
    return dataset.assign(learning_coefficient_theory=(names, values))


def check(dataset: xr.Dataset) -> list[Finding]:
    """The two losses are one; the sampled coefficients are the closed form's, and not half the parameters."""
    dataset = dataset.isel(draws=-1)
    findings, seen = [], 0
    for dim, width, rank in itertools.product(dataset.dim.values, dataset.key_width.values, dataset.task_rank.values):
        cell = dataset.sel(dim=dim, key_width=width, task_rank=rank)
        predicted = float(cell["learning_coefficient_theory"])
        if rank > min(width, dim):
            continue
        seen += 1
        at = f"d={dim}, k={width}, r={rank}"
        findings.append(_identical(f"distance of the losses, relative, {at}", float(cell["loss_mismatch"])))
        value, error = float(cell["learning_coefficient"]), float(cell["learning_coefficient_error"])
        quiet = float(cell["sampler_warnings"]) == 0
        findings.append(_near(f"coefficient, {at}", predicted, value, error, quiet))
        findings.append(exceeds(f"half the parameters less the coefficient, {at}", dim * width - value, error))
    findings.append(exactly("models, at least 4", 1, seen >= 4, otherwise=Outcome.UNDECIDED))
    return findings


def _identical(what: str, mismatch: float) -> Finding:
    return Finding(what, 0.0, mismatch, 0.0, ROUNDING, Outcome.HOLDS if mismatch <= ROUNDING else Outcome.FAILS)


def _near(what: str, predicted: float, value: float, error: float, quiet: bool) -> Finding:
    """Agreement within three standard errors and what the expansion leaves out."""
    found = agreement(what, predicted, value, error + REMAINDER * predicted / 3, largest_error=np.inf)
    if found.outcome is Outcome.HOLDS and not (quiet and error <= LARGEST * predicted):
        advice = "the estimate warns of itself, or its error is above 2 %: longer chains would tell"
        return dataclasses.replace(found, outcome=Outcome.UNDECIDED, standard_error=error, advice=advice)
    return dataclasses.replace(found, standard_error=error)


def figure(dataset: xr.Dataset):
    """Sampled coefficients of all models, the closed form, and half the number of parameters."""
    dataset, names = dataset.isel(draws=-1), ("dim", "key_width", "task_rank")
    models = [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(dataset[name].values.tolist() for name in names))
    ]
    models = [model for model in models if np.isfinite(float(dataset["learning_coefficient_theory"].sel(model)))]
    predicted, sampled, error = (
        np.array([float(dataset[f"learning_coefficient{suffix}"].sel(model)) for model in models])
        for suffix in ("_theory", "", "_error")
    )
    half = [model["dim"] * model["key_width"] for model in models]
    with style.context():
        drawn = Figure(figsize=(1.3 * style.COLUMN, 2.6), layout="constrained")
        FigureCanvasAgg(drawn)
        axes = drawn.subplots()
        at = np.arange(len(models))
        axes.plot(at, half, linestyle="none", marker="_", markersize=12, color=style.FAINT, label="half the parameters")
        axes.plot(
            at, predicted, linestyle="none", marker="_", markersize=12, color=style.CATEGORIES[1], label="closed form"
        )
        look = {"marker": "o", "markersize": 4, "color": style.CATEGORIES[0], "label": "sampled, 3 standard errors"}
        axes.errorbar(at, sampled, 3 * error, linestyle="none", **look)
        axes.set_xticks(at, [", ".join(str(model[name]) for name in names) for model in models])
        axes.set(xlabel="dimension $d$, width of keys $k$, rank of tasks $r$", ylim=(0, None))
        axes.set(ylabel=quantity("learning_coefficient").label)
        axes.legend(loc="upper left")
    return drawn


def _regular(dim, width, rank):
    """As if no parameters computed the same."""
    del rank
    return exact.regular(dim * width)


def _without_a_rank(dim, width, rank):
    """As if the best map were zero, and not of the rank of the tasks."""
    del rank
    return exact.reduced_rank_regression(dim, width, dim, 0)


experiment = Experiment(
    claim=(
        "The loss of linear attention with keys of width k, over all prompts, is that of reduced-rank regression with "
        "k hidden units whose truth has the rank of the tasks; its learning coefficient is the closed form's, and half "
        "the number of parameters is too large."
    ),
    sources=("Aoyagi05", "Hoogland24"),
    static=("draws", "dim", "key_width", "task_rank"),
    fixed={"length": 2, "samples": 1e6, "chains": 16, "warm_up": 1000, "seed_of_law": 0},
    sizes={
        "smoke": {"draws": (500,), "dim": (3,), "key_width": (2,), "task_rank": (1,)},
        "small": {"draws": (2000,), "dim": (3, 4), "key_width": (2, 3), "task_rank": (1, 2)},
        "medium": {"draws": (8000,), "dim": (3, 4, 5), "key_width": (2, 3, 5), "task_rank": (1, 2)},
    },
    precision="float64",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "regular": World("every parameter counts a half", theory=functools.partial(theory, coefficient=_regular)),
        "no_rank": World("the truth has rank 0", theory=functools.partial(theory, coefficient=_without_a_rank)),
    },
)
