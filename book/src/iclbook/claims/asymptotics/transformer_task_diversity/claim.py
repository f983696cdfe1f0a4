r"""Errors of a softmax transformer on pretraining and on fresh tasks against the number of pretraining tasks.

On fresh prompts of a pool of :math:`k = \kappa d` tasks a network memorises tasks, never prompts. The ratio
:math:`r = (e_{\mathrm{IDG}} / e^0_{\mathrm{IDG}}) / (e_{\mathrm{ICL}} / e^0_{\mathrm{ICL}})` is small if the pool is
memorised, and 1 if all tasks are treated alike; the gap closes where r crosses 0.9. Errors are relative to that of
answering 0, :math:`e^0`, on the same prompts: a pool of long or short tasks makes no gap.
"""

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics._statistics import ratio_crossings
from icllab.core.axes import Quantity
from icllab.figures.curves import Panel, panels
from icllab.figures.hues import joined
from icllab.lab import Claim, Control, Estimate, Finding, checks
from icllab.lab.estimates import geometric_mean, mean
from icllab.lab.results import fixed_values
from icllab.theory import linear_attention

HALF, CLOSED, GRADUAL = 0.5, 0.9, 2.0  # of r, and the factor in kappa from one to the other, at least
KAPPAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
LINE = np.geomspace(0.22, 70.0, 97)


def theory(dataset: xr.Dataset, *, turned: bool = False, switch: float | None = None) -> xr.Dataset:
    r"""Errors relative to the error of answering 0, r, and linear attention's closed form at :math:`\tau \to \infty`.

    ``turned``: networks of the smallest pools stand in the place of networks of the largest, and so on, and networks
    of the shortest training in the place of the longest. ``switch``: a network is dMMSE below this kappa, and ridge
    above.
    """
    if switch is not None:
        for name in ("icl", "idg"):
            best = xr.where(dataset.kappa < switch, dataset[f"{name}_dmmse"], dataset[f"{name}_ridge"])
            dataset[f"{name}_error"] = best.broadcast_like(dataset[f"{name}_error"])
    if turned:
        dataset = dataset.assign_coords({axis: dataset[axis].values[::-1] for axis in ("kappa", "step")})
        dataset = dataset.sortby(["kappa", "step"])
    limit = {"kappa": LINE, "tau": 1e9, **{name: fixed_values(dataset)[name] for name in ("alpha", "rho")}}
    icl, idg = linear_attention.icl_error(**limit), linear_attention.idg_error(**limit)
    lines = {"icl_line": icl, "idg_line": idg, "error_ratio_line": idg / icl}
    dataset = dataset.assign_coords(kappa_line=LINE).assign({name: ("kappa_line", y) for name, y in lines.items()})
    icl, idg = (dataset[f"{kind}_error"] / dataset[f"{kind}_zero"] for kind in ("icl", "idg"))
    return dataset.assign(icl_relative=icl, idg_relative=idg, error_ratio=idg / icl)


def check(dataset: xr.Dataset) -> list[Finding]:
    """Few tasks are memorised, many are not; the gap closes; the effect of more training."""
    (smallest, largest), r = (dataset.isel(kappa=end) for end in (0, -1)), dataset["error_ratio"]
    findings = [
        *checks.below("memorised", "r with the fewest tasks", geometric_mean(smallest["error_ratio"]), HALF),
        *checks.above("harmful", "error on fresh tasks / that of answering 0", mean(smallest["icl_relative"]), 1.0),
        *checks.above("closed", "r with the most tasks", geometric_mean(largest["error_ratio"]), CLOSED),
        *checks.above(
            "learned", "fraction of the variance of fresh tasks explained", mean(1 - largest["icl_relative"])
        ),
    ]
    for dim in dataset.dim.values.tolist():
        for step in dataset.step.values.tolist():
            findings += _closing(dataset.sel(dim=dim, step=step), {"dim": dim, "step": step})
    if dataset.sizes["step"] > 1:
        (before, after), (first, last) = (r.isel(step=end, drop=True) for end in (0, -1)), r.step.values[[0, -1]]
        reopening = geometric_mean(np.exp(xr.apply_ufunc(np.log, before / after).mean("kappa")))
        findings += checks.above("opens_again", f"mean r over all kappa, {first} / {last} steps", reopening, 1.0)
    return [*findings, *checks.complete("lengths", "two lengths of training or more", dataset.sizes["step"] >= 2)]


