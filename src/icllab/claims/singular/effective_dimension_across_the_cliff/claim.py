r"""Effective dimension where structure is acquired: induction heads, ranks of linear attention, a small network.

At a checkpoint :math:`w_t` the divergence of what is answered elsewhere from what is answered there,

.. math:: K_t(w) = E\,\mathrm{KL}\bigl(p_{w_t}\Vert p_w\bigr), \qquad F_t = \nabla^2K_t(w_t),

has its minimum at :math:`w_t`, wherever the loss is going. The effective dimension at the resolution
:math:`\rho = \gamma/n\beta` is :math:`\operatorname{tr}F_t(F_t+\rho)^{-1}`, and the coefficient
:math:`n\beta\,E[K_t]` under :math:`\exp(-n\beta K_t - \frac\gamma2|w-w_t|^2)` is half of it where :math:`K_t` is
quadratic as far as that reaches. ``landscape``: three strengths in closed form. ``head``: the same strengths, trained
on prompts with random items. ``attention``: linear attention, whose ranks are learned one after the other.
``network``: two layers of attention with a linear readout, 1440 weights. Derived: docs/abrupt-learning.md, What the
answers depend on.
"""

from typing import Any

import numpy as np
import xarray as xr

from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Estimate, Finding, checks, estimates
from icllab.lab.results import fixed_values
from icllab.theory import induction_landscape
from icllab.theory.learning_coefficients import reduced_rank_stratum

STRENGTHS = ("beta", "alpha", "xi")
NETWORK_PAIRS = 3
MODELS = ("landscape", "head", "attention", "network")
BEFORE, AFTER, LATE = 0, 1, 2  # stages of all but linear attention, whose stages are its ranks
TOP, FOOT = 0.9, 0.25  # of ln N: before is half-way to the first, after is at the second, late at the end
FALLEN = 0.9  # of the dimension after the cliff, at most, is left late
GAINED = 0.25  # dimensions, at least, at every resolution
FINEST = 0.001  # resolution at which dimensions of logits are judged: below it most of all weights are seen
AGREE = 0.1  # of the effective dimension: how near twice the coefficient by quadrature is to it
REMAINDER = 0.03  # of the coefficient: what the expansion in 1 / log nbeta leaves out, at most
SOUND = 0.9  # of the sampled coefficients of a rank warn of nothing, at least
LARGEST = 0.02  # standard error of a sampled coefficient, as a share of it
ROUNDING = 1e-9


def theory(dataset: xr.Dataset, counted: str = "answers", half: bool = False) -> xr.Dataset:
    """Effective dimensions of the landscape, ``counted`` for its answers or its loss, and coefficients of all ranks.

    ``half``: every weight counts a half, whatever the rank.
    """
    fixed = fixed_values(dataset)
    sizes: dict[str, Any] = {"pairs": fixed["pairs"], "labels": fixed["label_count"]}
    matrix = {"answers": induction_landscape.fisher_information, "loss": induction_landscape.hessian}[counted]

    def dimensions(w: np.ndarray) -> np.ndarray:
        if not np.isfinite(w).all():
            return np.full(dataset.sizes["resolution"], np.nan)
        steep = np.clip(np.linalg.eigvalsh(matrix(*w, **sizes)), 0, None)
        return (steep / (steep + dataset.resolution.values[:, None])).sum(1)

    how: dict[str, Any] = {"input_core_dims": [["strength"]], "output_core_dims": [["resolution"]], "vectorize": True}
    found = xr.apply_ufunc(dimensions, dataset["strengths"].sel(strength=list(STRENGTHS)), **how)
    found = found.assign_coords(resolution=dataset.resolution).where(dataset.model == "landscape")
    shape = (fixed["dim"], fixed["key_width"], fixed["dim"])
    ranks = [reduced_rank_stratum(*shape, rank, rank_in=rank, rank_out=rank) for rank in _ranks(dataset)]
    known = xr.DataArray([one.at(fixed["nbeta"]) for one in ranks], {"stage": _ranks(dataset)}, "stage")
    known = known * 0 + fixed["dim"] * fixed["key_width"] if half else known
    known = known.reindex_like(dataset.stage).where(dataset.model == "attention")
    return dataset.assign(effective_dimension_theory=found, learning_coefficient_theory=known)


def _ranks(dataset: xr.Dataset) -> list[int]:
    return [int(rank) for rank in dataset.stage.values if rank <= fixed_values(dataset)["key_width"]]


