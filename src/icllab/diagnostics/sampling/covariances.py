r"""Covariances of weights under the posterior: within parts of a model, such as heads, and between them."""

import math
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import jax
import numpy as np
import xarray as xr

from icllab.core.errors import expected, kind_of
from icllab.core.result_warnings import warns
from icllab.diagnostics.sampling import convergence
from icllab.diagnostics.sampling.samplers import Draws


@warns("weight covariance")
def weight_covariance(draws: Draws, parts: Mapping[str, Callable[[Any], Any]] | None = None) -> xr.Dataset:
    r"""The covariance of weights under the posterior, and its spectra within parts and between pairs of them.

    Args:
        draws: Draws of chains, with parameters or with observables.
        parts: Name -> array of the parameters, of one head ``lambda w: w.queries[2]``. None: the observables.

    Returns:
        ``covariance`` (``weight``, ``other_weight``) over all draws of all chains, divided by their number less 1, and
        ``ess``, effective draws, over ``weight``, whose coordinate is ``part``. Descending over ``rank``:
        ``eigenvalue`` of the block of each ``name``, and ``singular_value`` of the block of each ``pair``, which is no
        symmetric matrix; both with an ``_error`` from leaving out each chain in turn, and NaN after the last. Attribute
        ``warnings``, a list of sentences.

    Raises:
        InputError: There are no such draws or parts, or a weight is not finite.
    """
    if not isinstance(draws, Draws):
        raise expected("draws", "draws of chains", kind_of(draws), "posterior_draws(...) has them")
    if parts is not None and not (isinstance(parts, Mapping) and parts):
        raise expected("parts", "at least one function of parameters, by name", kind_of(parts))
    blocks = draws.observed if parts is None else {a: jax.vmap(jax.vmap(f))(draws.tree) for a, f in parts.items()}
    arrays = {name: np.asarray(block, np.float64) for name, block in blocks.items()}
    arrays = {name: array.reshape(*array.shape[:2], -1) for name, array in arrays.items()}
    values, sizes = np.concatenate(list(arrays.values()), axis=2), [array.shape[2] for array in arrays.values()]
    ends, names = np.cumsum([0, *sizes]), list(arrays)
    places = {name: slice(*ends[i : i + 2]) for i, name in enumerate(names)}
    pairs = list(combinations(names, 2))

    def spectra(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        matrix = np.atleast_2d(np.cov(values.reshape(-1, values.shape[2]), rowvar=False))
        within, between = np.full((len(names), max(sizes)), np.nan), np.full((len(pairs), max(sizes)), np.nan)
        for row, name in zip(within, names, strict=True):
            row[: sizes[names.index(name)]] = np.linalg.eigvalsh(matrix[places[name], places[name]])[::-1]
        for row, (a, b) in zip(between, pairs, strict=True):
            singular = np.linalg.svd(matrix[places[a], places[b]], compute_uv=False)
            row[: len(singular)] = singular
        return matrix, within, between

    effective = [convergence.effective_draws(values[:, :, i]) for i in range(values.shape[2])]
    (matrix, *whole), chains = spectra(values), range(len(values))
    without = [spectra(np.delete(values, i, axis=0))[1:] for i in chains]
    errors = [math.sqrt(len(chains) - 1) * np.std([spectrum[i] for spectrum in without], axis=0) for i in (0, 1)]
    rows: dict[str, Any] = {"covariance": (("weight", "other_weight"), matrix), "ess": ("weight", effective)}
    for label, axis, spectrum, error in zip(
        ("eigenvalue", "singular_value"), ("name", "pair"), whole, errors, strict=True
    ):
        rows |= {label: ((axis, "rank"), spectrum), f"{label}_error": ((axis, "rank"), error)}
    coordinates = {"part": ("weight", np.repeat(names, sizes)), "name": names, "pair": [f"{a}, {b}" for a, b in pairs]}
    return xr.Dataset(rows, coords=coordinates, attrs=draws.settings | {"warnings": draws.warnings(values)})
