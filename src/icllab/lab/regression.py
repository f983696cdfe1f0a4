"""Regression test of a claim: the numbers of a run at ``smoke`` against the golden numbers of its record."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

SCALE = 1e-4
STRICT = 1e-6
SIGMAS = 3.0
ROUNDING = 1e-10
RHAT = 0.01
_ERRORS = ("_error", "_mcse")
_COUNTED = "_warnings"
_PLATFORM = ("jax_version", "jaxlib_version", "numpy_version", "processor")


def same_platform(golden: "xr.Dataset", dataset: "xr.Dataset") -> bool:
    """True if versions and processor equal those of the golden numbers, so that equal programs round equally."""
    return all(golden.attrs.get(name) and golden.attrs[name] == dataset.attrs.get(name) for name in _PLATFORM)


def differences(golden: "xr.Dataset", dataset: "xr.Dataset", *, strict: bool = False) -> list[str]:
    r"""List the quantities in which the numbers of a run differ from golden ones, a line each.

    Means over seeds :math:`\bar g` and :math:`\bar m` agree where, element by element,

    .. math:: |\bar m - \bar g| \le \max(10^{-4} \max|\bar g|,\ 3\,\mathrm{SE}(\bar g),\ 10^{-10}),

    which allows for other rounding, and for what training and sampling make of it. The standard error is that over
    seeds, or the quantity's own ``_error``. A standard error itself may change by a half, R-hat by .01. Under another
    version of JAX, or on another machine, a count of warnings of chains has at least the error of a Poisson count: few
    seeds may agree by chance. With ``strict``, for equal programs on one platform, each seed has
    :math:`10^{-6} \max|g|`, and so have standard errors and R-hat. The coordinates, the names and the places of what is
    not finite are equal.
    """
    lines = []
    names = [set(map(str, data.data_vars)) for data in (golden, dataset)]
    lines += [f"{name}: measured once, now missing" for name in sorted(names[0] - names[1])]
    lines += [f"{name}: measured now, not in the record" for name in sorted(names[1] - names[0])]
    for axis in golden.dims:
        if axis not in dataset.dims or not np.array_equal(golden[axis].values, dataset[axis].values):
            values = dataset[axis].values.tolist() if axis in dataset.dims else "none"
            lines.append(f"{axis}: expected the coordinates {golden[axis].values.tolist()}, got {values}")
    if lines:
        return lines
    elsewhere = any(golden.attrs.get(name) != dataset.attrs.get(name) for name in ("jax_version", "machine"))
    for name in sorted(names[0]):
        before, now = golden[name], dataset[name].transpose(*golden[name].dims)
        if not np.array_equal(np.isfinite(before.values), np.isfinite(now.values)):
            lines.append(f"{name}: numbers are not finite at other places than in the record")
            continue
        over = [axis for axis in before.dims if axis == "seed" and not strict]
        if strict:
            scale = float(np.abs(before.values[np.isfinite(before.values)]).max(initial=0.0))
            bounds = np.full(before.shape, max(STRICT * scale, ROUNDING))
        else:
            bounds = _bounds(name, golden, elsewhere).transpose(*(a for a in before.dims if a not in over)).values
        mean, new_mean = (values.mean(over, skipna=False).values for values in (before, now))
        finite = np.isfinite(mean)
        excess = np.abs(new_mean[finite] - mean[finite]) - bounds[finite]
        if (excess > 0).any():
            i = int(np.argmax(excess))
            lines.append(
                f"{name}: {(excess > 0).sum()} of {excess.size} numbers moved, the worst from "
                f"{mean[finite][i]:.6g} to {new_mean[finite][i]:.6g}, where {bounds[finite][i]:.2g} is allowed"
            )
    return lines


def _bounds(name: str, golden: "xr.Dataset", elsewhere: bool) -> "xr.DataArray":
    """Largest change of a quantity's mean over seeds; ``elsewhere``: under another version or on another machine."""
    import xarray as xr

    values = golden[name]
    seeds = values.sizes.get("seed", 1)
    mean = values.mean("seed", skipna=False) if "seed" in values.dims else values
    errors = xr.zeros_like(mean)
    if seeds > 1:
        with np.errstate(invalid="ignore"):
            errors = values.std("seed", ddof=1, skipna=False) / np.sqrt(seeds)
    if elsewhere and name.endswith(_COUNTED):
        errors = xr.where(errors**2 > mean / seeds, errors, np.sqrt(mean / seeds))
    for suffix in _ERRORS:
        if f"{name}{suffix}" in golden:
            squares = golden[f"{name}{suffix}"] ** 2
            squares = (squares.mean("seed") if "seed" in squares.dims else squares) / seeds
            error = squares.fillna(0.0) ** 0.5
            errors = xr.where(errors > error, errors, error)
    scale = float(np.abs(mean.where(np.isfinite(mean))).max().fillna(0.0))
    least = RHAT if name.endswith("_rhat") else max(SCALE * scale, ROUNDING)
    bounds = (SIGMAS * errors.fillna(0.0)).clip(min=least)
    return xr.where(bounds > abs(mean) / 2, bounds, abs(mean) / 2) if name.endswith(_ERRORS) else bounds
