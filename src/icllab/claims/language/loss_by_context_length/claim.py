r"""How much of a longer context's use is that it repeats the token to come.

The last T tokens of windows of a text are predicted after c tokens of context, c = 1 to 256, and those again after the
window's near context with the far one taken from another place. The same targets are compared, so that the fall of the
loss from a near context of 16 tokens to 256 is exactly the sum over three kinds of targets,

.. math:: L_{16} - L_{256} = \sum_k E[(\ell_{16} - \ell_{256})\, 1_k]

those that the far context alone has (*far*), those that the near context has already (*near*), and those that neither
has (*new*). Repetition is a bound on copying: a token that has not come before cannot be copied.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

FAR, NEAR, NEW = "far", "near", "new"
TARGETS = (FAR, NEAR, NEW)
