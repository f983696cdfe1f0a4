"""Dataset in, figure out: theory as lines, simulation as points with error bars.

A figure is a pure function of a Dataset: means over seeds are taken here and nowhere earlier, labels
and symbols come from ``core.axes``, and the same Dataset gives the same bytes whatever the user's
matplotlib settings are. No pyplot, no global state, no JAX.
"""

from typing import TYPE_CHECKING

from icllab.core.lazy import attach

if TYPE_CHECKING:
    from icllab.figures.curves import panels
    from icllab.figures.heat_maps import heat_map
    from icllab.figures.output import Drawing, pdf_bytes, png_bytes, save
    from icllab.figures.panel import Panel

__all__ = ["Panel", "panels"]
__getattr__, __dir__ = attach(__name__)
