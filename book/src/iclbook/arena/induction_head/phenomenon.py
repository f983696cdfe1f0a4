"""When does an induction head come?

Networks of two layers of attention are trained by SGD on items and labels of known classes, each class once in a
context. Measured is the number of steps until accuracy on novel classes, whose labels the context alone has, is
half-way from 1/N to 1. Training ends after 2000 steps; times that are longer are censored.
"""

from icllab.arena.phenomenon import Phenomenon, drawn_cells

PAIRS = (2, 3, 4, 6)
SIZES = {"batch": (24, 48), "dim": (20, 40), "classes": (128, 1024)}
REST = {"start": (0.6, 1.0, 1.6), "zipf": (0.0, 1.0)}
LABELS = 16

phenomenon = Phenomenon(
    value="training steps",
    conditions={
        "pairs": "N, item-label pairs of a context, which has 2N + 1 tokens",
        "batch": "prompts of a step",
        "dim": "D, dimension of items and labels",
        "start": "factor of the second layer's queries and keys before training",
        "classes": "K, number of classes",
        "zipf": "exponent of the classes' frequencies",
    },
    # Networks of one size share a compilation: two sizes for each N, and all combinations of the rest for each.
    cells=[
        {"pairs": pairs, **sizes, **rest}
        for pairs in PAIRS
        for sizes in drawn_cells(SIZES, count=2, key=pairs)
        for rest in drawn_cells(REST, count=6, key=0)
    ],
    seeds=2,
    held_out=16,
    key=2,
    levels={"pairs": PAIRS, **SIZES, **REST},
    sources=("Musat25", "Aoyama25", "Zucchet25", "Nguyen25", "Reddy24"),
)
