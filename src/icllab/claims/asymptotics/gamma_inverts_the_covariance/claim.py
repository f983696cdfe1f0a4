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
from scipy.optimize import fminbound

from icllab.core.statistics import extrapolated_mean
from icllab.experiments.checks import Finding, Outcome, agreement, exactly
from icllab.experiments.experiment import Experiment, World
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
MEASURED = ("fitted_ridge", "off_diagonal", "diagonal_misfit", "last_column", "converged")


def inputs_spectrum(setting, dim):
    """Eigenvalues of the inputs' covariance times d."""
    return power_law(dim, EXPONENT.get(setting, 0.0))


def best_ridge(eigenvalues, diagonal):
    r"""The :math:`\nu` of the least squared distance between a diagonal and :math:`r/(r+\nu)`."""

    def misfit(log_ridge):
        return np.sum((diagonal - eigenvalues / (eigenvalues + np.exp(log_ridge))) ** 2)

    # A coarse grid first: without signal the misfit is flat at both ends.
    grid = np.linspace(-9.0, 9.0, 73)
    centre = grid[np.argmin([misfit(point) for point in grid])]
    return float(np.exp(fminbound(misfit, centre - 0.25, centre + 0.25, xtol=1e-7)))


def measure(point, *, key, shuffled=False, power=0.5):
    """Fit Gamma once per seed, each with a pool of its own, and take it apart in the eigenbasis of the pool.

    ``power`` is that of the inputs' covariance on both sides of Gamma; one half undoes what an inverse does.
    """
    import jax
    import jax.numpy as jnp

    from icllab.models import reduced
    from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression, WeightPool

    dim, setting = point.dim, SETTINGS[point.setting]
    spectrum = inputs_spectrum(point.setting, dim)
    inputs, law = GaussianInputs(jnp.asarray(spectrum / dim, "float32")), GaussianWeights(jnp.ones(()))
    prompts = reduced.prompts_at(setting["tau"], dim, per="d(d+1)")
    rows, diagonals = [], []
    for seed in point.seed:
        of_pool, of_contexts, of_shuffle = jax.random.split(jax.random.fold_in(key, seed), 3)
        weights, second = law, np.eye(dim)
        if np.isfinite(setting["kappa"]):
            weights = WeightPool.drawn(law, round(setting["kappa"] * dim), dim, key=of_pool)
            tasks = np.asarray(weights.weights, float)
            second = tasks.T @ tasks / len(tasks)
        task = LinearRegression(dim, round(setting["alpha"] * dim), inputs, weights, setting["rho"])
        samples = reduced.sample(task, prompts=prompts, key=of_contexts)
        if shuffled:
            samples = samples.shuffled(key=of_shuffle)
        fitted = reduced.fit_features(task, samples, ridge=setting["ridge"])
        gamma = np.asarray(fitted.gamma, float)
        square, last = gamma[:, :dim], gamma[:, dim]
        root, frame = np.sqrt(spectrum), spectrum**power
        eigenvalues, vectors = np.linalg.eigh(root[:, None] * second * root)
        turned = vectors.T @ (frame[:, None] * square * frame) @ vectors
        diagonal = np.diag(turned)
        ridge = best_ridge(eigenvalues, diagonal)
        off = (np.sum(turned**2) - np.sum(diagonal**2)) / (dim - 1)
        misfit = np.sum((diagonal - eigenvalues / (eigenvalues + ridge)) ** 2)
        rows.append((ridge, off, misfit, np.sum((frame * last) ** 2), fitted.converged))
        diagonals.append(between(eigenvalues, np.sum(vectors * (square @ vectors), axis=0), point.eigenvalue))
    measured = {
        name: (("seed",), np.array(column, float))
        for name, column in zip(MEASURED, zip(*rows, strict=True), strict=True)
    }
    return {"gamma_diagonal": (("eigenvalue", "seed"), np.array(diagonals).T), **measured}


def between(eigenvalues, values, places):
    """Values at given places between the eigenvalues, linear in their logarithms; NaN beyond the first and the last."""
    logarithms = np.log(np.maximum(eigenvalues, 1e-300))
    return np.interp(np.log(places), logarithms, values, left=np.nan, right=np.nan)


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
    """Measured over predicted, seed means taken to :math:`1/d\\to0` with a quadratic in 1/d."""
    findings = []
    compared = (
        ("fitted_ridge", "fitted_ridge_theory", "ridge that fits the diagonal best"),
        ("off_diagonal", "noise_theory", "noise off the diagonal"),
        ("diagonal_misfit", "noise_theory", "noise on the diagonal"),
        ("last_column", "last_column_theory", "last column"),
    )
    for setting in dataset.setting.values:
        part = dataset.sel(setting=setting)
        for name, predicted, what in compared:
            ratio = (part[name] / part[predicted]).transpose("dim", "seed").values
            limit, uncertainty = extrapolated_mean(part.dim.values, ratio)
            label = f"{what} over theory, {setting}, d to infinity"
            findings.append(agreement(label, 1.0, limit, uncertainty, largest_error=LARGEST))
    unsolved = int((dataset.converged == 0).sum())
    return [*findings, exactly("solves that missed their tolerance", 0.0, unsolved, otherwise=Outcome.UNDECIDED)]


def figure(dataset: xr.Dataset):
    """Gamma along the eigenvectors at the largest d, one panel per setting."""
    last = dataset.isel(dim=-1).reindex(setting=[name for name in SETTINGS if name in dataset.setting.values])
    titles = [_numbers(str(setting)) for setting in last.setting.values]
    shown = last[["gamma_diagonal", "gamma_line"]].assign_coords(setting=titles)
    rows = [Panel("gamma_diagonal", line="gamma_line", at={"setting": title}) for title in titles]
    name = f"closed form; points: $d = {int(last.dim)}$"
    return panels(shown, rows, x="eigenvalue", line_x="eigenvalue_line", line_name=name, xscale="log")


def _numbers(setting: str) -> str:
    symbols = {"tau": r"\tau", "alpha": r"\alpha", "kappa": r"\kappa", "ridge": r"\lambda"}
    values = {name: f"{SETTINGS[setting][name]:g}".replace("inf", r"\infty") for name in symbols}
    matrix = r"\Sigma" if setting in EXPONENT else "R_k"
    return f"$r$ of ${matrix}$, $" + r",\ ".join(f"{symbol} = {values[name]}" for name, symbol in symbols.items()) + "$"


experiment = Experiment(
    claim=(
        "Pretraining linear attention inverts a covariance: in the eigenbasis of the tasks the fitted matrix is "
        "r/(r+nu) with nu the noise of a context plus the effective ridge, inputs of covariance Sigma/d put "
        "Sigma^(-1/2) on both sides of it, and the rest is noise of the predicted size."
    ),
    sources=("Letey24", "Lu24"),
    static=("dim", "setting"),
    fixed={},
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
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "context_noise_alone": World(
            "the ridge is q, as if there were endless contexts", theory=functools.partial(theory, effective=0.0)
        ),
        "label_noise_alone": World(
            "the matrix is as noisy as labels are, without what a context leaves out",
            theory=functools.partial(theory, label_noise_alone=True),
        ),
        "not_inverted": World(
            "the matrix is whitened as if it held the covariance of the inputs and not its inverse",
            measure=functools.partial(measure, power=-0.5),
        ),
        "shuffled_labels": World(
            "the labels of the pretraining contexts are permuted", measure=functools.partial(measure, shuffled=True)
        ),
    },
)