def check(dataset: xr.Dataset) -> list[Finding]:
    """Heads gain dimensions and late lose some, as a network does; linear attention has the coefficients of ranks."""
    there, findings = dataset.model.values.tolist(), []
    for name in ("landscape", "head"):
        findings += _head(dataset.sel(model=name, drop=True), name) if name in there else []
    findings += _ranks_climbed(dataset.sel(model="attention", drop=True)) if "attention" in there else []
    findings += _network(dataset.sel(model="network", drop=True)) if "network" in there else []
    return [*findings, *checks.complete("models", "heads, linear attention and a network", len(there) == len(MODELS))]


def _head(part: xr.Dataset, name: str) -> list[Finding]:
    """More dimensions after the cliff than before, and fewer late; quadrature and curvature agree."""
    at, dimension = {"model": name}, part["effective_dimension"]
    before, after, late = (dimension.sel(stage=stage, drop=True) for stage in (BEFORE, AFTER, LATE))
    what = "effective dimension after the cliff - before"
    findings = checks.above("rise", what, estimates.mean(after - before), GAINED, at=at)
    findings += checks.below(
        "fall", "effective dimension late / after", estimates.geometric_mean(late / after), FALLEN, at=at
    )
    both = part.sel(stage=[BEFORE, AFTER])
    if name == "landscape":
        known = both["effective_dimension_theory"]
        apart = abs(both["effective_dimension"] / known - 1).max("seed")
        what = "effective dimension by derivatives / closed form, less one"
        findings += checks.below("closed_form", what, Estimate(apart, 0.0), 1e-4, at=at)
        flat = Estimate(both["flat_share"].max("seed"), 0.0)
        findings += checks.below("two_numbers", "least eigenvalue / largest", flat, ROUNDING, at=at)
    twice = 2 * both["resolved_coefficient"] / both["effective_dimension"]
    error = (2 * both["resolved_coefficient_error"] / both["effective_dimension"]).max("seed")
    ratio = Estimate(twice.mean("seed"), error)
    what = "twice the coefficient by quadrature / effective dimension"
    findings += checks.near("quadrature", what, ratio, 1.0, margin=AGREE, at=at)
    quiet = bool((both["sampler_warnings"] == 0).all())
    return [*findings, *checks.complete("quiet", "the quadrature warns of nothing", quiet, at=at)]


def _ranks_climbed(part: xr.Dataset) -> list[Finding]:
    """On each plateau so many ranks, and the coefficient of that stratum."""
    part = part.sel(stage=_ranks(part))
    known, at, sound = part["learning_coefficient_theory"], {"model": "attention"}, part["sampler_warnings"] == 0
    lower, upper = part["learned_rank"].min("seed"), part["learned_rank"].max("seed")
    findings = checks.equal("rank", "least rank on the plateau", lower, part.stage.astype(float), at=at)
    findings += checks.equal("rank_most", "largest rank on the plateau", upper, part.stage.astype(float), at=at)
    enough = bool((sound.mean("seed") >= SOUND).all())
    part = part.isel(seed=sound.all("stage").values)  # a seed with an estimate that warns is left out
    if part.sizes["seed"] < 2:
        return [*findings, *checks.complete("quiet", "estimates that warn of nothing", False, at=at)]
    found = estimates.mean(part["learning_coefficient"])
    own = estimates.stored(part, "learning_coefficient").average("seed")
    larger = found.error >= own.error
    left_out = REMAINDER * known / checks.SIGMAS
    sampled = Estimate(
        found.value, xr.where(larger, found.error, own.error) + left_out, freedom=found.freedom.where(larger, np.inf)
    )
    what = "sampled coefficient (3 % left to the expansion)"
    findings += checks.agrees("coefficient", what, sampled, known, largest_error=LARGEST * known + left_out, at=at)
    steps = estimates.mean(part["learning_coefficient"].diff("stage"))
    findings += checks.above("step", "coefficient less that of one rank fewer", steps, at=at)
    what = "at least nine in ten estimates of every rank warn of nothing"
    return [*findings, *checks.complete("quiet", what, enough, at=at)]


def _network(part: xr.Dataset) -> list[Finding]:
    """Fewer dimensions late; and of its logits more after the jump than before."""
    at, learned = {"model": "network"}, part["label_loss"].sel(stage=LATE, drop=True) < np.log(NETWORK_PAIRS) * FOOT
    findings = checks.complete("learned", "every network has learned the task", bool(learned.all()), at=at)
    before, after, late = (part.sel(stage=stage, drop=True) for stage in (BEFORE, AFTER, LATE))
    lost = estimates.geometric_mean(late["effective_dimension"] / after["effective_dimension"])
    seen = part.resolution.values >= FINEST
    gained = estimates.geometric_mean((after["logit_dimension"] / before["logit_dimension"]).sel(resolution=seen))
    return [
        *findings,
        *checks.below("fall", "effective dimension late / after", lost, FALLEN, at=at),
        *checks.above("logits", "effective dimension of the logits after the jump / before", gained, 1.0, at=at),
    ]


