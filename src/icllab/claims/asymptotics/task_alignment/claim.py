r"""Tested on tasks of another covariance: the closer to the covariance of pretraining, the smaller the error.

The pool is drawn with eigenvalues :math:`c_i \propto i^{-p}`; test covariances have its eigenvectors and its trace. For
:math:`p\ge1` neither the error nor the closed form at a given d has a limit :math:`d\to\infty`; their ratio has one.
"""

import itertools
from types import MappingProxyType

import numpy as np
import xarray as xr

from icllab.claims.asymptotics._fitted import ratio, solved, titled, written
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
    }
)
TESTS = ("matched", "isotropic", "reversed")
LARGEST = 0.05  # standard error of a ratio: three of them still tell the controls from the claim
LINE = np.linspace(0.0, 1.2, 25)


def covariance(test, spectrum):
    """Eigenvalues of a test covariance along the eigenvectors of the one of pretraining."""
    return {"matched": spectrum, "isotropic": np.ones_like(spectrum), "reversed": spectrum[::-1].copy()}[test]


def predicted(dims, exponents, settings, tests, *, train=lambda spectrum: spectrum, **changed):
    """Closed forms over (dim, exponent, setting): on the test covariances, and on the pool."""

    def errors(dim, exponent, setting):
        spectrum, law = power_law(int(dim), float(exponent)), SETTINGS[setting] | changed
        own = train(spectrum)
        transfer = [icl_error(own, covariance(test, spectrum), **law) for test in tests]
        return {"transfer_error_theory": (("test_covariance",), transfer), "idg_error_theory": idg_error(own, **law)}

    return tabulated(errors, dim=dims, exponent=exponents, setting=settings)


def theory(dataset: xr.Dataset, *, order=lambda test: test, **changed) -> xr.Dataset:
    """The closed forms at the measured points, and along a line of exponents at the largest dimension."""
    names, tests = dataset.setting.values.tolist(), [order(test) for test in dataset.test_covariance.values.tolist()]
    found = predicted(dataset.dim.values, dataset.exponent.values, names, tests, **changed)
    line = predicted(dataset.dim.values[-1:], LINE, names, tests, **changed)["transfer_error_theory"][1][0]
    found |= {"transfer_error_line": (("exponent_line", "setting", "test_covariance"), line)}
    return dataset.assign_coords(exponent_line=LINE).assign(found)


def check(dataset: xr.Dataset) -> list[Finding]:
    """The order of the test covariances at the largest d, and measured over predicted errors for d to infinity."""
    findings, errors = [], dataset["transfer_error"].isel(dim=-1)
    for less, more in itertools.pairwise(test for test in TESTS if test in errors.test_covariance):
        # Of one and the same fit: most of the noise is common to both errors.
        margin = estimates.mean(errors.sel(test_covariance=more) - errors.sel(test_covariance=less))
        findings += checks.above(f"{more}_{less}", f"error on {more} tasks - on {less} ones", margin)
    for kind, where in (("transfer", "tasks of a test covariance"), ("idg", "the pool")):
        error, form = dataset[f"{kind}_error"], dataset[f"{kind}_error_theory"]
        findings += ratio(f"{kind}_ratio", f"error on {where}", error, form, LARGEST)
    return [*findings, *solved(dataset)]


def figure(dataset: xr.Dataset):
    """Errors against the exponent at the largest d, one panel per setting."""
    shown = titled(dataset, {name: f"${written(law)}$" for name, law in SETTINGS.items()})
    shown = shown.reindex(test_covariance=[test for test in TESTS if test in dataset.test_covariance])
    rows = [Panel("transfer_error", "transfer_error_line", at={"setting": title}) for title in shown.setting.values]
    return panels(shown, rows, x="exponent", hue="test_covariance", line_name=f"closed form, $d = {int(shown.dim)}$")


OPPOSITE = {"matched": "reversed", "isotropic": "isotropic", "reversed": "matched"}
COMMON = {"setting": tuple(SETTINGS), "test_covariance": TESTS}
claim = Claim(
    sentence=(
        "Linear attention pretrained on power-law tasks errs least on that task covariance, more on isotropic tasks "
        "and most on reversed eigenvalues, each by its closed form."
    ),
    conditions="Three sets of parameters; covariances of one trace; closed forms for large d, order at the largest d.",
    sources=("LeteyTask25",),
    axes=(Axis("test_covariance", r"\tilde C", "covariance of the test tasks"),),
    quantities=(
        Quantity("transfer_error", r"e(\tilde C)", "error on test tasks"),
        *("idg_error", "converged"),
    ),
    static=("dim", "exponent", "setting"),
    outputs=("test_covariance",),
    sizes={
        "smoke": COMMON | {"dim": (6, 12, 32), "exponent": (0.7,), "setting": ("with ridge",), "seed": 32},
        "small": COMMON | {"dim": (20, 40, 80), "exponent": (0.4, 0.7, 1.0), "seed": 48},
        "medium": COMMON | {"dim": (20, 40, 80, 160), "exponent": (0.4, 0.7, 1.0, 1.2), "seed": 96},
    },
    controls={
        "opposite": Control("matched and reversed covariances change places", theory={"order": OPPOSITE.get}),
        "traces_only": Control("only the trace of the pool's covariance is known", theory={"train": np.ones_like}),
        "endless_pool": Control("the pool is the covariance it was drawn with", theory={"kappa": np.inf}),
        "reversed_pool": Control(
            "the pool is drawn from tasks of the reversed covariance",
            measure={"pool": "reversed"},
            axes={"dim": (20,), "exponent": (1.0,)},
        ),
        "isotropic_pool": Control("the pool is drawn from isotropic tasks", measure={"isotropic_pool": True}),
    },
)
