"""When does an induction head come?

Networks of two layers of attention are trained by SGD on items and labels of known classes, each class once in a
context. Measured is the number of steps until accuracy on novel classes, whose labels the context alone has, is
half-way from 1/N to 1. Training ends after 2500 steps; times that are longer are censored.
"""

from icllab.arena.phenomenon import Phenomenon, drawn_cells

LEVELS = {
    "pairs": (3, 4, 6, 8),
    "batch": (32, 64),
    "dim": (23, 47),
    "start": (0.6, 1.0, 1.7),
    "classes": (64, 1024),
    "zipf": (0.0, 1.0),
}
LABELS = 16

phenomenon = Phenomenon(
    value="training steps until the context's labels are used",
    conditions={
        "pairs": "N, item-label pairs of a context, which has 2N + 1 tokens",
        "batch": "prompts of a step",
        "dim": "D, dimension of items and labels",
        "start": "factor of the second layer's queries and keys before training",
        "classes": "K, number of classes",
        "zipf": "exponent of the classes' frequencies",
    },
    cells=drawn_cells(LEVELS, count=32, key=1),
    seeds=2,
    held_out=10,
    key=1,
    sources=("Musat25", "Aoyama25", "Zucchet25", "Nguyen25", "Reddy24"),
)
