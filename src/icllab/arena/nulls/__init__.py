"""Theories that know nothing of the subject: every other has to beat them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray as xr


def condition_names(conditions: "xr.Dataset") -> list[str]:
    """The names of the conditions of cells, in order."""
    return sorted(str(name) for name in conditions.coords if conditions[name].dims == ("cell",))
