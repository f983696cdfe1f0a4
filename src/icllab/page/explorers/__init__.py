"""Explorers: closed forms that answer while a slider is moved.

Each file declares one or two: sliders with their values, and an answer that :mod:`icllab.theory` computes in float64,
in the form that :mod:`icllab.page.explorers.declaration` describes. The page and the documentation draw it. Importing
it loads no JAX.
"""

from icllab.page.explorers import free_energies, induction_landscape, linear_attention, preconditioner, saddles
from icllab.page.explorers.declaration import Choice, Explorer, Slider
from icllab.page.explorers.learning_coefficients import CROSSING, LAYERS

EXPLORERS: dict[str, Explorer] = {
    explorer.id: explorer
    for explorer in (
        linear_attention.EXPLORER,
        induction_landscape.EXPLORER,
        preconditioner.EXPLORER,
        saddles.EXPLORER,
        LAYERS,
        CROSSING,
        free_energies.EXPLORER,
    )
}
"""Explorers by id, in the order of the list."""
