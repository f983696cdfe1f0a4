r"""Is a mean over prompts that of most of them, or of a few?

A mean whose distribution has no variance, or none that the prompts show, comes with a standard error that says
nothing. The share of the largest terms does.
"""

import numpy as np
from jaxtyping import Float

LARGEST, LIMIT = 10, 0.1


def heaviest_share(terms: Float[np.ndarray, "prompt *rest"], *, largest: int = LARGEST) -> Float[np.ndarray, "*rest"]:
    r"""The share of a mean over prompts that its largest terms carry.

    .. math:: \sum_{k \le K}|t|_{(k)}\Big/\sum_i|t|_i

    For N equal terms it is K/N, for squares of normal numbers about :math:`\frac{2K}N\ln\frac{N}{K}`, which is below
    a tenth from a thousand terms on. 0 where all terms are, and 1 where one is not finite.

    ``terms`` has at least one for each prompt, and ``largest`` is K.

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
    """A sentence if the largest terms carry more than a tenth, else nothing."""
    if not share > LIMIT:
        return ""
    return f"{LARGEST} of {prompts} prompts carry {share:.0%} of {what}: take more prompts, and do not trust its error"
