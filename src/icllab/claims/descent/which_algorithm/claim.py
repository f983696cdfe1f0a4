r"""Which algorithm do softmax transformers implement, across depth and noise, after a short training?

.. math:: w \sim N(0, I_d), \quad x_i \sim N(0, I_d), \quad y_i = \langle w, x_i\rangle + \epsilon_i,
          \quad \epsilon_i \sim N(0, \rho)

Transformers of one width and several depths answer the query after :math:`\ell = 2d` examples.
:func:`~icllab.diagnostics.identification.comparison.identify` measures the fraction :math:`u_k` of the variance of
each network's answers and input gradients that a candidate algorithm leaves unexplained, its parameters fitted to the
network. It names a candidate only if :math:`u_k` is below a tolerance :math:`\epsilon`. Candidates are steps of
gradient descent with a fitted rate, one step with a fitted matrix, two steps of GD++ with fitted matrices, ridge
regression, least squares, a softmax smoother, kernel ridge regression and the mean of the labels. Two verdicts are
given: at :math:`\epsilon` = 1 % and at 5 %.

At large T the exponential kernel tends to the linear one and a constant, so kernel ridge regression comes near to ridge
regression.

At ``smoke`` networks are not trained: there it is seen that a network as it is drawn is named nothing, and one that
takes steps of descent what it is.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.figures.curves import Panel, panels

CANDIDATES = (
    "1 step",
    "2 steps",
    "4 steps",
    "preconditioned step",
    "GD++, 2 steps",
    "ridge",
    "least squares",
    "softmax smoother",
    "kernel ridge",
    "mean of labels",
)
SHOWN = ("1 step", "4 steps", "GD++, 2 steps", "ridge", "softmax smoother", "kernel ridge")  # in the figure
NONE, MANY, UNDECIDED = "none of these", "indistinguishable", "undecided"  # verdicts that name no candidate
STRICT, LOOSE = 0.01, 0.05  # largest fractions unexplained of a candidate that is named
YLIM = (0.008, 1.2)  # of the figure
LONG = 1000  # steps of training from which candidates are compared
LITTLE = float(np.log(2.0))  # fall of the logarithm of a fraction that counts as little


def measure(point, *, key, constructed=False):
    """One cell: all seeds at one depth and noise. ``constructed``: the networks take so many steps of descent."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from icllab import constructions
    from icllab.algorithms import GradientDescent
    from icllab.diagnostics import VerdictRule, identify
    from icllab.tasks import LinearRegression

    base = LinearRegression.convention("garg", dim=point.dim, length=2 * point.dim)
    task = eqx.tree_at(lambda t: t.noise_variance, base, jnp.asarray(point.rho, base.noise_variance.dtype))
    candidates, fitted = candidates_of(point.candidate, point.dim)
    if constructed:
        shape = {"layers": point.layers, "dim": point.dim, "normalised": True, "half": True}
        networks = [constructions.gradient_descent(GradientDescent(0.5, **shape), answers="last")] * len(point.seed)
    else:
        networks = _trained(point, task, key)
    sizes = (len(point.candidate), len(point.seed))
    unexplained, ends = np.empty(sizes), np.empty((*sizes, len(point.bound)))
    found = {name: np.empty((len(point.tolerance), *sizes)) for name in ("accepted", "among")}
    for s, network in enumerate(networks):
        own, fits = candidates, fitted
        for e, tolerance in enumerate(point.tolerance):
            one = identify(
                network,
                own,
                task,
                key=jax.random.fold_in(key, point.seed[s]),
                fitted=fits,
                prompts=point.prompts,
                fitting=point.fitting,
                rule=VerdictRule(tolerance=tolerance, resamples=500),
            )
            if e == 0:  # what is fitted does not depend on the tolerance
                own, fits = _with_values(candidates, fitted, one), {}
                unexplained[:, s] = one.fraction_unexplained
                ends[:, s] = one.fraction_unexplained_interval.sel(bound=list(point.bound))
            found["accepted"][e, :, s], found["among"][e, :, s] = one.accepted, one.among
    return {
        "fraction_unexplained": (("candidate", "seed"), unexplained),
        "fraction_unexplained_interval": (("candidate", "seed", "bound"), ends),
        "accepted": (("tolerance", "candidate", "seed"), found["accepted"]),
        "among": (("tolerance", "candidate", "seed"), found["among"]),
    }


