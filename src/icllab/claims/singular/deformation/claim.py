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

from icllab.core.axes import axis, quantity
from icllab.experiments.checks import Finding, Outcome, agreement, apart, exactly, exceeds
from icllab.experiments.experiment import Experiment, World
from icllab.experiments.results import fixed_values
from icllab.figures import style

SIDES = ("left", "right")
LARGEST = 0.1  # nats: standard error of a difference of free energies
SIGMAS = 3.5  # some forty numbers are compared
CLEAR = 0.2  # how far from one half a share is that must be on the right side of it
ABRUPT, GRADUAL = -0.1, -0.35  # exponents of J in n: above the first it is a jump, below the second it is none


def measure(point, *, key):
    """One cell: at every tilt both halves, at all n of one annealing each."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from icllab.diagnostics import SMC, free_energy

    class Wells(eqx.Module):
        tilt: jax.Array
        split: jax.Array

        def __call__(self, w):
            x, y = w
            return x**4 / 4 - self.split * x**2 / 2 - self.tilt * x + (x + 1) ** 2 * jnp.sum(y**2) / 2

    class Half(eqx.Module):
        sign: jax.Array

        def __call__(self, w):
            return self.sign * w[0] > 0

    def place(w):
        return w[0]

    shape = (len(point.tilt), len(point.samples), len(point.phase))
    found = {name: np.zeros(shape) for name in ("phase_free_energy", "phase_place")}
    found |= {f"{name}_error": np.zeros(shape) for name in found}
    warned = np.zeros((shape[0], shape[2]))
    for i, tilt in enumerate(point.tilt):
        loss = Wells(jnp.asarray(float(tilt)), jnp.asarray(float(point.split)))
        for k, side in enumerate(point.phase):
            one = free_energy(
                loss,
                (jnp.zeros(()), jnp.zeros(point.free)),
                nbeta=point.samples,
                key=jax.random.fold_in(jax.random.fold_in(key, round(1000 * (tilt + 1))), SIDES.index(side)),
                region=Half(jnp.asarray(2.0 * SIDES.index(side) - 1)),
                observe=place,
                sampler=SMC(particles=point.particles, repeats=point.repeats, moves=(2, 40)),
            )
            for name, source in (("phase_free_energy", "free_energy"), ("phase_place", "observed")):
                for end in ("", "_error"):
                    found[f"{name}{end}"][i, :, k] = one[f"{source}{end}"].values.reshape(-1)
            warned[i, k] = len(one.attrs["warnings"])
    dims = ("tilt", "samples", "phase")
    return {**{name: (dims, values) for name, values in found.items()}, "annealing_warnings": (dims[::2], warned)}


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
        tilt_theory=(("split", "samples"), lines),
    )


def _between(dataset: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Right less left and its standard error, [split, tilt, samples]; the error of an integral is zero."""
    return apart(dataset, name, "right", "left", dims=("split", "tilt", "samples"))


def crossed(tilts: np.ndarray, gaps: np.ndarray) -> float:
    """The tilt at which a difference of free energies falls through zero, by straight lines; NaN if it does not."""
    for i in range(len(tilts) - 1):
        if gaps[i] > 0 >= gaps[i + 1]:
            return float(tilts[i] + (tilts[i + 1] - tilts[i]) * gaps[i] / (gaps[i] - gaps[i + 1]))
    return np.nan


