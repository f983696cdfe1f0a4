r"""From memorising to learning in context, in a softmax transformer: two errors against the number of training tasks.

Two blocks of softmax attention and an affine map, trained on fresh prompts of a pool of :math:`k = \kappa d` tasks: the
limit :math:`\tau \to \infty` of a fixed set of :math:`\tau d^2`, so that tasks are memorised, never prompts. Then

.. math:: r(\kappa) = \frac{e_{\mathrm{IDG}}}{e^0_{\mathrm{IDG}}} \Big/ \frac{e_{\mathrm{ICL}}}{e^0_{\mathrm{ICL}}},

new prompts of the pool's tasks over new prompts of fresh tasks, is small where the pool is memorised, and 1 where the
network does the same with any task. Each error is taken over that of answering 0, :math:`e^0`, on the same prompts, so
that a pool of tasks that happen to be long or short makes no gap. The gap closes where r crosses 0.9.
"""

import itertools

import numpy as np
import xarray as xr

from icllab.claims.asymptotics._statistics import RESAMPLED, crossing
from icllab.core.axes import Quantity
from icllab.experiments import Control, Estimate, Experiment, Finding, checks
from icllab.experiments.estimates import geometric_mean, mean
from icllab.experiments.results import fixed_values
from icllab.figures.curves import Panel, panels
from icllab.figures.hues import joined
from icllab.theory import linear_attention

HALF, CLOSED = 0.5, 0.9  # of r
GRADUAL = 2.0  # factor in kappa from one to the other, at least
KAPPAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
LINE = np.geomspace(0.22, 70.0, 97)


def theory(dataset: xr.Dataset) -> xr.Dataset:
    r"""Errors over those of answering 0, r, and linear attention's closed form at :math:`\tau \to \infty`."""
    limit = {"tau": 1e9, **{name: fixed_values(dataset)[name] for name in ("alpha", "rho")}}
    icl, idg = (function(kappa=LINE, **limit) for function in (linear_attention.icl_error, linear_attention.idg_error))
    icl_relative, idg_relative = (dataset[f"{kind}_error"] / dataset[f"{kind}_zero"] for kind in ("icl", "idg"))
    return dataset.assign_coords(kappa_line=LINE).assign(
        icl_relative=icl_relative,
        idg_relative=idg_relative,
        error_ratio=idg_relative / icl_relative,
        icl_line=("kappa_line", icl),
        idg_line=("kappa_line", idg),
        error_ratio_line=("kappa_line", idg / icl),
    )


