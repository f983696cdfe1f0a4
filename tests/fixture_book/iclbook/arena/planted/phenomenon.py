"""How long does the planted take?"""

from itertools import product

from icllab.arena import Phenomenon

phenomenon = Phenomenon(
    value="planted steps",
    conditions={"x": "what it depends on", "y": "what it does not depend on"},
    cells=[{"x": float(x), "y": float(y)} for x, y in product(range(1, 9), range(1, 6))],
    seeds=2,
    held_out=14,
    key=3,
)
