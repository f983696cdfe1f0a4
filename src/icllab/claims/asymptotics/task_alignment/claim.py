r"""Tested on tasks of another covariance: the closer to the covariance of pretraining, the smaller the error.

The pool is drawn with a power law of eigenvalues :math:`c_i \propto i^{-p}` of mean one. The same fitted
matrix is tested on tasks of that covariance (matched), on isotropic ones, and on those with the eigenvalues
in the opposite order (reversed): all have the same trace, so a theory that knows only traces sees no difference.

The closed form takes the spectrum of the dimension at hand, so what is extrapolated to :math:`d\to\infty` is the
measured error over the predicted one. For :math:`p\ge1` neither has a limit: the first few directions take
an ever larger part of the trace. Their ratio has one.
"""

import functools
import itertools
from types import MappingProxyType

import numpy as np
import xarray as xr

from icllab.core.statistics import extrapolated_mean, mean_and_error
from icllab.experiments.checks import Finding, Outcome, agreement, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.figures.curves import Panel, panels
from icllab.theory import task_alignment
from icllab.theory.sample_covariance import power_law

SETTINGS = MappingProxyType(
    {
        "few contexts": {"tau": 0.5, "alpha": 2.0, "kappa": 1.5, "rho": 0.05, "ridge": 0.0},
        "many contexts": {"tau": 2.0, "alpha": 5.0, "kappa": 0.5, "rho": 0.05, "ridge": 0.0},
        "with ridge": {"tau": 1.5, "alpha": 5.0, "kappa": 2.0, "rho": 0.05, "ridge": 0.05},
    }
)
TESTS = ("matched", "isotropic", "reversed")
LARGEST = (
    0.05  # standard error of a ratio: three of them still tell the formulas of the wrong worlds from the right one
)
LINE = np.linspace(0.0, 1.2, 25)


def covariance(test, spectrum):
    """Eigenvalues of a test covariance along the eigenvectors of the one of pretraining."""
    return {"matched": spectrum, "isotropic": np.ones_like(spectrum), "reversed": spectrum[::-1].copy()}[test]


def measure(point, *, key, isotropic_pool=False):
    """Fit Gamma once per seed, each with a pool of its own, and return its exact errors on every kind of task."""
    import jax
    import jax.numpy as jnp

    from icllab.models import reduced
    from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, WeightPool

    dim, setting = point.dim, SETTINGS[point.setting]
    spectrum = power_law(dim, point.exponent)
    tests = [GaussianWeights(jnp.asarray(covariance(test, spectrum), "float32")) for test in point.test_covariance]
    law = GaussianWeights(jnp.ones(dim)) if isotropic_pool else GaussianWeights(jnp.asarray(spectrum, "float32"))
    inputs = GaussianInputs(jnp.ones(()) / dim)
    prompts = reduced.prompts_at(setting["tau"], dim, per="d(d+1)")
    rows = []
    for seed in point.seed:
        of_pool, of_contexts = jax.random.split(jax.random.fold_in(key, seed))
        pool = WeightPool.drawn(law, round(setting["kappa"] * dim), dim, key=of_pool)
        task = LinearRegression(dim, round(setting["alpha"] * dim), inputs, pool, setting["rho"])
        fitted = reduced.fit(task, prompts=prompts, ridge=setting["ridge"], key=of_contexts)
        errors = [fitted.population_error(weights=weights) for weights in tests]
        rows.append((*errors, fitted.idg_error(), fitted.converged))
    columns = np.array(rows, dtype=float).T
    return {
        "transfer_error": (("test_covariance", "seed"), columns[: len(tests)]),
        "idg_error": (("seed",), columns[-2]),
        "converged": (("seed",), columns[-1]),
    }


def predicted(dims, exponents, settings, tests, *, train=lambda spectrum: spectrum, **changed):
    """Closed forms over (dim, exponent, setting, test), and those on the pool over (dim, exponent, setting)."""
    transfer = np.empty((len(dims), len(exponents), len(settings), len(tests)))
    idg = np.empty(transfer.shape[:-1])
    for i, j, k in np.ndindex(idg.shape):
        spectrum, law = power_law(int(dims[i]), float(exponents[j])), {**SETTINGS[settings[k]], **changed}
        idg[i, j, k] = task_alignment.idg_error(train(spectrum), **law)
        for m, test in enumerate(tests):
            transfer[i, j, k, m] = task_alignment.icl_error(train(spectrum), covariance(test, spectrum), **law)
    return transfer, idg


