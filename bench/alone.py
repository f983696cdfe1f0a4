"""Are there data that miss one finding while all the others hold? Those for which none were found, one claim a line.

    .venv/bin/python bench/alone.py [--only TEXT] [--draws COUNT] [--longest SECONDS] [--seed SEED]

The recorded data of each claim are changed in one measured variable, all of it or the part that a finding names, by a
factor, a shift, another order, or what a control measured there; the check judges them. A finding that is never missed
by itself follows from the others, as far as these changes tell: it says nothing of its own, and a person decides.
Formulas of controls are tried too.
"""

import argparse
import sys
import time
import warnings

import numpy as np
import xarray as xr

from icllab.core.errors import CellsMissing, IclError
from icllab.lab import records, registry
from icllab.lab.checks import Outcome
from icllab.lab.results import judge, predicted

SEED = "seed"


def scaled(rng, values):
    """The values times a number between a thirtieth and thirty."""
    return values * np.exp(rng.uniform(-3.4, 3.4))


def shifted(rng, values):
    """The values and a multiple of their spread, or of their size."""
    size = np.nanstd(values) or np.nanmax(np.abs(values), initial=0.0) or 1.0
    return values + size * rng.normal(0, 3)


def opposite(rng, values):
    """The values on the other side of their mean, of zero, or of a half, where they are counts."""
    return rng.choice([2 * np.nanmean(values), 0.0, np.nanmax(values) + np.nanmin(values)]) - values


def constant(rng, values):
    """One of the values everywhere."""
    return np.full_like(values, rng.choice(values.ravel()))


def ordered(rng, values):
    """The values in another order along one of their axes."""
    return rng.permuted(values, axis=int(rng.integers(values.ndim))) if values.ndim else values


def spread(rng, values):
    """The values with noise as large as they are."""
    return values + np.nanmean(np.abs(values)) * rng.normal(0, 1, values.shape)


CHANGES = (scaled, shifted, opposite, constant, ordered, spread)


def part(rng, variable, finding):
    """Indices of the coordinates that a finding names, and perhaps of one value of another axis."""
    text = finding.id.partition("[")[2].removesuffix("]")
    named = dict(item.split("=", 1) for item in text.split(",") if "=" in item)
    indices = {}
    for axis in variable.dims:
        values = [f"{value:g}" if isinstance(value, float) else str(value) for value in variable[axis].values.tolist()]
        if named.get(axis) in values and rng.random() < 0.7:
            indices[axis] = [values.index(named[axis])]
        elif axis != SEED and rng.random() < 0.3:
            indices[axis] = [int(rng.integers(len(values)))]
    return indices


def planted(rng, dataset, controls, finding):
    """The data with one variable changed in one part, perhaps to what a control measured there."""
    names = [name for name, values in dataset.data_vars.items() if values.dtype.kind in "fiub"]
    name = str(rng.choice(names))
    values = dataset[name].copy(deep=True).astype(float)
    here = part(rng, values, finding)
    measured = [control[name] for control in controls if name in control]
    if measured and rng.random() < 0.3:
        other = measured[int(rng.integers(len(measured)))]
        if set(other.dims) != set(values.dims):
            return None
        new = other.reindex_like(values).transpose(*values.dims).astype(float).isel(here)
        values[here] = xr.where(new.isnull(), values.isel(here), new)
    else:
        values[here] = CHANGES[int(rng.integers(len(CHANGES)))](rng, np.asarray(values.isel(here)))
    return dataset.assign({name: values})


def outcomes(content, dataset):
    """The outcomes of each finding on measured data; empty where the claim refuses these."""
    try:
        return by_name(judge(content, predicted(content, dataset)))
    except (IclError, ArithmeticError, ValueError, LookupError, TypeError):
        return {}


def by_name(verdict):
    """The outcomes of the elements of each finding, by the name that they share."""
    rows = {}
    for finding in verdict.findings:
        rows.setdefault(finding.name, set()).add(finding.outcome)
    return rows


def alone(name, draws, longest, rng):
    """Findings of a claim -> whether some data miss it alone, and whether they refute it; nothing without data."""
    content = registry.load(name)
    try:
        dataset = records.data(name)
    except CellsMissing:
        return {}
    size = records.configuration(dataset)["size"]
    base = judge(content, predicted(content, dataset))
    before = by_name(base)
    missed = dict.fromkeys((finding.name for finding in base.findings if finding.about == "claim"), "")
    present = records.groups(name)
    controls = [
        records.data(name, size, control) for control in content.controls if records.group(size, control) in present
    ]

    def note(after):
        gone = [key for key in before if Outcome.FAILS in after.get(key, set()) and Outcome.FAILS not in before[key]]
        worse = [key for key in before if not after.get(key, set(Outcome)) <= before[key]]
        if len(worse) == 1 and worse[0] in missed:
            missed[worse[0]] = "fails" if gone == worse else missed[worse[0]] or "undecided"

    for control, world in content.controls.items():
        if not (world.simulated or world.axes):
            note(outcomes(content.under(control), dataset))
    until = time.process_time() + longest
    for draw in range(draws):
        left = [key for key, word in missed.items() if word != "fails"]
        if not left or time.process_time() > until:
            break
        rows = [row for row in base.findings if row.name == left[draw % len(left)]]
        changed = planted(rng, dataset, controls, rows[int(rng.integers(len(rows)))])
        if changed is not None:
            note(outcomes(content, changed))
    return missed


def main():
    """Print a line for each claim with findings that no data missed alone."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", default="", help="claims whose name has this text")
    options.add_argument("--draws", type=int, default=400, help="changed data for each claim")
    options.add_argument("--longest", type=float, default=60.0, help="processor seconds for each claim")
    options.add_argument("--seed", type=int, default=0)
    options = options.parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    for name in registry.claims():
        if options.only in name:
            missed = alone(name, options.draws, options.longest, np.random.default_rng(options.seed))
            words = {word: [key for key, w in missed.items() if w == word] for word in ("", "undecided")}
            total = f"{sum(word == 'fails' for word in missed.values())} of {len(missed)} refuted alone"
            print(
                f"{name}: {total}; never missed alone: {words['']}; undecided at most: {words['undecided']}", flush=True
            )


if __name__ == "__main__":
    sys.exit(main())
