"""Claims: small files that state a finding, measure it and check it.

The subpackages meet here. A claim's ``theory`` and its ``measure`` share no code, and its check is a pure function of
the Dataset that carries both. Claim files import JAX only in ``measure.py``, so that listing, citing and checking
claims needs none.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.lab.checks import Finding, Verdict
    from icllab.lab.claim import Claim, Control, Subject
    from icllab.lab.estimates import Estimate
    from icllab.lab.outcomes import Outcome

__all__ = ["Claim", "Control", "Estimate", "Finding", "Subject", "Verdict", "checks"]
__getattr__, __dir__ = attach(__name__)
