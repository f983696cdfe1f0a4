"""What claims about a few sets of parameters share: how their figures write them."""

from collections.abc import Mapping

import xarray as xr

_SYMBOLS = {"tau": r"\tau", "alpha": r"\alpha", "kappa": r"\kappa", "ridge": r"\lambda"}


def written(law: Mapping[str, float]) -> str:
    r"""The parameters of a fit to a pool of tasks in LaTeX without dollars, ``\tau = 2,\ \alpha = 5`` and so on."""
    values = {name: f"{law[name]:g}".replace("inf", r"\infty") for name in _SYMBOLS}
    return r",\ ".join(f"{symbol} = {values[name]}" for name, symbol in _SYMBOLS.items())


def titled(dataset: xr.Dataset, titles: Mapping[str, str]) -> xr.Dataset:
    """The largest dimension, with every setting called by its title, in the order of these."""
    there = [name for name in titles if name in dataset.setting.values]
    return dataset.isel(dim=-1).sel(setting=there).assign_coords(setting=[titles[name] for name in there])
