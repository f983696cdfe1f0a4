r"""Patterning: the tilt of the data that moves posterior means by a wished amount, from measured susceptibilities."""

from collections.abc import Mapping

import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.errors import expected, require_instance, require_integer, require_key, unknown
from icllab.core.result_warnings import warns

RESOLVED = 2.0  # times the errors' norm, below which a singular value of the susceptibilities is noise
MISSED = 0.1  # share of the wish that is not reached, above which there is a warning


@warns("patterning")
def patterning(
    response: xr.Dataset, wished: Mapping[str, float], *, controls: int = 8, key: PRNGKeyArray
) -> xr.Dataset:
    r"""The least tilt of the data that moves posterior means as wished, to first order.

    .. math:: h = \chi^+\,\delta, \qquad \delta\langle\phi\rangle \approx \chi h

    with the pseudo-inverse of the susceptibilities :math:`\chi` (``observable``, ``tilted``), of which singular values
    within two errors of zero are left out. ``h`` is the share of the data that is exchanged for each tilt; a negative
    one takes such data away.

    Args:
        response: Susceptibilities with errors, as ``susceptibility(...)`` returns them.
        wished: Observable -> wished change of its posterior mean; observables that are not named are to stay.
        controls: Number of random tilts of the same length, at least 1.
        key: Key of the random tilts.

    Returns:
        ``tilt`` h (``tilted``); ``wished`` and ``predicted`` with its ``_error`` (``observable``);
        ``singular_value`` (``direction``); ``control`` (``draw``, ``tilted``) with ``control_predicted`` (``draw``,
        ``observable``). Attributes ``rank``, the number of directions that are used, and ``warnings``.

    Raises:
        InputError: The response has no susceptibilities, or an observable is unknown.

    Source: [WangMurfet26].
    """
    require_key(key)
    require_integer("controls", controls)
    require_instance("response", response, xr.Dataset, "the Dataset of susceptibility(...)")
    if "susceptibility" not in response:
        raise expected("response", "a Dataset with susceptibilities", sorted(map(str, response.data_vars)))
    names = list(map(str, response["observable"].values))
    for name in wished:
        if name not in names:
            raise unknown("observable", name, names)
    chi = response["susceptibility"].transpose("observable", "tilted").values
    errors = response["susceptibility_error"].transpose("observable", "tilted").values
    delta = np.array([float(wished.get(name, 0.0)) for name in names])
    left, values, right = np.linalg.svd(chi, full_matrices=False)
    noise = max(RESOLVED * float(np.linalg.norm(errors)), chi.size * np.finfo(float).eps * float(values[0]))
    used = values > noise
    h = right[used].T @ ((left[:, used].T @ delta) / values[used])
    predicted = chi @ h
    normal = np.random.default_rng(np.asarray(jax.random.key_data(key))).normal(size=(controls, len(h)))
    length = np.linalg.norm(h)
    random = length * normal / np.linalg.norm(normal, axis=1, keepdims=True)
    missed = float(np.linalg.norm(predicted - delta))
    whole = float(np.linalg.norm(delta))
    faults = {
        f"{int((~used).sum())} of {len(values)} directions are within their errors of zero, and are not used": (
            not used.all()
        ),
        f"these tilts reach the wish only in part: {missed:.2g} of {whole:.2g} is missed": missed > MISSED * whole,
        f"the tilt is {length:.2g}, more than all of the data: the response is not linear": length > 1,
    }
    rows = {
        "tilt": ("tilted", h),
        "wished": ("observable", delta),
        "predicted": ("observable", predicted),
        "predicted_error": ("observable", np.sqrt(errors**2 @ h**2)),
        "singular_value": ("direction", values),
        "control": (("draw", "tilted"), random),
        "control_predicted": (("draw", "observable"), random @ chi.T),
    }
    settings = {"rank": int(used.sum()), "warnings": [sentence for sentence, wrong in faults.items() if wrong]}
    return xr.Dataset(rows, coords={"observable": names, "tilted": response["tilted"].values}, attrs=settings)
