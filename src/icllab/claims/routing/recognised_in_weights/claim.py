r"""Do the tests of a program's map switch on when the program is recognised?

A program is learned at the time T at which half of what guessing costs is gone from the loss of its own answers. The
weights :math:`f_c(w)` answer strings without the program as w does with it. They are fitted on four fifths of all
strings, at multiples of T; measured on the others are the fraction of what the program does that they leave
(*prediction*), and the fraction of changes of w that they do not carry (*derivative*), each beside the same of two
nulls: another target at an equal distance (*unrelated*), and the map of a network with permuted weights (*untrained*).
A test that switches on with the transition is of the order of its nulls before it and far below them after it: here,
by a factor of ten from T/4 and T/2 to 2T and 4T.
"""

import numpy as np
import xarray as xr

from icllab.claims.routing._times import geometric
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.results import fixed_values

TESTS = ("prediction", "derivative")
NULLS = ("unrelated", "untrained")
MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)
RESOLVED = 1e-3  # fractions below this are as good as none
FACTOR = 10.0
GROWS = 2.0  # what the program does to answers, from T/4 to 4T
MOST = 0.25  # of the programs' times may be unknown


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Ratios of the tests to their nulls, before, through and after the transition; and when losses halve."""
    if "prediction" not in dataset:
        return dataset
    for name in TESTS:
        fraction, null = (np.maximum(dataset[variable], RESOLVED) for variable in (name, f"null_{name}"))
        # NaN of a fraction is left as it is.
        dataset = dataset.assign({f"{name}_ratio": fraction / null})
    plateau = float(np.log(fixed_values(dataset)["symbols"]))
    return dataset.assign(
        ratio_line=xr.ones_like(dataset["multiple"]), answer_time=halved(dataset["answer_loss"], plateau / 2)
    )


def halved(losses: xr.DataArray, level: float) -> xr.DataArray:
    """The multiple of T at which losses fall below a level for good, on a line in its logarithm; NaN for never.

    NaN too where they are below it from the first.
    """
    logs = np.log(losses["multiple"].values)

    def crossing(row: np.ndarray) -> float:
        above = np.flatnonzero(row >= level)
        if not np.isfinite(row).all() or not above.size or above[-1] == len(row) - 1:
            return np.nan
        i = int(above[-1])
        return float(np.exp(np.interp(level, row[[i + 1, i]], logs[[i + 1, i]])))

    return xr.apply_ufunc(crossing, losses, input_core_dims=[["multiple"]], vectorize=True)


def change(ratio: xr.DataArray) -> xr.DataArray:
    """The geometric mean after the transition over that before it."""
    logs = xr.apply_ufunc(np.log, ratio)
    later, before = logs.sel(multiple=[2.0, 4.0]).mean("multiple"), logs.sel(multiple=[0.25, 0.5]).mean("multiple")
    return xr.apply_ufunc(np.exp, (later - before).mean("context"))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Tests beat the unrelated target before the transition, and gain little on untrained networks through it."""
    unknown = float(dataset["effect"].isnull().mean())
    ends = dataset["effect"].sel(multiple=[dataset["multiple"].min(), dataset["multiple"].max()])
    growth = geometric(ends.isel(multiple=1, drop=True) / ends.isel(multiple=0, drop=True), "context")
    findings = checks.complete("learned", "three quarters of the times are known", unknown <= MOST)
    findings += checks.above("effect", "what the program does at 4T / at T/4", estimates.geometric_mean(growth), GROWS)
    for name in TESTS:
        ratio = dataset[f"{name}_ratio"]
        before = geometric(ratio.sel(multiple=0.25, null="unrelated", drop=True), "context")
        ratio_change = change(ratio.sel(null="untrained", drop=True))
        rows = {
            f"{name}_before": (checks.below, f"{name} at T/4 / of an unrelated target", before, 1.0),
            f"{name}_change": (
                checks.above,
                f"{name} / untrained network's: after T / before",
                ratio_change,
                1 / FACTOR,
            ),
        }
        for finding, (side, quantity, values, bound) in rows.items():
            findings += side(finding, quantity, estimates.geometric_mean(values), bound)
    return findings