def theory(dataset: xr.Dataset, *, order=lambda test: test, **changed) -> xr.Dataset:
    """The closed forms at the measured points, and along a line of exponents at the largest dimension."""
    names = [str(name) for name in dataset.setting.values]
    tests = [order(str(test)) for test in dataset.test_covariance.values]
    transfer, idg = predicted(dataset.dim.values, dataset.exponent.values, names, tests, **changed)
    line, _ = predicted(dataset.dim.values[-1:], LINE, names, tests, **changed)
    return dataset.assign_coords(exponent_line=LINE).assign(
        transfer_theory=(("dim", "exponent", "setting", "test_covariance"), transfer),
        idg_theory=(("dim", "exponent", "setting"), idg),
        transfer_line=(("exponent_line", "setting", "test_covariance"), line[0]),
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """The order of the errors at the largest d, and every level in the limit."""
    findings = []
    for setting in dataset.setting.values:
        for exponent in dataset.exponent.values:
            part = dataset.sel(setting=setting, exponent=exponent)
            where = f"{setting}, p={exponent:g}"
            findings += [*_order(part, where), *_levels(part, where)]
    unsolved = int((dataset.converged == 0).sum())
    return [*findings, exactly("solves that missed their tolerance", 0.0, unsolved, otherwise=Outcome.UNDECIDED)]


def _order(part: xr.Dataset, where: str) -> list[Finding]:
    """Differences of errors of one and the same fit: most of the noise is common to both."""
    errors, dim = part.transfer_error.isel(dim=-1), int(part.dim.values[-1])
    findings = []
    for less, more in itertools.pairwise(TESTS):
        if {less, more} <= set(part.test_covariance.values):
            margin = errors.sel(test_covariance=more) - errors.sel(test_covariance=less)
            mean, error = mean_and_error(margin.values)
            findings.append(exceeds(f"error {more} above {less}, {where}, d={dim}", float(mean), float(error)))
    return findings


def _levels(part: xr.Dataset, where: str) -> list[Finding]:
    """Measured over predicted, seed means taken to :math:`1/d\\to0` with a quadratic in 1/d."""
    ratios = {
        f"error {test}": part.transfer_error.sel(test_covariance=test) / part.transfer_theory.sel(test_covariance=test)
        for test in part.test_covariance.values
    }
    ratios["error on the pool"] = part.idg_error / part.idg_theory
    findings = []
    for what, ratio in ratios.items():
        limit, uncertainty = extrapolated_mean(part.dim.values, ratio.transpose("dim", "seed").values)
        name = f"{what} over theory, {where}, d to infinity"
        findings.append(agreement(name, 1.0, limit, uncertainty, largest_error=LARGEST))
    return findings


def figure(dataset: xr.Dataset):
    """Errors against the exponent at the largest d, one panel per setting."""
    last = dataset.isel(dim=-1).reindex(
        test_covariance=[test for test in TESTS if test in dataset.test_covariance.values],
        setting=[name for name in SETTINGS if name in dataset.setting.values],
    )
    titles = [_numbers(str(setting)) for setting in last.setting.values]
    rows = [Panel("transfer_error", line="transfer_line", at={"setting": title}) for title in titles]
    shown = last[["transfer_error", "transfer_line"]].assign_coords(setting=titles)
    name = f"closed form, $d = {int(last.dim)}$"
    return panels(shown, rows, x="exponent", hue="test_covariance", line_x="exponent_line", line_name=name)


def _numbers(setting: str) -> str:
    symbols = {"tau": r"\tau", "alpha": r"\alpha", "kappa": r"\kappa", "ridge": r"\lambda"}
    return "$" + r",\ ".join(f"{symbol} = {SETTINGS[setting][name]:g}" for name, symbol in symbols.items()) + "$"


_OPPOSITE = {"matched": "reversed", "isotropic": "isotropic", "reversed": "matched"}

experiment = Experiment(
    claim=(
        "Linear attention pretrained on tasks with a power-law covariance errs least on tasks of that covariance, more "
        "on isotropic ones and most on those with the eigenvalues in the opposite order, all by the closed form that "
        "sees a test covariance only in the eigenbasis of that of pretraining."
    ),
    sources=("LeteyTask25",),
    static=("dim", "exponent", "setting"),
    fixed={},
    sizes={
        "smoke": {
            "dim": (8, 16, 32),
            "exponent": (1.0,),
            "setting": ("many contexts",),
            "test_covariance": TESTS,
            "seed": 48,
        },
        "small": {
            "dim": (20, 40, 80),
            "exponent": (0.4, 0.7, 1.0),
            "setting": tuple(SETTINGS),
            "test_covariance": TESTS,
            "seed": 48,
        },
        "medium": {
            "dim": (20, 40, 80, 160),
            "exponent": (0.4, 0.7, 1.0, 1.2),
            "setting": tuple(SETTINGS),
            "test_covariance": TESTS,
            "seed": 96,
        },
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "opposite": World(
            "the closed forms of matched and reversed covariances change places",
            theory=functools.partial(theory, order=_OPPOSITE.get),
        ),
        "traces_only": World(
            "a theory that knows the trace of the pretraining covariance and not its eigenvalues",
            theory=functools.partial(theory, train=np.ones_like),
        ),
        "endless_pool": World(
            "a theory in which the pool is the covariance it was drawn with",
            theory=functools.partial(theory, kappa=np.inf),
        ),
        "isotropic_pool": World(
            "the pool is drawn from isotropic tasks", measure=functools.partial(measure, isotropic_pool=True)
        ),
    },
)
