"""Smoke with a second value of an axis: the numbers at the first stay, and those at the second are others.

At smoke most axes have one value. Here each gets the nearest that a larger size has, and so does each setting that
smoke leaves out, one at a time, with one seed and few steps.
"""

import numpy as np
import pytest
from contracts.cases import CLAIMS

from icllab.lab import registry
from icllab.lab.job import Request
from icllab.lab.run import compute, read

pytestmark = [pytest.mark.claims, pytest.mark.slow]
STEPS = ("step", "epochs", "updates")
FEW = {"steps": 20, "updates": 50, "transformer_updates": 20, "network_steps": 50}
"""Most steps, where a claim has their number fixed."""
ROUNDING = {"rtol": 1e-3, "atol": 1e-5, "equal_nan": True}
"""Differences of programs of other shapes."""
IDLE = set()
"""Additions that change nothing in so few steps."""
COSTLY = {}
"""CPU seconds of an addition, where they are more than two."""
LEFT_OUT = {}
"""CPU seconds of an addition that does not fit into 350 of all, or of the claim's whole smoke."""


def shortest(claim):
    """Axes of smoke with one seed and few steps."""
    grid = claim.grid("smoke")
    values = {**grid.static, **grid.traced}
    axes = {name: values[name][:1] for name in ("seed",) if name in values}
    axes |= {name: values[name][:2] for name in STEPS if len(values.get(name, ())) > 1}
    axes |= {name: (min(values[name][0], 4),) for name in STEPS if len(values.get(name, ())) == 1}
    return axes | {
        name: (min(claim.at("smoke").fixed[name], most),) for name, most in FEW.items() if name in claim.fixed
    }


def additions(claim):
    """Pairs of an axis and a value that larger sizes have and smoke has not."""
    grids = [claim.grid(size) for size in claim.sizes]
    smoke, *larger = [{**grid.static, **grid.traced} for grid in grids]
    for axis, values in smoke.items():
        kinds = (int, float) if isinstance(values[0], float) else type(values[0])
        others = dict.fromkeys(value for axes in larger for value in axes.get(axis, ()))
        new = [value for value in others if value not in values and isinstance(value, kinds)]
        names = [value for value in new if isinstance(value, str)]
        if axis in STEPS and len(values) == 1:
            yield axis, shortest(claim)[axis][-1] + 2
        elif names:
            yield from ((axis, name) for name in names)
        elif axis != "seed" and len(values) == 1 and new:
            yield axis, min(new, key=lambda value: abs(value - values[0]))


def measured(claim, axes, out):
    """The data of smoke at these values."""
    request = Request(claim.name, "smoke", axes, out=str(out))
    compute(request, progress=lambda *_: None)
    return read(request, theory=False)[0].load()


def cases():
    """Every claim with additions that fit, and these."""
    for name in CLAIMS:
        fitting = [pair for pair in additions(registry.load(name)) if (name, *pair) not in LEFT_OUT]
        if fitting:
            yield pytest.param(name, fitting, id=name)


@pytest.mark.parametrize(("name", "pairs"), cases())
def test_a_second_value_leaves_the_first_and_matters(name, pairs, tmp_path):
    claim = registry.load(name)
    axes = shortest(claim)
    first = measured(claim, axes, tmp_path / "first")
    moved, idle = {}, []
    for axis, value in pairs:
        values = first[axis].values.tolist()
        # A cell that is there stays; an axis within a cell is measured again with both values.
        out = tmp_path / ("first" if axis in claim.static else f"{axis} {value}".replace("/", " "))
        both = measured(claim, axes | {axis: (*values, value)}, out)
        along = [quantity for quantity in both.data_vars if axis in both[quantity].dims]
        before, after = both.sel({axis: values[-1]}), both.sel({axis: value})
        if all(before[quantity].equals(after[quantity].assign_coords({axis: values[-1]})) for quantity in along):
            idle.append((axis, value))
        for quantity in first.data_vars:
            again = both[quantity].sel({axis: values}) if quantity in along else both[quantity]
            if not np.allclose(again.transpose(*first[quantity].dims), first[quantity], **ROUNDING):
                moved[axis, value] = quantity
    assert moved == {}
    assert idle == [pair for pair in pairs if (name, *pair) in IDLE]
