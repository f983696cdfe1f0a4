r"""Linear attention trained by optimisers, beside the minimum that the closed forms are about.

One head on n contexts minimises, over :math:`\Gamma` or over the P and Q it is a product of,

.. math:: \frac1n \sum_{\mu=1}^n (y^\mu - x^{\mu\top} \Gamma h^\mu)^2 + \frac{\lambda}{d} \|\Gamma\|_F^2

For :math:`\tau > 1` or :math:`\lambda > 0` the minimum is one matrix, whatever finds it. For :math:`\tau < 1` and
:math:`\lambda = 0` a whole plane of matrices fits the contexts exactly. The closed form is that of the one of least
norm: plain gradient descent on :math:`\Gamma` from zero never leaves the span of the contexts, which has one
interpolator only, and Adam and the product leave it.

The full layer is this head where the part :math:`v_{21}` of its values is zero, so there it is held at zero. A layer
that trains it too ends elsewhere at these sizes, even for :math:`\tau > 1`: a wrong world here.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import extrapolate, mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.theory import linear_attention

NEAR = 0.01  # relative distance from the exact matrix that counts as reaching it
FITTED = 1e-4  # share of the labels' mean square that counts as fitting them exactly
LARGEST = 0.1  # standard error of a limit, relative to the closed form
DECADES = 8  # natural logarithms by which plain descent shrinks its slowest part
MOST = 40_000  # steps of it


def measure(point, *, key, start=0.0, free=False):
    """One cell. ``start``: scale of a random first matrix, zero otherwise; ``free``: train v21 too."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    import icllab as icl
    from icllab.models import LinearAttention, ReducedLinearAttention, reduced
    from icllab.models.reduced_samples import Samples
    from icllab.tasks import LinearRegression

    dim, tau = point.dim, point.tau
    count = reduced.prompts_at(tau, dim, per="d(d+1)")
    decays = [2 * ridge / dim for ridge in point.ridge]
    ways = [way for way in point.training if dim <= {"Adam": point.adam_dim, "layer": point.layer_dim}.get(way, dim)]

    drawn, descent, adam, of_layer = _compiled_once(point.steps, point.layer_rate, free)
    blank = None
    found = {
        name: np.full((len(point.training), len(point.ridge), len(point.seed)), np.nan)
        for name in ("icl_error", "gamma_distance", "gamma_norm", "training_error")
    }
    for s, seed in enumerate(point.seed):
        of_pool, of_contexts, of_start = jax.random.split(jax.random.fold_in(key, seed), 3)
        task = LinearRegression.from_scaling(dim=dim, alpha=point.alpha, kappa=point.kappa, rho=point.rho, key=of_pool)
        prompts, h = drawn(task, jax.random.split(of_contexts, count))
        x, y = prompts.x[:, -1], prompts.y[:, -1]
        samples = Samples.of(x, h, y)
        contexts = prompts if free else jax.vmap(one_example)(x, h, y)
        exact = [
            reduced.fit_features(task, samples, ridge=ridge, precision="float64", solver=solver_for(tau))
            for ridge in point.ridge
        ]
        if blank is None:
            blank = exact[0]
        first = start * jax.random.normal(of_start, blank.gamma.shape)
        begin = eqx.tree_at(lambda m: m.gamma, blank, first)
        largest, smallest = _curvatures(np.asarray(x), np.asarray(h))
        rate = 1 / (largest + max(decays))
        together = {"key": of_start, "batch": None, "data": contexts, "positions": "last", "mode": "map", "record": [0]}

        def trained(
            way, begin=begin, rate=rate, smallest=smallest, together=together, task=task, exact=exact, k=of_start
        ):
            """The model for every ridge; None where there is none."""
            if way == "exact":
                return exact
            if way == "layer":
                layer = LinearAttention.lu(dim=dim, std=point.layer_std, key=k)
                if not free:
                    layer = eqx.tree_at(lambda m: m.p, layer, layer.p.at[:, -1, :-1].set(0.0))
                run = icl.fit(layer, task, steps=point.steps, optimizer=of_layer, progress=False, **together)
                return [run.predictor if ridge == 0 else None for ridge in point.ridge]
            steps, optimizer, name, value = point.steps, adam, "rate", point.adam_rate
            if way == "descent":
                # Rounded up, so that few numbers of steps occur.
                steps = min(MOST, 500 * int(np.ceil(DECADES / (rate * smallest) / 500)))
                optimizer, name, value = descent, "learning_rate", rate
            sweep = {f"optimizer.{name}": [value], "optimizer.weight_decay": decays}
            run = icl.fit(
                begin, task, steps=steps, optimizer=optimizer, sweep=sweep, trainable=lambda m: m.gamma,
                progress=False, **together,
            )  # fmt: skip
            return [run.member(i) for i in range(run.size)]

        for w, way in enumerate(point.training):
            for r, model in enumerate(trained(way) if way in ways else []):
                if model is None:
                    continue
                gamma = np.asarray(model.gamma) if isinstance(model, ReducedLinearAttention) else _matrix(model)
                target = np.asarray(exact[r].gamma)
                head = eqx.tree_at(lambda m: m.gamma, exact[r], jnp.asarray(gamma))
                residuals = np.sum((np.asarray(x) @ gamma) * np.asarray(h), axis=1) - np.asarray(y)
                found["icl_error"][w, r, s] = head.icl_error()
                found["gamma_distance"][w, r, s] = np.linalg.norm(gamma - target) / np.linalg.norm(target)
                found["gamma_norm"][w, r, s] = np.linalg.norm(gamma) / np.linalg.norm(target)
                found["training_error"][w, r, s] = np.mean(residuals**2) / np.mean(np.asarray(y) ** 2)
    return {name: (("training", "ridge", "seed"), values) for name, values in found.items()}