def check(dataset: xr.Dataset) -> list[Finding]:
    """The free energies, the sides of the diagram, its line, and how J changes with n."""
    findings, tilts = [], dataset.tilt.values
    gaps, errors = _between(dataset, "phase_free_energy")
    exact_gaps, _ = _between(dataset, "phase_free_energy_theory")
    for i, split in enumerate(dataset.split.values):
        for k, n in enumerate(dataset.samples.values):
            away = float((gaps - exact_gaps)[i, :, k].mean())
            error = float(np.sqrt((errors[i, :, k] ** 2).sum())) / len(tilts)
            what = f"right less left, sampled less the integrals, p={split:g}, n={n:g}"
            findings.append(agreement(what, 0.0, away, error, largest_error=LARGEST, sigmas=SIGMAS))
            at = crossed(tilts, gaps[i, :, k])
            if not np.isfinite(at):
                continue
            # Through the same tilts, so that straight lines err alike.
            there = crossed(tilts, exact_gaps[i, :, k])
            slope = abs(float(np.interp(at, tilts, np.gradient(gaps[i, :, k], tilts))))
            error = float(np.interp(at, tilts, errors[i, :, k])) / slope
            what = f"tilt of equal shares, sampled less the integrals', p={split:g}, n={n:g}"
            findings.append(agreement(what, 0.0, at - there, error, largest_error=0.01, sigmas=SIGMAS))
    sampled, known = (1 / (1 + np.exp(np.clip(g, -500, 500))) for g in (gaps, exact_gaps))
    clear = np.abs(known - 0.5) > CLEAR
    wrong = int(((sampled > 0.5) != (known > 0.5))[clear].sum())
    findings.append(exactly(f"points in the wrong phase, of {int(clear.sum())} that are clear", 0, wrong))
    findings += _exponents(dataset)
    quiet = float((dataset["annealing_warnings"] > 0).mean()) <= 0.1
    return [*findings, exactly("runs that warn, at most one in ten", 1, quiet, otherwise=Outcome.UNDECIDED)]


def jump(dataset: xr.Dataset, i: int, sampled: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """J on the line of equal shares and its standard error, for every n; NaN where the tilts do not reach it."""
    ending = "" if sampled else "_theory"
    tilts = dataset.tilt.values
    gaps, _ = _between(dataset, f"phase_free_energy{ending}")
    places, errors = _between(dataset, f"phase_place{ending}")
    at = [crossed(tilts, gaps[i, :, k]) for k in range(gaps.shape[2])]
    values = [np.interp(a, tilts, places[i, :, k]) if np.isfinite(a) else np.nan for k, a in enumerate(at)]
    spread = [np.interp(a, tilts, errors[i, :, k]) if np.isfinite(a) else np.nan for k, a in enumerate(at)]
    return np.array(values), np.array(spread)


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
        value, error = exponent(n, *jump(dataset, i))
        known, _ = exponent(n, *jump(dataset, i, sampled=False))
        if not np.isfinite(value + known):
            continue
        what = f"exponent of J in n, p={split:g}"
        findings.append(agreement(what, known, value, error, largest_error=0.03, sigmas=SIGMAS))
        if split >= 1:
            findings.append(exceeds(f"{what}, above {ABRUPT:g}: abrupt", value, error, bound=ABRUPT))
        elif split < 0:
            findings.append(exceeds(f"{what}, minus it above {-GRADUAL:g}: gradual", -value, error, bound=-GRADUAL))
    both = bool((splits >= 1).any() and (splits < 0).any() and len(n) > 2)
    return [*findings, exactly("p of both signs, at three n", 1, both, otherwise=Outcome.UNDECIDED)]


def figure(dataset: xr.Dataset):
    """The diagram at the second n with exact lines at all of them, and J against n."""
    n, tilts, splits = (dataset[name].values.astype(float) for name in ("samples", "tilt", "split"))
    free, middle = fixed_values(dataset)["free"], min(1, len(dataset.samples) - 1)
    gaps, _ = _between(dataset, "phase_free_energy")
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
        left.set(xlabel=axis("tilt").label, ylabel=axis("split").label)
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
        right.set(xscale="log", yscale="log", xlabel=axis("samples").label, ylabel=quantity("phase_jump").label)
        above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3}
        left.legend(ncols=3, **above)
        right.legend(ncols=3, **above)
    return drawn


experiment = Experiment(
    claim=(
        "In a cusp whose right well determines more directions than its left one, the sampled posterior has the phases "
        "of the exact diagram: the line of equal shares lies at a tilt that loss alone does not give, the mean jumps "
        "across it for p >= 1, and for p < 0 the change is gradual."
    ),
    sources=("Watanabe09",),
    static=("split",),
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
    measure=measure,
    theory=theory,
    check=check,
    figure=figure,
    worlds={
        "loss_alone": World("the right well determines no more", theory=functools.partial(theory, free=0.0)),
        "other_temperature": World("integrals at twice as many samples", theory=functools.partial(theory, over=2.0)),
    },
)
