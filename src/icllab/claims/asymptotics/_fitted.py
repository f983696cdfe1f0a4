"""What claims about linear attention fitted exactly share: how they are judged, and how their figures are written."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

from icllab.figures.curves import Panel, panels
from icllab.lab import Finding, checks, estimates

_NEAR = np.geomspace(1e-4, 0.1, 30)
TAU_LINE = np.unique(np.concatenate([np.geomspace(0.2, 4.0, 161), 1 - _NEAR, [1.0], 1 + _NEAR]))
_SYMBOLS = {"tau": r"\tau", "alpha": r"\alpha", "kappa": r"\kappa", "ridge": r"\lambda"}


def closed_forms(dataset: xr.Dataset, largest: float) -> list[Finding]:
    """Both errors for d to infinity beside their closed forms; ``largest``: relative standard error of a limit."""
    findings = []
    for kind in ("icl", "idg"):
        limits = estimates.limit(estimates.mean(dataset[f"{kind}_error"]), order=2)
        form, what = dataset[f"{kind}_theory"], f"{kind.upper()} error, d to infinity"
        findings += checks.agrees(f"{kind}_error", what, limits, form, largest_error=largest * form)
    return findings


def ratio(id: str, what: str, measured: xr.DataArray, form: xr.DataArray, largest: float) -> list[Finding]:
    """A quantity over its closed form at the same dimension, for d to infinity."""
    limits = estimates.limit(estimates.mean(measured / form), order=2)
    return checks.agrees(id, f"{what} / closed form, d to infinity", limits, 1.0, largest_error=largest)


def solved(dataset: xr.Dataset, which: str = "every solve") -> list[Finding]:
    """Undecided where a solve missed its tolerance: its error is no measurement."""
    return checks.complete("solved", f"{which} met its tolerance", not bool((dataset["converged"] == 0).any()))


def against_tau(dataset: xr.Dataset, ylim: Mapping[str, tuple[float, float]], **how):
    """Both errors against tau, each between its limits."""
    rows = [Panel(f"{kind}_error", f"{kind}_line", "log", limits) for kind, limits in ylim.items()]
    return panels(dataset, rows, x="tau", xscale="log", vertical=1.0, **how)


def written(law: Mapping[str, float]) -> str:
    r"""The parameters of a fit to a pool of tasks in LaTeX without dollars, ``\tau = 2,\ \alpha = 5`` and so on."""
    values = {name: f"{law[name]:g}".replace("inf", r"\infty") for name in _SYMBOLS}
    return r",\ ".join(f"{symbol} = {values[name]}" for name, symbol in _SYMBOLS.items())


def titled(dataset: xr.Dataset, titles: Mapping[str, str]) -> xr.Dataset:
    """The largest dimension, with every setting called by its title, in the order of these."""
    there = [name for name in titles if name in dataset.setting.values]
    return dataset.isel(dim=-1).sel(setting=there).assign_coords(setting=[titles[name] for name in there])
