r"""Which algorithm a network is, at the resolution that the intervals have.

Candidate k is accepted where the upper end of the interval of its fraction unexplained is at most the tolerance
:math:`\epsilon`. A fraction of the size of the tolerance is known to :math:`\epsilon\,w_k`, with the relative width
:math:`w_k = (u_k^+ - u_k^-)/u_k` of the interval. Candidates with a smaller fraction between them are accepted or
refused together, but for chance: they are one to this tolerance and these prompts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from icllab.core.protocols import AbstractTask, Predictor
from icllab.diagnostics.identification import comparison
from icllab.diagnostics.identification.verdicts import MANY, VerdictRule
from icllab.training.objective import Positions


def identify(
    predictor_or_run: Any,
    rivals: Mapping[str, Predictor],
    task: AbstractTask,
    *,
    key: PRNGKeyArray,
    fitted: Mapping[str, Sequence[str]] | None = None,
    fit_on: AbstractTask | None = None,
    fitting: int = 512,
    positions: Positions = "last",
    prompts: int = 2048,
    rule: VerdictRule | None = None,
    block: int = 256,
) -> xr.Dataset:
    r"""How far a network is from each candidate algorithm, and which of them it is, if any.

    With a rule it is :func:`comparison.identify <icllab.diagnostics.identification.comparison.identify>`, which says
    what is measured. Without one the tolerance is a hundredth, the intervals are of 95 %, and with the best candidate k
    meant are all j that are not refused and for which

    .. math:: 0 \in \mathrm{interval}(u_j - u_k) \qquad\text{or}\qquad
              m_{jk} \le \max(u_k,\ \epsilon\,w_j,\ 10^{-6}), \qquad w_j = (u_j^+ - u_j^-)/u_j .

    With many more examples than dimensions ridge regression and least squares differ by far more than rounding and by
    far less than a verdict at the tolerance can see. A rule with a smaller ``resolution`` tells them apart.

    Args:
        predictor_or_run: A predictor; an ensemble or a run, each of whose members is judged; or a run that has kept
            parameters, judged at each of those steps.
        rivals: Candidate algorithms: name -> predictor.
        task: Task that samples the prompts.
        key: Key of the prompts, and of the bootstrap.
        fitted: Name of a candidate -> its attributes that are fitted to the network. None: candidates are as they are.
        fit_on: Task that samples the prompts of the fits; None: ``task``.
        fitting: Number of prompts on which candidates are fitted, at least 10.
        positions: ``"last"``, ``"every"``, or integers; discrepancies are means over them.
        prompts: Number of prompts on which the network is judged, at least 10.
        rule: What a verdict requires, with a resolution of its own.
        block: Number of prompts held in memory at once.

    Returns:
        The variables of :func:`comparison.identify <icllab.diagnostics.identification.comparison.identify>`.

    Raises:
        InputError: As there.

    Source: distances by answers and by input gradients [vonOswald23].
    Derived: docs/identification.md, The verdict.
    """
    how: dict[str, Any] = {"fitted": fitted, "fit_on": fit_on, "fitting": fitting, "positions": positions}
    how |= {"prompts": prompts, "rule": rule, "block": block}
    found = comparison.identify(predictor_or_run, rivals, task, key=key, **how)
    return found if rule is not None else _at_resolution_of_intervals(found)


def identify_over(
    axis: str,
    values: Sequence[Any] | np.ndarray,
    case: Callable[[Any], tuple[Any, Mapping[str, Predictor], AbstractTask]],
    *,
    key: PRNGKeyArray,
    **options: Any,
) -> xr.Dataset:
    """The discrepancies and verdicts along an axis: depth, context length, noise, a task's scale out of distribution.

    Args:
        axis: Name of the axis, one of :data:`icllab.core.axes.AXES`: ``layers``, ``length``, ``rho``, ...
        values: Values along it, at least one.
        case: Value -> network, candidates, and task: whatever changes along the axis. Candidates have the same
            names everywhere.
        key: Key for every value, so that prompts of one shape are paired.
        **options: Further arguments of :func:`identify`.

    Returns:
        The Dataset of :func:`identify` with ``axis`` as first dimension.

    Raises:
        InputError: The axis is not known, there is no value, or the candidates' names change.
    """
    found = comparison.identify_over(axis, values, case, key=key, **options)
    return found if options.get("rule") is not None else _at_resolution_of_intervals(found)


def _at_resolution_of_intervals(found: xr.Dataset) -> xr.Dataset:
    """The same with verdicts at the wider of the rule's resolution and that of the intervals."""
    tolerance, least = float(found.attrs["tolerance"]), float(found.attrs["resolution"])
    names = found["candidate"].values
    outer = [str(dim) for dim in found["verdict"].dims]
    ends = found["fraction_unexplained_interval"].transpose(*outer, "candidate", "bound").values
    mutual = found["mutual"].transpose(*outer, "candidate", "other_candidate").values
    u, accepted = (found[name].transpose(*outer, "candidate").values for name in ("fraction_unexplained", "accepted"))
    among = found["among"].transpose(*outer, "candidate").values.copy()
    verdict, warning = (found[name].values.astype(object).copy() for name in ("verdict", "warning"))
    for where in np.ndindex(verdict.shape):
        if not accepted[where].any():
            continue
        best = int(np.argmin(np.where(accepted[where], u[where], np.inf)))
        low, high = ends[where].T
        usable = np.isfinite(high) & (u[where] > 0)
        width = np.divide(high - low, u[where], out=np.zeros_like(u[where]), where=usable)
        near = mutual[where][best] <= np.maximum(max(u[where][best], least), tolerance * width)
        more = (low <= tolerance) & near & ~among[where]
        among[where] |= more
        if among[where].sum() > 1:
            verdict[where] = MANY
        between = names[more & (mutual[where][best] > u[where][best] + u[where])]
        if len(between):
            said = f"the answers lie between those of {names[best]} and {between[0]}"
            warning[where] = "; ".join(one for one in (str(warning[where]), said) if one)
    told = {"among": ((*outer, "candidate"), among)}
    told |= {name: (outer, values.astype(str)) for name, values in (("verdict", verdict), ("warning", warning))}
    return found.assign(told).assign_attrs(resolution="that of the intervals")
