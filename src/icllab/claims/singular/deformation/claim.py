r"""A family of losses with two parameters, whose posterior changes phase abruptly here and gradually there.

.. math:: L(x, y) = \frac{x^4}4 - \frac p2x^2 - qx + \frac12(x+1)^2\,|y|^2, \qquad y\in\mathbb R^d

In x alone it is the cusp: for :math:`p > 0` there are two wells near :math:`\pm\sqrt p`, tilted by q. The least loss
changes from one to the other at :math:`q = 0`. The posterior does not: in the right well y is determined, in the left
one, near :math:`x = -1`, it is not, so that the right well's learning coefficient is larger, by :math:`\frac d2` where
:math:`p = 1`. The line of equal free energies lies at a tilt of order :math:`\frac{d\log n}{n}`, and at :math:`p\le0`
there is no line: the half of x that the posterior is in changes gradually.

What changes at the line is the mean of x, which is :math:`J = E[x\mid x>0] - E[x\mid x<0]` larger on the right. Where
the change is abrupt, J tends to :math:`2\sqrt p`. Where it is gradual, J falls as :math:`n^{-1/2}`; between them, at
:math:`p = 0` and but for y, as :math:`n^{-1/4}`.

For every p, q and n the free energies of both halves are integrals over x, since y is Gaussian given x.
"""

import functools

import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.integrate import simpson
from scipy.optimize import root_scalar

from icllab.claims.singular._phases import between
from icllab.core.axes import Quantity
from icllab.experiments import checks
from icllab.experiments.checks import Finding
from icllab.experiments.estimates import Estimate
from icllab.experiments.experiment import Control, Experiment
from icllab.experiments.results import fixed_values
from icllab.figures import style
from icllab.figures.labels import named

SIDES = ("left", "right")
LARGEST = 0.1  # nats: standard error of a difference of free energies
SIGMAS = 3.5  # some forty numbers are compared
CLEAR = 0.2  # how far from one half a share is that must be on the right side of it
ABRUPT, GRADUAL = -0.1, -0.35  # exponents of J in n: above the first it is a jump, below the second it is none


def integral(side: str, n: float, *, split: float, tilt: float, free: float) -> tuple[float, float]:
    r"""The free energy of a half, and the mean of x there, by quadrature.

    .. math:: Z = \int\varphi(x)\,e^{-nV(x)}\bigl(1+n(x+1)^2\bigr)^{-d/2}dx, \qquad V = \frac{x^4}4-\frac p2x^2-qx
    """
    x = (1 if side == "right" else -1) * np.linspace(0, 4, 4001)
    logarithm = -n * (x**4 / 4 - split * x**2 / 2 - tilt * x) - x**2 / 2 - np.log(2 * np.pi) / 2
    logarithm -= free / 2 * np.log1p(n * (x + 1) ** 2)
    top = logarithm.max()
    density = np.exp(logarithm - top)
    total = simpson(density, dx=0.001)
    return float(-top - np.log(total)), float(simpson(x * density, dx=0.001) / total)


def gap(n: float, **where: float) -> float:
    """Right less left."""
    return integral("right", n, **where)[0] - integral("left", n, **where)[0]


def line(n: float, *, split: float, free: float) -> float:
    """The tilt at which both halves have as much of the posterior."""
    return float(root_scalar(lambda tilt: gap(n, split=split, tilt=tilt, free=free), bracket=(-2, 3), xtol=1e-10).root)


def theory(dataset: xr.Dataset, free: float | None = None, over: float = 1.0) -> xr.Dataset:
    """Integrals at all points; ``free`` and ``over``: another number of directions y, another factor of n."""
    count = fixed_values(dataset)["free"] if free is None else free
    dims = ("split", "tilt", "samples", "phase")
    values, places = (np.zeros([dataset.sizes[d] for d in dims]) for _ in range(2))
    for at in np.ndindex(values.shape):
        split, tilt, n, side = (dataset[d].values[i] for d, i in zip(dims, at, strict=True))
        how = {"split": float(split), "tilt": float(tilt), "free": count}
        values[at], places[at] = integral(str(side), over * float(n), **how)
    lines = np.zeros((dataset.sizes["split"], dataset.sizes["samples"]))
    for i, j in np.ndindex(lines.shape):
        n, split = over * float(dataset.samples.values[j]), float(dataset.split.values[i])
        lines[i, j] = line(n, split=split, free=count)
    return dataset.assign(
        phase_free_energy_theory=(dims, values),
        phase_place_theory=(dims, places),
        equal_tilt_theory=(("split", "samples"), lines),
    )


