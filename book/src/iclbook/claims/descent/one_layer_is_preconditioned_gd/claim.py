r"""One trained layer of linear attention is the best single preconditioned step of gradient descent.

.. math:: \hat y = -\frac1n\sum_{i\le n}(u^\top x_i + c\,y_i)\,(x_i^\top Q_{11} + y_i\,q_{21}^\top)\,x_q

with :math:`(u^\top, c)` the last row of P and :math:`(Q_{11}; q_{21}^\top)` d columns of Q, is a step with the matrix
:math:`A = -c\,Q_{11}^\top` if u and :math:`q_{21}` vanish. The loss of A is exact; that of a network is compared with
the best step's on the same prompts.
"""

import numpy as np
import xarray as xr

from iclbook.claims.descent._covariances import eigenvectors, rotated_covariance, square
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import preconditioners

SETTINGS = ("isotropic", "anisotropic", "whitened")
DIMS = ("dim", "setting", "rho", "step", "seed")
REACHED = 1.01  # loss over that of the closed form
ROUNDING = 1e-4  # of an exact ratio of losses, for a matrix in float32


def covariances(setting: str, dim: int, smallest: float) -> tuple[np.ndarray, np.ndarray]:
    """Covariances of inputs and tasks: eigenvalues of the inputs from 1 down to ``smallest``; I if isotropic."""
    identity, values = np.eye(dim), np.geomspace(1.0, smallest, dim)
    if setting == "isotropic":
        return identity, identity
    return rotated_covariance(values), {"anisotropic": identity, "whitened": rotated_covariance(1 / values)}[setting]


def theory(dataset: xr.Dataset, formula=preconditioners.optimal) -> xr.Dataset:
    """Distance of each matrix from the closed form's, ratio of their exact losses, and both along the eigenvectors."""
    matrices, parameters = dataset["preconditioner"].transpose(*DIMS, "row", "column"), fixed_values(dataset)
    (distance, ratio), (along, line) = (np.full((2, *matrices.shape[:count]), np.nan) for count in (5, 6))
    for at in map(tuple, np.argwhere(np.isfinite(matrices.values).all(axis=(5, 6)))):
        dim, setting, rho = (dataset[name].values[i].item() for name, i in zip(DIMS, at[:3], strict=False))
        of_inputs, of_tasks = covariances(setting, dim, parameters["smallest"])
        law = {"length": parameters["length"], "task_covariance": of_tasks, "noise_variance": rho}
        matrix, best, turn = matrices.values[at], formula(of_inputs, **law).matrix, eigenvectors(dim)
        distance[at] = np.linalg.norm(matrix - best) / np.linalg.norm(best)
        ratio[at] = preconditioners.loss(matrix, of_inputs, **law) / preconditioners.loss(best, of_inputs, **law)
        along[at], line[at] = (np.einsum("ik,ij,jk->k", turn, operator, turn) for operator in (matrix, best))
    dims, eigenvalues = (*DIMS, "eigenvalue"), np.geomspace(1.0, parameters["smallest"], matrices.shape[5])
    dataset = dataset.assign(matrix_distance=(DIMS, distance), exact_ratio=(DIMS, ratio))
    curves = {"preconditioner_diagonal": (dims, along), "preconditioner_diagonal_line": (dims, line)}
    return dataset.assign(curves).assign_coords(eigenvalue=eigenvalues)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Neither the loss on prompts nor the exact loss of the matrix is far above the closed form's, nor below."""
    loss, exact = (estimates.mean(dataset[name].isel(step=-1, drop=True)) for name in ("loss_ratio", "exact_ratio"))
    beaten = ((1 - dataset["loss_ratio"]) / dataset["loss_ratio_error"] > 3).sum(("step", "seed"))
    under = (dataset["exact_ratio"] < 1 - ROUNDING).sum(("step", "seed"))
    return [
        *checks.below("loss", "loss / the closed form's", loss, REACHED),
        *checks.below("exact_loss", "exact loss of the matrix / the closed form's", exact, REACHED),
        *checks.equal("none_beats", "networks below the closed form by 3 paired standard errors", beaten, 0),
        *checks.equal("none_under", "matrices with a smaller exact loss than the closed form", under, 0),
        *checks.complete("settings", "all settings of covariances", set(SETTINGS) <= set(dataset.setting.values)),
    ]


def figure(dataset: xr.Dataset):
    """Draw the learned matrix along the eigenvectors of the inputs' covariance, one panel for each noise."""
    part = dataset.isel(dim=-1, step=-1).sel(setting=dataset.setting != "isotropic")
    curve, line = "preconditioner_diagonal", part["preconditioner_diagonal_line"].isel(seed=0, drop=True)
    rows = [Panel(curve, f"{curve}_line", "log", at={"rho": float(rho)}) for rho in part.rho.values]
    return panels(part.assign({f"{curve}_line": line}), rows, x="eigenvalue", hue="setting", xscale="log")


COMMON = {"setting": SETTINGS, "rho": (0.0, 0.5), "step": (2000,)}
claim = Claim(
    title="One layer is one best step",
    sentence=(
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
        Quantity("preconditioner_diagonal", r"u^\top A u", "along an eigenvector"),
        Quantity("matrix_distance", r"\|A-A^*\|/\|A^*\|", "relative distance from the closed form"),
    ),
    static=("dim", "setting", "rho", "step"),
    outputs=("row", "column"),
    fixed={"length": 20, "smallest": 0.25, "std": 0.1, "batch": 256, "rate": 0.1, "clip": 1.0, "prompts": 50_000},
    sizes={
        "smoke": square(3)
        | {"setting": ("anisotropic",), "rho": (0.1,), "step": (400,), "seed": 2}
        | {"prompts": 10_000},
        "small": square(5) | COMMON | {"seed": 5},
        "medium": square(10) | COMMON | {"seed": Seeds(8, block=4)},
    },
    controls={
        "untrained": Control("the networks are left as they start", measure={"learn": False}),
        "isotropic_training": Control("the networks are trained on isotropic inputs", {"trained_on": "isotropic"}),
        "other_reference": Control(
            "the step that networks are compared with lacks the terms in 1/n",
            measure={"reference_length": 10**9},
            axes={"setting": ("isotropic",), "rho": (0.5,), "seed": (0, 1)},
        ),
        "without_length": Control(
            "the closed form lacks its terms in 1/n",
            theory={"formula": lambda *of, **law: preconditioners.optimal(*of, **law | {"length": 10**9})},
        ),
    },
)
