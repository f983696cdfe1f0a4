r"""Tested on tasks of another covariance: the closer to the covariance of pretraining, the smaller the error.

The pool is drawn with a power law of eigenvalues :math:`c_i \propto i^{-p}`. All test covariances have the same trace,
so a theory that knows only traces sees no difference between them. The closed form takes the spectrum of the dimension
at hand, so what is extrapolated to :math:`d\to\infty` is the measured error over the predicted one. For :math:`p\ge1`
neither has a limit: the first few directions take an ever larger part of the trace. Their ratio has one.
"""

import itertools
from types import MappingProxyType

import numpy as np
import xarray as xr

from icllab.claims.asymptotics._fitted import ratio, solved, titled, written
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import tabulated
from icllab.experiments import Control, Experiment, Finding, checks, estimates
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
LARGEST = 0.05  # standard error of a ratio: three of them still tell the controls from the claim
LINE = np.linspace(0.0, 1.2, 25)


def covariance(test, spectrum):
    """Eigenvalues of a test covariance along the eigenvectors of the one of pretraining."""
    return {"matched": spectrum, "isotropic": np.ones_like(spectrum), "reversed": spectrum[::-1].copy()}[test]


def predicted(dims, exponents, settings, tests, *, train=lambda spectrum: spectrum, **changed):
    """Closed forms over (dim, exponent, setting, test), and those on the pool over (dim, exponent, setting)."""

    def errors(dim, exponent, setting):
        spectrum, law = power_law(int(dim), float(exponent)), SETTINGS[setting] | changed
        own = train(spectrum)
        transfer = [task_alignment.icl_error(own, covariance(test, spectrum), **law) for test in tests]
        return {"transfer": (("test_covariance",), transfer), "idg": task_alignment.idg_error(own, **law)}

    found = tabulated(errors, dim=dims, exponent=exponents, setting=settings)
    return found["transfer"][1], found["idg"][1]


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
    """The order of the test covariances at the largest d, and measured over predicted errors for d to infinity."""
    findings = []
    errors = dataset["transfer_error"].isel(dim=-1)
    for less, more in itertools.pairwise(test for test in TESTS if test in errors.test_covariance):
        # Of one and the same fit: most of the noise is common to both errors.
        margin = estimates.mean(errors.sel(test_covariance=more) - errors.sel(test_covariance=less))
        findings += checks.above(f"{more}_{less}", f"error on {more} tasks - on {less} ones", margin)
    for kind, where in (("transfer", "tasks of a test covariance"), ("idg", "the pool")):
        error, form = dataset[f"{kind}_error"], dataset[f"{kind}_theory"]
        findings += ratio(f"{kind}_ratio", f"error on {where}", error, form, LARGEST)
    return [*findings, *solved(dataset)]


def figure(dataset: xr.Dataset):
    """Errors against the exponent at the largest d, one panel per setting."""
    shown = titled(dataset, {name: f"${written(law)}$" for name, law in SETTINGS.items()})
    rows = [Panel("transfer_error", line="transfer_line", at={"setting": title}) for title in shown.setting.values]
    shown = shown.reindex(test_covariance=[test for test in TESTS if test in dataset.test_covariance])
    name = f"closed form, $d = {int(shown.dim)}$"
    return panels(shown, rows, x="exponent", hue="test_covariance", line_name=name)


OPPOSITE = {"matched": "reversed", "isotropic": "isotropic", "reversed": "matched"}
COMMON = {"setting": tuple(SETTINGS), "test_covariance": TESTS}
experiment = Experiment(
    claim=(
        "Linear attention pretrained on power-law tasks errs least on that task covariance, more on isotropic tasks "
        "and most on reversed eigenvalues, each by its closed form."
    ),
    conditions=(
        "Three sets of parameters; test covariances of one trace with the eigenvectors of the one of pretraining; "
        "the order at the largest d, the closed forms in the limit of large d."
    ),
    sources=("LeteyTask25",),
    axes=(
        Axis("exponent_line", "p", "exponent of the power law, where a theory line is drawn"),
        Axis("test_covariance", r"\tilde C", "covariance of the test tasks"),
    ),
    quantities=(
        Quantity("transfer_error", r"e(\tilde C)", "error on test tasks"),
        Quantity("transfer_theory", r"e(\tilde C)", "error on test tasks, closed form"),
        Quantity("transfer_line", r"e(\tilde C)", "error on test tasks, closed form on the line's grid"),
        *("idg_error", "idg_theory", "converged"),
    ),
    static=("dim", "exponent", "setting"),
    outputs=("test_covariance",),
    sizes={
        "smoke": COMMON | {"dim": (8, 16, 32), "exponent": (1.0,), "setting": ("many contexts",), "seed": 48},
        "small": COMMON | {"dim": (20, 40, 80), "exponent": (0.4, 0.7, 1.0), "seed": 48},
        "medium": COMMON | {"dim": (20, 40, 80, 160), "exponent": (0.4, 0.7, 1.0, 1.2), "seed": 96},
    },
    controls={
        "opposite": Control(
            "the closed forms of matched and reversed covariances change places", theory={"order": OPPOSITE.get}
        ),
        "traces_only": Control(
            "a theory that knows the trace of the pretraining covariance and not its eigenvalues",
            theory={"train": np.ones_like},
        ),
        "endless_pool": Control(
            "a theory in which the pool is the covariance it was drawn with", theory={"kappa": np.inf}
        ),
        "isotropic_pool": Control("the pool is drawn from isotropic tasks", measure={"isotropic_pool": True}),
    },
)
