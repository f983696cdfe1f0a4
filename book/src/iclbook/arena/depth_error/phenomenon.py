"""How large is the error of L layers?

Networks of linear attention with a matrix in each layer, trained in ``descent/depth_needs_rotation``. Contexts
have no noise; their covariance is fixed, or rotates from context to context, there with matrices that layers share too.
Measured is the error on fresh contexts over the variance of the labels.
"""

from itertools import product

from icllab.arena.phenomenon import Phenomenon

SETTINGS = ({"rotates": 0.0, "shared": 0.0}, {"rotates": 1.0, "shared": 0.0}, {"rotates": 1.0, "shared": 1.0})

phenomenon = Phenomenon(
    value="error, labels' variance 1",
    conditions={
        "dim": "d, dimension",
        "layers": "L, layers",
        "alpha": "examples of a context over d",
        "rotates": "1 if the covariance rotates from context to context, 0 if it is fixed",
        "shared": "1 if all layers have one matrix, 0 if each has its own",
    },
    cells=[
        {"dim": dim, "layers": layers, "alpha": alpha, **setting}
        for dim, layers, alpha, setting in product((6.0, 12.0), (1.0, 2.0, 4.0), (4.0, 24.0), SETTINGS)
    ],
    seeds=5,
    held_out=12,
    key=1,
    sources=("Bordelon26", "Ahn23"),
    published=True,
)
