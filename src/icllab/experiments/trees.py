"""A Dataset as an xarray DataTree with the groups of ArviZ, and back.

Of chains of a sampler: ``posterior`` has what was drawn, over ``chain`` and ``draw``; ``sample_stats`` all else that is
said of the chains. Of results of a claim: ``observed_data`` has what was measured, with its errors; ``predictions``
closed forms and lines; ``constant_data`` coordinates that index nothing. Names stay, and each is in one group.
"""

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import icllab
from icllab.experiments.tables import plain_attributes

if TYPE_CHECKING:
    import xarray as xr

_ORIGIN = {"inference_library": "icl-lab", "inference_library_version": icllab.__version__}


def tree(dataset: "xr.Dataset") -> "xr.DataTree":
    """The groups of a Dataset; its attributes are those of the root."""
    import xarray as xr

    sampled = any({"chain", "draw"} <= set(variable.dims) for variable in dataset.data_vars.values())
    groups: dict[str, list[str]] = {}
    for name, variable in dataset.data_vars.items():
        groups.setdefault(_group(str(name), set(map(str, variable.dims)), sampled), []).append(str(name))
    found = {f"/{group}": dataset[names].assign_attrs(_ORIGIN) for group, names in groups.items()}
    for one in found.values():
        for name in set(one.attrs) - set(_ORIGIN):
            del one.attrs[name]
    aside = [name for name in dataset.coords if not any(name in one.coords for one in found.values())]
    if aside:
        found["/constant_data"] = dataset.coords.to_dataset()[aside].assign_attrs(_ORIGIN)
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=dataset.attrs), **found})


def dataset_of(groups: "xr.DataTree") -> "xr.Dataset":
    """The Dataset that :func:`tree` was given."""
    import xarray as xr

    variables, coordinates = {}, set()
    for group in groups.children.values():
        variables |= group.to_dataset(inherit=False).variables
        coordinates |= set(group.coords)
    data = {name: variable for name, variable in variables.items() if name not in coordinates}
    return xr.Dataset(data, {name: variables[name] for name in coordinates}, groups.attrs)


def as_netcdf(groups: "xr.DataTree") -> bytes:
    """A tree as a netCDF-4 file, which ``arviz.from_netcdf`` and ``xarray.open_datatree`` open."""
    from xarray.backends import H5NetCDFStore

    target = io.BytesIO()
    for i, (group, node) in enumerate([("/", groups), *groups.children.items()]):
        backend = H5NetCDFStore.open(target, mode="a" if i else "w", group=group, lock=False)
        dataset = node.to_dataset(inherit=False)
        dataset.assign_attrs(spelled(dataset.attrs)).dump_to_store(backend)
        backend.close()
    return target.getvalue()


def spelled(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as netCDF has them: what is neither text nor a number is JSON."""
    return {
        name: value if isinstance(value, str | int | float) and not isinstance(value, bool) else json.dumps(value)
        for name, value in plain_attributes("attributes", attributes).items()
    }


def _group(name: str, axes: set[str], sampled: bool) -> str:
    if sampled:
        return "posterior" if {"chain", "draw"} <= axes else "sample_stats"
    return "predictions" if "_theory" in name or name.endswith("_line") else "observed_data"