def crossed(part: xr.Dataset, level: float) -> tuple[float, np.ndarray]:
    """Where r crosses ``level``: of the means over all seeds, and of bootstrap samples of them.

    Cells have pools and networks of their own, so that seeds are drawn anew for each kappa.
    """
    icl, idg = (part[f"{of}_relative"].transpose("kappa", "seed").values for of in ("icl", "idg"))
    chosen = np.random.default_rng(0).integers(icl.shape[1], size=(len(icl), icl.shape[1], RESAMPLED))
    at = np.arange(len(icl))[:, None, None]
    samples = idg[at, chosen].mean(axis=1) / icl[at, chosen].mean(axis=1)
    whole = idg.mean(axis=1, keepdims=True) / icl.mean(axis=1, keepdims=True)
    return float(crossing(part.kappa.values, whole, level)[0]), crossing(part.kappa.values, samples, level)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Few tasks are memorised, many are not; where the gap closes, how gradually, and what more training does."""
    few, many = dataset.isel(kappa=0), dataset.isel(kappa=-1)
    explained = mean(1 - many["icl_relative"])
    findings = [
        *checks.below("memorised", "r with the fewest tasks", geometric_mean(few["error_ratio"]), HALF),
        *checks.above("harmful", "error on fresh tasks / that of answering 0", mean(few["icl_relative"]), 1.0),
        *checks.above("closed", "r with the most tasks", geometric_mean(many["error_ratio"]), CLOSED),
        *checks.above("learned", "fraction of the variance of fresh tasks explained", explained),
    ]
    for dim, step in itertools.product(dataset.dim.values.tolist(), dataset.step.values.tolist()):
        findings += _closing(dataset.sel(dim=dim, step=step), {"dim": dim, "step": step})
    if dataset.sizes["step"] > 1:
        logarithms, (first, last) = xr.apply_ufunc(np.log, dataset["error_ratio"]), dataset.step.values[[0, -1]]
        fall = (logarithms.isel(step=0, drop=True) - logarithms.isel(step=-1, drop=True)).mean("kappa")
        opened = geometric_mean(np.exp(fall))
        findings += checks.above("opens_again", f"mean r over all kappa, {first} / {last} steps", opened, 1.0)
    return [*findings, *checks.complete("lengths", "two lengths of training or more", dataset.sizes["step"] >= 2)]


def _closing(part: xr.Dataset, at: dict[str, int]) -> list[Finding]:
    """At more tasks than dimensions, and over more than a factor of two in kappa: no corner at kappa = 1."""
    (half, of_half), (closed, of_closed) = (crossed(part, level) for level in (HALF, CLOSED))
    inside = np.isfinite(of_half) & np.isfinite(of_closed)
    enough = part.sizes["kappa"] >= 4 and part.sizes["seed"] > 1
    there = bool(enough and np.isfinite([half, closed]).all() and inside.mean() > 0.9)
    findings = checks.complete("crossings", f"r crosses {HALF:g} and {CLOSED:g} inside the grid", there, at=at)
    if there:
        width = of_closed[inside] - of_half[inside]
        where = Estimate(closed, of_closed[inside].std(ddof=1), True)
        apart = Estimate(closed - half, width.std(ddof=1), True)
        what = f"kappa where r crosses {CLOSED:g}"
        findings += checks.above("closes_at", what, where, 1.0, at=at)
        findings += checks.above("gradual", f"{what} / where it crosses {HALF:g}", apart, GRADUAL, at=at)
    return findings


def figure(dataset: xr.Dataset):
    """At the largest d, r and both errors against kappa: of networks by training, and of dMMSE and ridge."""
    shown = dataset.isel(dim=-1)
    rows = {"error_ratio": "error_ratio_line", "icl_error": "icl_line", "idg_error": "idg_line"}
    curves = {f"{int(step)} steps": shown.sel(step=step, drop=True)[list(rows)] for step in shown.step.values}
    for name in ("dMMSE", "ridge"):
        icl, idg = (shown[f"{kind}_{name.lower()}"] for kind in ("icl", "idg"))
        ratio = idg / shown["idg_zero"] / (icl / shown["icl_zero"])
        curves[name] = xr.Dataset({"error_ratio": ratio, "icl_error": icl, "idg_error": idg})
    together = joined(curves, "predictor", dataset.attrs).assign({line: shown[line] for line in rows.values()})
    drawn = [Panel(y, line, "log" if y == "idg_error" else "linear") for y, line in rows.items()]
    return panels(together, drawn, x="kappa", hue="predictor", line_name="linear attention", xscale="log")


experiment = Experiment(
    claim=(
        "A two-block softmax transformer memorises few training tasks; its gap to fresh tasks closes gradually, at "
        "more tasks than dimensions, and longer training opens it again."
    ),
    conditions=(
        "d = 8 and 12, as many examples; Adam on fresh prompts of a pool, 1000 and 4000 steps. Memorised: the error on "
        "the pool is less than half that on fresh tasks, which exceeds that of answering 0. Gradually: over more than "
        "a factor of two in the number of tasks."
    ),
    sources=("Lu24", "Raventos23"),
    quantities=(
        *(f"{kind}_{what}" for kind in ("icl", "idg") for what in ("error", "dmmse", "ridge", "line")),
        Quantity("icl_zero", r"e^0_{\mathrm{ICL}}", "error of answering 0 on fresh tasks"),
        Quantity("idg_zero", r"e^0_{\mathrm{IDG}}", "error of answering 0 on pretraining tasks"),
        Quantity("icl_relative", r"e_{\mathrm{ICL}}/e^0_{\mathrm{ICL}}", "error on fresh tasks / of answering 0"),
        Quantity("idg_relative", r"e_{\mathrm{IDG}}/e^0_{\mathrm{IDG}}", "error on pretraining tasks / of answering 0"),
        Quantity("error_ratio", "r", "error on pretraining tasks over fresh ones"),
    ),
    static=("dim", "kappa"),
    fixed={"alpha": 1.0, "rho": 0.01, "batch": 64, "rate": 0.01, "prompts": 4096},
    sizes={
        "smoke": {"dim": (4,), "kappa": (0.5, 64.0), "step": (500,), "seed": 4},
        "small": {"dim": (8,), "kappa": KAPPAS, "step": (1000, 4000), "seed": 6},
        "medium": {"dim": (8, 12), "kappa": KAPPAS, "step": (1000, 4000), "seed": 6},
    },
    controls={
        "everything": Control("every network is trained on the largest pool", {"everything": True}),
        "only_the_pool": Control("what is tested as fresh tasks are tasks of the pool", {"only_pool": True}),
    },
)
