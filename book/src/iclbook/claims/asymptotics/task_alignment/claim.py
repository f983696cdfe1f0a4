r"""The error on tasks of another covariance is smaller, the closer that covariance is to the one of pretraining.

The pool is drawn with eigenvalues :math:`c_i \propto i^{-p}`; test covariances have its eigenvectors and its trace. For
:math:`p\ge1` neither the error nor the closed form at a given d has a limit :math:`d\to\infty`; their ratio has one.
At low rank only the first d/4 eigenvalues are not zero: matched tasks are inside their subspace and reversed ones
outside. A pool of d/2 tasks spans this subspace, but not all dimensions.
"""

import itertools
from types import MappingProxyType

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics._fitted import convergence, parameters_label, ratio, select_settings
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import tabulated
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.theory.sample_covariance import power_law
from icllab.theory.task_alignment import icl_error, idg_error

SETTINGS = MappingProxyType(
    {
        "few contexts": {"tau": 0.5, "alpha": 2.0, "kappa": 1.5, "rho": 0.05, "ridge": 0.0},
        "many contexts": {"tau": 2.0, "alpha": 5.0, "kappa": 0.5, "rho": 0.05, "ridge": 0.0},
        "with ridge": {"tau": 1.5, "alpha": 5.0, "kappa": 2.0, "rho": 0.05, "ridge": 0.05},
        "low rank": {"tau": 2.0, "alpha": 5.0, "kappa": 0.5, "rho": 0.05, "ridge": 0.0},
        "few contexts at low rank": {"tau": 0.15, "alpha": 5.0, "kappa": 0.5, "rho": 0.05, "ridge": 0.0},
    }
)
RANK = MappingProxyType({"low rank": 0.25, "few contexts at low rank": 0.25})  # over the dimension; else full
TESTS = ("matched", "isotropic", "reversed")
LARGEST = 0.05  # standard error of a ratio: three of them still tell the controls from the claim
LINE = np.linspace(0.0, 1.2, 25)


def pool_spectrum(setting, dim, exponent):
    """Eigenvalues of the pretraining covariance, of mean 1: a power law up to the rank of the tasks, then zeros."""
    rank = round(RANK.get(setting, 1.0) * dim)
    return np.concatenate([power_law(rank, exponent) * (dim / rank), np.zeros(dim - rank)])


def covariance(test, spectrum):
    """Eigenvalues of a test covariance along the eigenvectors of the pretraining covariance."""
    return {"matched": spectrum, "isotropic": np.ones_like(spectrum), "reversed": spectrum[::-1].copy()}[test]


def closed_forms(dims, exponents, settings, tests, *, train=lambda spectrum: spectrum, **overrides):
    """Closed forms over (dim, exponent, setting): on the test covariances, and on the pool."""

    def errors(dim, exponent, setting):
        spectrum, law = pool_spectrum(setting, int(dim), float(exponent)), SETTINGS[setting] | overrides
        train_spectrum = train(spectrum)
        transfer = [icl_error(train_spectrum, covariance(test, spectrum), **law) for test in tests]
        return {
            "transfer_error_theory": (("test_covariance",), transfer),
            "idg_error_theory": idg_error(train_spectrum, **law),
        }

    return tabulated(errors, dim=dims, exponent=exponents, setting=settings)