@functools.cache
def _compiled_once(steps, layer_rate, free):
    """A sampler and the optimisers: one object each for all cells, so that what is compiled for them is kept."""
    import equinox as eqx
    import jax
    import optax

    from icllab.tasks.attention_features import features

    @jax.jit
    def drawn(task, keys):
        prompts = jax.vmap(lambda k: task.sample(key=k))(keys)
        return prompts, jax.vmap(features)(prompts.x[:, :-1], prompts.y[:, :-1])

    def descent(learning_rate, weight_decay):
        return optax.chain(optax.add_decayed_weights(weight_decay), optax.sgd(learning_rate))

    def adam(rate, weight_decay):
        schedule = optax.cosine_decay_schedule(rate, steps)
        return optax.chain(optax.add_decayed_weights(weight_decay), optax.adam(schedule))

    def held(updates, _):
        return updates if free else eqx.tree_at(lambda m: m.p, updates, updates.p.at[:, -1, :-1].set(0.0))

    of_layer = optax.chain(optax.stateless(held), optax.adam(optax.cosine_decay_schedule(layer_rate, steps)))
    return drawn, descent, adam, of_layer


def one_example(query, features, label):
    r"""A context of a single example with the same features as a longer one, and its query.

    .. math:: y_1 = \sqrt{h_2}, \qquad x_1 = h_1 / (d\, y_1)

    A head knows nothing of a context but its features, and learns the same from this one.
    """
    import jax.numpy as jnp

    from icllab.core.prompt import RegressionPrompt

    y = jnp.sqrt(features[-1])
    x = features[:-1] / (query.shape[0] * y)
    return RegressionPrompt(x=jnp.stack([x, query]), y=jnp.stack([y, label]))


def solver_for(tau) -> str:
    """A dense solver, exact to rounding, on the smaller side."""
    return "dual_cholesky" if tau < 1 else "primal_cholesky"


def _curvatures(x: np.ndarray, h: np.ndarray) -> tuple[float, float]:
    """Largest and smallest second derivative of the mean squared error, within the span of the contexts."""
    kernel = (x @ x.T) * (h @ h.T)
    if len(x) > x.shape[1] * h.shape[1]:
        z = np.einsum("ni,nj->nij", x, h).reshape(len(x), -1)
        kernel = z.T @ z
    values = np.linalg.eigvalsh(kernel)
    return 2 * float(values[-1]) / len(x), 2 * float(values[0]) / len(x)


