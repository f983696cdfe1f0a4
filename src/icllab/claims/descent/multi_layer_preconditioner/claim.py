r"""The matrices of three trained layers tend to the family that is predicted for them.

:math:`P_l = \mathrm{diag}(B_l, 1)` and :math:`Q_l = \mathrm{diag}(-A_l, 0)`, all entries of the :math:`A_l` and
:math:`B_l` trained from random starts. Inputs are :math:`x\sim\mathcal N(0, \Sigma)`, of unequal variances in
directions that are nobody's axes. For tasks :math:`w\sim\mathcal N(0, \Sigma^{-1})` the error is stationary
somewhere on

.. math:: A_l = a_l\,\Sigma^{-1}, \qquad B_l = b_l\,I,

which says nothing of whether training goes there. How far a matrix is from the family is

.. math:: \mathrm{dist}(M) = \frac{\|M - \frac{\mathrm{tr}\,M}d I\|_F}{\|M\|_F}, \qquad M = DU^\top A_lUD
          \text{ or } B_l, \qquad \Sigma = UD^2U^\top .

Beside it: what random matrices have, and networks trained on tasks :math:`w\sim\mathcal N(0, I)`, for which the family
is not predicted. The last :math:`B_l` has no effect and is left out.
"""

import functools

import numpy as np
import xarray as xr

from icllab.core.statistics import mean_and_error
from icllab.experiments.checks import Finding, Outcome, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.figures.curves import Panel, panels
from icllab.theory import preconditioners

VARIANCES = (1.0, 0.25, 1.0, 0.5, 1.0)  # the first d of them
NEAR, FALL = 0.2, 3.0  # distance from the family, and by what factor it falls
DRAWS = 20_000  # random matrices


def covariance(dim: int) -> np.ndarray:
    """Of the inputs: the first ``dim`` variances, in directions drawn once."""
    turn = np.linalg.qr(np.random.default_rng(dim).normal(size=(dim, dim)))[0]
    return (turn * np.array(VARIANCES[:dim])) @ turn.T


def measure(point, *, key, trained=True):
    """One cell: networks of all seeds under one law of tasks, on their way; in a wrong world they do not move."""
    import jax
    import jax.numpy as jnp

    from icllab.claims.descent import _layers as trained_layers
    from icllab.tasks import GaussianInputs, GaussianWeights, LinearRegression

    sigma = covariance(point.dim)
    tasks = {"whitened": np.linalg.inv(sigma), "anisotropic": np.eye(point.dim)}[point.setting]
    task = LinearRegression(
        point.dim,
        point.length,
        GaussianInputs(jnp.asarray(sigma, jnp.float32)),
        GaussianWeights(jnp.asarray(tasks, jnp.float32)),
        jnp.float32(0.0),
    )
    of_training, of_test = jax.random.split(key)
    run = trained_layers.trained(
        task,
        "blocks",
        layers=point.layers,
        seeds=point.seed,
        std=point.std,
        steps=max(point.step),
        batch=point.batch,
        rate=point.rate,
        clip=point.clip,
        keep=point.step,
        key=of_training,
    )
    shape = (len(point.step), len(point.seed))
    loss = np.empty(shape)
    a, b = (np.empty((*shape, point.layers, point.dim, point.dim)) for _ in range(2))
    for t, step in enumerate(point.step):
        networks = run.trajectory.at(step if trained else min(point.step))
        for s, seed in enumerate(point.seed):
            a[t, s], b[t, s] = trained_layers.blocks(networks.member(s))
            asked = {"key": jax.random.fold_in(of_test, seed), "prompts": point.prompts}
            loss[t, s] = trained_layers.on_shared_prompts([networks.member(s)], task, **asked).mean()
    layer = [i - 1 for i in point.layer]
    where = np.ix_(range(shape[0]), range(shape[1]), layer, point.row, point.column)
    dims = ("step", "seed", "layer", "row", "column")
    return {"preconditioner": (dims, a[where]), "contraction": (dims, b[where]), "test_loss": (dims[:2], loss)}


