"""Findings and figures shared by claims about exact fits of linear attention."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

from icllab.figures.curves import Panel, panels
from icllab.lab import Finding, checks, estimates

_NEAR = np.geomspace(1e-4, 0.1, 30)
TAU_LINE = np.unique(np.concatenate([np.geomspace(0.2, 4.0, 161), 1 - _NEAR, [1.0], 1 + _NEAR]))
_SYMBOLS = {"tau": r"\tau", "alpha": r"\alpha", "kappa": r"\kappa", "ridge": r"\lambda"}


def closed_forms(dataset: xr.Dataset, largest: float) -> list[Finding]:
    """Do both errors agree with their closed forms as d grows? ``largest``: relative error of a limit."""
    findings = []
    for kind in ("icl", "idg"):
        limits = estimates.limit(estimates.mean(dataset[f"{kind}_error"]), order=2)
        form, quantity = dataset[f"{kind}_theory"], f"{kind.upper()} error, d to infinity"
        findings += checks.agrees(f"{kind}_error", quantity, limits, form, largest_error=largest * form)
    return findings


def ratio(id: str, quantity: str, values: xr.DataArray, form: xr.DataArray, largest: float) -> list[Finding]:
    """Does the ratio of a quantity to its closed form at the same dimension tend to 1 as d grows?"""
    limits = estimates.limit(estimates.mean(values / form), order=2)
    return checks.agrees(id, f"{quantity} / closed form, d to infinity", limits, 1.0, largest_error=largest)


def convergence(dataset: xr.Dataset, solves: str = "every solve") -> list[Finding]:
    """Condition: every solve met its tolerance."""
    return checks.complete("solved", f"{solves} met its tolerance", not bool((dataset["converged"] == 0).any()))


def against_tau(dataset: xr.Dataset, hue: str, ylim: Mapping[str, tuple[float, float]], title: str | None = None):
    """Draw both errors against tau, each between its limits."""
    rows = [Panel(f"{kind}_error", f"{kind}_line", "log", limits) for kind, limits in ylim.items()]
    name = r"closed form, $d \to \infty$" if title else "closed form"
    return panels(dataset, rows, x="tau", hue=hue, xscale="log", vertical=1.0, title=title, line_name=name)


def parameters_label(law: Mapping[str, float]) -> str:
    r"""LaTeX, without dollars, for the parameters of a fit to a pool of tasks, such as ``\tau = 2,\ \alpha = 5``."""
    values = {name: f"{law[name]:g}".replace("inf", r"\infty") for name in _SYMBOLS}
    return r",\ ".join(f"{symbol} = {values[name]}" for name, symbol in _SYMBOLS.items())


def select_settings(dataset: xr.Dataset, titles: Mapping[str, str]) -> xr.Dataset:
    """Select the largest dimension and the settings with a title, and rename the settings to their titles."""
    names = [name for name in titles if name in dataset.setting.values]
    return dataset.isel(dim=-1).sel(setting=names).assign_coords(setting=[titles[name] for name in names])
