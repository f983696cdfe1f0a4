"""Two routes to one number: a closed form, and a simulation that shares no code with it.

Change the sentence, the formula and the measurement; keep what the check compares.
"""

from icllab.core.axes import Quantity
from icllab.figures.curves import curves
from icllab.lab import Claim, Control, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory.wishart import stieltjes


def theory(dataset):
    """The closed form beside the measurement."""
    closed_form = stieltjes(dataset["ridge"].values, fixed_values(dataset)["kappa"])
    return dataset.assign(trace_theory=("ridge", closed_form))


def check(dataset):
    """At finite d the trace is off by O(1/d): its limit is compared, with the standard error of the limit."""
    limits = estimates.limit(estimates.mean(dataset["trace"]), order=1)
    line = dataset["trace_theory"]
    return checks.agrees("trace", "trace of the resolvent, d to infinity", limits, line, largest_error=0.02 * line)


def figure(dataset):
    """Points with standard errors, and the closed form as a line."""
    return curves(dataset, x="ridge", y="trace", hue="dim", line="trace_theory", xscale="log", yscale="log")


claim = Claim(
    title="Resolvents of Wishart matrices",
    sentence="The trace of the resolvent of a Wishart matrix over its dimension d tends to the Marchenko-Pastur value.",
    conditions="Gaussian samples, two for each dimension; the limit of large d, from three dimensions.",
    sources=("MarchenkoPastur67",),
    quantities=(Quantity("trace", "m", "normalised trace of the resolvent"),),
    static=("dim",),
    sizes={
        "smoke": {"dim": (8, 16), "ridge": (0.1, 1.0), "seed": 20},
        "small": {"dim": (16, 32, 64), "ridge": (0.1, 0.3, 1.0, 3.0), "seed": 100},
    },
    fixed={"kappa": 2.0},
    precision="float64",
    controls={"heavy_rows": Control("every sample has a random scale", measure={"heavy": True})},
)
