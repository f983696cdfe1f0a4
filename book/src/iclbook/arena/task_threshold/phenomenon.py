"""How much of its pool does a network memorise?

Transformers of the claim ``asymptotics/odds_of_memorising``, trained on pools of urns. Measured is the weight of the
posterior over the pool in a network's answers on the pool's urns, where the rest is what counts alone would answer:
near 1 for few urns, and small for many. The threshold is where it is a half.
"""

from itertools import product

from icllab.arena.phenomenon import Phenomenon

GAPS = {2: 0.1304, 4: 0.1203, 8: 0.1093, 16: 0.0777, 32: 0.0618, 64: 0.0438, 128: 0.0314}
"""Urns of a pool -> mean loss of counts minus that of the posterior over the pool, in nats: means of the record."""

phenomenon = Phenomenon(
    value="weight of what is memorised",
    conditions={
        "tasks": "K, urns of the pool",
        "steps": "N, steps of training",
        "gap": "loss of counts minus that of the posterior over the pool, in nats a draw",
    },
    cells=[
        {"tasks": float(tasks), "steps": float(steps), "gap": GAPS[tasks]}
        for tasks, steps in product(GAPS, (50, 100, 200, 400, 800, 1600))
    ],
    seeds=6,
    held_out=14,
    key=1,
    sources=("Wurgaft25", "Raventos23", "Nguyen25"),
    published=True,
)