def _matrix(layer) -> np.ndarray:
    """The matrix of a layer's scores and value, read as if v21 were zero."""
    import equinox as eqx

    return np.asarray(eqx.tree_at(lambda m: m.p, layer, layer.p.at[:, -1, :-1].set(0.0)).gamma())


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """The closed form, and as a line at every dimension."""
    fixed = {name: fixed_values(dataset)[name] for name in ("alpha", "kappa", "rho")}
    values = linear_attention.icl_error(tau=dataset.tau.values[:, None], ridge=dataset.ridge.values, **fixed)
    form = xr.DataArray(values, dims=("tau", "ridge"), coords={"tau": dataset.tau, "ridge": dataset.ridge})
    line = form.expand_dims({"dim": dataset.dim.values})
    return dataset.assign(icl_theory=form, icl_line=line)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Where there is one minimum all reach it; elsewhere plain descent alone; and what it reaches obeys theory."""
    findings = []
    for tau in dataset.tau.values:
        for ridge in dataset.ridge.values:
            part = dataset.sel(tau=tau, ridge=ridge)
            where = f"tau={tau:g}, ridge={ridge:g}"
            findings += _one_minimum(part, where) if tau > 1 or ridge > 0 else _many(part, where)
            findings += _closed_form(part, where)
    sizes = exactly(
        "dimensions to extrapolate from, at least 3", 1, dataset.sizes["dim"] >= 3, otherwise=Outcome.UNDECIDED
    )
    return [*findings, sizes]


def _one_minimum(part: xr.Dataset, where: str) -> list[Finding]:
    return [_reaches(part, way, where) for way in ("descent", "Adam", "layer") if _there(part, way)]


def _many(part: xr.Dataset, where: str) -> list[Finding]:
    """Plain descent reaches the matrix of least norm; the others fit as well, with a larger norm and another error."""
    findings = [_reaches(part, "descent", where)] if _there(part, "descent") else []
    for way in ("Adam", "layer"):
        for dim in part.dim.values:
            here = part.sel(dim=dim)
            if not _there(here, way):
                continue
            own, least, at = here.sel(training=way), here.sel(training="exact"), f"of {way}, {where}, d={dim}"
            worst = float(own["training_error"].max())
            fits = Outcome.HOLDS if worst <= FITTED else Outcome.UNDECIDED
            findings.append(Finding(f"training error {at}", 0.0, worst, 0.0, FITTED, fits))
            norms = mean_and_error(np.log(own["gamma_norm"].values))
            findings.append(exceeds(f"log norm {at}, above the least", *map(float, norms)))
            excess = mean_and_error(np.log(own["icl_error"].values / least["icl_error"].values))
            findings.append(exceeds(f"log ICL error {at}, above that of least norm", *map(float, excess)))
    return findings


def _there(part: xr.Dataset, way: str) -> bool:
    return way in part.training and bool(part["gamma_distance"].sel(training=way).notnull().any())


def _reaches(part: xr.Dataset, way: str, where: str) -> Finding:
    """The largest distance over all seeds and dimensions."""
    largest = float(part["gamma_distance"].sel(training=way).max())
    what = f"relative distance from the exact matrix, {way}, {where}, largest"
    return Finding(what, 0.0, largest, 0.0, NEAR, Outcome.HOLDS if largest <= NEAR else Outcome.FAILS)


def _closed_form(part: xr.Dataset, where: str) -> list[Finding]:
    """The error of what plain descent finds, taken to infinite dimension with a quadratic in 1/d."""
    if part.sizes["dim"] < 3:
        return []
    mean, error = mean_and_error(part["icl_error"].sel(training="descent").transpose("dim", "seed").values)
    limit = extrapolate(part.dim.values, mean, error, order=2)
    predicted = float(part["icl_theory"])
    what = f"ICL error after plain descent, {where}, d to infinity"
    return [agreement(what, predicted, *limit, largest_error=LARGEST * predicted)]


def figure(dataset: xr.Dataset):
    """Without ridge: the error against d for every way of training, one panel for each tau."""
    shown = dataset.sel(ridge=0.0).drop_sel(training="exact")
    rows = [Panel("icl_error", line="icl_line", at={"tau": float(tau)}) for tau in dataset.tau.values]
    return panels(
        shown, rows, x="dim", hue="training", line_x="dim", line_name=r"closed form, $d \to \infty$", xscale="log"
    )


experiment = Experiment(
    claim=(
        "Trained on more contexts than it has parameters, or with a ridge, linear attention reaches the minimum of the "
        "closed form by plain descent, by Adam and, without a ridge, as a full layer of factors P and Q with v21 held "
        "at zero. On fewer contexts plain gradient descent on the merged matrix from zero does so too; Adam and the "
        "factors fit the contexts as well, but with a larger norm and a larger error on fresh tasks."
    ),
    sources=("Lu24",),
    static=("dim", "tau"),
    fixed={
        "alpha": 1.0,
        "kappa": 2.0,
        "rho": 0.1,
        "steps": 3000,
        "adam_rate": 0.05,
        "adam_dim": 12,
        "layer_rate": 0.02,
        "layer_std": 0.1,
        "layer_dim": 8,
    },
    sizes={
        "smoke": {
            "dim": (6,),
            "tau": (0.4, 3.0),
            "training": ("exact", "descent", "Adam", "layer"),
            "ridge": (0.0, 0.3),
            "seed": 3,
        },
        "small": {
            "dim": (6, 12, 24),
            "tau": (0.4, 3.0),
            "training": ("exact", "descent", "Adam", "layer"),
            "ridge": (0.0, 0.3),
            "seed": 48,
        },
        "medium": {
            "dim": (8, 16, 32),
            "tau": (0.3, 0.5, 2.0, 4.0),
            "training": ("exact", "descent", "Adam", "layer"),
            "ridge": (0.0, 0.3),
            "seed": 48,
        },
    },
    precision="float64",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "random_start": World("plain descent starts at a random matrix", measure=functools.partial(measure, start=0.5)),
        "free_values": World("the layer trains v21 too", measure=functools.partial(measure, free=True)),
    },
)
