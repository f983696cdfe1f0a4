r"""From memorising to learning in context, in a softmax transformer: two errors against the number of training tasks.

Two blocks of softmax attention and an affine map, trained on the last token of fresh prompts of a pool of
:math:`k = \kappa d` tasks: :math:`\ell = \alpha d` examples, :math:`x \sim N(0, I/d)`, tasks :math:`w_j \sim N(0, I)`.
Prompts drawn afresh are the limit :math:`\tau \to \infty` of a fixed set of :math:`\tau d^2`, so that what is memorised
are tasks, never prompts. Then

.. math:: r(\kappa) = \frac{e_{\mathrm{IDG}}}{e^0_{\mathrm{IDG}}} \Big/ \frac{e_{\mathrm{ICL}}}{e^0_{\mathrm{ICL}}},

new prompts of the pool's tasks over new prompts of fresh tasks, is small where the pool is memorised, and 1 where the
network does the same with any task. Each error is taken over that of answering 0, :math:`e^0`, on the same prompts, so
that a small pool of tasks that happen to be long or short makes no gap. The gap is taken to close where r, a ratio of
means over seeds, crosses 0.9.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.theory import linear_attention

HALF, CLOSED = 0.5, 0.9  # of r
NAMES = tuple(f"{law}_{what}" for law in ("icl", "idg") for what in ("error", "zero", "dmmse", "ridge"))
ROWS = 64  # the pools' rows over d: one shape for every kappa that divides it, so that each dimension compiles once
KAPPAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
RESAMPLED = 2000  # bootstrap samples of seeds
LINE = np.geomspace(0.22, 70.0, 97)


def measure(point, *, key, everything=False):
    """One cell: networks trained for every number of steps. In a wrong world all are trained on the largest pool."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    import icllab as icl
    from icllab import algorithms
    from icllab.models import Transformer
    from icllab.tasks import FixedPrompts, LinearRegression, WeightPool
    from icllab.training import Record

    dim = point.dim
    optimizer, errors = _compiled_once()
    found = {name: np.empty((len(point.step), len(point.seed))) for name in NAMES}
    for s, seed in enumerate(point.seed):
        of_pool, of_weights, of_prompts, of_test = jax.random.split(jax.random.fold_in(key, seed), 4)
        widest = LinearRegression.from_scaling(dim=dim, alpha=point.alpha, kappa=ROWS, rho=point.rho, key=of_pool)
        assert isinstance(widest.weights, WeightPool)
        # The first tasks, each as often as every other: the law of a small pool in an array of one shape.
        tasks = np.asarray(widest.weights.weights)[: max(1, round(point.kappa * dim))]
        every = jnp.asarray(np.tile(tasks, (max(1, ROWS * dim // len(tasks)), 1)))
        pooled = eqx.tree_at(lambda task: task.weights.weights, widest, every)
        network = Transformer.lu(dim=dim, layers=2, dense=True, key=of_weights)
        rivals = {"dmmse": algorithms.DiscreteMMSE(every, point.rho), "ridge": algorithms.Ridge(point.rho)}
        tests = {
            law: FixedPrompts.drawn(asked, point.prompts, key=of_test).prompts
            for law, asked in (("icl", widest.fresh()), ("idg", pooled))
        }
        for law, prompts in tests.items():
            found[f"{law}_zero"][:, s] = np.mean(np.asarray(prompts.y)[:, -1] ** 2)
            for name, rival in rivals.items():
                found[f"{law}_{name}"][:, s] = errors(rival, prompts)
        for t, steps in enumerate(point.step):
            run = icl.fit(
                network,
                widest if everything else pooled,
                steps=steps,
                key=of_prompts,
                batch=point.batch,
                optimizer=optimizer,
                sweep={"optimizer.rate": [point.rate], "optimizer.steps": [steps]},
                positions="last",
                record=Record([0], progress=False),
            )
            for law, prompts in tests.items():
                found[f"{law}_error"][t, s] = errors(run.predictor, prompts)
    return {name: (("step", "seed"), values) for name, values in found.items()}


@functools.cache
def _compiled_once():
    """One object each for all cells, so that what is compiled for it is kept."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    def optimizer(rate, steps):
        """Adam whose rate rises over a twentieth of the training and falls along a cosine."""

        def schedule(count):
            done = jnp.minimum(count / steps, 1.0)
            return rate * jnp.minimum(20 * done, 1.0) * jnp.cos(0.5 * jnp.pi * done) ** 2

        return optax.adam(schedule)

    @eqx.filter_jit
    def compiled(predictor, prompts):
        return jax.lax.map(lambda prompt: (predictor(prompt)[-1] - prompt.y[-1]) ** 2, prompts, batch_size=256)

    def errors(predictor, prompts):
        return float(np.mean(np.asarray(compiled(predictor, prompts), dtype=float)))

    return optimizer, errors


def theory(dataset: xr.Dataset) -> xr.Dataset:
    r"""Errors over those of answering 0, r, and linear attention's closed form at :math:`\tau \to \infty`."""
    law = {"tau": 1e9, **{name: fixed_values(dataset)[name] for name in ("alpha", "rho")}}
    icl, idg = (function(kappa=LINE, **law) for function in (linear_attention.icl_error, linear_attention.idg_error))
    icl_relative = dataset["icl_error"] / dataset["icl_zero"]
    idg_relative = dataset["idg_error"] / dataset["idg_zero"]
    return dataset.assign_coords(kappa_line=LINE).assign(
        icl_relative=icl_relative,
        idg_relative=idg_relative,
        error_ratio=idg_relative / icl_relative,
        icl_line=("kappa_line", icl),
        idg_line=("kappa_line", idg),
        ratio_line=("kappa_line", idg / icl),
    )


def crossing(kappas: np.ndarray, ratios: np.ndarray, level: float) -> np.ndarray:
    """The log kappa at which every column of ``[kappa, column]`` rises above ``level`` for good.

    Linear in the log between grid points. Minus infinity where all lie above, infinity where the last lies below.
    """
    below = ratios < level
    last = len(kappas) - 1 - np.argmax(below[::-1], axis=0)
    here, column = np.minimum(last, len(kappas) - 2), np.arange(ratios.shape[1])
    a, b, x = ratios[here, column], ratios[here + 1, column], np.log(kappas)
    with np.errstate(divide="ignore", invalid="ignore"):
        place = x[here] + (x[here + 1] - x[here]) * (level - a) / (b - a)
    return np.where(below[-1], np.inf, np.where(below.any(axis=0), place, -np.inf))


def crossed(part: xr.Dataset, level: float) -> tuple[float, np.ndarray]:
    """Where r crosses ``level``: of the means over all seeds, and of bootstrap samples of them.

    Cells have pools and networks of their own, so that seeds are drawn anew for each kappa.
    """
    icl, idg = (part[f"{of}_relative"].transpose("kappa", "seed").values for of in ("icl", "idg"))
    chosen = np.random.default_rng(0).integers(icl.shape[1], size=(len(icl), icl.shape[1], RESAMPLED))
    at = np.arange(len(icl))[:, None, None]
    samples = idg[at, chosen].mean(axis=1) / icl[at, chosen].mean(axis=1)
    whole = idg.mean(axis=1, keepdims=True) / icl.mean(axis=1, keepdims=True)
    return float(crossing(part.kappa.values, whole, level)[0]), crossing(part.kappa.values, samples, level)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Few tasks are memorised, many are not; where the gap closes, how gradually, and what more training does."""
    findings = []
    for dim in dataset.dim.values:
        for step in dataset.step.values:
            part, at = dataset.sel(dim=dim, step=step), f"d={dim}, {step} steps"
            findings += [*_ends(part, at), *_closing(part, at)]
        if dataset.sizes["step"] > 1:
            ratio = dataset["error_ratio"].sel(dim=dim)
            opened = np.log(ratio.isel(step=0).values) - np.log(ratio.isel(step=-1).values)
            steps = f"{dataset.step.values[0]} to {dataset.step.values[-1]} steps"
            findings.append(_above(opened.mean(axis=0), f"fall of the mean log r over all kappa, {steps}, d={dim}"))
    lengths = dataset.sizes["step"] >= 2
    findings.append(exactly("lengths of training, at least 2", 1, lengths, otherwise=Outcome.UNDECIDED))
    return findings


def _ends(part: xr.Dataset, at: str) -> list[Finding]:
    """The fewest tasks are known by heart, which harms fresh ones; the most leave no gap, and something is learned."""
    few, many = part.isel(kappa=0), part.isel(kappa=-1)
    of_few, of_many = (f"kappa={float(end.kappa):g}, {at}" for end in (few, many))
    return [
        _above(-np.log(few["error_ratio"].values), f"minus log r, {of_few}", bound=-float(np.log(HALF))),
        _above(few["icl_relative"].values, f"error on fresh tasks over that of answering 0, {of_few}", bound=1.0),
        _above(np.log(many["error_ratio"].values), f"log r, {of_many}", bound=float(np.log(CLOSED))),
        _above(1 - many["icl_relative"].values, f"share of the variance of fresh tasks explained, {of_many}"),
    ]


def _closing(part: xr.Dataset, at: str) -> list[Finding]:
    """At more tasks than dimensions, and over more than a factor of two in kappa: no corner at kappa = 1."""
    (half, of_half), (closed, of_closed) = (crossed(part, level) for level in (HALF, CLOSED))
    inside = np.isfinite(of_half) & np.isfinite(of_closed)
    enough = part.sizes["kappa"] >= 4 and part.sizes["seed"] > 1
    if not (enough and np.isfinite([half, closed]).all() and inside.mean() > 0.9):
        return [exactly(f"r crosses {HALF:g} and {CLOSED:g} inside the grid, {at}", 1, 0, otherwise=Outcome.UNDECIDED)]
    found, width = of_closed[inside], (of_closed - of_half)[inside]
    return [
        exceeds(f"log kappa where r crosses {CLOSED:g}, {at}", closed, float(found.std(ddof=1))),
        exceeds(
            f"log of kappa there over kappa where r crosses {HALF:g}, {at}",
            closed - half,
            float(width.std(ddof=1)),
            bound=float(np.log(2)),
        ),
    ]


def _above(samples: np.ndarray, what: str, bound: float = 0.0) -> Finding:
    mean, error = mean_and_error(samples)
    return exceeds(what, float(mean), float(error), bound=bound)


def figure(dataset: xr.Dataset):
    """At the largest d, r and both errors against kappa: of networks by training, and of rivals that know the law."""
    shown = dataset.isel(dim=-1)
    rows = {"error_ratio": "ratio_line", "icl_error": "icl_line", "idg_error": "idg_line"}
    named = {f"{int(step)} steps": shown.sel(step=step, drop=True)[list(rows)] for step in shown.step.values}
    for rival, name in (("dmmse", "dMMSE"), ("ridge", "ridge")):
        own = shown.isel(step=-1, drop=True)
        icl, idg = own[f"icl_{rival}"], own[f"idg_{rival}"]
        ratio = idg / own["idg_zero"] / (icl / own["icl_zero"])
        named[name] = xr.Dataset({"error_ratio": ratio, "icl_error": icl, "idg_error": idg})
    joined = xr.concat(list(named.values()), dim="predictor").assign_coords(predictor=list(named))
    joined = joined.assign({line: shown[line] for line in rows.values()})
    drawn = [Panel(y, line=line, yscale="log" if y == "idg_error" else "linear") for y, line in rows.items()]
    return panels(
        joined, drawn, x="kappa", hue="predictor", line_x="kappa_line", line_name="linear attention", xscale="log"
    )


def _only_the_pool(dataset: xr.Dataset) -> xr.Dataset:
    """Both errors on tasks of the pool."""
    return theory(dataset.assign({f"icl_{what}": dataset[f"idg_{what}"] for what in ("error", "zero")}))


experiment = Experiment(
    claim=(
        "A two-block softmax transformer trained on few tasks memorises them: its error on them is less than half that "
        "on fresh tasks, which is worse than that of answering 0. With many tasks the gap closes, at more tasks than "
        "dimensions and gradually, over more than a factor of two in their number; and longer training opens it again."
    ),
    sources=("Lu24", "Raventos23"),
    static=("dim", "kappa"),
    fixed={"alpha": 1.0, "rho": 0.01, "batch": 64, "rate": 0.01, "prompts": 4096},
    sizes={
        "smoke": {"dim": (4,), "kappa": (0.5, 64.0), "step": (500,), "seed": 4},
        "small": {"dim": (8,), "kappa": KAPPAS, "step": (1000, 4000), "seed": 6},
        "medium": {"dim": (8, 12), "kappa": KAPPAS, "step": (1000, 4000), "seed": 6},
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "everything": World(
            "every network is trained on the largest pool", measure=functools.partial(measure, everything=True)
        ),
        "only_the_pool": World("fresh tasks are tasks of the pool too", theory=_only_the_pool),
    },
)