def theory(dataset: xr.Dataset, metric=covariance) -> xr.Dataset:
    """Means over layers of all distances from the family; and what random matrices have."""
    last = int(dataset.layer.max())
    of_a, of_b = [], []
    for dim in dataset.dim.values:
        part = dataset.sel(dim=dim)
        # The last contraction has no effect; ones in its place, so that it has a distance that is then left out.
        inner = part["contraction"].where(part.layer < last, 1.0)
        for matrices, sigma, found in ((part["preconditioner"], metric(int(dim)), of_a), (inner, None, of_b)):
            values = matrices.transpose(..., "row", "column")
            distance = np.asarray(preconditioners.identity_distance(values.values, sigma))
            found.append(values.isel(row=0, column=0, drop=True).copy(data=distance))
    a, b = (xr.concat(found, dataset.dim) for found in (of_a, of_b))
    most = int(dataset.dim.max())
    draws = np.random.default_rng(0).normal(size=(DRAWS, most, most))
    random = float(np.mean(preconditioners.identity_distance(draws, metric(most))))
    return dataset.assign(
        preconditioner_distance=a.mean("layer"),
        contraction_distance=b.where(dataset.layer < last).mean("layer"),
        random_distance=("step", np.full(dataset.sizes["step"], random)),
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """Under the predicted law of tasks all matrices come near the family, and nearer than under another law."""
    findings = []
    for dim in dataset.dim.values:
        here = dataset.sel(dim=dim).isel(layers=-1)
        part = here.sel(setting="whitened")
        for name, of in (("preconditioners", "A"), ("contractions", "B")):
            distance = part[f"{name[:-1]}_distance"]
            first, last = (distance.isel(step=i).values for i in (0, -1))
            findings.append(_above(NEAR - last, f"{NEAR:g} above the distance of the {of}, d={dim}"))
            findings.append(_above(np.log(first / last), f"fall of its logarithm, d={dim}", np.log(FALL)))
        if "anisotropic" in dataset.setting:
            last = here["preconditioner_distance"].isel(step=-1)
            own, other = (mean_and_error(np.log(last.sel(setting=of).values)) for of in ("whitened", "anisotropic"))
            what = f"log distance of the A, tasks of covariance I above those of the inverse, d={dim}"
            findings.append(exceeds(what, float(other[0] - own[0]), float(np.hypot(own[1], other[1]))))
    laws = {"whitened", "anisotropic"} - set(dataset.setting.values)
    findings.append(exactly("laws of the claim that are missing", 0, len(laws), otherwise=Outcome.UNDECIDED))
    return findings


def _above(samples: np.ndarray, what: str, bound: float = 0.0) -> Finding:
    mean, error = mean_and_error(samples)
    return exceeds(what, float(mean), float(error), bound=float(bound))


def figure(dataset: xr.Dataset):
    """Both distances during training, one colour per law of tasks."""
    part = dataset.isel(dim=-1, layers=-1)
    rows = [
        Panel("preconditioner_distance", "random_distance", yscale="log"),
        Panel("contraction_distance", yscale="log"),
    ]
    return panels(part, rows, x="step", hue="setting", line_name="random matrices")


experiment = Experiment(
    claim=(
        "Three layers of linear attention, trained from random starts on tasks whose covariance is the inverse of that "
        "of the inputs, come near the predicted family, A_l to multiples of the inverse covariance and B_l to "
        "multiples of the identity, and their A_l nearer than those of networks trained on isotropic tasks."
    ),
    sources=("Ahn23",),
    static=("dim", "setting", "layers"),
    fixed={
        "length": 20,
        "std": 0.3,
        "batch": 256,
        "rate": 0.1,
        "clip": 1.0,
        "prompts": 20_000,
    },
    sizes={
        "smoke": {
            "dim": (2,),
            "setting": ("whitened",),
            "layers": (2,),
            "step": (0, 1200),
            "layer": (1, 2),
            "row": (0, 1),
            "column": (0, 1),
            "seed": 2,
        },
        "small": {
            "dim": (5,),
            "setting": ("whitened", "anisotropic"),
            "layers": (3,),
            "step": (0, 100, 250, 500, 1000, 2000, 4000, 6000),
            "layer": (1, 2, 3),
            "row": tuple(range(5)),
            "column": tuple(range(5)),
            "seed": 6,
        },
        "medium": {
            "dim": (5,),
            "setting": ("whitened", "anisotropic"),
            "layers": (3,),
            "step": (0, 250, 500, 1000, 2000, 4000, 8000, 16_000),
            "layer": (1, 2, 3),
            "row": tuple(range(5)),
            "column": tuple(range(5)),
            "seed": 16,
        },
    },
    precision="float32",
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "untrained": World("the networks stay where they start", measure=functools.partial(measure, trained=False)),
        "isotropic_metric": World(
            "the family is that of isotropic inputs", theory=functools.partial(theory, metric=np.eye)
        ),
    },
)
