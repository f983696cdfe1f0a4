r"""A family of losses with two parameters, whose posterior changes phase abruptly or gradually.

.. math:: L(x, y) = \frac{x^4}4 - \frac p2x^2 - qx + \frac12(x+1)^2\,|y|^2, \qquad y\in\mathbb R^d

For :math:`p > 0` there are two wells near :math:`\pm\sqrt p`, of equal losses at q = 0. The right well determines y,
near :math:`x = -1` y is free, so that free energies are equal at a tilt of order :math:`\frac{d\log n}{n}`. There the
mean of x changes by :math:`J = E[x\mid x>0] - E[x\mid x<0]`, which tends to :math:`2\sqrt p` if the change is abrupt
and falls as :math:`n^{-1/2}` if it is gradual.
"""

import numpy as np
import xarray as xr
from scipy.special import expit

from iclbook.claims.singular._phases import between
from icllab.core.axes import Quantity
from icllab.core.grid import tabulated
from icllab.core.statistics import first_rise
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks
from icllab.lab.results import fixed_values
from icllab.theory.posterior_integrals import cusp, cusp_line

SIDES = ("left", "right")
LARGEST = 0.1  # nats: standard error of a difference of free energies
SIGMAS = 3.5  # some forty numbers are compared
CLEAR = 0.2  # distance from one half of a share whose phase is clear
ABRUPT, GRADUAL = -0.1, -0.35  # exponents of J in n: above the first the change is a jump, below the second gradual


def theory(dataset: xr.Dataset, free: float | None = None, over: float = 1.0) -> xr.Dataset:
    """Integrals at all points; ``free``: number of directions y; ``over``: factor of n."""
    count = fixed_values(dataset)["free"] if free is None else free

    def both(split: float, tilt: float, samples: float, phase: str) -> dict[str, float]:
        energy, place = cusp(phase, over * samples, split=split, tilt=tilt, free=count)
        return {"phase_free_energy_theory": energy, "phase_place_theory": place}

    def equal(split: float, samples: float) -> dict[str, float]:
        return {"equal_tilt_theory": cusp_line(over * samples, split=split, free=count)}

    axes = {name: dataset[name].values.tolist() for name in ("split", "tilt", "samples", "phase")}
    lines = tabulated(equal, split=axes["split"], samples=axes["samples"])
    return dataset.assign(tabulated(both, **axes) | lines)


def _gap(dataset: xr.Dataset, name: str) -> Estimate:
    """Right phase minus left."""
    return between(dataset, name, "right", "left", "split", "tilt", "samples")


def equal_shares(dataset: xr.Dataset, ending: str = "") -> tuple[Estimate, Estimate]:
    """Tilt of equal shares and J there, over split and n; NaN if the tilts do not reach it."""

    def interpolate(tilts: np.ndarray, gaps: np.ndarray, *curves: np.ndarray) -> tuple[float, ...]:
        at = float(first_rise(tilts, -gaps))
        if not np.isfinite(at):
            return (np.nan,) * 4
        slope = abs(np.interp(at, tilts, np.gradient(gaps, tilts)))
        error, jump, spread = (float(np.interp(at, tilts, values)) for values in curves)
        return at, error / slope, jump, spread

    gap, places = (_gap(dataset, f"{name}{ending}") for name in ("phase_free_energy", "phase_place"))
    parts = (dataset.tilt, gap.value, gap.error, places.value, places.error)
    cores: list[list[str]] = [["tilt"]] * 5
    results = xr.apply_ufunc(interpolate, *parts, input_core_dims=cores, output_core_dims=[[]] * 4, vectorize=True)
    return Estimate(*results[:2]), Estimate(*results[2:])


def check(dataset: xr.Dataset) -> list[Finding]:
    """Free energies, sides of the phase diagram, its line, and the exponent of J in n."""
    gap, exact_gap = _gap(dataset, "phase_free_energy"), _gap(dataset, "phase_free_energy_theory").value
    quantity, away = "right - left, sampled - the integrals", (gap - exact_gap).average("tilt")
    findings = checks.agrees("gap", quantity, away, 0.0, largest_error=LARGEST, sigmas=SIGMAS)
    (at, jumps), (exact_tilts, exact) = equal_shares(dataset), equal_shares(dataset, "_theory")
    # Linear interpolation of both between the same tilts errs equally.
    quantity = "tilt of equal masses, sampled - the integrals'"
    lines = checks.agrees("line", quantity, at - exact_tilts.value, 0.0, largest_error=0.01, sigmas=SIGMAS)
    findings += [finding for finding, tilt in zip(lines, at.value.values.flat, strict=True) if np.isfinite(tilt)]
    sampled, expected = (expit(-values) for values in (gap.value, exact_gap))
    clear = np.abs(expected - 0.5) > CLEAR
    wrong = int((((sampled > 0.5) != (expected > 0.5)) & clear).sum())
    findings += checks.equal("phases", f"points in the wrong phase, of {int(clear.sum())} that are clear", wrong, 0)
    quiet = float((dataset["annealing_warnings"] > 0).mean()) <= 0.1
    condition = checks.complete("warnings", "at most one run in ten warns", quiet)
    return [*findings, *_exponents(jumps, exact), *condition]


