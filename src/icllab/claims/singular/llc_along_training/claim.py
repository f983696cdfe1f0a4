r"""Stages of an in-context regression transformer, by its loss and by estimates of its learning coefficient.

Prompts of eight pairs with :math:`x \sim N(0, I_4)`, noise of variance 1/8, and tasks of a pool of k draws of
:math:`N(0, I_4)`, as interleaved tokens; two layers of four heads. The published setting, smaller. Along training, at
checkpoints, Langevin dynamics of batches estimate

.. math:: \hat\lambda = n\beta\,\bigl(E[L] - L(w)\bigr), \qquad L = \text{mean squared error over positions,}

at :math:`n\beta` of some tens, where n of any size of the data would be thousands. So it counts the directions in
which the loss bends by more than :math:`\gamma/n\beta`, which is a resolution and not a limit, and at a checkpoint that
is no minimum it is a number of this procedure only. How far the network is from ridge, the best predictor for fresh
tasks, and from dMMSE, that for the pool, is the mean squared distance on prompts of fresh tasks, over d.
"""

import dataclasses
import functools

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from icllab.core.axes import axis, quantity
from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.figures import style

RIVALS = ("dMMSE", "ridge")
LONG = 1000  # updates from which on coefficients are estimated
TRANSIENT = 8000  # updates from which on a return from ridge to dMMSE is looked for


