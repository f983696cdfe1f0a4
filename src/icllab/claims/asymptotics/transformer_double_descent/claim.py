r"""Where the error of a trained transformer peaks: at a number n of training prompts that grows like :math:`d^2`.

One block of softmax attention, layer norm after the sum, trained on the last token of a fixed set of n prompts with
:math:`\ell = \alpha d` examples, :math:`x \sim N(0, I/d)` and a fresh task :math:`w \sim N(0, I)` in each. A network
that fits few prompts exactly has learned them by heart; as n nears what it can just fit, its error on fresh tasks is
largest; beyond, it falls. The peak is the top of a polynomial of degree 4 in :math:`\ln n` through the mean log errors
of all n, and the claim is about the slope b in :math:`\ln n_{\text{peak}} = a + b \ln d`. Training is as long in
epochs of :math:`d^2` prompts at every d: where a larger network has fewer of them, its peak comes at fewer prompts.

The set of a seed at a smaller n is the first part of its set at a larger one. The readout starts near zero: drawn at
its usual size, it would answer at random before it has learned anything, with an error as large as that of the peak.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.figures.curves import Panel, panels

ROUNDING = 1e-12  # a training error below it is rounding
DEGREE = 4  # of the polynomial in log n through the mean log errors
RESAMPLED = 2000  # bootstrap samples of seeds
RATIOS = (0.25, 0.5, 0.75, 1.0, 1.3, 1.7, 2.2, 3.0, 6.0)
LARGEST = 0.3  # standard error of the slope: three of them tell 2 from 1


def measure(point, *, key, everything=False):
    """One cell: all sizes of the set, one seed after the other. In a wrong world every network sees the largest set."""
    import equinox as eqx
    import jax

    import icllab as icl
    from icllab.models import Transformer
    from icllab.tasks import FixedPrompts, LinearRegression
    from icllab.training import Record, Sweep

    dim = point.dim
    counts = np.array([max(1, round(ratio * dim**2)) for ratio in point.prompt_ratio])
    steps = max(1, round(point.epochs * dim**2 / point.batch))
    optimizer, losses = _compiled_once()
    shape = (len(point.prompt_ratio), len(point.seed))
    fresh_error, training_error = np.empty(shape), np.empty(shape)
    for s, seed in enumerate(point.seed):
        of_set, of_weights, of_batches, of_test = jax.random.split(jax.random.fold_in(key, seed), 4)
        task = LinearRegression.from_scaling(dim=dim, alpha=point.alpha, kappa=float("inf"), rho=point.rho, key=of_set)
        # Both sets have one shape, so that one program draws and judges them; of the first only the start is used.
        most = max(int(counts.max()), point.prompts)
        fixed, test = (FixedPrompts.drawn(task, most, key=k) for k in (of_set, of_test))
        network = Transformer.lu(dim=dim, layers=1, key=of_weights)
        network = eqx.tree_at(lambda m: m.readout.weight, network, point.readout * network.readout.weight)
        run = icl.fit(
            network,
            fixed,
            steps=steps,
            key=of_batches,
            batch=point.batch,
            optimizer=optimizer,
            sweep=Sweep(
                {
                    "task.size": np.full(len(counts), counts.max()) if everything else counts,
                    "optimizer.rate": [point.rate],
                    "optimizer.steps": [steps],
                },
                mode="map",
            ),
            positions="last",
            record=Record([0], progress=False),
        )
        for t, count in enumerate(counts):
            fresh_error[t, s] = np.mean(losses(run.member(t), task, test.prompts))
            own = losses(run.member(t), task, fixed.prompts)[:count]
            training_error[t, s] = np.mean(own) / np.mean(np.asarray(fixed.prompts.y)[:count, -1] ** 2)
    return {
        "icl_error": (("prompt_ratio", "seed"), fresh_error),
        "training_error": (("prompt_ratio", "seed"), training_error),
    }


@functools.cache
def _compiled_once():
    """One object each for all cells, so that what is compiled for it is kept."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    def optimizer(rate, steps):
        """Adam whose rate rises over a twentieth of the training and falls along a cosine."""
        half = 0.5 * jnp.pi

        def schedule(count):
            done = count / steps
            return rate * jnp.minimum(20 * done, 1.0) * jnp.cos(half * jnp.minimum(done, 1.0)) ** 2

        return optax.adam(schedule)

    @eqx.filter_jit
    def compiled(network, task, prompts):
        return jax.lax.map(lambda p: task.loss(network(p), p)[-1], prompts, batch_size=256)

    def losses(network, task, prompts):
        return np.asarray(compiled(network, task, prompts), dtype=float)

    return optimizer, losses