def figure(dataset: xr.Dataset):
    """The effective dimension against the resolution at each stage; of linear attention alone, coefficients by rank."""
    names = {BEFORE: "before", AFTER: "after", LATE: "late"}
    some = [name for name in ("landscape", "head", "network") if name in dataset.model.values]
    if not some:
        ranks = dataset.assign(learning_coefficient_line=dataset["learning_coefficient_theory"])
        return panels(ranks, [Panel("learning_coefficient", "learning_coefficient_line")], x="stage", hue="model")
    part = dataset.sel(model=some, stage=list(names)).assign_coords(stage=list(names.values()))
    shown = part[["effective_dimension"]].assign(
        effective_dimension_line=part["effective_dimension_theory"].mean("seed")
    )
    rows = [Panel("effective_dimension", "effective_dimension_line", yscale="log", at={"model": name}) for name in some]
    return panels(shown.assign_attrs(dataset.attrs), rows, x="resolution", xscale="log", hue="stage")


COMMON = {"strength": STRENGTHS, "stage": (0, 1, 2, 3), "resolution": (0.1, 0.01, 0.001, 0.0001)}

claim = Claim(
    sentence=(
        "Effective dimension rises where structure is acquired, in linear attention by each rank's exact step and in "
        "induction heads, and falls afterwards where answers become certain."
    ),
    conditions=(
        "Dimensions of answers, whatever the loss does, at resolutions from 0.1 to 0.0001: half-way to the cliff, at "
        "its foot and late. Linear attention on each plateau, coefficients at n beta = 72,382. Of a network of 1440 "
        "weights the fall alone is claimed; of its logits the dimension rises too, at resolutions from 0.001."
    ),
    sources=("Reddy24", "Aoyagi05", "Hoogland24"),
    axes=(
        Axis("stage", "s", "stage of learning: before, after and late, or rank", least=0),
        Axis("resolution", r"\rho", "resolution", above=0),
    ),
    quantities=(
        "learning_coefficient",
        "sampler_warnings",
        "label_loss",
        Quantity("strengths", "w", "strengths of the head"),
        Quantity("effective_dimension", r"d_{\mathrm{eff}}", "effective dimension of the answers"),
        Quantity("logit_dimension", r"d_{\mathrm{eff}}", "effective dimension of the logits"),
        Quantity("resolved_coefficient", r"n\beta E[K]", "coefficient at the resolution"),
        Quantity("flat_share", r"h_{\min}/h_{\max}", "least eigenvalue over the largest"),
        Quantity("learned_rank", "r", "rank of the attention"),
        Quantity("sampler_rhat", r"\hat R", "R-hat of the divergence"),
    ),
    static=("model",),
    outputs=("strength", "stage", "resolution"),
    fixed={"pairs": 4, "label_count": 16, "content": 31, "prompts": 24, "points": 45, "localization": 1000.0}
    | {"dim": 4, "key_width": 3, "length": 2, "nbeta": 72382.0, "chains": 8, "warm_up": 500}
    | {"network_prompts": 128, "network_steps": 5000, "network_rate": 0.2},
    sizes={
        "smoke": COMMON | {"model": ("landscape",), "stage": (0, 1, 2), "resolution": (0.1, 0.01), "seed": 2},
        "small": COMMON | {"model": MODELS, "seed": 10},
        "medium": COMMON | {"model": MODELS, "seed": Seeds(20, block=5)},
    },
    precision="float64",
    key=2,
    controls={
        "formed": Control("both attentions are formed at the start: there is no cliff", measure={"formed": 8.0}),
        "together": Control(
            "all ranks of linear attention come at once",
            measure={"together": True},
            axes={"model": ("attention",), "stage": (0, 1), "seed": (0, 1)},
        ),
        "of_the_loss": Control(
            "the curvature is that of the loss, which is going down somewhere", theory={"counted": "loss"}
        ),
        "regular": Control("every weight of linear attention counts a half", theory={"half": True}),
        "of_logits": Control(
            "answers are logits of unit variance, and not probabilities",
            measure={"logits": True},
            axes={"model": ("network",), "seed": tuple(range(10))},
        ),
    },
)
