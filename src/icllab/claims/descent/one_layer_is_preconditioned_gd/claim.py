r"""One layer of linear attention, trained, is the best single preconditioned step of gradient descent.

Inputs :math:`x\sim\mathcal N(0, \Sigma)`, tasks :math:`w\sim\mathcal N(0, W)`, labels with noise of variance
:math:`\rho`. All entries of P and Q are trained from random starts on fresh prompts. The answer is

.. math:: \hat y = -\frac1n\sum_{i\le n}(u^\top x_i + c\,y_i)\,(x_i^\top Q_{11} + y_i\,q_{21}^\top)\,x_q

with the last row :math:`(u^\top, c)` of P and the first d columns :math:`(Q_{11}; q_{21}^\top)` of Q, and a step with
the matrix :math:`A = -c\,Q_{11}^\top` where u and :math:`q_{21}` vanish. The closed form is that of the best A.

A loss is compared with that of the closed form on the same prompts, of which both are functions: the ratio of the two
is known far better than either. The matrix has an exact loss, which needs no prompts.
"""

import numpy as np
import xarray as xr

from icllab.claims.descent._covariances import eigenvectors, turned
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.experiments import checks, estimates
from icllab.experiments.checks import Finding
from icllab.experiments.experiment import Control, Experiment
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.theory import preconditioners

SETTINGS = ("isotropic", "anisotropic", "whitened")
REACHED = 1.01  # loss over that of the closed form
ROUNDING = 1e-4  # of an exact ratio of losses, for a matrix in float32


def covariances(setting: str, dim: int, smallest: float) -> tuple[np.ndarray, np.ndarray]:
    """Covariances of inputs and tasks: eigenvalues of the inputs from 1 down to ``smallest``; I if isotropic."""
    identity, values = np.eye(dim), np.geomspace(1.0, smallest, dim)
    if setting == "isotropic":
        return identity, identity
    return turned(values), {"anisotropic": identity, "whitened": turned(1 / values)}[setting]


def theory(dataset: xr.Dataset, formula=preconditioners.optimal) -> xr.Dataset:
    """Distance of each matrix from the closed form's, and its exact loss over that of the closed form."""
    fixed = fixed_values(dataset)
    matrices = dataset["preconditioner"].transpose("dim", "setting", "rho", "step", "seed", "row", "column")
    distance, ratio = np.full((2, *matrices.shape[:5]), np.nan)
    for at in np.ndindex(matrices.shape[:5]):
        matrix = matrices.values[at]
        if np.isnan(matrix).any():
            continue
        dim, setting, rho = (dataset[name].values[i] for name, i in zip(matrices.dims, at[:3], strict=False))
        of_inputs, of_tasks = covariances(str(setting), int(dim), fixed["smallest"])
        law = {"length": fixed["length"], "task_covariance": of_tasks, "noise_variance": float(rho)}
        best = formula(of_inputs, **law).matrix
        distance[at] = np.linalg.norm(matrix - best) / np.linalg.norm(best)
        ratio[at] = preconditioners.loss(matrix, of_inputs, **law) / preconditioners.loss(best, of_inputs, **law)
    return dataset.assign(matrix_distance=(matrices.dims[:5], distance), exact_ratio=(matrices.dims[:5], ratio))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Neither the network's loss on prompts nor its matrix's exact loss is far above the closed form's, nor below."""
    last = dataset.isel(step=-1, drop=True)
    loss, exact = (estimates.mean(last[name]) for name in ("loss_ratio", "exact_ratio"))
    beaten = ((1 - dataset["loss_ratio"]) / dataset["loss_ratio_error"] > 3).sum(("step", "seed"))
    under = (dataset["exact_ratio"] < 1 - ROUNDING).sum(("step", "seed"))
    return [
        *checks.below("loss", "loss / the closed form's", loss, REACHED),
        *checks.below("exact_loss", "exact loss of the matrix / the closed form's", exact, REACHED),
        *checks.equal("none_beats", "networks below the closed form by 3 paired standard errors", beaten, 0),
        *checks.equal("none_under", "matrices of a smaller exact loss than the closed form's", under, 0),
        *checks.complete("settings", "all settings of covariances", set(SETTINGS) <= set(dataset.setting.values)),
    ]