def _gap(dataset: xr.Dataset, name: str) -> Estimate:
    """Right less left."""
    return between(dataset, name, "right", "left", "split", "tilt", "samples")


def crossed(tilts: np.ndarray, gaps: np.ndarray) -> float:
    """The tilt at which a difference of free energies falls through zero, by straight lines; NaN if it does not."""
    for i in range(len(tilts) - 1):
        if gaps[i] > 0 >= gaps[i + 1]:
            return float(tilts[i] + (tilts[i + 1] - tilts[i]) * gaps[i] / (gaps[i] - gaps[i + 1]))
    return np.nan


def check(dataset: xr.Dataset) -> list[Finding]:
    """The free energies, the sides of the diagram, its line, and how J changes with n."""
    gap, known = _gap(dataset, "phase_free_energy"), _gap(dataset, "phase_free_energy_theory").value
    away = (gap - known).average("tilt")
    what = "right - left, sampled - the integrals"
    findings = checks.covers("gap", what, away, 0.0, largest_error=LARGEST, sigmas=SIGMAS)
    findings += _lines(dataset.tilt.values, gap, known)
    sampled, exactly_there = (1 / (1 + np.exp(np.clip(g, -500, 500))) for g in (gap.value, known))
    clear = np.abs(exactly_there - 0.5) > CLEAR
    wrong = int((((sampled > 0.5) != (exactly_there > 0.5)) & clear).sum())
    findings += checks.equal("phases", f"points in the wrong phase, of {int(clear.sum())} that are clear", wrong, 0)
    findings += _exponents(dataset)
    quiet = float((dataset["annealing_warnings"] > 0).mean()) <= 0.1
    return [*findings, *checks.complete("warnings", "at most one run in ten warns", quiet)]


def _lines(tilts: np.ndarray, gap: Estimate, known: xr.DataArray) -> list[Finding]:
    """The tilts of equal shares, where the grid reaches them; through the same tilts straight lines err alike."""
    findings, what = [], "tilt of equal shares, sampled - the integrals'"
    for split in gap.value.split.values:
        for n in gap.value.samples.values:
            here = gap.sel(split=split, samples=n)
            values, errors = here.value.values, here.error.values
            at, there = crossed(tilts, values), crossed(tilts, known.sel(split=split, samples=n).values)
            if np.isfinite(at):
                slope = abs(float(np.interp(at, tilts, np.gradient(values, tilts))))
                offset = Estimate(at - there, float(np.interp(at, tilts, errors)) / slope)
                where = {"split": float(split), "samples": int(n)}
                findings += checks.covers("line", what, offset, 0.0, largest_error=0.01, sigmas=SIGMAS, at=where)
    return findings


