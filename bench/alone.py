"""Are there data that miss one finding while all the others hold? For each claim, the findings for which none is known.

    .venv/bin/python bench/alone.py [--only TEXT] [--numbers COUNT]

The measured numbers of the recorded data are moved one by one, and it is noted what that does to each finding. A linear
program then looks for the least move of all of them together that misses one finding and leaves the others, and the
check judges the moved data. Formulas of controls are tried too. What is never missed by itself may follow from the
other findings, and then says nothing of its own; or it is a count, or a line does not follow it: a person decides.
"""

import argparse
import itertools
import math
import sys
import warnings

import numpy as np
from scipy.optimize import linprog

from icllab.core.errors import CellsMissing, IclError
from icllab.lab import records, registry
from icllab.lab.checks import Outcome
from icllab.lab.judging import judge, predicted

SEED = "seed"
STEP = 0.01  # of a number's size, by which it is moved
KEPT = 0.2  # of the margin of the other findings is kept
FARTHEST = 30.0  # sizes of a number, the most that it is moved
STRETCHES = (1.0, 1.5, 0.7, 2.5)


def numbers(dataset, most):
    """Names and coordinates of numbers, the same of all seeds; an axis of too many values is taken whole."""
    names = [name for name, values in dataset.data_vars.items() if values.dtype.kind == "f"]
    for name in names:
        axes = [axis for axis in dataset[name].dims if axis != SEED]
        while math.prod(dataset.sizes[axis] for axis in axes) > most / len(names):
            axes.remove(max(axes, key=lambda axis: dataset.sizes[axis]))
        for place in itertools.product(*(range(dataset.sizes[axis]) for axis in axes)):
            yield name, {axis: [index] for axis, index in zip(axes, place, strict=True)}


def moved(dataset, moves):
    """The data with numbers moved, each by so many times its size."""
    changed = {name: dataset[name].copy(deep=True) for name, _, _ in moves}
    for name, place, by in moves:
        values = np.asarray(dataset[name].isel(place))
        size = float(np.nanmean(np.abs(values))) if np.isfinite(values).any() else 0.0
        changed[name][place] = changed[name].isel(place) + by * (size or 1.0)
    return dataset.assign(changed)


def findings(content, dataset):
    """The findings of a claim on measured data, by their identifiers; none where it refuses these."""
    try:
        return {finding.id: finding for finding in judge(content, predicted(content, dataset)).findings}
    except (IclError, ArithmeticError, ValueError, LookupError, TypeError):
        return {}


def missed(before, after):
    """The names of findings that held and do not, and whether they fail."""
    names = {}
    for key, finding in before.items():
        if finding.outcome is Outcome.HOLDS and (key not in after or after[key].outcome is not Outcome.HOLDS):
            names[finding.name] = names.get(finding.name, False) or (
                key in after and after[key].outcome is Outcome.FAILS
            )
    return names


def distance(finding):
    """How far the measurement is from the prediction."""
    return finding.measured - finding.predicted


def least_moves(target, before, slopes):
    """The moves that take one finding across its bound on either side, and leave those of other names inside."""
    rows, bounds = [], []
    for finding, slope in zip(before.values(), slopes, strict=True):
        off, reach = distance(finding), finding.tolerance
        if finding.outcome is not Outcome.HOLDS or finding.name == target.name or not np.isfinite(off):
            continue
        if abs(off) > reach:  # one-sided
            kept = reach + KEPT * (abs(off) - reach)
            rows.append(-np.sign(off) * slope)
            bounds.append(abs(off) - kept)
        else:
            kept = reach - KEPT * (reach - abs(off))
            rows += [slope, -slope]
            bounds += [kept - off, kept + off]
    slope = slopes[list(before).index(target.id)]
    off, reach = distance(target), target.tolerance
    sides = [-np.sign(off)] if abs(off) > reach else [-1.0, 1.0]
    for side in sides:
        across = 1.2 * reach + 1e-3 * abs(off) + 1e-9
        matrix = np.array([*rows, -side * slope])
        upper = np.array([*bounds, side * off - across])
        found = linprog(
            np.ones(2 * len(slope)), np.hstack([matrix, -matrix]), upper, bounds=(0.0, FARTHEST), method="highs"
        )
        if found.x is not None:
            yield found.x[: len(slope)] - found.x[len(slope) :]


def alone(name, most):
    """Findings of a claim -> ``fails`` or ``undecided`` where some data miss it alone, or nothing."""
    content = registry.load(name)
    try:
        dataset = records.data(name)
    except CellsMissing:
        return {}
    before = findings(content, dataset)
    words = {f.name: "" for f in before.values() if f.about == "claim" and f.outcome is Outcome.HOLDS}

    def note(after):
        names = missed(before, after)
        if len(names) == 1 and (only := next(iter(names))) in words and words[only] != "fails":
            words[only] = "fails" if names[only] else "undecided"

    for control, world in content.controls.items():
        if not world.measured:
            note(findings(content.under(control), dataset))
    places = list(numbers(dataset, most))
    columns = []
    for place in places:
        after = findings(content, moved(dataset, [(*place, STEP)]))
        note(after)
        change = [distance(after[key]) - distance(before[key]) if key in after else np.nan for key in before]
        columns.append(np.nan_to_num(np.array(change) / STEP, posinf=0.0, neginf=0.0))
    slopes = np.array(columns).T if columns else np.zeros((len(before), 0))
    for target in before.values():
        if words.get(target.name, "fails") == "fails" or not np.any(slopes[list(before).index(target.id)]):
            continue
        for by in least_moves(target, before, slopes):
            for stretch in STRETCHES:
                moves = [(*place, stretch * size) for place, size in zip(places, by, strict=True) if size]
                note(findings(content, moved(dataset, moves)))
    return words


def main():
    """Print a line for each claim."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--only", default="", help="claims whose name has this text")
    options.add_argument("--numbers", type=int, default=200, help="numbers of a claim that are moved, about")
    options = options.parse_args()
    warnings.simplefilter("ignore")
    for name in registry.claims():
        if options.only in name and (words := alone(name, options.numbers)):
            known = sum(word == "fails" for word in words.values())
            never, hardly = ([key for key, w in words.items() if w == word] for word in ("", "undecided"))
            print(f"{name}: {known} of {len(words)} fail alone; never missed: {never}; undecided: {hardly}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