def figure(dataset: xr.Dataset):
    """The learned matrix along the eigenvectors of the inputs' covariance, one panel for each noise."""
    fixed, dim = fixed_values(dataset), int(dataset.dim[-1])
    part = dataset.isel(dim=-1, step=-1).sel(setting=[str(s) for s in dataset.setting.values if s != "isotropic"])
    turn = eigenvectors(dim)
    matrices = part["preconditioner"].transpose("setting", "rho", "seed", "row", "column").values
    lines = np.empty((part.sizes["setting"], part.sizes["rho"], dim))
    for i, j in np.ndindex(lines.shape[:2]):
        of_inputs, of_tasks = covariances(str(part.setting.values[i]), dim, fixed["smallest"])
        law = {"length": fixed["length"], "task_covariance": of_tasks, "noise_variance": float(part.rho[j])}
        lines[i, j] = np.diag(turn.T @ preconditioners.optimal(of_inputs, **law).matrix @ turn)
    along = np.einsum("ik,...ij,jk->...k", turn, matrices, turn)
    shown = xr.Dataset(
        {
            "preconditioner_diagonal": (("setting", "rho", "seed", "eigenvalue"), along),
            "preconditioner_diagonal_line": (("setting", "rho", "eigenvalue"), lines),
        },
        coords={"setting": part.setting, "rho": part.rho, "eigenvalue": np.geomspace(1.0, fixed["smallest"], dim)},
        attrs=dataset.attrs,
    )
    drawn = ("preconditioner_diagonal", "preconditioner_diagonal_line")
    rows = [Panel(*drawn, "log", at={"rho": float(rho)}) for rho in part.rho.values]
    return panels(shown, rows, x="eigenvalue", hue="setting", line_x="eigenvalue", xscale="log")


def without_length(dataset: xr.Dataset) -> xr.Dataset:
    """The formula of infinitely many examples."""
    return theory(dataset, lambda covariance, **law: preconditioners.optimal(covariance, **{**law, "length": 10**9}))


experiment = Experiment(
    claim=(
        "One trained layer of linear attention has the loss of the best single step of preconditioned gradient "
        "descent, to within 1 % and never below it."
    ),
    conditions=(
        "All entries of P and Q trained by Adam from random starts on fresh prompts; d = 5, 20 examples; isotropic and "
        "anisotropic inputs, tasks of covariance I and of the inverse of the inputs', label noise 0 and 0.5."
    ),
    sources=("Ahn23", "vonOswald23"),
    quantities=(
        "loss_ratio",
        "preconditioner",
        Quantity("exact_ratio", "r_A", "exact loss of a matrix over that of the closed form"),
        Quantity("other_entries", "v", "size of the entries that no step has"),
        Quantity("preconditioner_diagonal", r"u^\top A u", "matrix along an eigenvector"),
        Quantity("matrix_distance", r"\|A-A^*\|/\|A^*\|", "relative distance from the closed form"),
    ),
    static=("dim", "setting", "rho", "step"),
    outputs=("row", "column"),
    fixed={"length": 20, "smallest": 0.25, "std": 0.1, "batch": 256, "rate": 0.1, "clip": 1.0, "prompts": 50_000},
    sizes={
        "smoke": {
            "dim": (3,),
            "setting": ("anisotropic",),
            "rho": (0.1,),
            "step": (400,),
            "row": (0, 1, 2),
            "column": (0, 1, 2),
            "seed": 2,
        },
        "small": {
            "dim": (5,),
            "setting": SETTINGS,
            "rho": (0.0, 0.5),
            "step": (2000,),
            "row": tuple(range(5)),
            "column": tuple(range(5)),
            "seed": 5,
        },
        "medium": {
            "dim": (10,),
            "setting": SETTINGS,
            "rho": (0.0, 0.5),
            "step": (2000,),
            "row": tuple(range(10)),
            "column": tuple(range(10)),
            "seed": Seeds(8, block=4),
        },
    },
    theory=theory,
    check=check,
    figure=figure,
    controls={
        "untrained": Control("the networks are left as they start", measure={"learn": False}),
        "isotropic_training": Control(
            "the networks are trained on isotropic inputs", measure={"trained_on": "isotropic"}
        ),
        "without_length": Control("the closed form lacks its terms in 1/n", theory=without_length),
    },
)
