r"""The matrices of three trained layers tend to the predicted family.

For inputs :math:`x\sim\mathcal N(0, \Sigma)` and tasks :math:`w\sim\mathcal N(0, \Sigma^{-1})` the error is stationary
somewhere on :math:`A_l = a_l\,\Sigma^{-1}`, :math:`B_l = b_l\,I`; whether training goes there is another question.
The distance from this family is :func:`icllab.theory.preconditioners.identity_distance`, for :math:`A_l` in the
coordinates in which inputs are white. For networks trained on tasks :math:`w\sim\mathcal N(0, I)` the family is not
predicted. The last :math:`B_l` has no effect and is left out.
"""

import functools

import numpy as np
import xarray as xr

from iclbook.claims.descent._covariances import rotated_covariance, square
from icllab.core.axes import Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.theory import preconditioners

SETTINGS = ("whitened", "anisotropic")  # tasks of the inverse covariance of the inputs, and isotropic ones
VARIANCES = (1.0, 0.25, 1.0, 0.5, 1.0)  # the first d of them
NEAR, FALL = 0.2, 3.0  # distance from the family, and by what factor it falls
DRAWS = 20_000  # random matrices


def covariance(dim: int) -> np.ndarray:
    """Covariance of the inputs, [dim, dim]: the first ``dim`` variances, along random fixed directions."""
    return rotated_covariance(np.array(VARIANCES[:dim]))


def theory(dataset: xr.Dataset, metric=covariance) -> xr.Dataset:
    """Mean over layers of the distances from the family, and the distance of random matrices."""
    inner, largest = dataset.layer < dataset.layer.max(), int(dataset.dim.max())
    # The last contraction has no effect; ones in its place, so that it has a distance that is then left out.
    contractions = dataset["contraction"].where(inner, 1.0)
    draws = np.random.default_rng(0).normal(size=(DRAWS, largest, largest))
    random = float(np.mean(preconditioners.identity_distance(draws, metric(largest))))
    return dataset.assign(
        preconditioner_distance=distances(dataset["preconditioner"], metric).mean("layer"),
        contraction_distance=distances(contractions, np.eye).where(inner).mean("layer"),
        random_distance=("step", np.full(dataset.sizes["step"], random)),
    )


def distances(matrices: xr.DataArray, metric) -> xr.DataArray:
    """Distance of each matrix, over row and column, from a multiple of the inverse metric of its dimension."""
    parts = []
    for dim in matrices.dim.values:
        distance = functools.partial(preconditioners.identity_distance, covariance=metric(int(dim)))
        parts.append(xr.apply_ufunc(distance, matrices.sel(dim=dim), input_core_dims=[["row", "column"]]))
    return xr.concat(parts, matrices.dim)


def check(dataset: xr.Dataset) -> list[Finding]:
    """All matrices come near the family under its distribution of tasks, nearer than under another."""
    part, findings = dataset.isel(layers=-1, drop=True), []
    for name, of in (("preconditioner", "A"), ("contraction", "B")):
        distance = part[f"{name}_distance"].sel(setting="whitened", drop=True)
        first, last = (distance.isel(step=i, drop=True) for i in (0, -1))
        fall = estimates.geometric_mean(first / last)
        findings += checks.below(f"{name}_near", f"distance of {of} from the family", estimates.mean(last), NEAR)
        findings += checks.above(f"{name}_falls", f"distance of {of} at the start / at the end", fall, FALL)
    if "anisotropic" in dataset.setting:
        last = part["preconditioner_distance"].isel(step=-1, drop=True)
        whitened, isotropic = (estimates.geometric_mean(last.sel(setting=name, drop=True)) for name in SETTINGS)
        quantity = "distance of A, tasks of covariance I / of the inverse of the inputs'"
        findings += checks.above("other_tasks", quantity, isotropic / whitened, 1.0)
    complete = set(SETTINGS) <= set(dataset.setting.values)
    return [*findings, *checks.complete("settings", "both distributions of tasks", complete)]


def figure(dataset: xr.Dataset):
    """Draw both distances during training, one colour per distribution of tasks."""
    part = dataset.isel(dim=-1, layers=-1)
    lines = {"preconditioner_distance": "random_distance", "contraction_distance": None}
    rows = [Panel(name, line, "log") for name, line in lines.items()]
    return panels(part, rows, x="step", hue="setting", line_name="random matrices")


COMMON = square(5) | {"setting": SETTINGS, "layers": (3,), "layer": (1, 2, 3)}
claim = Claim(
    title="Three layers tend to a known form",
    sentence=(
        "Three trained layers of linear attention approach the predicted family: A_l to multiples of the inverse input "
        "covariance, B_l to multiples of the identity, if tasks have that inverse covariance."
    ),
    conditions=(
        "Blocks A_l and B_l trained by Adam from random starts without label noise, d = 5, 20 examples, input "
        "variances 1, 0.5 and 0.25. The A_l come nearer than those of networks trained on isotropic tasks."
    ),
    sources=("Ahn23",),
    quantities=(
        *("preconditioner", "contraction", "test_loss"),
        Quantity("preconditioner_distance", r"\mathrm{dist}(A)", "distance of A from its family"),
        Quantity("contraction_distance", r"\mathrm{dist}(B)", "distance of B from its family"),
        Quantity("random_distance", r"\mathrm{dist}", "distance of random matrices from the family"),
    ),
    static=("dim", "setting", "layers"),
    outputs=("step", "layer", "row", "column"),
    fixed={"length": 20, "std": 0.3, "batch": 256, "rate": 0.1, "clip": 1.0, "prompts": 20_000},
    sizes={
        "smoke": square(2)
        | {"setting": ("whitened",), "layers": (2,), "layer": (1, 2), "step": (0, 2000), "seed": 2}
        | {"batch": 64, "prompts": 4000},
        "small": COMMON | {"step": (0, 100, 250, 500, 1000, 2000, 4000, 6000), "seed": 6},
        "medium": COMMON | {"step": (0, 250, 500, 1000, 2000, 4000, 8000, 16_000), "seed": Seeds(16, block=4)},
    },
    controls={
        "untrained": Control("the networks stay where they start", measure={"learn": False}),
        "isotropic_training": Control("the networks are trained on isotropic inputs", measure={"isotropic": True}),
        "isotropic_metric": Control("the family is that of isotropic inputs", theory={"metric": np.eye}),
    },
)
