r"""The fitted matrix of linear attention: a regularised inverse of the pool's second moment, and noise.

With inputs of covariance :math:`\Sigma/d` and :math:`\tilde R = \Sigma^{1/2}R_k\Sigma^{1/2}` its square part is
:math:`\Sigma^{-1/2}\tilde R(\tilde R+\nu I)^{-1}\Sigma^{-1/2}` plus noise (for :math:`\Sigma \ne I` without ridge and
:math:`\tau>1`), :math:`\nu = q+\xi` being the noise of a context plus the effective ridge. Measured in the eigenbasis
of :math:`\tilde R`: the :math:`\nu` that fits the diagonal :math:`r/(r+\nu)` best, the residual of that fit, the
entries off the diagonal, and the last column.
"""

import itertools
from types import MappingProxyType

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics._fitted import convergence, parameters_label, ratio, select_settings
from icllab.core.axes import Quantity
from icllab.core.grid import tabulated
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks
from icllab.theory import task_alignment
from icllab.theory.sample_covariance import power_law

SETTINGS = MappingProxyType(
    {
        "few contexts": {"tau": 0.5, "alpha": 4.0, "kappa": 2.0, "rho": 0.1, "ridge": 0.0},
        "with ridge": {"tau": 2.0, "alpha": 10.0, "kappa": 2.0, "rho": 0.1, "ridge": 0.3},
        "correlated inputs": {"tau": 3.0, "alpha": 20.0, "kappa": np.inf, "rho": 0.1, "ridge": 0.0},
    }
)
EXPONENT = MappingProxyType({"correlated inputs": 0.4})  # of the power law of the inputs' covariance; else isotropic
LARGEST = 0.08  # relative standard error
MANY = 100  # seeds from which the noise on the diagonal and the last column are judged: they scatter most
LINE = np.geomspace(0.08, 3.5, 61)
COMPARED = (
    ("fitted_ridge", "fitted_ridge_theory", "ridge that fits the diagonal best"),
    ("off_diagonal", "noise_theory", "noise off the diagonal"),
    ("diagonal_misfit", "noise_theory", "noise on the diagonal"),
    ("last_column", "last_column_theory", "last column"),
)


def inputs_spectrum(setting, dim):
    """Eigenvalues of the inputs' covariance times d."""
    return power_law(dim, EXPONENT.get(setting, 0.0))


def theory(dataset: xr.Dataset, *, effective=1.0, label_noise_alone=False) -> xr.Dataset:
    """Predictions at every setting and dimension, and the mean of Gamma along a line of eigenvalues."""

    def predicted(setting, dim):
        law, spectrum = SETTINGS[setting], inputs_spectrum(setting, dim)
        noise, last = task_alignment.gamma_noise(spectrum, **law)
        if label_noise_alone:
            noise *= law["rho"] / task_alignment.idg_error(spectrum, **law)
        q, xi = (spectrum.mean() + law["rho"]) / law["alpha"], task_alignment.effective_ridge(spectrum, **law)
        ridge = q + effective * xi
        # With correlated inputs R_k is the identity, and Gamma itself is a function of their covariance.
        line = np.where(spectrum.min() < LINE, 1.0, np.nan) if setting in EXPONENT else LINE
        predictions = {"fitted_ridge_theory": ridge, "noise_theory": noise, "last_column_theory": last}
        return predictions | {"gamma_diagonal_line": (("eigenvalue_line",), line / (LINE + ridge))}

    predictions = tabulated(predicted, setting=dataset.setting.values.tolist(), dim=dataset.dim.values.tolist())
    return dataset.assign_coords(eigenvalue_line=LINE).assign(predictions)


def check(dataset: xr.Dataset) -> list[Finding]:
    r"""Measured over predicted values, seed means extrapolated to :math:`1/d\to0` with a quadratic in 1/d."""
    quantities = COMPARED if dataset.sizes["seed"] >= MANY else COMPARED[:2]
    ratios = (ratio(name, words, dataset[name], dataset[form], LARGEST) for name, form, words in quantities)
    condition = (
        checks.complete("seeds", f"at least {MANY} seeds, for all the noise", False) if quantities != COMPARED else []
    )
    return [*itertools.chain(*ratios), *condition, *convergence(dataset)]


def figure(dataset: xr.Dataset):
    """Draw Gamma along the eigenvectors at the largest d, one panel per setting."""
    matrices = {name: r"\Sigma" if name in EXPONENT else "R_k" for name in SETTINGS}
    titles = {name: f"$r$ of ${matrices[name]}$, ${parameters_label(law)}$" for name, law in SETTINGS.items()}
    part = select_settings(dataset, titles)
    rows = [Panel("gamma_diagonal", "gamma_diagonal_line", at={"setting": title}) for title in part.setting.values]
    return panels(part, rows, x="eigenvalue", line_name=f"closed form; points: $d = {int(part.dim)}$", xscale="log")


COMMON = {"setting": tuple(SETTINGS), "eigenvalue": (0.1, 0.14, 0.2, 0.28, 0.4, 0.56, 0.8, 1.1, 1.6, 2.2)}
claim = Claim(
    title="Matrix of linear attention",
    sentence=(
        "In the eigenbasis of the tasks' covariance, linear attention's matrix is r/(r+nu), nu being context noise "
        "plus effective ridge, with Sigma^(-1/2) of the inputs on both sides, plus predicted noise."
    ),
    conditions="A pool of tasks, a ridge and correlated inputs (covariance Sigma/d) in turn; in the limit of large d.",
    sources=("Letey24", "Lu24"),
    quantities=(
        Quantity("gamma_diagonal", r"u^\top\Gamma u", "fitted matrix along an eigenvector"),
        Quantity("fitted_ridge", r"\nu", "ridge that fits the fitted matrix best"),
        Quantity("off_diagonal", r"V_{\mathrm{off}}", "squared size of the matrix off its diagonal, per dimension"),
        Quantity("diagonal_misfit", r"V_{\mathrm{diag}}", "squared misfit of the diagonal, times the dimension"),
        Quantity("noise_theory", "V", "predicted squared noise of the fitted matrix, per dimension"),
        *("last_column", "converged"),
    ),
    static=("dim", "setting"),
    outputs=("eigenvalue",),
    sizes={
        "smoke": COMMON | {"dim": (6, 12, 32), "setting": ("with ridge",), "seed": 40},
        "small": COMMON | {"dim": (20, 40, 80), "seed": 128},
        "medium": COMMON | {"dim": (20, 40, 80, 160), "seed": 192},
    },
    controls={
        "context_noise_alone": Control("the ridge is q, as if there were endless contexts", theory={"effective": 0.0}),
        "label_noise_alone": Control("the matrix is as noisy as labels are", theory={"label_noise_alone": True}),
        "not_inverted": Control(
            "the matrix holds the inputs' covariance, not its inverse",
            measure={"power": -0.5},
            axes={"setting": ("correlated inputs",), "seed": tuple(range(12))},
        ),
        "shuffled_labels": Control("the labels of the pretraining contexts are permuted", measure={"shuffled": True}),
    },
)
