r"""The loss of one daughter phase and its effective dimension, across its transition.

A program's own loss falls at the time T at which half of what guessing a symbol costs above the entropy is gone. Its
effective dimension is that of its own answers at the resolution :math:`\rho`,

.. math:: d_c = \sum_i \frac{h_i}{h_i + \rho},

with the eigenvalues :math:`h_i` of the Fisher matrix of a network's answers to prompts of that program alone. Of a
phase in which it stands for twice a learning coefficient, a daughter's transition to lower loss and higher complexity
is one where :math:`d_c` rises. A certain answer has no Fisher information, whatever the weights. So symbols of answers
are replaced by others with the probability :math:`\epsilon`, and answers stay uncertain.

Measured is :math:`R_c = d_c(2T_c) / d_c(T_c/2)`; and, since everything changes along training, that over the geometric
mean of the same of the other programs, :math:`d_{c'}(2T_c) / d_{c'}(T_c/2)`.
"""

import numpy as np
import xarray as xr

from iclbook.claims.routing import _times
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values

PROGRAMS = ("a", "b", "c", "d", "e", "f")
STEPS = (0, *(int(step) for step in np.unique(np.geomspace(40, 2400, 14).astype(int))))
ENOUGH = 5  # programs of a network
AROUND = 2.0
LAG = 4  # of the control


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Assign learning times, and ratios of effective dimensions around them."""
    numbers, losses = fixed_values(dataset), dataset["program_loss"].isel(layers=0, drop=True)
    time = _times.times(losses, plateau=plateau(numbers))["transition_time"]
    dimension = dataset["effective_dimension"].isel(layers=0, drop=True).transpose("seed", "program", "step")
    changes = np.array(
        [_changes(d, t, dataset.step.values) for d, t in zip(dimension.values, time.values, strict=True)]
    )
    diagonal = np.diagonal(changes, axis1=1, axis2=2)
    remainder = (changes.sum(axis=2) - diagonal) / max(1, changes.shape[1] - 1)
    changes_of = {"dimension_ratio": diagonal, "relative_ratio": diagonal - remainder}
    return dataset.assign({name: (("seed", "program"), np.exp(values)) for name, values in changes_of.items()}).assign(
        ratio_line=xr.ones_like(dataset.program, dtype=float), transition_time=time
    )


def plateau(numbers) -> float:
    """Loss of guessing a symbol minus the entropy, in nats."""
    symbols, wrong = numbers["symbols"], numbers["noise"] / numbers["symbols"]
    p = np.array([1 - (symbols - 1) * wrong, *[wrong] * (symbols - 1)])
    return float(np.log(symbols) + np.sum(p * np.log(p)))


def _changes(dimension: np.ndarray, time: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Rise of the log dimension [program, answering program] of one network around a program's time.

    NaN where the time is not known, or where it is too late.
    """
    at = np.log(np.maximum(steps, 1))

    def value(of: np.ndarray, t: float) -> float:
        return float(np.interp(np.log(t), at, np.log(of))) if 1 < t <= steps[-1] else np.nan

    return np.array([[value(d, AROUND * t) - value(d, t / AROUND) for d in dimension] for t in time])


def check(dataset: xr.Dataset) -> list[Finding]:
    """Effective dimensions rise around their own program's time, and more than others do at that time."""
    timely = dataset["dimension_ratio"].notnull().sum("program")
    quantity = f"at least {ENOUGH} programs of every network are learned in time"
    findings = checks.complete("learned", quantity, bool((timely >= ENOUGH).all()))
    for name, words in (("dimension_ratio", ""), ("relative_ratio", " / that of other programs then")):
        ratio = estimates.geometric_mean(_times.geometric(dataset[name], "program"))
        quantity = f"effective dimension at 2T / at T/2{words}"
        findings += checks.above(name.removesuffix("_ratio"), quantity, ratio, 1.0)
    return findings


def figure(dataset: xr.Dataset):
    """Draw losses and effective dimensions of three programs along training, and both ratios of every program."""
    part = dataset.isel(layers=0, drop=True).isel(step=slice(1, None))
    curves = part.sel(program=[name for name in ("a", "c", "f") if name in part.program]).rename(program="context")
    ratios = part[["dimension_ratio", "relative_ratio", "ratio_line"]]
    rows = [
        Panel("program_loss", x="step", hue="context", xscale="log"),
        Panel("effective_dimension", x="step", hue="context", xscale="log"),
        Panel("dimension_ratio", "ratio_line", x="program"),
        Panel("relative_ratio", "ratio_line", x="program"),
    ]
    table = curves[["program_loss", "effective_dimension"]].merge(ratios).assign_attrs(dataset.attrs)
    return panels(table, rows, x="step", hue="context", line_name="no change", columns=2)


claim = Claim(
    title="Effective dimension of one program",
    sentence=(
        "Across its own transition a program's effective dimension rises, and more than those of the other programs do "
        "at the same updates."
    ),
    conditions=(
        "Transformers of two layers trained by Adam on six programs of frequencies 1/rank, answers with noise, at a "
        "resolution of 0.001; from T/2 to 2T. The sentence was chosen on three other seeds."
    ),
    sources=("SLT22",),
    axes=(_times.PROGRAM, Axis("context", "c", "program")),
    quantities=(
        _times.PROGRAM_LOSS,
        Quantity("effective_dimension", "d_c", "effective dimension of the program's answers"),
        Quantity("dimension_ratio", "R_c", "effective dimension at 2T over that at T/2"),
        Quantity("relative_ratio", "R_c/R", "ratio relative to the other programs"),
        Quantity("ratio", "1", "no change"),
        "transition_time",
    ),
    static=("layers",),
    outputs=("program", "step"),
    fixed={"symbols": 5, "length": 2, "zipf_exponent": 1.0, "noise": 0.25, "resolution": 1e-3}
    | {"width": 16, "heads": 2, "batch": 64, "prompts": 256, "answered": 24},
    sizes={
        "smoke": {"layers": (1,), "program": PROGRAMS[:1], "step": (0, 60), "seed": 2},
        "small": {"layers": (2,), "program": PROGRAMS, "step": STEPS, "seed": 12},
        "medium": {"layers": (2,), "program": PROGRAMS, "step": STEPS, "seed": Seeds(32, block=4)},
    },
    key=28,
    controls={
        "lagging": Control(
            "effective dimensions are those after four times as many updates",
            measure={"lag": LAG},
            axes={"seed": tuple(range(10)), "step": tuple(step for step in STEPS if LAG * step <= STEPS[-1])},
        ),
    },
)