def candidates_of(names, dim):
    """The candidates of these names, and which of their parameters are fitted."""
    import jax.numpy as jnp

    from icllab import algorithms

    shape = {"dim": dim, "normalised": True, "half": True}
    smoother = {"kernel": "softmax", "noise_variance": 0.0, "layers": 1, "dim": dim, "normalised": False}

    def mean_of_labels(prompt):
        before = jnp.pad(jnp.cumsum(prompt.y[:-1]), (1, 0))
        return before / jnp.maximum(jnp.arange(prompt.positions), 1).astype(before.dtype)

    built = {
        "1 step": (lambda: algorithms.GradientDescent(0.5, layers=1, **shape), ["rate"]),
        "2 steps": (lambda: algorithms.GradientDescent(0.5, layers=2, **shape), ["rate"]),
        "4 steps": (lambda: algorithms.GradientDescent(0.5, layers=4, **shape), ["rate"]),
        "preconditioned step": (
            lambda: algorithms.PreconditionedDescent(0.5 * jnp.eye(dim), layers=1, **shape),
            ["preconditioner"],
        ),
        "GD++, 2 steps": (
            lambda: algorithms.GradientDescentPlusPlus.scalar(0.5, 0.1, layers=2, **shape),
            ["preconditioner", "contraction"],
        ),
        "ridge": (lambda: algorithms.Ridge(0.5), ["ridge"]),
        "least squares": (algorithms.LeastSquares, []),
        "softmax smoother": (
            lambda: algorithms.FunctionalDescent(1.0, temperature=1.0, **smoother),
            ["rate", "temperature"],
        ),
        "kernel ridge": (
            lambda: algorithms.KernelRidge(0.5, kernel="exponential", temperature=5.0),
            ["ridge", "temperature"],
        ),
        "mean of labels": (lambda: mean_of_labels, []),
    }
    chosen = {name: built[name] for name in names}
    return {name: make() for name, (make, _) in chosen.items()}, {n: paths for n, (_, paths) in chosen.items() if paths}


def _with_values(candidates, fitted, found):
    """The candidates with the parameters that were fitted."""
    import json
    import operator

    import equinox as eqx
    import jax.numpy as jnp

    own = dict(candidates)
    for name, paths in fitted.items():
        numbers = json.loads(str(found.fitted_values.sel(candidate=name).item()))
        for path in paths:
            where = operator.attrgetter(path)
            own[name] = eqx.tree_at(where, own[name], jnp.asarray(numbers[path], where(own[name]).dtype))
    return own


def _trained(point, task, key):
    """One transformer for each seed; without a step, as it is drawn."""
    import jax

    import icllab as icl
    from icllab.models import BlockOptions, Transformer
    from icllab.models.networks.embedding import Joined
    from icllab.training import Record, Sweep

    of_weights, of_prompts = jax.random.split(key)

    def build(key):
        return Transformer(
            Joined(answers="last", causal=False, query_is_key=True),
            dim=point.dim,
            width=point.width,
            layers=point.layers,
            block=BlockOptions(heads=2, mlp=(2 * point.width,), norm="pre"),
            positions="none",
            key=key,
        )

    drawn = icl.ensemble(build, seeds=list(point.seed), key=of_weights)
    if point.step == 0:
        return [drawn.member(i) for i in range(drawn.size)]
    run = icl.fit(
        drawn,
        task,
        steps=point.step,
        key=of_prompts,
        batch=point.batch,
        optimizer=_optimizer(point.step, point.rate),
        positions="last",
        sweep=Sweep(mode="map"),
        record=Record([0], progress=False),
    )
    return [run.member(i) for i in range(run.size)]


@functools.cache
def _optimizer(steps, rate):
    import optax

    return optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate, steps // 20, steps))


def verdicts(dataset: xr.Dataset, tolerance: float) -> xr.DataArray:
    """The verdict on every network: a candidate's name, or one of three others."""
    among = dataset["among"].sel(tolerance=tolerance) > 0
    low = dataset["fraction_unexplained_interval"].sel(bound="low")
    names = np.asarray([str(name) for name in dataset.candidate.values], object)
    several, refused = among.sum("candidate"), (low > tolerance).all("candidate")
    named = xr.apply_ufunc(lambda one: names[one.argmax(-1)], among, input_core_dims=[["candidate"]])
    without = xr.where(refused, NONE, UNDECIDED).astype(object)
    return xr.where(several == 1, named, xr.where(several > 1, MANY, without))


def check(dataset: xr.Dataset) -> list[Finding]:
    """No candidate is named; ridge is nearer than one step, and nearer in deeper networks; and what else depth does."""
    findings = []
    dataset = dataset.isel(step=-1)
    unexplained = dataset["fraction_unexplained"]
    log = unexplained.copy(data=np.log(np.maximum(unexplained.values, 1e-12)))
    for rho in dataset.rho.values:
        for depth in dataset.layers.values:
            part, at = dataset.sel(rho=rho, layers=depth), f"{depth} layers, rho={rho:g}"
            named = int((verdicts(part, STRICT) != NONE).sum())
            findings.append(exactly(f"networks that are not none of these at {STRICT:g}, {at}", 0, named))
            above = log.sel(rho=rho, layers=depth)
            if dataset.step < LONG:
                continue
            apart = (above.sel(candidate="1 step") - above.sel(candidate="ridge")).values
            findings.append(_above(f"log fraction unexplained, 1 step above ridge, {at}", apart))
        if dataset.sizes["layers"] > 1 and dataset.step >= LONG:
            findings += _over_depth(log.sel(rho=rho), f"rho={rho:g}")
    depths = dataset.sizes["layers"] > 1
    findings.append(exactly("several depths", 1, depths, otherwise=Outcome.UNDECIDED))
    return findings


