r"""As the pool of training tasks grows, a transformer goes from the answers of dMMSE to those of ridge.

Prompts of :math:`\ell = \alpha d` examples with :math:`x \sim N(0, I_d)`, tasks from a pool of k draws of
:math:`N(0, I_d)` and noise of variance 1/4. On prompts of that pool the best predictor is dMMSE; on fresh tasks it is
ridge. A network in training has seen only the pool. How far it is from either is

.. math:: \Delta(T, R) = \frac1d\, E\, \frac{1}{\ell + 1} \sum_{i=0}^{\ell} (T_i - R_i)^2,

and its relative distance from ridge, 0 at ridge and 1 at dMMSE,

.. math:: p = \frac12 \Big( 1 - \frac{\Delta(T, \text{dMMSE}) - \Delta(T, \text{ridge})}
                                     {\Delta(\text{dMMSE}, \text{ridge})} \Big)
            = \frac{\langle T - \text{ridge},\; \text{dMMSE} - \text{ridge}\rangle}{\|\text{dMMSE} - \text{ridge}\|^2}.

The threshold is the k at which p = 1/2, where both are equally far. The scale
:math:`\Delta(\text{dMMSE}, \text{ridge})` falls with k: in a large pool the two are nearly one predictor, and p is
what still tells them apart.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.figures.curves import Panel, panels

RIVALS = ("dMMSE", "ridge", "dMMSE of another pool")
RESAMPLED = 2000  # bootstrap samples of seeds
LEARNED = 2.0  # factor by which training brings the network nearer to ridge, at least
NEARER = 1.5  # factor by which dMMSE of some pool is further from ridge than the network, at least
TRAINED = 2000  # steps from which its distance to ridge is compared with that of dMMSE
MIDDLE = (16, 4)  # parts of the training between which its middle lies
LONG = 8000  # steps from which a transient phase is looked for
EARLY = 4  # thresholds are compared at the end and after this part of the training


def measure(point, *, key, trained=True):
    """One cell: networks trained on pools of one size, at several steps; in a wrong world they make one step."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    import icllab as icl
    from icllab import algorithms
    from icllab.tasks import LinearRegression
    from icllab.tasks.regression_laws import GaussianWeights, WeightPool
    from icllab.training import Record

    dim, steps = point.dim, max(point.step)
    fresh = LinearRegression.convention("raventos", dim=dim, length=round(point.alpha * dim))
    optimizer = _optimizer(point.rate, steps)
    network, drawn, answers = _compiled_once(dim, point.width, point.layers)

    def pooled(key):
        """Tasks of a pool, each repeated as often: the same law, in arrays of one shape for all powers of two."""
        law, several = GaussianWeights(jnp.ones(())), max(1, point.longest // point.tasks)
        pool = WeightPool.drawn(law, max(point.longest, point.tasks), dim, key=key).weights[: point.tasks]
        return eqx.tree_at(lambda task: task.weights, fresh, WeightPool(jnp.tile(pool, (several, 1)), law))

    shape = (len(point.predictor), len(point.step), len(point.seed))
    distance = {"fresh": np.empty(shape), "pool": np.empty(shape)}
    scale = {"fresh": np.empty(shape[-1]), "pool": np.empty(shape[-1])}
    for s, seed in enumerate(point.seed):
        of_pool, of_other, of_weights, of_prompts, of_test = jax.random.split(jax.random.fold_in(key, seed), 5)
        task = pooled(of_pool)
        run = icl.fit(
            network(of_weights),
            task,
            steps=steps if trained else 1,
            key=of_prompts,
            batch=point.batch,
            optimizer=optimizer,
            record=Record([0], keep=point.step if trained else [0, 1], progress=False),
        )
        rivals = {
            "dMMSE": algorithms.bayes_optimal(task),
            "ridge": algorithms.bayes_optimal(fresh),
            "dMMSE of another pool": algorithms.bayes_optimal(pooled(of_other)),
        }
        for law, asked in (("fresh", fresh), ("pool", task)):
            prompts = drawn(asked, jax.random.split(of_test, point.prompts))
            given = {name: answers(rivals[name], prompts) for name in {*point.predictor, "dMMSE", "ridge"}}
            for t, step in enumerate(point.step):
                own = answers(run.trajectory.at(step if trained else min(step, 1)).member(0), prompts)
                distance[law][:, t, s] = [np.mean((own - given[name]) ** 2) / dim for name in point.predictor]
            scale[law][s] = np.mean((given["dMMSE"] - given["ridge"]) ** 2) / dim
    axes = ("predictor", "step", "seed")
    return {f"{law}_distance": (axes, values) for law, values in distance.items()} | {
        f"{law}_scale": (("seed",), values) for law, values in scale.items()
    }


@functools.cache
def _optimizer(rate, steps):
    """One object for all cells of so many steps, so that what is compiled for it is kept."""
    import optax

    return optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate, steps // 10, steps))


@functools.cache
def _compiled_once(dim, width, layers):
    """What builds networks, draws prompts and answers them, compiled once for all cells."""
    import equinox as eqx
    import jax

    from icllab.models import BlockOptions, Transformer
    from icllab.models.networks.embedding import Joined

    @eqx.filter_jit
    def network(key):
        arrangement = Joined(answers="every", causal=True, query_is_key=True)
        block = BlockOptions(heads=2, mlp=(2 * width,), norm="pre")
        shape = {"dim": dim, "width": width, "layers": layers, "block": block}
        return Transformer(arrangement, **shape, positions="none", key=key)

    @eqx.filter_jit
    def drawn(task, keys):
        return jax.vmap(lambda key: task.sample(key=key))(keys)

    @eqx.filter_jit
    def answers(predictor, prompts):
        return jax.lax.map(predictor, prompts, batch_size=256)

    return network, drawn, lambda predictor, prompts: np.asarray(answers(predictor, prompts), dtype=float)


def theory(dataset: xr.Dataset, names: tuple[str, ...] = RIVALS) -> xr.Dataset:
    """The network's relative distance, 0 at ridge and 1 at dMMSE; a control gives ``names`` in another order."""
    dataset = dataset.assign_coords(predictor=[names[RIVALS.index(name)] for name in dataset.predictor.values])
    for law in ("fresh", "pool"):
        distance = dataset[f"{law}_distance"]
        ahead = distance.sel(predictor="dMMSE") - distance.sel(predictor="ridge")
        dataset = dataset.assign({f"{law}_relative_distance": 0.5 * (1 - ahead / dataset[f"{law}_scale"])})
    return dataset


def check(dataset: xr.Dataset) -> list[Finding]:
    """Near dMMSE for few tasks, near ridge for many; where it changes, and how that moves with training."""
    findings = []
    for dim in dataset.dim.values:
        part, at = dataset.sel(dim=dim).isel(layers=-1).transpose("tasks", "predictor", "step", "seed"), f"d={dim}"
        few, many = int(part.tasks[0]), int(part.tasks[-1])
        for law in ("fresh", "pool"):
            what = f"relative distance from ridge to dMMSE on {law} tasks, {few} in the pool, {at}"
            findings.append(exceeds(what, *_mean(part[f"{law}_relative_distance"][0, -1]), bound=0.5))
        what = f"relative distance from dMMSE to ridge on fresh tasks, {many} in the pool, {at}"
        findings.append(exceeds(what, *_mean(1 - part["fresh_relative_distance"][-1, -1]), bound=0.5))
        findings += [*_learned(part, at), *_thresholds(part, at)]
        if part.step[-1] >= TRAINED:
            findings += _not_bayesian(part, at)
        if part.step[-1] >= LONG:
            findings += _transient(part, at)
    return findings


def _mean(samples) -> tuple[float, float]:
    mean, error = mean_and_error(np.asarray(samples))
    return float(mean), float(error)


def _log(values: xr.DataArray) -> xr.DataArray:
    return values.copy(data=np.log(values.values))


def _learned(part: xr.Dataset, at: str) -> list[Finding]:
    """Training brings the network to ridge where tasks are many, and where they are few to dMMSE of its own pool."""
    few, many = (int(part.tasks[i]) for i in (0, -1))
    ridge = _log(part["fresh_distance"].sel(predictor="ridge", tasks=many))
    pool = _log(part["pool_distance"].sel(tasks=few)).isel(step=-1)
    own, other = pool.sel(predictor="dMMSE"), pool.sel(predictor="dMMSE of another pool")
    fall = f"fall of the log distance to ridge on fresh tasks, {many} in the pool, {at}"
    nearer = f"log distance to dMMSE of another pool above that to its own, {few} in the pool, {at}"
    return [
        exceeds(fall, *_mean(ridge.isel(step=0) - ridge.isel(step=-1)), bound=np.log(LEARNED)),
        exceeds(nearer, *_mean(other - own)),
    ]


def _not_bayesian(part: xr.Dataset, at: str) -> list[Finding]:
    """On fresh tasks and for some pool, the network is clearly nearer to ridge than dMMSE of that pool is."""
    ratio = part["fresh_scale"] / part["fresh_distance"].sel(predictor="ridge").isel(step=-1)
    log = np.log(ratio.transpose("tasks", "seed").values)
    nearer = log[best_for_others(log), np.arange(log.shape[1])]
    what = f"log distance of dMMSE from ridge above that of the network, {at}"
    return [exceeds(what, *_mean(nearer), bound=np.log(NEARER))]


def _thresholds(part: xr.Dataset, at: str) -> list[Finding]:
    """Where p = 1/2 at the end of training; on tasks of the pool it is at more of them than after a part of it."""
    findings = []
    steps, tasks = part.step.values, part.tasks.values
    early = int(np.argmin(np.abs(steps - steps[-1] / EARLY)))
    least, most = np.log2(tasks[[0, -1]].astype(float))
    for law in ("fresh", "pool"):
        relative = part[f"{law}_relative_distance"].transpose("step", "tasks", "seed").values
        last, error = bootstrapped(lambda p: crossing(tasks, p[-1]), relative)
        what = f"log2 of the threshold on {law} tasks"
        findings.append(exceeds(f"{what}, {at}", last, error, bound=least))
        findings.append(exceeds(f"log2 of {tasks[-1]} above {what}, {at}", most - last, error))
        if law == "pool" or steps[-1] >= LONG:
            growth = bootstrapped(lambda p: crossing(tasks, p[-1]) - crossing(tasks, p[early]), relative)
            findings.append(exceeds(f"growth of the {what} from step {steps[early]} to {steps[-1]}, {at}", *growth))
    return findings


def _transient(part: xr.Dataset, at: str) -> list[Finding]:
    """For some pool, the network is nearer to ridge on fresh tasks in the middle of training than at its end."""
    steps = part.step.values
    middle = np.flatnonzero((steps >= steps[-1] / MIDDLE[0]) & (steps <= steps[-1] / MIDDLE[1]))
    log = _log(part["fresh_distance"].transpose("step", "predictor", "tasks", "seed"))
    change = log.isel(step=-1) - log.isel(step=middle).mean("step")
    rise, fall = change.sel(predictor="ridge").values, -change.sel(predictor="dMMSE").values
    pool, seeds = best_for_others(np.minimum(rise, fall)), np.arange(rise.shape[1])
    since = f"on fresh tasks from steps {steps[middle[0]]} to {steps[middle[-1]]} to the last, {at}"
    return [
        exceeds(f"rise of the log distance to ridge {since}", *_mean(rise[pool, seeds])),
        exceeds(f"fall of the log distance to dMMSE {since}", *_mean(fall[pool, seeds])),
    ]


def best_for_others(values: np.ndarray) -> np.ndarray:
    """For each seed the row with the largest mean over the *other* seeds: a choice that favours no seed's own noise."""
    seeds = range(values.shape[1])
    others = [np.delete(values, s, axis=1) if len(seeds) > 1 else values for s in seeds]
    return np.array([np.argmax(some.mean(1)) for some in others])


def crossing(tasks: np.ndarray, relative: np.ndarray) -> float:
    """log2 of the number of tasks at which the mean falls through 1/2 for the last time, or an end."""
    x, above = np.log2(tasks.astype(float)), relative.mean(-1) - 0.5
    if above[-1] > 0:
        return float(x[-1])
    falls = np.flatnonzero(above[:-1] > 0)
    if not falls.size:
        return float(x[0])
    i = falls[-1]
    return float(x[i] + (x[i + 1] - x[i]) * above[i] / (above[i] - above[i + 1]))


def bootstrapped(statistic, values: np.ndarray) -> tuple[float, float]:
    """A statistic of all seeds (the last axis) and its standard error over resampled ones."""
    rng, seeds = np.random.default_rng(0), values.shape[-1]
    if seeds < 2:
        return statistic(values), float("nan")
    again = [statistic(values[..., rng.integers(seeds, size=seeds)]) for _ in range(RESAMPLED)]
    # A mean of n resampled values varies by the factor 1 - 1/n too little.
    return statistic(values), float(np.std(again) * (seeds / (seeds - 1)) ** 0.5)


def figure(dataset: xr.Dataset):
    """The relative distance on fresh tasks and on those of the pool, against the size of the pool."""
    shown = dataset.isel(dim=-1, layers=-1, step=np.flatnonzero(dataset.step.values > 0))
    halfway = xr.full_like(shown["fresh_scale"].isel(seed=0, drop=True), 0.5)
    rows = [Panel(f"{law}_relative_distance", "halfway_line", ylim=(0.0, 1.0)) for law in ("fresh", "pool")]
    return panels(
        shown.assign(halfway_line=halfway),
        rows,
        x="tasks",
        hue="step",
        line_x="tasks",
        line_name="equally far from both",
        xscale="log",
        title="relative distance of the transformer: 0 at ridge, 1 at dMMSE",
    )


experiment = Experiment(
    claim=(
        "Trained on a pool of few tasks, a transformer answers nearly as dMMSE does, the best predictor for that pool; "
        "on a pool of more it answers fresh tasks nearly as ridge does, to which it is nearer than dMMSE is. The "
        "number of tasks of equal distance from both lies between, and on tasks of the pool it grows with training."
    ),
    sources=("Raventos23",),
    static=("dim", "layers", "tasks"),
    fixed={"alpha": 2.0, "width": 32, "batch": 64, "rate": 5e-3, "prompts": 1024, "longest": 1024},
    sizes={
        "smoke": {
            "dim": (3,),
            "layers": (1,),
            "tasks": (2, 32),
            "predictor": RIVALS,
            "step": (0, 200, 800),
            "seed": 3,
        },
        "small": {
            "dim": (4,),
            "layers": (2,),
            "tasks": (2, 4, 8, 16, 64),
            "predictor": RIVALS,
            "step": (0, 250, 500, 1000, 2000, 4000),
            "seed": 4,
        },
        "medium": {
            "dim": (4,),
            "layers": (2,),
            "tasks": (4, 8, 16, 64),
            "predictor": RIVALS,
            "step": (0, 500, 1000, 2000, 4000, 8000, 16000),
            "seed": 4,
        },
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "untrained": World("the networks make a single step", measure=functools.partial(measure, trained=False)),
        "another_pool": World(
            "dMMSE is that of a pool which training never saw",
            theory=functools.partial(theory, names=RIVALS[::-1]),
        ),
    },
)
