r"""What longer contexts do to linear attention: little by themselves, and harm where it was pretrained on few tasks.

The error on fresh tasks as :math:`\alpha = \ell/d` grows, at a fixed :math:`\tau > 1` and along
:math:`\alpha = c\tau`:

.. math::
    \tau \text{ fixed}, \kappa < 1: \quad & e_{\mathrm{ICL}} \simeq
        \frac{(1-\kappa)\,\rho}{(1+\rho)(\tau-1)}\; \alpha \to \infty \\
    \tau \text{ fixed}, \kappa > 1: \quad & e_{\mathrm{ICL}} \to
        \rho \Bigl( 1 + \frac{\kappa}{(\kappa-1)(\tau-1)} \Bigr) \\
    \tau = \alpha / c \to \infty: \quad & e_{\mathrm{ICL}} \to
        \rho + \max(1-\kappa, 0) \Bigl( 1 + \frac{\rho}{1+\rho}\, c \Bigr)

The slides print :math:`1/c` in place of :math:`c`: a wrong world here.

Few tasks make errors that vary by factors from pool to pool at the sizes that can be run, so logarithms are
averaged and taken to the limit; there the error does not vary, and its logarithm is that of the closed form.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import extrapolate, extrapolated_mean
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.theory import linear_attention

LARGEST = 0.1  # standard error of a log error: three of them still tell the wrong worlds from the right one
LINE = np.geomspace(2.0, 500.0, 97)


def measure(point, *, key, fresh=False):
    """Fit Gamma for every pool size and seed; ``fresh`` pretrains on a new task in every context, a wrong world."""
    import jax

    from icllab.models import reduced
    from icllab.tasks import LinearRegression

    prompts = reduced.prompts_at(point.tau, point.dim, per="d(d+1)")
    shape = (len(point.kappa), len(point.seed))
    found = {name: np.empty(shape) for name in ("icl_error", "converged")}
    for row, kappa in enumerate(point.kappa):
        for column, seed in enumerate(point.seed):
            of_pool, of_contexts = jax.random.split(jax.random.fold_in(key, seed))
            task = LinearRegression.from_scaling(
                dim=point.dim, alpha=point.alpha, kappa=kappa, rho=point.rho, key=of_pool
            )
            pretraining = task.fresh() if fresh else task
            fitted = reduced.fit(pretraining, prompts=prompts, ridge=0.0, key=of_contexts)
            found["icl_error"][row, column] = fitted.icl_error()
            found["converged"][row, column] = fitted.converged
    return {name: (("kappa", "seed"), values) for name, values in found.items()}


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """The closed form, at the measured points and along a line, and its joint limit."""
    rho = fixed_values(dataset)["rho"]
    tau, kappa = dataset.tau.values[:, None, None], dataset.kappa.values

    def form(alpha):
        return linear_attention.icl_error(tau=tau, alpha=alpha[:, None], kappa=kappa, rho=rho)

    ratio = dataset.alpha.values / dataset.tau.values[:, None]
    limit = linear_attention.large_context_limit(kappa=kappa, rho=rho, alpha_over_tau=ratio[..., None])
    return dataset.assign_coords(alpha_line=LINE).assign(
        icl_theory=(("tau", "alpha", "kappa"), form(dataset.alpha.values)),
        icl_line=(("tau", "alpha_line", "kappa"), form(LINE)),
        icl_limit=(("tau", "alpha", "kappa"), limit),
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """Agreement everywhere; growth or decay with the context at fixed tau; the joint limit along alpha = c tau."""
    limits, errors = _limits(dataset)
    findings = []
    for kappa in dataset.kappa.values:
        at = {"kappa": kappa}
        findings += _agreement(dataset.sel(at), limits.sel(at), errors.sel(at), kappa)
        findings += _at_fixed_tau(dataset.sel(at), limits.sel(at), errors.sel(at), kappa)
        findings += _jointly(dataset.sel(at), limits.sel(at), errors.sel(at), kappa)
    unsolved = int((dataset["converged"] == 0).sum())
    return [*findings, exactly("solves that missed their tolerance", 0.0, unsolved, otherwise=Outcome.UNDECIDED)]


def _limits(dataset: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    r"""Seed means of log errors taken to :math:`1/d \to 0` with a quadratic in 1/d, and their standard errors."""
    values = xr.apply_ufunc(np.log, dataset["icl_error"].transpose("tau", "alpha", "kappa", "dim", "seed"))
    points = values.values.reshape(-1, *values.shape[-2:])
    pairs = [extrapolated_mean(dataset.dim.values, point) for point in points]
    like = values.isel(dim=0, seed=0, drop=True)
    limit, uncertainty = np.array(pairs).T.reshape(2, *like.shape)
    return like.copy(data=limit), like.copy(data=uncertainty)


def _agreement(dataset: xr.Dataset, limits: xr.DataArray, errors: xr.DataArray, kappa: float) -> list[Finding]:
    findings = []
    for tau in dataset.tau.values:
        for alpha in dataset.alpha.values:
            at = {"tau": tau, "alpha": alpha}
            predicted, limit, error = (
                float(v.sel(at)) for v in (xr.apply_ufunc(np.log, dataset["icl_theory"]), limits, errors)
            )
            what = f"log ICL error, kappa={kappa:g}, tau={tau:g}, alpha={alpha:g}, d to infinity"
            findings.append(agreement(what, predicted, limit, error, largest_error=LARGEST))
    return findings


def _at_fixed_tau(dataset: xr.Dataset, limits: xr.DataArray, errors: xr.DataArray, kappa: float) -> list[Finding]:
    """From the two longest contexts at the smallest tau: the limit for kappa > 1, the slope of the growth below."""
    tau, alphas = dataset.tau.values.min(), dataset.alpha.values
    if not (tau > 1 and alphas.size > 1 and kappa != 1):
        return []
    ends = {"tau": tau, "alpha": alphas[-2:]}
    (before, after), uncertain = limits.sel(ends).values, errors.sel(ends).values
    rho, between = fixed_values(dataset)["rho"], np.ptp(alphas[-2:])
    if kappa > 1:
        predicted = np.log(rho * (1 + kappa / ((kappa - 1) * (tau - 1))))
        measured = extrapolate(alphas[-2:], np.array([before, after]), uncertain)
        what = f"log ICL error, kappa={kappa:g}, tau={tau:g}, d and then alpha to infinity"
        return [agreement(what, float(predicted), *measured, largest_error=LARGEST)]
    change, error = after - before, np.hypot(*uncertain)
    where = f"kappa={kappa:g}, tau={tau:g}, alpha={alphas[-2]:g} to {alphas[-1]:g}"
    slope = (1 - kappa) * rho / ((1 + rho) * (tau - 1))
    risen = (np.exp(after) - np.exp(before)) / between
    error_of_it = np.hypot(np.exp(before) * uncertain[0], np.exp(after) * uncertain[1]) / between
    what = f"slope of the ICL error in alpha, {where}"
    return [
        exceeds(f"growth of the log ICL error, {where}", float(change), float(error)),
        agreement(what, slope, float(risen), float(error_of_it), largest_error=slope / 4),
    ]


def _jointly(dataset: xr.Dataset, limits: xr.DataArray, errors: xr.DataArray, kappa: float) -> list[Finding]:
    r"""Along :math:`\alpha = c\tau` to :math:`1/\tau \to 0`, for the largest c with most points on the grid."""
    taus, alphas = dataset.tau.values, dataset.alpha.values
    lines = {c: [tau for tau in taus if c * tau in alphas] for c in sorted({a / t for a in alphas for t in taus})}
    ratio, on_it = max(lines.items(), key=lambda item: (len(item[1]), item[0]))
    if len(on_it) < 2:
        return []
    at = {"tau": xr.DataArray(on_it, dims="line"), "alpha": xr.DataArray(np.multiply(ratio, on_it), dims="line")}
    predicted = float(np.log(dataset["icl_limit"].sel(at))[-1])
    order = min(2, len(on_it) - 1)
    measured = extrapolate(np.array(on_it, float), limits.sel(at).values, errors.sel(at).values, order=order)
    what = f"log ICL error, kappa={kappa:g}, alpha={ratio:g}tau, d and then tau to infinity"
    return [agreement(what, predicted, *measured, largest_error=1.5 * LARGEST)]


def figure(dataset: xr.Dataset):
    """The error against alpha at the largest d, one colour per tau, one panel per kappa."""
    largest = dataset.isel(dim=-1)
    rows = [
        Panel("icl_error", line="icl_line", yscale="log", at={"kappa": float(kappa)}) for kappa in dataset.kappa.values
    ]
    return panels(
        largest,
        rows,
        x="alpha",
        hue="tau",
        line_x="alpha_line",
        line_name=r"closed form, $d \to \infty$",
        xscale="log",
        title=f"$d = {int(largest.dim)}$",
    )


def misprinted(dataset: xr.Dataset) -> xr.Dataset:
    r"""The theory with :math:`\tau/\alpha` for :math:`\alpha/\tau` in the joint limit, as the slides print it."""
    dataset = theory(dataset)
    inverse = dataset.tau.values[:, None] / dataset.alpha.values
    rho = fixed_values(dataset)["rho"]
    limit = linear_attention.large_context_limit(kappa=dataset.kappa.values, rho=rho, alpha_over_tau=inverse[..., None])
    return dataset.assign(icl_limit=(("tau", "alpha", "kappa"), limit))


experiment = Experiment(
    claim=(
        "At a fixed number of pretraining contexts, ever longer contexts leave the error of linear attention on fresh "
        "tasks bounded if it saw more tasks than dimensions, and make it grow in proportion to their length if it saw "
        "fewer; if their number grows along, the error tends to the noise in the one case, above it in the other."
    ),
    sources=("Lu24", "Letey24"),
    static=("dim", "tau", "alpha"),
    fixed={"rho": 1.0},
    sizes={
        "smoke": {"dim": (8, 16, 32), "tau": (4.0, 16.0), "alpha": (64.0, 256.0), "kappa": (0.5, 2.0), "seed": 8},
        "small": {
            "dim": (10, 20, 40),
            "tau": (2.0, 8.0, 32.0),
            "alpha": (8.0, 32.0, 128.0, 512.0),
            "kappa": (0.5, 2.0),
            "seed": 48,
        },
        "medium": {
            "dim": (20, 40, 80),
            "tau": (2.0, 8.0, 32.0),
            "alpha": (8.0, 32.0, 128.0, 512.0),
            "kappa": (0.5, 2.0),
            "seed": 48,
        },
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "slide_limit": World("tau/alpha for alpha/tau in the joint limit, as the slides print it", theory=misprinted),
        "fresh_tasks": World(
            "pretraining sees a new task in every context, instead of a pool of kappa d",
            measure=functools.partial(measure, fresh=True),
        ),
    },
)
