r"""What the fitted matrix is: the pool's second moment, inverted as far as contexts show it, and noise.

The slides say that :math:`\Gamma` has to invert the covariance of the tokens. Exactly, its square part is
:math:`R_k(R_k+\nu I)^{-1}` plus noise with isotropic inputs, and
:math:`\Sigma^{-1/2}\tilde R(\tilde R+\nu I)^{-1}\Sigma^{-1/2}` with inputs of covariance :math:`\Sigma/d`,
:math:`\tilde R = \Sigma^{1/2}R_k\Sigma^{1/2}`, no ridge and :math:`\tau>1`. With a fresh task in every context
:math:`R_k = I` and this is :math:`(\Sigma+\nu I)^{-1}`, the inverse for long contexts. The ridge
:math:`\nu = q+\xi` is the noise of a context plus the effective ridge.

Everything is measured in the eigenbasis of :math:`\tilde R`, on :math:`\Sigma^{1/2}\Gamma\Sigma^{1/2}`: the
:math:`\nu` that fits the diagonal :math:`r/(r+\nu)` best, what is left beside that fit, what there is off
the diagonal, and the last column.
"""

import functools
from types import MappingProxyType

import numpy as np
import xarray as xr

from icllab.claims.asymptotics._settings import titled, written
from icllab.core.axes import Axis, Quantity
from icllab.experiments import checks, estimates
from icllab.experiments.checks import Finding
from icllab.experiments.experiment import Control, Experiment
from icllab.figures.curves import Panel, panels
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
LINE = np.geomspace(0.08, 3.5, 61)
PLACES = (0.1, 0.14, 0.2, 0.28, 0.4, 0.56, 0.8, 1.1, 1.6, 2.2)  # on the figure's horizontal axis
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
    """The predictions at every setting and dimension, and the mean of Gamma along a line of eigenvalues."""
    dims, settings = dataset.dim.values, [str(name) for name in dataset.setting.values]
    ridge, noise, last = (np.empty((len(settings), len(dims))) for _ in range(3))
    line = np.empty((len(settings), LINE.size))
    for i, name in enumerate(settings):
        law = SETTINGS[name]
        for j, dim in enumerate(dims):
            spectrum = inputs_spectrum(name, int(dim))
            xi = effective * task_alignment.effective_ridge(spectrum, **law)
            ridge[i, j] = (spectrum.mean() + law["rho"]) / law["alpha"] + xi
            noise[i, j], last[i, j] = task_alignment.gamma_noise(spectrum, **law)
            if label_noise_alone:
                noise[i, j] *= law["rho"] / task_alignment.idg_error(spectrum, **law)
        # With correlated inputs R_k is the identity, and Gamma itself is a function of their covariance.
        least = inputs_spectrum(name, int(dims[-1])).min()
        line[i] = np.where(least < LINE, 1.0, np.nan) if name in EXPONENT else LINE
        line[i] /= LINE + ridge[i, -1]
    return dataset.assign_coords(eigenvalue_line=LINE).assign(
        fitted_ridge_theory=(("setting", "dim"), ridge),
        noise_theory=(("setting", "dim"), noise),
        last_column_theory=(("setting", "dim"), last),
        gamma_line=(("setting", "eigenvalue_line"), line),
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    r"""Measured over predicted, seed means taken to :math:`1/d\to0` with a quadratic in 1/d."""
    findings = []
    for name, predicted, words in COMPARED:
        limits = estimates.limit(estimates.mean(dataset[name] / dataset[predicted]), order=2)
        what = f"{words} / closed form, d to infinity"
        findings += checks.covers(name, what, limits, 1.0, largest_error=LARGEST)
    solved = not bool((dataset["converged"] == 0).any())
    return [*findings, *checks.complete("solved", "every solve met its tolerance", solved)]


def figure(dataset: xr.Dataset):
    """Gamma along the eigenvectors at the largest d, one panel per setting."""
    matrices = {name: r"\Sigma" if name in EXPONENT else "R_k" for name in SETTINGS}
    shown = titled(dataset, {name: f"$r$ of ${matrices[name]}$, ${written(law)}$" for name, law in SETTINGS.items()})
    rows = [Panel("gamma_diagonal", line="gamma_line", at={"setting": title}) for title in shown.setting.values]
    name = f"closed form; points: $d = {int(shown.dim)}$"
    return panels(shown, rows, x="eigenvalue", line_x="eigenvalue_line", line_name=name, xscale="log")


experiment = Experiment(
    claim=(
        "In the eigenbasis of the tasks' covariance, linear attention's matrix is r/(r+nu), nu being context noise "
        "plus effective ridge, with Sigma^(-1/2) of the inputs on both sides, plus predicted noise."
    ),
    conditions=(
        "Three sets of parameters, with a pool of tasks, a ridge, and correlated inputs (covariance Sigma/d) in turn; "
        "ratios to the closed forms in the limit of large d."
    ),
    sources=("Letey24", "Lu24"),
    axes=(Axis("eigenvalue_line", "r", "eigenvalue, where a theory line is drawn"),),
    quantities=(
        Quantity("gamma_diagonal", r"u^\top\Gamma u", "fitted matrix along an eigenvector"),
        Quantity("gamma_line", r"u^\top\bar\Gamma u", "mean of the fitted matrix along an eigenvector, closed form"),
        Quantity("fitted_ridge", r"\nu", "ridge that fits the fitted matrix best"),
        Quantity("off_diagonal", r"V_{\mathrm{off}}", "squared size of the matrix off its diagonal, per dimension"),
        Quantity("diagonal_misfit", r"V_{\mathrm{diag}}", "squared misfit of the diagonal, times the dimension"),
        Quantity("noise_theory", "V", "predicted squared noise of the fitted matrix, per dimension"),
        "last_column",
        "last_column_theory",
        "converged",
    ),
    static=("dim", "setting"),
    outputs=("eigenvalue",),
    sizes={
        "smoke": {
            "dim": (8, 16, 32),
            "setting": ("few contexts", "correlated inputs"),
            "eigenvalue": PLACES,
            "seed": 48,
        },
        "small": {"dim": (20, 40, 80), "setting": tuple(SETTINGS), "eigenvalue": PLACES, "seed": 128},
        "medium": {"dim": (20, 40, 80, 160), "setting": tuple(SETTINGS), "eigenvalue": PLACES, "seed": 192},
    },
    theory=theory,
    check=check,
    figure=figure,
    controls={
        "context_noise_alone": Control(
            "the ridge is q, as if there were endless contexts", theory=functools.partial(theory, effective=0.0)
        ),
        "label_noise_alone": Control(
            "the matrix is as noisy as labels are, without what a context leaves out",
            theory=functools.partial(theory, label_noise_alone=True),
        ),
        "not_inverted": Control(
            "the matrix is whitened as if it held the covariance of the inputs and not its inverse",
            measure={"power": -0.5},
        ),
        "shuffled_labels": Control("the labels of the pretraining contexts are permuted", measure={"shuffled": True}),
    },
)
