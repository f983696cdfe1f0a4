r"""Means over prompts that a few prompts dominate.

If a distribution has no finite variance, the standard error of its mean is meaningless. The share of the largest terms
shows this.
"""

import numpy as np
from jaxtyping import Float

LARGEST, LIMIT = 10, 0.1


def heaviest_share(terms: Float[np.ndarray, "prompt *rest"], *, largest: int = LARGEST) -> Float[np.ndarray, "*rest"]:
    r"""Share of a mean over prompts that its largest terms carry.

    .. math:: \sum_{k \le K}|t|_{(k)}\Big/\sum_i|t|_i

    For N equal terms the share is K/N. For squares of normal numbers it is about
    :math:`\frac{2K}N\ln\frac{N}{K}`, below a tenth for a thousand terms or more. It is 0 if all terms are 0, and 1 if
    a term is not finite. ``largest`` is K.

    Derived: docs/identification.md, Few prompts that carry a mean.
    """
    size = np.abs(terms)
    endless = ~np.isfinite(size).all(0)
    size = np.where(np.isfinite(size), size, 0.0)
    total = size.sum(0)
    top = np.sort(size, axis=0)[-largest:].sum(0)
    share = np.divide(top, total, out=np.zeros_like(total), where=total > 0)
    return np.asarray(np.where(endless, 1.0, share))


def heavy_tail_warning(what: str, share: float, prompts: int) -> str:
    """A warning if the largest terms carry more than a tenth, else an empty string."""
    if not share > LIMIT:
        return ""
    return f"{LARGEST} of {prompts} prompts carry {share:.0%} of {what}: take more prompts, and do not trust its error"
