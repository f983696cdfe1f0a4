r"""Does a context of one token that flips the task need small changes of weights, or is it the size of its effect?

A network has learned a task :math:`w_0` in its weights: without a context it answers :math:`w_0 \cdot x`, after
examples by their task, and after a flag of one token by :math:`-w_0`. Measured is how far :math:`f_c(w)`, the weights
that answer without the context as the network does with it, are from w, over the norm of the weights that may move.

That norm depends on the *effect*, the root mean square change of the answers, and grows more slowly than it. So the
flag is compared at equal effect with linear targets that no context asks for, :math:`T_w(x) + a\,u \cdot x` with a
function across the task, :math:`u \perp w_0`: whether what the flag asks for is cheap. The flip itself,
:math:`u = -w_0`, is what the flag asks for, so that at its effect it has to cost as much; it is there for its growth.
In fast weights that the flag flips exactly the norm is 2, proportional to the effect, and all directions cost the same.
"""

import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates

FLIP, ACROSS = TARGETS = ("the flip", "across")
SCALES = (0.25, 0.5, 1.0)
NETWORK, EXACT = "transformer", "fast_weights"
FLIPPED = 0.8  # fraction of variance explained by the flipped task
LEARNED = 0.6  # fraction explained by the task, without a context
LEFT = 0.1  # gap
ALIKE = 0.3  # of the logarithm of a ratio of norms
LESS = 0.9  # ratio of norms per effect
LOST = 0.25  # fraction of fits
ROUNDING = 1e-3


def theory(dataset: xr.Dataset) -> xr.Dataset:
    """Norm per effect, with the flag's norm per effect as a line."""
    flag = (dataset["flag_moved"] / dataset["flag_effect"]).mean("seed")
    line = flag * xr.ones_like(dataset["scale"], dtype=float)
    return dataset.assign(per_effect=dataset["moved"] / dataset["effect"], per_effect_line=line)


def check(dataset: xr.Dataset) -> list[Finding]:
    """The flag flips; at equal effect it costs as much as one across the task; costs grow more slowly than effects."""
    findings = checks.above(
        "flips", "explained by the flipped task after the flag", estimates.mean(dataset["flipped"]), FLIPPED
    )
    learned = bool((dataset["zero_shot"] > LEARNED).all())
    findings += checks.complete("learned", f"the task explains more than {LEARNED:g} without a context", learned)
    gaps = [dataset[name].mean("seed") for name in ("map_gap", "flag_map_gap")]
    fitted = all(bool((gap < LEFT).all()) for gap in gaps)
    findings += checks.complete("fitted", f"maps leave less than {LEFT:g} of each effect", fitted)
    lost = max(float(dataset[name].mean("seed").max()) for name in ("unconverged", "flag_unconverged"))
    findings += checks.complete("converged", "three quarters of the fits have converged", lost <= LOST)
    if EXACT in dataset.family:
        exact = estimates.mean(dataset["flag_moved"].sel(family=[EXACT]))
        findings += checks.near("exact", "norm of the flag in fast weights", exact, 2.0, margin=ROUNDING)
    if NETWORK in dataset.family:
        networks = dataset.sel(family=NETWORK, drop=True)
        ratio = networks["flag_moved"] / networks["moved"].sel(scale=1.0, drop=True)
        alike = estimates.geometric_mean(ratio.sel(target=[ACROSS]))
        findings += checks.near("as_others", "norm of the flag / of an equal effect", alike, 1.0, margin=ALIKE)
        per_effect = networks["moved"] / networks["effect"]
        fall = per_effect.sel(scale=1.0, drop=True) / per_effect.sel(scale=SCALES[0], drop=True)
        quantity = f"norm per effect of a target / of {SCALES[0]:g} of it"
        findings += checks.below("grows_slower", quantity, estimates.geometric_mean(fall), LESS)
    return findings


def figure(dataset: xr.Dataset):
    """Draw norms, norms per effect with the flag's as a line, and gaps of targets against their effect."""
    family = NETWORK if NETWORK in dataset.family else EXACT
    part = dataset.isel(dim=0, drop=True).sel(family=family, drop=True)
    rows = [
        Panel("moved", hollow="unconverged"),
        Panel("per_effect", "per_effect_line", hollow="unconverged"),
        Panel("map_gap", yscale="log", hollow="unconverged"),
    ]
    return panels(part, rows, x="scale", hue="target", line_name="the flag", columns=3)


claim = Claim(
    title="One token flips the task",
    sentence=(
        "A one-token flag that flips the task moves the weights as far as linear targets of equal effect across the "
        "task do, which no context asks for."
    ),
    conditions=(
        "Transformers of two layers trained by Adam on linear regression around a task held in the weights; dense "
        "layers move, queries have one token; as far: within a factor of exp .3. Fits that do not converge are left "
        "out. Chosen on other keys."
    ),
    sources=("SLT22",),
    axes=(
        Axis("family", "F", "networks"),
        Axis("target", "u", "what is asked for"),
        Axis("scale", "s", "effect relative to the flag", above=0),
    ),
    quantities=(
        Quantity("zero_shot", "R^2_0", "fraction of variance explained without a context"),
        Quantity("flipped", "R^2_-", "fraction of variance explained by the flipped task after the flag"),
        Quantity("flag_moved", r"|\Delta w|/|w|", "norm of the flag's change"),
        Quantity("flag_effect", r"\epsilon_c", "root mean square change of the answers by the flag"),
        Quantity("flag_map_gap", r"\rho_c", "gap of the flag's weights"),
        Quantity("flag_unconverged", "u", "fit of the flag that has not converged"),
        Quantity("moved", r"|\Delta w|/|w|", "norm of the change"),
        Quantity("effect", r"\epsilon", "root mean square change of the answers"),
        Quantity("per_effect", r"|\Delta w|/(|w|\epsilon)", "norm per effect"),
        Quantity("map_gap", r"\rho", "gap"),
        Quantity("unconverged", "u", "fit that has not converged"),
    ),
    static=("family", "dim"),
    outputs=("target", "scale"),
    fixed={"length": 8, "width": 16, "layers": 2, "heads": 2, "batch": 64, "updates": 1000, "queries": 96},
    sizes={
        "smoke": {"family": (EXACT,), "dim": (2,), "target": TARGETS, "scale": (0.25, 1.0), "seed": 2},
        "small": {"family": (NETWORK, EXACT), "dim": (2,), "target": TARGETS, "scale": SCALES}
        | {"seed": Seeds(16, block=8)},
        "medium": {"family": (NETWORK, EXACT), "dim": (2, 4), "target": TARGETS, "scale": SCALES}
        | {"seed": Seeds(48, block=8)},
    },
    key=459,  # on another the sentence had the targets along the task, which are what the flag asks for
    controls={
        "halved": Control("the flag halves the task instead", measure={"factor": 0.5}, axes={"family": (EXACT,)}),
        "quarter_effect": Control(
            "other targets have a quarter of the effect",
            measure={"effect": 0.25},
            axes={"family": (NETWORK,), "seed": tuple(range(8))},
        ),
        "linear": Control("every network is fast weights", measure={"linear": True}, axes={"family": (NETWORK,)}),
    },
)
