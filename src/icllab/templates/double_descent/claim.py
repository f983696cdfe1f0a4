"""Double descent of linear attention: the error peaks at :math:`n = d(d+1)` contexts, as many as parameters.

``tau`` is n/(d(d+1)). Near the peak errors have no mean: their geometric means are compared. Change the architecture,
the ridge or the distribution of tasks, and ask whether the peak stays.
"""

from icllab.figures.curves import curves
from icllab.lab import Claim, Control, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory.linear_attention import icl_error


def theory(dataset):
    """The closed form of the limit of large d."""
    return dataset.assign(icl_theory=("tau", icl_error(tau=dataset["tau"].values, **fixed_values(dataset))))


def check(dataset):
    """At every d the error at the peak is over twice that on either side; the rest follows the closed form."""
    errors = dataset["icl_error"]
    peak = estimates.geometric_mean(errors.sel(tau=1.0, drop=True))
    findings = []
    for tau in (0.5, 2.0):
        side = estimates.geometric_mean(errors.sel(tau=tau, drop=True))
        findings += checks.above(
            "peak", f"error at tau = 1 over that at tau = {tau:g}", peak / side, 2.0, at={"tau": tau}
        )
    away = dataset.sel(tau=[0.5, 2.0]).isel(dim=-1)  # the largest: the closed form is that of the limit
    line = away["icl_theory"]
    return [*findings, *checks.near("error", "error", estimates.mean(away["icl_error"]), line, margin=line / 2)]


def figure(dataset):
    """Points with standard errors, and the closed form as a line."""
    return curves(dataset, x="tau", y="icl_error", hue="dim", line="icl_theory", xscale="log", yscale="log")


claim = Claim(
    title="Error peaks at n = d(d+1) contexts",
    sentence=(
        "The error of ridgeless linear attention peaks at n = d(d+1) contexts, and is within 50 % of its closed "
        "form at half and twice as many."
    ),
    conditions="alpha = 10, kappa = 0.5, rho = 0.01; d = 8 and 16; the closed form is compared at d = 16.",
    sources=("Lu24",),
    quantities=("icl_error", "icl_theory"),
    static=("dim", "tau"),
    sizes={
        "smoke": {"dim": (4, 8), "tau": (0.5, 1.0, 2.0), "seed": 6},
        "small": {"dim": (8, 16), "tau": (0.5, 1.0, 2.0), "seed": 24},
    },
    fixed={"alpha": 10.0, "kappa": 0.5, "rho": 0.01},
    key=1,  # another than that of the pilot, on which the bounds were set
    controls={
        "ridge": Control("the fit has a ridge", measure={"ridge": 1.0}),
        "shuffled": Control("the labels of the contexts are permuted", measure={"shuffled": True}),
    },
)