def peaks(ratios: np.ndarray, logarithms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every column of log errors ``[ratio, column]``: its polynomial, and the log ratio where that is largest.

    NaN where the top is at an end of the grid, or the grid has too few points.
    """
    x = np.log(ratios)
    if len(x) <= DEGREE:
        return np.full(logarithms.shape[1], np.nan), np.full((DEGREE + 1, logarithms.shape[1]), np.nan)
    fitted = np.polyfit(x, logarithms, DEGREE)
    line = np.linspace(x[0], x[-1], 1001)
    top = np.argmax(np.vander(line, DEGREE + 1) @ fitted, axis=0)
    return np.where((top > 0) & (top < len(line) - 1), line[top], np.nan), fitted


def located(ratios: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """The log of n/d^2 at the peak of the mean log error over ``[ratio, seed]``, and its bootstrap standard error.

    Seeds are drawn anew with replacement. NaN where a tenth of the samples or more have no peak inside the grid.
    """
    logarithms, seeds = np.log(errors), errors.shape[1]
    place = peaks(ratios, logarithms.mean(axis=1, keepdims=True))[0]
    chosen = np.random.default_rng(0).integers(seeds, size=(RESAMPLED, seeds))
    places = peaks(ratios, logarithms[:, chosen].mean(axis=2))[0]
    found = places[np.isfinite(places)]
    if seeds < 2 or len(found) <= 0.9 * RESAMPLED:
        return float(place[0]), np.nan
    return float(place[0]), float(np.std(found, ddof=1))


def slope(dims: np.ndarray, places: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """The slope of log places on log d and its standard error, by weighted least squares."""
    usable = np.isfinite(places) & np.isfinite(errors) & (errors > 0)
    x, y, weights = np.log(dims[usable]), places[usable], errors[usable] ** -2.0
    x = x - np.average(x, weights=weights)
    curvature = np.sum(weights * x**2)
    return float(np.sum(weights * x * y) / curvature), float(curvature**-0.5)


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """No closed form is known: the polynomials through the mean log errors, for the figure."""
    ratios = dataset.prompt_ratio.values
    line = np.geomspace(ratios.min(), ratios.max(), 121)
    errors = dataset["icl_error"].transpose("prompt_ratio", "dim", "epochs", "seed")
    fitted = peaks(ratios, np.log(errors.values).mean(axis=3).reshape(len(ratios), -1))[1]
    drawn = (np.vander(np.log(line), DEGREE + 1) @ fitted).reshape(len(line), *errors.shape[1:3])
    return dataset.assign_coords(prompt_ratio_line=line).assign(
        log_icl_error=(errors.dims, np.log(errors.values)),
        log_icl_line=(("prompt_ratio_line", "dim", "epochs"), drawn),
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """After the longest training: few prompts are learned by heart, the error peaks, and that place grows like d^2."""
    measured = dataset[["icl_error", "training_error"]].transpose("dim", "epochs", "prompt_ratio", "seed")
    longest = measured.isel(epochs=-1)
    dims, ratios = dataset.dim.values, dataset.prompt_ratio.values
    findings = []
    for dim in dims:
        findings += [*_by_heart(longest.sel(dim=dim), int(dim)), *_a_peak(longest.sel(dim=dim), int(dim))]
    place, error = np.array([located(ratios, errors) for errors in longest["icl_error"].values]).T
    inside = int(np.isfinite(error).sum())
    what = "dimensions whose peak lies inside the grid"
    findings.append(exactly(what, len(dims), inside, otherwise=Outcome.UNDECIDED))
    findings.append(exactly("at least 3 of them", 1, inside >= 3, otherwise=Outcome.UNDECIDED))
    if inside >= 2:
        found = slope(dims, place + 2 * np.log(dims), error)
        findings.append(agreement("slope of log n at the peak on log d", 2.0, *found, largest_error=LARGEST))
        findings.append(exceeds("the same slope, above that of n growing like d", *found, bound=1.0))
    return findings


def _by_heart(part: xr.Dataset, dim: int) -> list[Finding]:
    """The fewest prompts are fitted far better than fresh tasks, and than the most prompts are."""
    training = np.log(np.maximum(part["training_error"].values, ROUNDING))
    fresh = np.log(part["icl_error"].values)
    return [
        _above(fresh[0] - training[0], f"log of error on fresh tasks over training error, fewest prompts, d={dim}"),
        _above(training[-1] - training[0], f"log of training error with most prompts over fewest, d={dim}"),
    ]


def _a_peak(part: xr.Dataset, dim: int) -> list[Finding]:
    """The largest mean log error is well above those of the fewest and of the most prompts."""
    logarithms = np.log(part["icl_error"].values)
    top = int(np.argmax(logarithms.mean(axis=1)))
    where = f"at n={part.prompt_ratio.values[top]:g}d^2, d={dim}"
    findings = []
    for end, name in ((0, "fewest"), (len(logarithms) - 1, "most")):
        if top != end:
            higher = logarithms[top] - logarithms[end]
            findings.append(_above(higher, f"log error {where}, above that of {name} prompts", bound=0.0))
    return findings


def _above(samples: np.ndarray, what: str, bound: float = float(np.log(10))) -> Finding:
    mean, error = mean_and_error(samples)
    return exceeds(what, float(mean), float(error), bound=bound)


def figure(dataset: xr.Dataset):
    """Error on fresh tasks against n/d^2 at every length of training, and the training error after the longest."""
    lengths = dataset.epochs.values.tolist()
    rows = [Panel("log_icl_error", line="log_icl_line", at={"epochs": length}) for length in lengths]
    rows.append(Panel("training_relative", yscale="log", ylim=(1e-6, 2.0), at={"epochs": lengths[-1]}))
    # The training error under a name that fits the panel.
    shown = dataset.assign(training_relative=dataset["training_error"])
    name = "polynomial through the means"
    return panels(shown, rows, x="prompt_ratio", hue="dim", line_x="prompt_ratio_line", line_name=name, xscale="log")


def _on_training_prompts(dataset: xr.Dataset) -> xr.Dataset:
    """The training error in place of the error on fresh tasks."""
    return theory(dataset.assign(icl_error=np.maximum(dataset["training_error"], ROUNDING)))


experiment = Experiment(
    claim=(
        "A one-block softmax transformer trained to the end on a fixed set of n prompts fits few of them exactly. Its "
        "error on fresh tasks rises with n to a peak and falls beyond it, and the peak lies at n growing like d^2: "
        "the interval of the slope of log n there on log d holds 2 and not 1."
    ),
    sources=("Lu24",),
    static=("dim", "epochs"),
    fixed={"alpha": 1.0, "rho": 0.01, "batch": 64, "rate": 5e-3, "readout": 0.05, "prompts": 8192},
    sizes={
        "smoke": {"dim": (4,), "epochs": (4000,), "prompt_ratio": (0.25, 1.5, 6.0), "seed": 4},
        "small": {"dim": (4, 6, 8), "epochs": (16000,), "prompt_ratio": RATIOS, "seed": 20},
        "medium": {"dim": (4, 6, 8, 11), "epochs": (4000, 16000), "prompt_ratio": RATIOS, "seed": 12},
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "everything": World(
            "every network is trained on the largest set", measure=functools.partial(measure, everything=True)
        ),
        "training_prompts": World("the error is that on the training prompts", theory=_on_training_prompts),
    },
)
