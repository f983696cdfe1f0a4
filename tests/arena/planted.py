"""A table whose phenomenon follows one theory: a wave along x, which no null theory knows; y has no effect."""

import numpy as np

from icllab.arena import registry

PHENOMENON = '''
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
'''
THEORY = '''
"""A wave along {name}."""
import numpy as np
from icllab.arena import fit_log_linear, predict_log_linear

def columns(conditions):
    return {{"wave": np.cos(0.8 * conditions["{name}"].values)}}

def fit(train):
    return fit_log_linear(train, columns(train))

def predict(numbers, conditions):
    return predict_log_linear(numbers, columns(conditions))
'''
LEVELS = '    levels={"x": [0.5 * i for i in range(2, 17)], "y": range(1, 6)},\n'
MEASURE = '''
"""The wave, with the seed as noise."""
import numpy as np

def measure(cell, seeds):
    mean = 2.0 + 1.5 * np.cos(0.8 * cell["x"])
    return [(float(np.exp(mean + 0.3 * np.random.default_rng(seed).standard_normal())), False) for seed in seeds]
'''
SCALE, END = 0.3, 25.0  # standard deviation of the logarithm; the time at which values are censored


def table(folder, theories=("x", "y")):
    """A table in ``folder`` with a theory ``along_x`` or ``along_y`` for each name; nothing is measured."""
    (folder / "theories").mkdir(parents=True)
    (folder / "phenomenon.py").write_text(PHENOMENON)
    for name in theories:
        (folder / "theories" / f"along_{name}.py").write_text(THEORY.format(name=name))
    return folder


def measure(folder, *, held_out, own=None):
    """Write one part of the record: a wave along x, with times beyond END censored there."""
    declared, dataset, rng = registry.phenomenon(folder), registry.record(folder), np.random.default_rng(held_out)
    for i in np.flatnonzero(declared.is_held_out == held_out):
        mean = 2.0 + 1.5 * np.cos(0.8 * declared.cells[i]["x"])
        times = np.exp(mean + SCALE * rng.standard_normal(declared.seeds))
        dataset["value"].values[i], dataset["censored"].values[i] = np.minimum(times, END), times > END
    registry.save(folder, dataset, own)


def finished(folder, theories=("x", "y")):
    """A table with its theories registered before the held-out part was measured."""
    table(folder, theories)
    measure(folder, held_out=False)
    registry.register(folder)
    measure(folder, held_out=True)
    return folder


def with_levels(folder):
    """The table with levels, of which fresh cells are drawn, and with a measurement."""
    text = PHENOMENON.replace("    held_out=14,\n", "    held_out=14,\n" + LEVELS)
    (folder / "phenomenon.py").write_text(text)
    (folder / "measure.py").write_text(MEASURE)
    return folder