def theory(dataset: xr.Dataset, *, order=lambda test: test, **overrides) -> xr.Dataset:
    """Closed forms at the measured points, and along a line of exponents at the largest dimension."""
    names, tests = dataset.setting.values.tolist(), [order(test) for test in dataset.test_covariance.values.tolist()]
    predictions = closed_forms(dataset.dim.values, dataset.exponent.values, names, tests, **overrides)
    line = closed_forms(dataset.dim.values[-1:], LINE, names, tests, **overrides)["transfer_error_theory"][1][0]
    predictions |= {"transfer_error_line": (("exponent_line", "setting", "test_covariance"), line)}
    return dataset.assign_coords(exponent_line=LINE).assign(predictions)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Order of the test covariances at the largest d, and measured over predicted errors for d to infinity."""
    findings, errors = [], dataset["transfer_error"].isel(dim=-1)
    for nearer, farther in itertools.pairwise(test for test in TESTS if test in errors.test_covariance):
        # Both errors are of the same fit and share most of their noise.
        margin = estimates.mean(errors.sel(test_covariance=farther) - errors.sel(test_covariance=nearer))
        findings += checks.above(f"{farther}_{nearer}", f"error on {farther} tasks - on {nearer} ones", margin)
    findings += _rank(errors)
    for kind, tasks in (("transfer", "tasks of a test covariance"), ("idg", "the pool")):
        error, form = dataset[f"{kind}_error"], dataset[f"{kind}_error_theory"]
        findings += ratio(f"{kind}_ratio", f"error on {tasks}", error, form, LARGEST)
    return [*findings, *convergence(dataset)]


def _rank(errors: xr.DataArray) -> list[Finding]:
    """Matched tasks have a smaller error at a rank that the pool spans than at full rank, if all else is the same."""
    if not {"many contexts", "low rank"} <= set(errors.setting.values.tolist()):
        return []
    matched = errors.sel(test_covariance="matched", drop=True)
    full, low = (estimates.mean(matched.sel(setting=name, drop=True)) for name in ("many contexts", "low rank"))
    return checks.above("full_low_rank", "error on matched tasks, full rank - low rank", full - low)


def figure(dataset: xr.Dataset):
    """Draw errors against the exponent at the largest d, one panel per setting."""
    ranks = {name: rf",\ \mathrm{{rank}} = {rank:g}\, d" for name, rank in RANK.items()}
    titles = {name: f"${parameters_label(law)}{ranks.get(name, '')}$" for name, law in SETTINGS.items()}
    part = select_settings(dataset, titles)
    part = part.reindex(test_covariance=[test for test in TESTS if test in dataset.test_covariance])
    rows = [Panel("transfer_error", "transfer_error_line", at={"setting": title}) for title in part.setting.values]
    return panels(part, rows, x="exponent", hue="test_covariance", line_name=f"closed form, $d = {int(part.dim)}$")


OPPOSITE = {"matched": "reversed", "isotropic": "isotropic", "reversed": "matched"}
COMMON = {"setting": tuple(SETTINGS), "test_covariance": TESTS}
claim = Claim(
    title="Errors on other task covariances",
    sentence=(
        "Linear attention pretrained on power-law tasks of full or low rank errs least on that covariance, more on "
        "isotropic tasks and most on reversed eigenvalues, each by its closed form."
    ),
    conditions=(
        "Five sets of parameters, two of them at rank d/4; covariances of one trace; closed forms for large d, order "
        "at the largest d. With one pool of d/2 tasks, the error on matched tasks is smaller at rank d/4 than at full "
        "rank."
    ),
    sources=("LeteyTask25", "Takanami26"),
    axes=(Axis("test_covariance", r"\tilde C", "covariance of the test tasks"),),
    quantities=(Quantity("transfer_error", r"e(\tilde C)", "error on test tasks"), *("idg_error", "converged")),
    static=("dim", "exponent", "setting"),
    outputs=("test_covariance",),
    sizes={
        "smoke": COMMON | {"dim": (6, 12, 32), "exponent": (0.7,), "setting": ("with ridge", "low rank"), "seed": 32},
        "small": COMMON | {"dim": (20, 40, 80), "exponent": (0.4, 0.7, 1.0), "seed": 48},
        "medium": COMMON | {"dim": (20, 40, 80, 160), "exponent": (0.4, 0.7, 1.0, 1.2), "seed": 96},
    },
    controls={
        "opposite": Control("matched and reversed covariances change places", theory={"order": OPPOSITE.get}),
        "traces_only": Control("only the trace of the pool's covariance is known", theory={"train": np.ones_like}),
        "endless_pool": Control("the pool is the covariance it was drawn with", theory={"kappa": np.inf}),
        "endless_contexts": Control(
            "pretraining has no limit of contexts, and so no implicit ridge", {}, {"tau": np.inf}
        ),
        "reversed_pool": Control(
            "the pool is drawn from tasks of the reversed covariance",
            measure={"pool": "reversed"},
            axes={"dim": (20,), "exponent": (1.0,)},
        ),
        "isotropic_pool": Control("the pool is drawn from isotropic tasks", measure={"isotropic_pool": True}),
    },
)