def measure(point, *, key):
    """One cell: networks on one pool, their losses at many steps, and estimates at some."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    import icllab as icl
    from icllab import algorithms
    from icllab.diagnostics import SGLD, learning_coefficient
    from icllab.models import BlockOptions, Transformer
    from icllab.models.networks.embedding import Interleaved
    from icllab.tasks import LinearRegression
    from icllab.tasks.regression_laws import GaussianWeights, WeightPool
    from icllab.training import Record, Sweep

    of_pool, of_weights, of_prompts, of_test, of_chains = jax.random.split(key, 5)
    fresh = LinearRegression.convention("timaeus", dim=point.dim, length=point.length)
    pool = WeightPool.drawn(GaussianWeights(jnp.ones(())), point.tasks, point.dim, key=of_pool)
    task = eqx.tree_at(lambda one: one.weights, fresh, pool)

    steps = max(point.step)
    layers = 2 if steps >= LONG else 1  # a short training only shows that the loss falls

    def network(key):
        block = BlockOptions(heads=4, mlp=(point.width,), norm="pre", nonlinearity="relu")
        shape = {"dim": point.dim, "width": point.width, "layers": layers, "block": block}
        return Transformer(Interleaved(), **shape, positions="learned", length=point.length, key=key)

    checkpoints = [step for step in point.checkpoint if step <= steps]
    run = icl.fit(
        icl.ensemble(network, seeds=len(point.seed), key=of_weights),
        task,
        steps=steps,
        key=of_prompts,
        batch=point.batch,
        optimizer=optax.adam(point.rate),
        sweep=Sweep(mode="map"),
        record=Record(point.step, keep=checkpoints, held_out=point.prompts, progress=False),
    )
    held_out = run.dataset["held_out_loss"].mean("position").sel(step=list(point.step))
    shape = (len(point.checkpoint), len(point.seed))
    distance = np.full((2, *shape), np.nan)
    numbers = {name: np.full((len(point.nbeta), *shape), np.nan) for name in ("coefficient", "error", "warned")}
    if steps >= LONG:
        prompts = fresh.sample_many(point.prompts, key=of_test)
        answer = eqx.filter_jit(lambda predictor: jax.lax.map(predictor, prompts, batch_size=256))
        rivals = [answer(algorithms.bayes_optimal(one)) for one in (task, fresh)]
        how = {"chains": point.chains, "warm_up": point.warm_up, "draws": 2 * point.warm_up}
        sampler = SGLD(batch=64, step_size=point.step_size, dispersion=0.1, **how)
        how = {"localization": point.localization, "sampler": sampler, "key": of_chains}
        for c, checkpoint in enumerate(checkpoints):
            for s in range(len(point.seed)):
                own = answer(run.trajectory.at(checkpoint).member(s))
                distance[:, c, s] = [float(jnp.mean((own - rival) ** 2)) / point.dim for rival in rivals]
            for b, nbeta in enumerate(point.nbeta):
                if b and checkpoint != checkpoints[-1]:
                    continue
                found = learning_coefficient(run, checkpoint, task=task, data=point.prompts, n=1e6, nbeta=nbeta, **how)
                numbers["coefficient"][b, c] = found["estimate"].values
                numbers["error"][b, c] = found["mcse"].values
                numbers["warned"][b, c] = len(found.attrs["warnings"])
    axes = ("nbeta", "checkpoint", "seed")
    return {
        "held_out_loss": (("seed", "step"), held_out.values),
        "fresh_distance": (("predictor", "checkpoint", "seed"), distance),
        "learning_coefficient": (axes, numbers["coefficient"]),
        "learning_coefficient_error": (axes, numbers["error"]),
        "sampler_warnings": (axes, numbers["warned"]),
    }


def theory(dataset: xr.Dataset, *, backwards: bool = False) -> xr.Dataset:
    """Nothing is predicted; in a wrong world training runs backwards."""
    if not backwards:
        return dataset
    times = ("step", "checkpoint")
    return dataset.assign(
        {
            str(name): values.isel({d: slice(None, None, -1) for d in times if d in values.dims}).assign_coords(
                {d: values[d] for d in times if d in values.dims}
            )
            for name, values in dataset.data_vars.items()
        }
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """The loss falls, with breaks at known steps; over each the estimate of the coefficient rises, if none warns."""
    findings = []
    for tasks in dataset["tasks"].values:
        part, at = dataset.sel(tasks=tasks), f"{tasks} tasks"
        loss = np.log(part["held_out_loss"].transpose("seed", "step").values)
        fall = mean_and_error(loss[:, 0] - loss[:, -1])
        findings.append(exceeds(f"fall of the log loss, {at}", *map(float, fall)))
        if part["step"].values[-1] >= LONG:
            stages, intervals = _stages(part, at)
            findings += [stages, *_rises(part, intervals, at), *_growth(part, at), *_nearer(part, at)]
    return findings


def _stages(part: xr.Dataset, at: str) -> tuple[Finding, np.ndarray]:
    """Whether breaks are reported, and their intervals."""
    from icllab.diagnostics.curves.breakpoints import change_points

    found = change_points(part["held_out_loss"].transpose("seed", "step"))
    intervals = found["change_interval"].values[found["reported"].values]
    advice = "; ".join(sorted({str(reason) for reason in found["reason"].values})) or "no breaks"
    outcome = Outcome.HOLDS if len(intervals) else Outcome.UNDECIDED
    what = f"change points of the loss that are reported, {at}"
    return Finding(what, 1, len(intervals), 0.0, 0.0, outcome, advice), intervals


def _rises(part: xr.Dataset, intervals: np.ndarray, at: str) -> list[Finding]:
    """From the last checkpoint before a reported break to the first after it, at the temperature of all checkpoints."""
    checkpoints = part["checkpoint"].values
    estimate = part["learning_coefficient"].transpose("nbeta", "checkpoint", "seed").values
    b = int(np.argmax(np.isfinite(estimate).all((1, 2))))
    what = f"rise of the estimate over a reported break, nbeta={part['nbeta'].values[b]:g}, {at}"
    findings = []
    for low, high in intervals:
        before, after = np.flatnonzero(checkpoints <= low), np.flatnonzero(checkpoints >= high)
        if len(before) and len(after):
            first, last = int(before[-1]), int(after[0])
            steps = f"from step {checkpoints[first]} to {checkpoints[last]}"
            findings.append(_greater(part, (b, last), (b, first), f"{what}, {steps}"))
    if not findings:
        advice = "no reported break has checkpoints on both sides"
        findings = [Finding(what, 0.0, np.nan, np.nan, np.nan, Outcome.UNDECIDED, advice)]
    return findings


def _growth(part: xr.Dataset, at: str) -> list[Finding]:
    nbeta = part["nbeta"].values
    if len(nbeta) < 2:
        return []
    least, most = int(np.argmin(nbeta)), int(np.argmax(nbeta))
    what = f"estimate at nbeta={nbeta[most]:g} above that at {nbeta[least]:g}, last step, {at}"
    return [_greater(part, (most, -1), (least, -1), what)]


def _greater(part: xr.Dataset, one: tuple[int, int], other: tuple[int, int], what: str) -> Finding:
    """Is an estimate, [nbeta, checkpoint], above another? Undecided if either warns, whatever they are."""

    def both(name: str) -> tuple[np.ndarray, np.ndarray]:
        values = part[name].transpose("nbeta", "checkpoint", "seed").values
        return values[one], values[other]

    (high, low), errors = both("learning_coefficient"), both("learning_coefficient_error")
    difference, spread = mean_and_error(high - low)
    own = float(np.sqrt(np.sum(np.square(errors)))) / len(high)
    finding = exceeds(what, float(difference), max(float(spread), own))
    # A warning is of the run of chains of all seeds, and is saved with each.
    warned = int(sum(np.nan_to_num(values).max() for values in both("sampler_warnings")))
    if not warned:
        return finding
    return dataclasses.replace(finding, outcome=Outcome.UNDECIDED, advice=f"{warned} warnings of these estimates")


def _nearer(part: xr.Dataset, at: str) -> list[Finding]:
    """Training brings the network nearer to ridge; then, if it is nearer before the end than at it, away again."""
    distance = np.log(part["fresh_distance"].transpose("predictor", "checkpoint", "seed").values)
    ridge = distance[RIVALS.index("ridge")]
    steps = part["checkpoint"].values
    nearest = int(np.argmin(ridge.mean(1)))
    fall = mean_and_error(ridge[0] - ridge[nearest])
    what = f"fall of the log distance to ridge on fresh tasks to step {steps[nearest]}, {at}"
    findings = [exceeds(what, *map(float, fall))]
    if steps[-1] >= TRANSIENT and nearest < len(steps) - 1:
        rise = mean_and_error(ridge[-1] - ridge[nearest])
        what = f"rise of that distance from step {steps[nearest]} to {steps[-1]}, {at}"
        findings.append(exceeds(what, *map(float, rise)))
    return findings


def figure(dataset: xr.Dataset) -> Figure:
    """Loss, coefficient and distances from the two rivals, against the step."""
    part = dataset.isel(tasks=-1)
    with style.context():
        drawn = Figure(figsize=(style.COLUMN, 4.9), layout="constrained")
        FigureCanvasAgg(drawn)
        above, middle, below = drawn.subplots(3, 1, sharex=True)
        part = part.isel(step=part["step"].values > 0, checkpoint=part["checkpoint"].values > 0)
        step, checkpoint = part["step"].values, part["checkpoint"].values
        for row in part["held_out_loss"].transpose("seed", "step").values:
            above.plot(step, row, color=style.INK, linewidth=0.8)
        above.set(xscale="log", ylabel="loss on held-out\nprompts, $L$")
        for b, nbeta in enumerate(part["nbeta"].values):
            estimate = part["learning_coefficient"].isel(nbeta=b).transpose("checkpoint", "seed").values
            mean, error = mean_and_error(estimate)
            look = {"color": style.CATEGORIES[b], "marker": style.marker(b), "linestyle": "none"}
            middle.errorbar(checkpoint * 1.04**b, mean, error, **look, label=rf"$n\beta = {nbeta:g}$")
        middle.set(ylabel="learning coefficient,\n" + rf"estimate, ${quantity('learning_coefficient').symbol}$")
        middle.legend(loc="upper left")
        for i, name in enumerate(part["predictor"].values):
            mean, error = mean_and_error(
                part["fresh_distance"].sel(predictor=name).transpose("checkpoint", "seed").values
            )
            look = {"color": style.CATEGORIES[i], "marker": style.marker(i), "linewidth": 0.8}
            below.errorbar(checkpoint, mean, error, **look, label=f"from {name}")
        below.set(xlabel=axis("step").label, ylabel="squared distance\non fresh tasks, $\\Delta$")
        below.legend(loc="lower left")
    return drawn


def _log_steps(last: int, records: int) -> tuple[int, ...]:
    return (0, *sorted({round(last ** (i / records)) for i in range(1, records + 1)}))


NAMES = {"predictor": RIVALS}

experiment = Experiment(
    claim=(
        "The loss of a small in-context regression transformer on a pool of tasks falls with breaks at steps known to "
        "within a decade, and over each the estimate of its learning coefficient rises, which grows with the inverse "
        "temperature. Undecided so far: the breaks may be correlated noise, and every estimate warns."
    ),
    sources=("Hoogland24", "Carroll25"),
    static=("tasks",),
    fixed={"dim": 4, "length": 8, "width": 16, "batch": 128, "rate": 3e-3, "prompts": 1024}
    | {"chains": 4, "warm_up": 100, "step_size": 1e-4, "localization": 100.0},
    sizes={
        "smoke": NAMES | {"tasks": (8,), "seed": 3, "step": (0, 30), "checkpoint": (0, 30), "nbeta": (60.0,)},
        "small": NAMES
        | {
            "tasks": (8,),
            "seed": 3,
            "step": _log_steps(3000, 48),
            "checkpoint": (0, 60, 300, 800, 1500, 3000),
            "nbeta": (60.0, 20.0, 180.0),
        },
        "medium": NAMES
        | {
            "tasks": (8, 64),
            "seed": 4,
            "step": _log_steps(20000, 60),
            "checkpoint": (0, 60, 300, 800, 1500, 3000, 6000, 10000, 20000),
            "nbeta": (60.0, 20.0, 180.0),
        },
    },
    shows="medium",
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={"backwards": World("training runs backwards", theory=functools.partial(theory, backwards=True))},
)
