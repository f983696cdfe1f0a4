r"""Whether tests set maps of contexts apart from their nulls, as checks see it.

A test t is the fraction that the derivative test or composition leaves, :math:`\tau_c` or :math:`\kappa_c`. The law
ratio

.. math:: \Lambda = \max_{t} \frac{t_c}{\min(t_0, 1/2)}

has the least of all draws of both nulls, :math:`t_0`, below the line, at least :math:`10^{-6}`; for the derivative test
also what w itself leaves of it. Below 1 both tests set the map apart from both nulls, and leave less than half: there
is a law. Since the least of several draws is below the line, maps that are drawn as the nulls are have ratios above 1.
"""

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity

EXACT = "fast_weights"
"""The networks for which the law is exact."""
ANSWERED = ("context", "map", "other map", "neither")
LEAST, LEAST_NULL, LARGEST_NULL = 1e-12, 1e-6, 0.5
LAW = "worse of both tests / least null"
FIXED = {"dim": 2, "length": 8, "batch": 64, "transformer_updates": 1000, "queries": 48, "directions": 2, "draws": 2}

AXES = (
    Axis("family", "F", "networks and the weights that move"),
    Axis("context", "c", "context"),
    Axis("answered_by", "a", "predictor"),
)
QUANTITIES = (
    Quantity("training_score", "A", "score of the network with contexts"),
    Quantity("map_gap", r"\rho_c", "gap of the context's weights"),
    Quantity("null_gap", r"\rho_0", "least gap of the nulls"),
    Quantity("map_derivative", r"\tau_c", "change along random directions not carried"),
    Quantity("null_derivative", r"\tau_0", "least of the nulls' derivative tests"),
    Quantity("unmoved", r"\tau_w", "fraction of the derivative test left by w itself"),
    Quantity("map_composition", r"\kappa_c", "composition gap"),
    Quantity("null_composition", r"\kappa_0", "least composition gap of the nulls"),
    Quantity("map_norm", r"|\Delta w|/|w|", "norm of the change of weights"),
    Quantity("null_norm", r"|\Delta w|_0/|w|", "largest norm of the nulls' changes"),
    Quantity("law", "v", "verdict of a law"),
    Quantity("unconverged", "u", "fit that has not converged"),
    Quantity("score", "A", "score on the context's queries"),
    Quantity("derivative_ratio", r"\tau_c/\tau_0", "derivative test / least null"),
    Quantity("composition_ratio", r"\kappa_c/\kappa_0", "composition gap / least null"),
    Quantity("law_ratio", r"\Lambda", LAW),
    Quantity("ratio", "1", "least null"),
)


def with_ratios(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with each test over the least of its nulls, and the larger of both."""
    ratios = {}
    for name in ("derivative", "composition"):
        null = dataset[f"null_{name}"]
        if name == "derivative":
            null = np.minimum(null, dataset["unmoved"])
        null = null.clip(LEAST_NULL, LARGEST_NULL)
        ratios[f"{name}_ratio"] = dataset[f"map_{name}"].clip(min=LEAST) / null
    return dataset.assign(**ratios, law_ratio=np.maximum(*ratios.values()))


def of_contexts(ratio: xr.DataArray) -> xr.DataArray:
    """The geometric mean over contexts."""
    return xr.apply_ufunc(np.exp, xr.apply_ufunc(np.log, ratio).mean("context"))