def _closing(part: xr.Dataset, at: dict[str, int]) -> list[Finding]:
    """The gap closes at more tasks than dimensions, over more than a factor of two in kappa."""
    (half, closing), covariance = ratio_crossings(part["idg_relative"], part["icl_relative"], "kappa", (HALF, CLOSED))
    enough, quantity = part.sizes["kappa"] >= 4, f"r crosses {HALF:g} and {CLOSED:g} inside the grid"
    complete = bool(enough and np.isfinite(covariance).all())
    findings = checks.complete("crossings", quantity, complete, at=at)
    if complete:
        quantity, freedom = f"kappa where r crosses {CLOSED:g}", part.sizes["seed"] - 1
        place = Estimate(closing, covariance[1, 1] ** 0.5, True, freedom)
        distance = Estimate(closing - half, (covariance.trace() - 2 * covariance[0, 1]) ** 0.5, True, freedom)
        findings += checks.above("closes_at", quantity, place, 1.0, at=at)
        findings += checks.above("gradual", f"{quantity} / where it crosses {HALF:g}", distance, GRADUAL, at=at)
    return findings


def figure(dataset: xr.Dataset):
    """Draw r and both errors against kappa at the largest d: networks by training, dMMSE and ridge."""
    part = dataset.isel(dim=-1)
    lines = {"error_ratio": "error_ratio_line", "icl_error": "icl_line", "idg_error": "idg_line"}
    curves = {f"{int(step)} steps": part.sel(step=step, drop=True)[[*lines]] for step in part.step.values}
    for name in ("dMMSE", "ridge"):
        icl, idg = (part[f"{kind}_{name.lower()}"] for kind in ("icl", "idg"))
        ratio = idg / part["idg_zero"] / (icl / part["icl_zero"])
        curves[name] = xr.Dataset({"error_ratio": ratio, "icl_error": icl, "idg_error": idg})
    joint = joined(curves, "predictor", dataset.attrs).assign({line: part[line] for line in lines.values()})
    rows = [Panel(y, line, "log" if y == "idg_error" else "linear") for y, line in lines.items()]
    return panels(joint, rows, x="kappa", hue="predictor", line_name="linear attention", xscale="log")


claim = Claim(
    title="Tasks a transformer needs",
    sentence=(
        "A two-block softmax transformer memorises few training tasks; its gap to fresh tasks closes gradually, at "
        "more tasks than dimensions, and longer training opens it again."
    ),
    conditions=(
        "d = 8 and 12, as many examples; Adam on fresh prompts of a pool, 1000 and 4000 steps. Memorised: less than "
        "half the error of fresh tasks, which exceeds that of answering 0. Gradually: over more than a factor of two."
    ),
    sources=("Lu24", "Raventos23"),
    quantities=(
        *(f"{kind}_{name}" for kind in ("icl", "idg") for name in ("error", "dmmse", "ridge", "line")),
        Quantity("icl_zero", r"e^0_{\mathrm{ICL}}", "error of answering 0 on fresh tasks"),
        Quantity("idg_zero", r"e^0_{\mathrm{IDG}}", "error of answering 0 on pretraining tasks"),
        Quantity("icl_relative", r"e_{\mathrm{ICL}}/e^0_{\mathrm{ICL}}", "error on fresh tasks / of answering 0"),
        Quantity("idg_relative", r"e_{\mathrm{IDG}}/e^0_{\mathrm{IDG}}", "error on pretraining tasks / of answering 0"),
        Quantity("error_ratio", "r", "error on pretraining tasks over fresh ones"),
    ),
    static=("dim", "kappa"),
    fixed={"alpha": 1.0, "rho": 0.01, "batch": 64, "rate": 0.01, "prompts": 4096},
    sizes={
        "smoke": {"dim": (4,), "kappa": (0.25, 64.0), "step": (800,), "seed": 6, "batch": 24, "prompts": 2048},
        "small": {"dim": (8,), "kappa": KAPPAS, "step": (1000, 4000), "seed": 10},
        "medium": {"dim": (8, 12), "kappa": KAPPAS, "step": (1000, 4000), "seed": 6},
    },
    key=1,
    controls={
        "everything": Control("every network is trained on the largest pool", {"everything": True}),
        "only_the_pool": Control("what is tested as fresh tasks are tasks of the pool", {"only_pool": True}),
        "turned": Control(
            "networks of small pools are those of large ones, and those of short training are those of long training",
            theory={"turned": True},
        ),
        "switch": Control(
            "networks are dMMSE with fewer than half as many tasks as dimensions, and ridge with more",
            theory={"switch": 0.5},
        ),
        "later_switch": Control(
            "networks are dMMSE with fewer than four times as many tasks as dimensions, and ridge with more",
            theory={"switch": 4.0},
        ),
    },
)
