r"""Peaks of positive curves: does a curve rise and fall again, beyond its own noise and inside the record?

Of the running median :math:`\tilde v` over five records the highest is the top :math:`\tilde v_k`. The levels at the
ends are the medians of the first and of the last five records. The curve *peaks* if rise and fall,

.. math:: r = \log\frac{\tilde v_k}{v_{\mathrm{start}}}, \qquad f = \log\frac{\tilde v_k}{v_{\mathrm{end}}},

both exceed the logarithm of ``height`` and ``sigmas`` times their errors, :math:`\sqrt{\sigma_k^2 +
\sigma_{\mathrm{end}}^2}`, where :math:`\sigma` is the standard deviation of :math:`\log v` about a parabola through the
21 records around. A monotone curve has either no rise or no fall, and a top at an end is no peak. The error is that of
single records, which leaves room for records that are correlated and for the choice of the highest of many.
"""

import numpy as np
import xarray as xr

from icllab.core.domains import Domain
from icllab.core.errors import expected

WIDTH = 5  # records of a running median, and of the level at an end
WINDOW = 21  # records that the noise is estimated from


def peaks(curves: xr.DataArray, *, along: str = "step", height: float = 2.0, sigmas: float = 4.0) -> xr.Dataset:
    """Top of every curve, its rise and fall with their errors, and whether it is a peak.

    Args:
        curves: Positive numbers over ``along`` and any other axes.
        along: Name of the time axis.
        height: Least ratio of the top to the level at either end; 2: half of the height is reached on both sides.
        sigmas: Errors that rise and fall have to exceed.

    Returns:
        Over the other axes: ``peak_time``, the time of the top; ``rise`` and ``fall``, logarithms of ratios, with
        ``rise_error`` and ``fall_error``; ``peaked``, whether the curve peaks.

    Raises:
        InputError: A number is not positive, or there are fewer than 21 records.
    """
    Domain(above=1, infinite=True, text="a ratio above 1").require("height", height)
    Domain(least=0, infinite=True).require("sigmas", sigmas)
    values = np.asarray(curves.transpose(..., along).values, float)
    if values.shape[-1] < WINDOW:
        raise expected("curves", f"at least {WINDOW} records", values.shape[-1])
    if not (np.isfinite(values) & (values > 0)).all():
        raise expected("curves", "positive numbers", float(values.min()))
    logs = np.log(values)
    smooth, noise = running_median(logs), _noise(logs)
    top = smooth.argmax(-1)[..., None]
    highest, at_top = (np.take_along_axis(rows, top, -1)[..., 0] for rows in (smooth, noise))
    sides = {"rise": (logs[..., :WIDTH], noise[..., 0]), "fall": (logs[..., -WIDTH:], noise[..., -1])}
    dims, like = curves.transpose(..., along).dims[:-1], curves.isel({along: 0}, drop=True)
    edge = (WIDTH + 1) // 2
    peaked = (top[..., 0] >= edge) & (top[..., 0] < values.shape[-1] - edge)
    rows = {"peak_time": curves[along].values.astype(float)[top[..., 0]]}
    for name, (records, at_end) in sides.items():
        rows[name] = highest - np.median(records, axis=-1)
        rows[f"{name}_error"] = np.hypot(at_top, at_end)
        peaked &= (rows[name] > np.log(height)) & (rows[name] > sigmas * rows[f"{name}_error"])
    return xr.Dataset({name: (dims, row) for name, row in (rows | {"peaked": peaked}).items()}, coords=like.coords)


def running_median(values: np.ndarray) -> np.ndarray:
    """The running median over five records along the last axis; at an end of those that are there."""
    half = WIDTH // 2
    wide = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(half, half)], constant_values=np.nan)
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(wide, WIDTH, axis=-1), axis=-1)


def _noise(logs: np.ndarray) -> np.ndarray:
    """Standard deviation about a parabola through the 21 records around each; at an end, the first or last 21."""
    basis = np.linalg.qr(np.vander(np.linspace(-1, 1, WINDOW), 3))[0]
    windows = np.lib.stride_tricks.sliding_window_view(logs, WINDOW, axis=-1)
    residuals = windows - windows @ basis @ basis.T
    spread = np.sqrt(np.sum(residuals**2, axis=-1) / (WINDOW - basis.shape[1]))
    at = np.clip(np.arange(logs.shape[-1]) - WINDOW // 2, 0, spread.shape[-1] - 1)
    return spread[..., at]