def figure(dataset: xr.Dataset):
    """Both tests over each null, and losses of held-out answers, at multiples of a program's own time."""
    part = dataset.isel(directions=0, updates=0, drop=True)
    if "prediction" not in dataset:
        return panels(part, [Panel("effect", yscale="log")], x="multiple", hue="context", xscale="log")
    ratios = part[["ratio_line"]]
    for name in TESTS:
        mean = estimates.geometric_mean(geometric(part[f"{name}_ratio"], "context"))
        value = np.exp(mean.value)
        ratios = ratios.assign({f"{name}_ratio": value, f"{name}_ratio_error": value * mean.error})
    rows = [Panel(f"{name}_ratio", "ratio_line", yscale="log", ylim=(1e-2, 3e2)) for name in TESTS]
    rows.append(Panel("answer_loss", hue="answered_by"))
    table = ratios.assign(answer_loss=part["answer_loss"].mean("context"))
    return panels(table, rows, x="multiple", hue="null", xscale="log", line_name="as the null", columns=3)


FIXED = {"program": "abcd", "symbols": 5, "length": 2, "zipf_exponent": 1.5, "width": 8, "layers": 1, "heads": 2}
SMOKE = {"directions": (0,), "updates": (600,), "context": ("a",), "answered_by": ("program", "neither")}
SMOKE |= {"multiple": (0.25, 4.0), "null": NULLS, "seed": 2}
COMMON = {"directions": (4,), "updates": (4000,), "context": ("a", "d"), "answered_by": ("program", "map", "neither")}
COMMON |= {"multiple": MULTIPLES, "null": NULLS}

claim = Claim(
    title="Maps do not switch on with a program",
    sentence=(
        "No test of a program's map switches on with its own transition: both beat an unrelated target before it, "
        "and neither falls tenfold against untrained networks through it."
    ),
    conditions=(
        "Transformers of one layer and 802 weights, by Adam on four programs of power-law frequencies; the most "
        "and the least frequent, all weights, queries of two symbols and the sign. Chosen on five other seeds."
    ),
    sources=("SLT22",),
    axes=(
        Axis("context", "c", "program"),
        Axis("multiple", "t/T", "time over that of the program's own transition", above=0),
        Axis("null", "0", "null"),
        Axis("answered_by", "f", "predictor"),
        Axis("updates", "t", "updates in all", least=1),
        Axis("directions", "k", "random directions of the derivative test; 0: no map", least=0),
    ),
    quantities=(
        Quantity("effect", "D_c", "divergence of answers with the program from those without", "nats"),
        Quantity("prediction", r"\rho_c", "fraction of held-out answers' divergence left by the map"),
        Quantity("derivative", r"\tau_c", "fraction of changes that the map does not carry"),
        Quantity("null_prediction", r"\rho_0", "least of a null's fractions left"),
        Quantity("null_derivative", r"\tau_0", "least of a null's fractions not carried"),
        Quantity("prediction_ratio", r"\rho_c/\rho_0", "residual / residual of the null"),
        Quantity("derivative_ratio", r"\tau_c/\tau_0", "derivative test / that of the null"),
        Quantity("answer_loss", "L", "loss of the first symbol after held-out strings", "nats"),
        Quantity("answer_time", "t/T", "multiple of T at which that loss has halved"),
        Quantity("ratio", "1", "as the null"),
        "converged",
        "transition_time",
    ),
    static=("directions", "updates"),
    outputs=("context", "multiple", "null", "answered_by"),
    fixed=FIXED | {"batch": 32, "every": 10, "draws": 2},
    sizes={"smoke": SMOKE, "small": COMMON | {"seed": 10}, "medium": COMMON | {"seed": Seeds(32, block=4)}},
    key=31,
    precision="float64",
    controls={"untrained": Control("maps are of networks before training", measure={"trained": False})},
)
