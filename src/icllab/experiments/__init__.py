"""Claims: each a small file that says what should be true, measures it, and checks it.

The subpackages meet here: a claim's ``theory`` and its ``measure`` share no code, and its check is a pure
function of the Dataset that carries both. Claim files import JAX only inside ``measure``, so that
listing, citing and checking claims needs none.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.experiments.checks import Finding, Outcome, Verdict
    from icllab.experiments.estimates import Estimate
    from icllab.experiments.experiment import Control, Experiment

__getattr__, __dir__, __all__ = attach(__name__)
