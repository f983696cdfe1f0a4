r"""Is the change of weights small for a context of one token that flips the task?

A network has learned a task :math:`w_0` in its weights: without a context it answers :math:`w_0 \cdot x`. After
examples it answers by their task w, and after a flag of one token by :math:`-w_0`. Measured is how far :math:`f_c(w)`,
the weights that answer without the context as the network does with it, are from w, over the norm of the weights that
may move; and the same over the *effect*, the root mean square change of the answers,
:math:`\epsilon_c = \sqrt{2D_c}`.

:math:`f_c(w)` depends on a context through the answers alone. So the flag is compared with ordinary contexts of its own
length and of a greater one, and with examples of the flipped task, which ask for the same answers. Norm and
effect are root mean squares over contexts. In fast weights that the flag flips exactly the norm is 2.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

KINDS = ("flag", "one example", "ordinary", "flipped")
NETWORK, EXACT = "transformer", "fast_weights"
FLIPPED = 0.8  # fraction of variance explained by the flipped task
LEARNED = 0.6  # fraction explained by the task, without a context
LEFT = 0.1  # gap
NO_FURTHER = 1.1  # ratio of norms
ROUNDING = 1e-3


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Norm per effect, and the nulls as lines."""
    lines = {f"map_{name}_line": dataset[f"null_{name}"].mean("seed") for name in ("gap", "derivative")}
    return dataset.assign(lines | {"per_effect": dataset["moved"] / dataset["effect"]})


def check(dataset: xr.Dataset) -> list[Finding]:
    """The flag flips; its norm is not above that of the flipped task's examples, nor per effect that of others."""
    fraction, gap = (estimates.mean(dataset[name]) for name in ("flipped", "map_gap"))
    findings = checks.above("flips", "explained by the flipped task after the flag", fraction, FLIPPED)
    findings += checks.below("gap", "gap of the context's weights", gap, LEFT)
    converged = bool((dataset["zero_shot"] > LEARNED).all())
    findings += checks.complete("learned", f"the task explains more than {LEARNED:g} without a context", converged)
    if EXACT in dataset.family:
        exact = estimates.mean(dataset["moved"].sel(family=[EXACT], kind="flag"))
        findings += checks.near("exact", "norm of the flag in fast weights", exact, 2.0, margin=ROUNDING)
    if NETWORK in dataset.family:
        networks = dataset.sel(family=NETWORK, drop=True)
        flag, ordinary = networks.sel(kind="flag", drop=True), networks.sel(kind=["one example", "ordinary"])
        ratio = estimates.geometric_mean(flag["moved"] / networks["moved"].sel(kind="flipped", drop=True))
        quantity = "norm of the flag / of examples of the flipped task"
        findings += checks.below("no_further", quantity, ratio, NO_FURTHER)
        ratio = estimates.geometric_mean((flag["per_effect"] / ordinary["per_effect"]).transpose("kind", ...))
        findings += checks.below("per_effect", "norm per effect of the flag / of ordinary contexts", ratio, 1.0)
    return findings


def figure(dataset: xr.Dataset):
    """Norms of the change of weights, norms per effect, gaps and derivative tests beside their nulls."""
    family = NETWORK if NETWORK in dataset.family else EXACT
    part = dataset.isel(dim=0, drop=True).sel(family=family, drop=True)
    rows = [
        Panel("moved", hollow="unconverged"),
        Panel("per_effect", hollow="unconverged"),
        Panel("map_gap", "map_gap_line", yscale="log", hollow="unconverged"),
        Panel("map_derivative", "map_derivative_line", yscale="log", hollow="unconverged"),
    ]
    return panels(part, rows, x="kind", line_name="least of nulls", columns=2)


claim = Claim(
    title="One token flips the task",
    sentence=(
        "A one-token context that flips the task moves the weights no further than eight examples of the flipped task "
        "do, and less, for its effect, than ordinary contexts do."
    ),
    conditions=(
        "Transformers of two layers trained by Adam on linear regression around a task held in the weights; dense "
        "layers move, queries have one token; no further: 1.1 times at most. The sentence was chosen on other seeds."
    ),
    sources=("SLT22",),
    axes=(Axis("family", "F", "networks"), Axis("kind", "c", "context")),
    quantities=(
        Quantity("zero_shot", "R^2_0", "fraction of variance explained without a context"),
        Quantity("flipped", "R^2_-", "fraction of variance explained by the flipped task after the flag"),
        Quantity("moved", r"|\Delta w|/|w|", "norm of the change"),
        Quantity("effect", r"\epsilon_c", "root mean square change of the answers"),
        Quantity("per_effect", r"|\Delta w|/(|w|\epsilon_c)", "norm per effect"),
        Quantity("map_gap", r"\rho_c", "gap"),
        Quantity("null_gap", r"\rho_0", "least gap of the nulls"),
        Quantity("map_derivative", r"\tau_c", "derivative test"),
        Quantity("null_derivative", r"\tau_0", "least derivative test of the nulls"),
        Quantity("null_norm", r"|\Delta w|_0/|w|", "norm of the change for an unrelated target of equal effect"),
        Quantity("unconverged", "u", "fraction of fits that have not converged"),
    ),
    static=("family", "dim"),
    outputs=("kind",),
    fixed={"length": 8, "width": 16, "layers": 2, "heads": 2, "batch": 64, "updates": 1000}
    | {"contexts": 3, "queries": 96, "directions": 2, "draws": 2},
    sizes={
        "smoke": {"family": (EXACT,), "dim": (2,), "kind": KINDS[:2], "seed": 2},
        "small": {"family": (NETWORK, EXACT), "dim": (2,), "kind": KINDS, "seed": 8},
        "medium": {"family": (NETWORK, EXACT), "dim": (2, 4), "kind": KINDS, "seed": Seeds(16, block=4)},
    },
    key=16,
    controls={"halved": Control("the flag halves the task instead", measure={"factor": 0.5})},
)
