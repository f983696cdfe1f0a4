r"""A ridge takes the divergence of linear attention's errors away, and shifts the covariance by more than itself.

With ridge :math:`\lambda` both errors are finite at every :math:`\tau`. Finitely many contexts act as an effective
ridge :math:`\xi > \lambda`,

.. math:: 1 - \tau + \tau \frac\lambda\xi = \xi M_\kappa(q + \xi),

and the errors are closed forms in it. At :math:`\lambda = 0` and :math:`n = d(d+1)` the errors have no mean, so what
is said of the peak is said of mean logarithms. All ridges are fitted to the same contexts.
"""

import numpy as np
import xarray as xr

from icllab.core.statistics import extrapolated_mean, mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.theory import linear_attention

LARGEST = 0.07  # relative standard error of a limit; in the wrong worlds some errors are off by a fifth and more
NEAR = np.geomspace(1e-4, 0.1, 30)
LINE = np.unique(np.concatenate([np.geomspace(0.2, 4.0, 161), 1 - NEAR, [1.0], 1 + NEAR]))


def measure(point, *, key, scale=lambda dim: 1.0):
    """Fit Gamma at every ridge to the same contexts; ``scale`` is a factor on the ridge, for a wrong world."""
    import jax

    from icllab.models import reduced
    from icllab.tasks import LinearRegression

    prompts = reduced.prompts_at(point.tau, point.dim, per="d(d+1)")
    shape = (len(point.ridge), len(point.seed))
    found = {name: np.empty(shape) for name in ("icl_error", "idg_error", "converged")}
    for column, seed in enumerate(point.seed):
        of_pool, of_contexts = jax.random.split(jax.random.fold_in(key, seed))
        task = LinearRegression.from_scaling(
            dim=point.dim, alpha=point.alpha, kappa=point.kappa, rho=point.rho, key=of_pool
        )
        samples = reduced.sample(task, prompts=prompts, key=of_contexts)
        for row, ridge in enumerate(point.ridge):
            fitted = reduced.fit_features(task, samples, ridge=scale(point.dim) * ridge)
            answers = (fitted.icl_error(), fitted.idg_error(), fitted.converged)
            for name, answer in zip(found, answers, strict=True):
                found[name][row, column] = answer
    return {name: (("ridge", "seed"), values) for name, values in found.items()}


def theory(dataset: xr.Dataset, **changed) -> xr.Dataset:
    """The closed forms, at the measured points and along a line; ``changed`` parameters, for a wrong world."""
    fixed = fixed_values(dataset)
    ridge = dataset.ridge.values[:, None]
    forms = {"icl": linear_attention.icl_error, "idg": linear_attention.idg_error}
    dataset = dataset.assign_coords(tau_line=LINE)
    for kind, form in forms.items():
        at = {"tau": dataset.tau.values, **fixed, **changed}
        along = {"tau": LINE, **fixed, **changed}
        shapes = ((ridge.size, dataset.sizes["tau"]), (ridge.size, LINE.size))
        dataset[f"{kind}_theory"] = (("ridge", "tau"), np.broadcast_to(form(**at, ridge=ridge), shapes[0]))
        dataset[f"{kind}_line"] = (("ridge", "tau_line"), np.broadcast_to(form(**along, ridge=ridge), shapes[1]))
    return dataset


def check(dataset: xr.Dataset) -> list[Finding]:
    """Agreement with the closed forms for every ridge, and how the ridge lowers the peak."""
    return [*_agreement(dataset), *_tamed(dataset), _solved(dataset)]


def _agreement(dataset: xr.Dataset) -> list[Finding]:
    r"""Seed means, taken to :math:`1/d \to 0` with a quadratic in 1/d; the peak itself included."""
    findings = []
    for kind in ("icl", "idg"):
        samples = dataset[f"{kind}_error"].transpose("ridge", "tau", "dim", "seed").values
        for i, ridge in enumerate(dataset.ridge.values):
            for j, tau in enumerate(dataset.tau.values):
                if ridge > 0:
                    predicted = float(dataset[f"{kind}_theory"][i, j])
                    limit, uncertainty = extrapolated_mean(dataset.dim.values, samples[i, j])
                    what = f"{kind.upper()} error, ridge={ridge:g}, tau={tau:g}, d to infinity"
                    findings.append(agreement(what, predicted, limit, uncertainty, largest_error=LARGEST * predicted))
    return findings


