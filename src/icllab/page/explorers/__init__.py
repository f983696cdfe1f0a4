"""Explorers: closed forms that answer while a control is moved.

Each file declares one: its controls with their ranges, and an answer that :mod:`icllab.theory` computes in float64, in
the form that :mod:`icllab.page.explorers.declaration` describes. The page and the documentation draw it. Importing it
loads no JAX.
"""

from icllab.page.explorers import (
    free_energies,
    induction_landscape,
    learning_coefficients,
    linear_attention,
    preconditioner,
    saddles,
)
from icllab.page.explorers.declaration import Choice, Explorer, Slider

EXPLORERS: dict[str, Explorer] = {
    module.EXPLORER.id: module.EXPLORER
    for module in (
        linear_attention,
        induction_landscape,
        preconditioner,
        saddles,
        learning_coefficients,
        free_energies,
    )
}
"""Explorers by id, in the order of the list."""
