"""Weights of attention that implement an algorithm, each with a proof on a page of the documentation.

A construction says what a network could be doing. It is exact: it answers as its algorithm does to rounding, on every
prompt, and so is the standard against which a diagnostic that names algorithms is tested. Where dense layers multiply
numbers it is exact up to a stated error.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.constructions.descent import gaussian_process, gradient_descent
    from icllab.constructions.dual import DualForm, dual_form
    from icllab.constructions.induction import HeadBounds, induction_bounds, induction_head
    from icllab.constructions.softmax import kernel_richardson

__all__ = ["gaussian_process", "gradient_descent", "induction_head"]
__getattr__, __dir__ = attach(__name__)