def _tamed(dataset: xr.Dataset) -> list[Finding]:
    """At tau = 1 every ridge lowers the mean log error, and without one it grows with d."""
    findings = []
    if not (1.0 in dataset.tau.values and 0.0 in dataset.ridge.values):
        return findings
    logarithms = xr.apply_ufunc(np.log, dataset["icl_error"].sel(tau=1.0))
    bare, last = logarithms.sel(ridge=0.0), dataset.dim.values[-1]
    for ridge in dataset.ridge.values[dataset.ridge.values > 0]:
        difference = (bare - logarithms.sel(ridge=ridge)).isel(dim=-1).values
        mean, error = mean_and_error(difference)
        findings.append(
            exceeds(f"log ICL error at tau=1, d={last}, above that of ridge={ridge:g}", *_floats(mean, error))
        )
    ends = bare.isel(dim=[0, -1]).transpose("dim", "seed").values
    mean, error = mean_and_error(ends)
    what = f"growth of log ICL error at tau=1 without ridge, d={dataset.dim.values[0]} to {last}"
    return [*findings, exceeds(what, float(mean[1] - mean[0]), float(np.hypot(*error)))]


def _floats(*values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _solved(dataset: xr.Dataset) -> Finding:
    """With a ridge every solve can reach its tolerance; an error of one that did not is no measurement."""
    unsolved = int((dataset["converged"].where(dataset.ridge > 0, 1.0) == 0).sum())
    return exactly("ridge solves that missed their tolerance", 0.0, unsolved, otherwise=Outcome.UNDECIDED)


def figure(dataset: xr.Dataset):
    """Both errors against tau at the largest d, one colour per ridge."""
    limits = {"icl": (0.5, 30.0), "idg": (0.05, 20.0)}
    rows = [Panel(f"{kind}_error", line=f"{kind}_line", yscale="log", ylim=limits[kind]) for kind in limits]
    largest = dataset.isel(dim=-1)
    title = f"$d = {int(largest.dim)}$"
    return panels(
        largest,
        rows,
        x="tau",
        hue="ridge",
        line_x="tau_line",
        xscale="log",
        vertical=1.0,
        title=title,
        line_name=r"closed form, $d \to \infty$",
    )


experiment = Experiment(
    claim=(
        "A ridge takes the divergence of linear attention's errors at n = d(d+1) away: with it the errors on fresh "
        "and on pretraining tasks are finite at every tau, the peak included, and follow closed forms in an effective "
        "ridge."
    ),
    sources=("Lu24",),
    static=("dim", "tau"),
    fixed={"alpha": 10.0, "kappa": 0.5, "rho": 0.01},
    sizes={
        "smoke": {"dim": (8, 16, 32), "tau": (0.5, 1.0, 2.0), "ridge": (0.0, 0.1, 1.0), "seed": 12},
        "small": {
            "dim": (10, 20, 40),
            "tau": (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 3.0),
            "ridge": (0.0, 0.01, 0.1, 1.0),
            "seed": 48,
        },
        "medium": {
            "dim": (20, 40, 80),
            "tau": (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 3.0),
            "ridge": (0.0, 0.01, 0.1, 1.0),
            "seed": 64,
        },
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "bare_ridge": World(
            "the ridge itself in place of the effective ridge, as for infinitely many contexts",
            theory=lambda dataset: theory(dataset, tau=np.inf),
        ),
        "unscaled_ridge": World(
            "a penalty n * ridge on Gamma instead of (n/d) * ridge",
            measure=lambda point, *, key: measure(point, key=key, scale=lambda dim: dim),
        ),
    },
)
