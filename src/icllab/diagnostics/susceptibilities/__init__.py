"""Susceptibilities of a posterior to a tilt of the data, by quadrature, by chains and by linear response."""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.diagnostics.susceptibilities.linear_response import LinearResponse
    from icllab.diagnostics.susceptibilities.quadrature import Quadrature

__all__ = ["LinearResponse", "Quadrature"]
__getattr__, __dir__ = attach(__name__)
