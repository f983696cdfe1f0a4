r"""The error of a trained transformer peaks at a number n of training prompts that grows like :math:`d^2`.

A network memorises few prompts; its error on fresh tasks is largest as n nears what it can just fit. The peak is the
maximum of a polynomial in :math:`\ln n` through the mean log errors; its position is fitted by
:math:`\ln n_{\text{peak}} = a + b \ln d`. Training has equally many epochs of :math:`d^2` prompts at every d: with
fewer the peak comes at fewer prompts. The readout starts near zero: at its usual size the untrained network would
answer at random, with an error as large as that of the peak.
"""

import numpy as np
import xarray as xr

from iclbook.claims.asymptotics._statistics import DEGREE, peak, peaks, slope
from icllab.core.axes import Axis, Quantity
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, Outcome, checks
from icllab.lab.estimates import geometric_mean

ROUNDING = 1e-12  # a training error below it is rounding
RATIOS = (0.25, 0.5, 0.75, 1.0, 1.3, 1.7, 2.2, 3.0, 6.0)
FACTOR = 10.0  # between errors of prompts that are fitted exactly and of others, at least
LARGEST = 0.14  # standard error of the slope: an interval that holds 2 is so short that it does not hold 1


def theory(dataset: xr.Dataset, exponent: float = 2.0) -> xr.Dataset:
    """The exponent of n at the peak, and polynomials through the mean log errors, for the figure."""
    ratios = dataset.prompt_ratio.values
    line = np.geomspace(ratios.min(), ratios.max(), 121)
    logarithms = xr.apply_ufunc(np.log, dataset["icl_error"].transpose("prompt_ratio", "dim", "epochs", "seed"))
    coefficients = peaks(ratios, logarithms.values.mean(axis=3).reshape(len(ratios), -1))[1]
    values = (np.vander(np.log(line), DEGREE + 1) @ coefficients).reshape(len(line), *logarithms.shape[1:3])
    return dataset.assign_coords(prompt_ratio_line=line).assign(
        log_icl_error=logarithms,
        log_icl_line=(("prompt_ratio_line", "dim", "epochs"), values),
        peak_exponent=exponent,
    )


def check(dataset: xr.Dataset) -> list[Finding]:
    """After the longest training few prompts are memorised, and the error peaks at an n that grows like d^2."""
    longest = dataset.isel(epochs=-1, drop=True)
    fresh = longest["icl_error"].transpose("dim", "prompt_ratio", "seed")
    training = longest["training_error"].clip(min=ROUNDING)
    place = xr.apply_ufunc(np.log, fresh).mean("seed").argmax("prompt_ratio")
    top = fresh.isel(prompt_ratio=place).drop_vars("prompt_ratio")
    fewest, most_prompts = (fresh.isel(prompt_ratio=end, drop=True) for end in (0, -1))
    own_few, own_many = (training.isel(prompt_ratio=end, drop=True) for end in (0, -1))
    memorisation, not_all = geometric_mean(fewest / own_few), geometric_mean(own_many / own_few)
    return [
        *checks.above("memorised", "fresh / training error, fewest prompts", memorisation, FACTOR),
        *checks.above("not_all", "training error, most / fewest prompts", not_all, FACTOR),
        *checks.complete(
            "above_fewest", "errors at the peaks exceed those of the fewest prompts", _above(top / fewest)
        ),
        *checks.complete(
            "above_most", "errors at the peaks exceed those of the most prompts", _above(top / most_prompts)
        ),
        *_scaling(fresh, float(dataset["peak_exponent"])),
    ]


def _above(ratio: xr.DataArray) -> bool:
    """True if all mean ratios are clearly above 1."""
    findings = checks.above("ratio", "error at the peak / elsewhere", geometric_mean(ratio), 1.0)
    return all(finding.outcome is Outcome.HOLDS for finding in findings)


def _scaling(fresh: xr.DataArray, exponent: float) -> list[Finding]:
    """Slope of log n at the peak on log d, from at least three dimensions, against the exponent."""
    dims, ratios = fresh.dim.values, fresh.prompt_ratio.values
    place, error = np.array([peak(ratios, errors) for errors in fresh.values]).T
    inside = int(np.isfinite(error).sum())
    findings = checks.complete("peaks", "peaks lie inside the grid, of 3 dimensions or more", inside == len(dims) >= 3)
    if inside >= 2:
        estimate = Estimate(*slope(dims, place + 2 * np.log(dims), error), freedom=fresh.sizes["seed"] - 1)
        words = "slope of log n at the peak on log d"
        findings += checks.agrees("slope", words, estimate, exponent, largest_error=LARGEST)
    return findings


def figure(dataset: xr.Dataset):
    """Draw the error on fresh tasks against n/d^2 after every training, and the training error after the longest."""
    lengths = dataset.epochs.values.tolist()
    rows = [Panel("log_icl_error", line="log_icl_line", at={"epochs": length}) for length in lengths]
    rows.append(Panel("training_error", yscale="log", ylim=(1e-6, 2.0), at={"epochs": lengths[-1]}))
    return panels(dataset, rows, x="prompt_ratio", hue="dim", line_name="polynomial through the means", xscale="log")


claim = Claim(
    title="A transformer's error peaks",
    sentence=(
        "A one-block softmax transformer trained on n fixed prompts fits few of them exactly and errs most on fresh "
        "tasks at an n that grows like d^2."
    ),
    conditions=(
        "As many examples as dimensions, d = 4 to 11; Adam for 16000 epochs of d^2 prompts, whose rate is annealed to "
        "zero. The interval of the slope of log n at the peak on log d holds 2 and not 1."
    ),
    sources=("Lu24",),
    axes=(Axis("prompt_ratio", "n/d^2", "training prompts over dimension squared", above=0),),
    quantities=(
        "icl_error",
        "training_error",
        Quantity("log_icl_error", r"\ln e_{\mathrm{ICL}}", "log error, fresh tasks"),
        Quantity("log_icl_line", r"\ln e_{\mathrm{ICL}}", "log error, fresh tasks, a curve through the means"),
        Quantity("peak_exponent", "b", "exponent of n at the peak"),
    ),
    static=("dim", "epochs"),
    fixed={"alpha": 1.0, "rho": 0.01, "batch": 64, "rate": 5e-3, "readout": 0.05, "prompts": 8192},
    sizes={
        "smoke": {"dim": (4,), "epochs": (4000,), "prompt_ratio": (0.25, 1.5, 6.0), "seed": 4},
        "small": {"dim": (4, 6, 8), "epochs": (16000,), "prompt_ratio": RATIOS, "seed": 20},
        "medium": {"dim": (4, 6, 8, 11), "epochs": (4000, 16000), "prompt_ratio": RATIOS, "seed": 12},
    },
    controls={
        "everything": Control("every network is trained on the largest set of prompts", {"everything": True}),
        "like_d": Control("n at the peak grows like d", theory={"exponent": 1.0}),
    },
)