def exponent(n: np.ndarray, values: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Exponent of n by least squares on logarithms, and its standard error."""
    finite = np.isfinite(values)
    if finite.sum() < 3:
        return np.nan, np.nan
    x = np.log(n[finite]) - np.log(n[finite]).mean()
    weight = x / (x @ x)
    return float(weight @ np.log(values[finite])), float(np.sqrt(weight**2 @ (errors[finite] / values[finite]) ** 2))


def _exponents(jumps: Estimate, exact: Estimate) -> list[Finding]:
    """Abrupt for p > 0, gradual for p < 0."""
    n, split = jumps.value.samples.astype(float), jumps.value.split

    def fit(jump: Estimate) -> Estimate:
        parts, cores = (n, jump.value, jump.error), [["samples"]] * 3
        return Estimate(
            *xr.apply_ufunc(exponent, *parts, input_core_dims=cores, output_core_dims=[[], []], vectorize=True)
        )

    exponents, exact_exponents = fit(jumps), fit(exact)
    finite, quantity = np.isfinite(exponents.value + exact_exponents.value), "exponent of J in n"
    selection, line = exponents.sel(split=finite), exact_exponents.value.sel(split=finite)
    complete = bool((split >= 1).any() and (split < 0).any() and len(n) > 2)
    return [
        *checks.agrees("exponent", quantity, selection, line, largest_error=0.03, sigmas=SIGMAS),
        *checks.above("abrupt", quantity, exponents.sel(split=finite & (split >= 1)), ABRUPT),
        *checks.below("gradual", quantity, exponents.sel(split=finite & (split < 0)), GRADUAL),
        *checks.complete("splits", "p of both signs, at three n", complete),
    ]


def figure(dataset: xr.Dataset):
    """Draw shares over the tilt at the second n, tilts of equal shares and J against n; lines: the integrals."""
    table, middle = dataset[["equal_tilt_theory"]], dataset.samples[:2][-1].item()
    for ending, suffix in (("", ""), ("_theory", "_line")):
        at, jump = equal_shares(dataset, ending)
        share = xr.apply_ufunc(expit, -_gap(dataset, f"phase_free_energy{ending}").value.sel(samples=middle, drop=True))
        table = table.assign({f"right_share{suffix}": share, f"phase_jump{suffix}": jump.value})
        if not ending:
            table = table.assign(equal_tilt=at.value, equal_tilt_error=at.error, phase_jump_error=jump.error)
    rows = [
        Panel("right_share", "right_share_line", x="tilt"),
        Panel("equal_tilt", "equal_tilt_theory", x="samples", xscale="log"),
        Panel("phase_jump", "phase_jump_line", x="samples", xscale="log", yscale="log"),
    ]
    return panels(table, rows, x="tilt", hue="split", line_name="integrals", columns=3)


N, TILTS = (30, 100, 300, 1000), tuple(round(-0.1 + 0.025 * i, 3) for i in range(13))

claim = Claim(
    title="A cusp: the posterior changes wells",
    sentence=(
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
        Quantity("right_share", "p", "posterior mass at $x > 0$"),
        Quantity("phase_jump", "J", "change of the mean of x at equal masses"),
        Quantity("equal_tilt", "q^*", "tilt of equal masses"),
    ),
    static=("split",),
    outputs=("phase",),
    fixed={"free": 4, "particles": 400, "repeats": 8},
    sizes={
        "smoke": {"split": (1.0,), "tilt": (0.0, 0.1), "samples": (30, 300), "phase": SIDES},
        "small": {"split": (-0.5, 0.0, 0.5, 1.0, 1.5), "tilt": TILTS[::2], "samples": N, "phase": SIDES},
        "medium": {"split": (-1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0), "tilt": TILTS, "samples": (*N, 3000)}
        | {"phase": SIDES},
    },
    precision="float64",
    controls={
        "even": Control("both wells determine as many directions", measure={"even": True}),
        "flat": Control("a quartic without wells", measure={"scale": 0.0}, axes={"split": (-0.5, 1.0)}),
        "loss_alone": Control("the right well determines no more", theory={"free": 0.0}),
        "other_temperature": Control("integrals at twice as many samples", theory={"over": 2.0}),
    },
)
