r"""From memorising to learning in context: how much worse fresh tasks are than pretraining tasks, against their number.

The gap is :math:`g(\kappa) = e_{\mathrm{ICL}} - e_{\mathrm{IDG}}`. For linear attention pretrained at
:math:`\tau = \alpha` it crosses over. Only in the limit :math:`\alpha = \tau \to \infty` it has a corner at
:math:`\kappa = 1`: there it is :math:`\max(1-\kappa, 0)\,(1 + \rho/(1+\rho))`. Two numbers tell how far the approach
has come: what is left beyond the corner, :math:`g(3/2)/g(1/2)`, which tends to 0, and the bend at it,
:math:`1 - 2g(1)/g(1/2) + g(3/2)/g(1/2)`, which tends to 1. The posterior mean over the pool (dMMSE) does neither:
nothing happens to it at :math:`\kappa = 1`.

Contexts are counted by :math:`n = \tau\, d(d+1)`, as in ``asymptotics/double_descent``.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import extrapolated_mean, mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.theory import dmmse, linear_attention

BEFORE, AT, BEYOND = 0.5, 1.0, 1.5
LARGEST = 0.04  # standard error; three of them tell the corner from the crossover, 0.13 above it
FLAT = 0.25  # linear attention bends more from alpha = tau = 4 on
ROWS = 6  # the pools' rows over d: one shape for every kappa, so that each dimension compiles once
DRAWS = 8  # of dMMSE for each seed
LINE = np.geomspace(0.2, 4.0, 161)


def measure(point, *, key, fresh=True, kappa=None):
    """Fit Gamma once per seed and return its exact population errors, and dMMSE's gap on pools of its own."""
    import jax
    import jax.numpy as jnp

    from icllab.models import reduced
    from icllab.tasks import LinearRegression, WeightPool

    law = {"dim": point.dim, "alpha": point.alpha, "kappa": point.kappa if kappa is None else kappa, "rho": point.rho}
    prompts = reduced.prompts_at(point.alpha, point.dim, per="d(d+1)")
    rows = []
    for seed in point.seed:
        of_pool, of_contexts, of_draws = jax.random.split(jax.random.fold_in(key, seed), 3)
        drawn = LinearRegression.from_scaling(**{**law, "kappa": ROWS}, key=of_pool)
        assert isinstance(drawn.weights, WeightPool)
        # The first tasks, each as often as every other: the law of a small pool in an array of one shape.
        tasks = np.asarray(drawn.weights.weights)[: round(law["kappa"] * point.dim)]
        pool = WeightPool(jnp.asarray(np.tile(tasks, (ROWS * point.dim // len(tasks), 1))), drawn.weights.law)
        task = LinearRegression(drawn.dim, drawn.length, drawn.inputs, pool, drawn.noise_variance)
        fitted = reduced.fit(task, prompts=prompts, ridge=0.0, key=of_contexts)
        known = tasks[: len(tasks) // 2]
        icl = fitted.icl_error() if fresh else fitted.population_error(weights=known)
        knowing = dmmse.task_gap(**law, draws=DRAWS, seed=int(jax.random.bits(of_draws, dtype=jnp.uint32)))
        rows.append((icl, fitted.idg_error(), fitted.converged, knowing.mean))
    columns = np.array(rows, dtype=float).T
    names = ("icl_error", "idg_error", "converged", "dmmse_gap")
    return {name: (("seed",), column) for name, column in zip(names, columns, strict=True)}


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """The measured gap, and the closed form at the measured points, along a line and in the limit."""
    rho = fixed_values(dataset)["rho"]
    alpha = dataset.alpha.values[:, None]
    return dataset.assign_coords(kappa_line=LINE).assign(
        gap=dataset.icl_error - dataset.idg_error,
        gap_theory=(("alpha", "kappa"), gap(alpha, dataset.kappa.values, rho)),
        gap_line=(("alpha", "kappa_line"), gap(alpha, LINE, rho)),
        gap_limit=("kappa_line", limit(LINE, rho)),
    )


def gap(alpha, kappa, rho):
    r"""The closed form of :math:`e_{\mathrm{ICL}} - e_{\mathrm{IDG}}` at :math:`\tau = \alpha`, without ridge."""
    law = {"tau": alpha, "alpha": alpha, "kappa": kappa, "rho": rho}
    return linear_attention.icl_error(**law) - linear_attention.idg_error(**law)


def limit(kappa, rho):
    r"""Its limit :math:`\alpha = \tau \to \infty`, in which the error on pretraining tasks is the noise."""
    return linear_attention.large_context_limit(kappa=kappa, rho=rho, alpha_over_tau=1.0) - rho


def check(dataset: xr.Dataset) -> list[Finding]:
    """Agreement of the gaps in the limit of large d, the approach to a corner, and dMMSE's lack of one."""
    findings = [
        agreement(
            f"gap, alpha=tau={alpha:g}, kappa={kappa:g}, d to infinity",
            float(dataset.gap_theory.sel(alpha=alpha, kappa=kappa)),
            *extrapolated_mean(
                dataset.dim.values, dataset.gap.sel(alpha=alpha, kappa=kappa).transpose("dim", "seed").values
            ),
            largest_error=LARGEST,
        )
        for alpha in dataset.alpha.values
        for kappa in dataset.kappa.values
    ]
    return [*findings, *_approach(dataset), *_without_a_corner(dataset), _solved(dataset)]


def _approach(dataset: xr.Dataset) -> list[Finding]:
    """At the largest d: the larger alpha leaves less beyond the corner, and bends more at it."""
    dim, few, many = dataset.dim.values[-1], dataset.alpha.values[0], dataset.alpha.values[-1]
    (left_few, bend_few), (left_many, bend_many) = (
        _shape(dataset.gap.sel(dim=dim, alpha=alpha, drop=True)) for alpha in (few, many)
    )
    between = f"alpha=tau={few:g} to {many:g}, d={dim}"
    return [
        exceeds(f"fall of g(3/2)/g(1/2), {between}", left_few[0] - left_many[0], np.hypot(left_few[1], left_many[1])),
        exceeds(f"growth of the bend, {between}", bend_many[0] - bend_few[0], np.hypot(bend_few[1], bend_many[1])),
    ]


def _without_a_corner(dataset: xr.Dataset) -> list[Finding]:
    """At every size dMMSE keeps most of its gap beyond kappa = 1, and bends less there than linear attention."""
    findings = []
    for dim in dataset.dim.values:
        left, bend = _shape(dataset.dmmse_gap.sel(dim=dim, drop=True))
        findings.append(exceeds(f"g(3/2)/g(1/2) of dMMSE, d={dim}", *left, bound=0.5))
        findings.append(exceeds(f"{FLAT:g} less the bend of dMMSE, d={dim}", FLAT - bend[0], bend[1]))
    return findings


def _shape(gaps: xr.DataArray) -> tuple[tuple[float, float], tuple[float, float]]:
    """What is left beyond the corner and the bend at it, over the gap before it, with their standard errors."""
    three = gaps.reindex(kappa=[BEFORE, AT, BEYOND]).transpose("kappa", ...).values
    (a, b, c), (s, t, u) = mean_and_error(three.reshape(3, -1))
    with np.errstate(divide="ignore", invalid="ignore"):  # without a gap before the corner neither says anything
        left, bend, slope = c / a, 1 - 2 * b / a + c / a, (2 * b - c) / a
        of_left, of_bend = np.hypot(u, left * s) / a, np.sqrt((slope * s) ** 2 + (2 * t) ** 2 + u**2) / a
    return (float(left), float(of_left)), (float(bend), float(of_bend))


def _solved(dataset: xr.Dataset) -> Finding:
    """An error of an unconverged solve is no measurement."""
    unsolved = int((dataset.converged == 0).sum())
    return exactly("solves that missed their tolerance", 0.0, unsolved, otherwise=Outcome.UNDECIDED)


def figure(dataset: xr.Dataset):
    """Both gaps against kappa at the largest d, one colour for each alpha, and the limit with its corner."""
    shown = dataset.isel(dim=[-1])
    drawn = panels(
        shown,
        [Panel("gap", line="gap_line", ylim=(-0.05, 1.0)), Panel("dmmse_gap", ylim=(0.0, 1.75))],
        x="kappa",
        hue="alpha",
        line_x="kappa_line",
        xscale="log",
        vertical=1.0,
        title=rf"$\tau = \alpha$, $d = {shown.dim.values[0]}$",
    )
    upper, grey = drawn.axes[0], "0.35"
    upper.plot(shown.kappa_line.values, shown.gap_limit.values, color=grey, linestyle=":", linewidth=1.2, zorder=2)
    upper.text(0.62, 0.17, r"$\alpha \to \infty$", color=grey, ha="right", va="center", fontsize=7)
    return drawn


def _limit_instead(dataset: xr.Dataset) -> xr.Dataset:
    """The corner, claimed where alpha and tau are finite."""
    rho = fixed_values(dataset)["rho"]
    values = np.broadcast_to(limit(dataset.kappa.values, rho), (dataset.alpha.size, dataset.kappa.size))
    return theory(dataset).assign(gap_theory=(("alpha", "kappa"), values))


experiment = Experiment(
    claim=(
        "The gap between fresh and pretraining tasks of linear attention follows the closed form, which has a corner "
        "at as many tasks as dimensions only in the limit of long contexts and many of them: the corner sharpens as "
        "both grow. The posterior mean over the pool has none."
    ),
    sources=("Lu24", "Raventos23"),
    static=("dim", "alpha", "kappa"),
    fixed={"rho": 0.01},
    # kappa d is whole, and divides ROWS d.
    sizes={
        "smoke": {"dim": (8, 16, 32), "alpha": (4.0, 8.0), "kappa": (BEFORE, AT, BEYOND), "seed": 12},
        "small": {"dim": (10, 20, 40), "alpha": (4.0, 8.0, 16.0), "kappa": (0.3, 0.5, 1.0, 1.5, 3.0), "seed": 64},
        "medium": {
            "dim": (20, 40, 80),
            "alpha": (4.0, 8.0, 16.0, 32.0),
            "kappa": (0.3, 0.5, 1.0, 1.5, 3.0),
            "seed": 64,
        },
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "corner_at_finite_alpha": World(
            "the limit, with its corner, claimed at finite alpha and tau", theory=_limit_instead
        ),
        "fresh_on_the_pool": World(
            "the error on fresh tasks is measured on half of the pool", measure=functools.partial(measure, fresh=False)
        ),
        "one_pool_size": World(
            "pretraining sees d/2 tasks whatever kappa is", measure=functools.partial(measure, kappa=BEFORE)
        ),
    },
)