def jump(dataset: xr.Dataset, i: int, sampled: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """J on the line of equal shares and its standard error, for every n; NaN where the tilts do not reach it."""
    ending, tilts = "" if sampled else "_theory", dataset.tilt.values
    gaps = _gap(dataset, f"phase_free_energy{ending}").value.values[i].T
    places = _gap(dataset, f"phase_place{ending}")
    at = [crossed(tilts, row) for row in gaps]
    rows = (part.values[i].T for part in (places.value, places.error))
    value, spread = (
        [np.interp(a, tilts, row) if np.isfinite(a) else np.nan for a, row in zip(at, part, strict=True)]
        for part in rows
    )
    return np.array(value), np.array(spread)


def exponent(n: np.ndarray, values: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Of n, by least squares on logarithms, and its standard error."""
    there = np.isfinite(values)
    if there.sum() < 3:
        return np.nan, np.nan
    x = np.log(n[there]) - np.log(n[there]).mean()
    weight = x / (x @ x)
    return float(weight @ np.log(values[there])), float(np.sqrt(weight**2 @ (errors[there] / values[there]) ** 2))


def _exponents(dataset: xr.Dataset) -> list[Finding]:
    """Abrupt where p > 0, gradual where p < 0; both signs are needed."""
    n, splits, findings = dataset.samples.values.astype(float), dataset.split.values, []
    for i, split in enumerate(splits):
        found = Estimate(*exponent(n, *jump(dataset, i)))
        known, _ = exponent(n, *jump(dataset, i, sampled=False))
        if not np.isfinite(float(found.value) + known):
            continue
        what, at = "exponent of J in n", {"split": float(split)}
        findings += checks.covers("exponent", what, found, known, largest_error=0.03, sigmas=SIGMAS, at=at)
        if split >= 1:
            findings += checks.above("abrupt", what, found, ABRUPT, at=at)
        elif split < 0:
            findings += checks.below("gradual", what, found, GRADUAL, at=at)
    both = bool((splits >= 1).any() and (splits < 0).any() and len(n) > 2)
    return [*findings, *checks.complete("splits", "p of both signs, at three n", both)]


def figure(dataset: xr.Dataset):
    """The diagram at the second n with exact lines at all of them, and J against n."""
    n, tilts, splits = (dataset[name].values.astype(float) for name in ("samples", "tilt", "split"))
    free, middle = fixed_values(dataset)["free"], min(1, len(dataset.samples) - 1)
    gaps = _gap(dataset, "phase_free_energy").value.values
    shares = 1 / (1 + np.exp(np.clip(gaps[:, :, middle], -500, 500)))
    with style.context():
        drawn = Figure(figsize=(2 * style.COLUMN, 2.8), layout="constrained")
        FigureCanvasAgg(drawn)
        left, right = drawn.subplots(1, 2)
        grid = np.meshgrid(tilts, splits)
        points = left.scatter(
            *grid, c=shares, s=34, cmap="cividis", vmin=0, vmax=1, edgecolors=style.INK, linewidths=0.4
        )
        fine = np.linspace(splits.min() - 0.1, splits.max() + 0.1, 25)
        for i, count in enumerate(n):
            exactly_there = [line(count, split=p, free=free) for p in fine]
            look = {"linestyle": style.dashes(i), "color": style.INK, "linewidth": 1.0, "zorder": 1}
            left.plot(exactly_there, fine, label=f"$n = {count:g}$", **look)
        left.plot([0, 0], [0, fine[-1]], color=style.CATEGORIES[1], linewidth=1.4, zorder=1, label="least loss")
        left.plot([0], [0], "o", color=style.CATEGORIES[1], markersize=3)
        left.set(xlabel=named(dataset, "tilt").label, ylabel=named(dataset, "split").label)
        left.set_xlim(tilts.min() - 0.03, tilts.max() + 0.03)
        drawn.colorbar(points, ax=left, label=f"share at $x > 0$, $n = {n[middle]:g}$, sampled", pad=0.02)
        for i, split in enumerate(splits):
            value, error = jump(dataset, i)
            known, _ = jump(dataset, i, sampled=False)
            color = style.colours(splits.tolist())[i]
            right.errorbar(
                n, value, 3 * error, linestyle="none", marker=style.marker(i), color=color, label=f"$p = {split:g}$"
            )
            right.plot(n, known, color=color)
        right.set(
            xscale="log",
            yscale="log",
            xlabel=named(dataset, "samples").label,
            ylabel=named(dataset, "phase_jump").label,
        )
        above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3}
        left.legend(ncols=3, **above)
        right.legend(ncols=3, **above)
    return drawn


experiment = Experiment(
    claim=(
        "In a cusp whose right well determines more directions, the sampled posterior's phases are those of the exact "
        "diagram, not the least loss's; its mean jumps between two wells."
    ),
    conditions=(
        "Four free directions, n from 30 to 1000, a standard normal prior. The mean jumps where p >= 1 and changes "
        "gradually where p < 0, in one well."
    ),
    sources=("Watanabe09",),
    quantities=(
        "phase_free_energy",
        "annealing_warnings",
        Quantity("phase_place", r"E[x \mid W_a]", "mean of x in a half"),
        Quantity("phase_jump", "J", "change of the mean of x at equal shares"),
        Quantity("equal_tilt", "q^*", "tilt of equal shares"),
    ),
    static=("split",),
    outputs=("phase",),
    fixed={"free": 4, "particles": 400, "repeats": 8},
    sizes={
        "smoke": {"split": (1.0,), "tilt": (0.0, 0.1), "samples": (30, 300), "phase": SIDES},
        "small": {
            "split": (-0.5, 0.0, 0.5, 1.0, 1.5),
            "tilt": tuple(round(-0.1 + 0.05 * i, 2) for i in range(7)),
            "samples": (30, 100, 300, 1000),
            "phase": SIDES,
        },
        "medium": {
            "split": (-1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0),
            "tilt": tuple(round(-0.1 + 0.025 * i, 3) for i in range(13)),
            "samples": (30, 100, 300, 1000, 3000),
            "phase": SIDES,
        },
    },
    precision="float64",
    theory=theory,
    check=check,
    figure=figure,
    controls={
        "even": Control("both wells determine as many directions", measure={"even": True}),
        "loss_alone": Control("the right well determines no more", theory=functools.partial(theory, free=0.0)),
        "other_temperature": Control("integrals at twice as many samples", theory=functools.partial(theory, over=2.0)),
    },
)
