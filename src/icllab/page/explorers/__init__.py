"""Explorers: closed forms that answer while a control is moved.

Each file declares one: its controls with their ranges, and an answer that :mod:`icllab.theory` computes in float64.
Nothing here draws or serves: the page and the documentation show what :mod:`icllab.page.explorers.declaration`
describes. Importing it loads no JAX.
"""

from icllab.page.explorers import (
    free_energies,
    induction_landscape,
    learning_coefficients,
    linear_attention,
    preconditioner,
)
from icllab.page.explorers.declaration import Choice, Explorer, Slider

EXPLORERS: dict[str, Explorer] = {
    module.EXPLORER.id: module.EXPLORER
    for module in (linear_attention, induction_landscape, preconditioner, learning_coefficients, free_energies)
}
"""Explorers by id, in the order in which they are listed."""