def _over_depth(log: xr.DataArray, at: str) -> list[Finding]:
    """From the shallowest to the deepest; networks of two depths share no seed, so that their errors add."""
    ends = [log.isel(layers=i) for i in (0, -1)]
    means, errors = zip(*(mean_and_error(end.transpose("candidate", "seed").values) for end in ends), strict=True)
    fall, error = means[0] - means[1], np.hypot(*errors)
    said = f"from {log.layers.values[0]} to {log.layers.values[-1]} layers, {at}"
    place = {str(name): i for i, name in enumerate(log.candidate.values)}
    ridge, step = place["ridge"], place["1 step"]
    gained = (ends[0] - ends[0].sel(candidate="1 step"), ends[1] - ends[1].sel(candidate="1 step"))
    (before, of_before), (after, of_after) = (mean_and_error(one.sel(candidate="ridge").values) for one in gained)
    more, of_more = float(before - after), float(np.hypot(of_before, of_after))
    return [
        exceeds(f"fall of the log fraction unexplained by ridge, {said}", float(fall[ridge]), float(error[ridge])),
        exceeds(f"that fall above the fall of 1 step, {said}", more, of_more),
        exceeds(
            f"log 2 above the fall of the log fraction unexplained by 1 step, {said}",
            LITTLE - float(fall[step]),
            float(error[step]),
        ),
    ]


def _above(what: str, samples: np.ndarray) -> Finding:
    return exceeds(what, *map(float, mean_and_error(samples)))


def figure(dataset: xr.Dataset):
    """Fraction of variance unexplained against depth, one panel for each noise."""
    dataset = dataset.isel(step=-1)
    names = [name for name in SHOWN if name in dataset.candidate]
    shown = xr.Dataset({"fraction_unexplained": dataset["fraction_unexplained"].sel(candidate=names)})
    shown["fraction_unexplained_line"] = xr.full_like(shown.layers, STRICT, dtype=float)
    drawn = ("fraction_unexplained", "fraction_unexplained_line")
    rows = [Panel(*drawn, "log", YLIM, {"rho": float(rho)}) for rho in dataset.rho.values]
    name = f"{100 * STRICT:g} %"
    return panels(shown, rows, x="layers", hue="candidate", line_x="layers", line_name=name, xscale="log")


def _itself(dataset: xr.Dataset) -> xr.Dataset:
    """One step in the place of the networks: it leaves nothing of itself."""
    own = dataset.candidate == "1 step"
    left = ("fraction_unexplained", "fraction_unexplained_interval")
    nothing = {name: dataset[name].where(~own, 0.0) for name in left}
    named = {name: xr.where(own, 1.0, 0.0 * dataset[name]) for name in ("accepted", "among")}
    return dataset.assign(**nothing, **{name: named[name].transpose(*dataset[name].dims) for name in named})


SMALL = {"candidate": CANDIDATES, "tolerance": (STRICT, LOOSE), "bound": ("low", "high")}

experiment = Experiment(
    claim=(
        "After a short training, a softmax transformer of 1, 2 or 4 blocks is none of ten algorithms to within a "
        "hundredth. Ridge regression explains more of it than one step of gradient descent does at every depth, and "
        "what it leaves shrinks with depth; what one step leaves does not shrink to half."
    ),
    sources=("vonOswald23", "Ahn23"),
    static=("layers", "rho", "step"),
    fixed={"dim": 2, "width": 16, "batch": 64, "rate": 0.01, "prompts": 2048, "fitting": 512},
    sizes={
        "smoke": {
            "layers": (1,),
            "rho": (0.25,),
            "step": (0,),
            "candidate": ("1 step",),
            "tolerance": (STRICT,),
            "bound": ("low", "high"),
            "seed": 2,
        },
        "small": SMALL | {"layers": (1, 2, 4), "rho": (0.05, 0.25), "step": (4000,), "seed": 5},
        "medium": SMALL | {"layers": (1, 2, 4, 6), "rho": (0.05, 0.25, 1.0), "step": (20000,), "seed": 6},
    },
    precision="float32",
    measure=measure,
    check=check,
    figure=figure,
    worlds={
        "constructed": World(
            "the networks take steps of gradient descent, as many as layers",
            measure=functools.partial(measure, constructed=True),
        ),
        "itself": World("one step of descent is asked what it is", theory=_itself),
    },
)
