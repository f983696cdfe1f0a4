r"""Effective dimension while structure forms: induction heads, ranks of linear attention, a small network.

At a checkpoint :math:`w_t` the divergence of the answers at w from those at :math:`w_t`,

.. math:: K_t(w) = E\,\mathrm{KL}\bigl(p_{w_t}\Vert p_w\bigr), \qquad F_t = \nabla^2K_t(w_t),

has its minimum at :math:`w_t`, whatever the slope of the loss. The effective dimension at the resolution
:math:`\rho = \gamma/n\beta` is :math:`\operatorname{tr}F_t(F_t+\rho)^{-1}`, and the coefficient
:math:`n\beta\,E[K_t]` under :math:`\exp(-n\beta K_t - \frac\gamma2|w-w_t|^2)` is half of it where :math:`K_t` is
quadratic at that scale. ``landscape``: three strengths in closed form. ``head``: the same strengths, trained on prompts
with random items. ``attention``: linear attention, which learns its ranks in sequence. ``network d``: two layers of
attention with a linear readout, on items of d dimensions; 792, 1440 and 3312 weights. Derived: docs/abrupt-learning.md,
What the answers depend on.
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
NETWORKS = {"network 8": 8}
MODELS = ("landscape", "head", "attention", *NETWORKS)
BEFORE, AFTER, LATE = 0, 1, 2  # stages of all but linear attention, whose stages are its ranks
TOP, FOOT = 0.9, 0.25  # losses over ln N: before is half-way to the first, after is at the second, late at the end
FALLEN = 0.9  # largest ratio of the dimension late to that after the cliff
GAINED = 0.25  # least gain of dimensions, at every resolution
FINE = 0.001  # up to where answers of a network lose dimensions at the jump
FINEST = 0.001  # finest resolution for dimensions of logits: below it most weights count
AGREE = 0.1  # relative margin of twice the coefficient by quadrature around the effective dimension
REMAINDER = 0.03  # largest relative remainder of the expansion in 1 / log nbeta
SOUND = 0.6  # least fraction of the sampled coefficients of a rank without a warning
LARGEST = 0.02  # relative standard error of a sampled coefficient
ROUNDING = 1e-9


def theory(dataset: xr.Dataset, counted: str = "answers", half: bool = False) -> xr.Dataset:
    """Effective dimensions of the landscape, ``counted`` by its answers or its loss, and coefficients of all ranks.

    ``half``: every weight counts a half, whatever the rank.
    """
    parameters = fixed_values(dataset)
    sizes: dict[str, Any] = {"pairs": parameters["pairs"], "labels": parameters["label_count"]}
    matrix = {"answers": induction_landscape.fisher_information, "loss": induction_landscape.hessian}[counted]

    def dimensions(w: np.ndarray) -> np.ndarray:
        if not np.isfinite(w).all():
            return np.full(dataset.sizes["resolution"], np.nan)
        steep = np.clip(np.linalg.eigvalsh(matrix(*w, **sizes)), 0, None)
        return (steep / (steep + dataset.resolution.values[:, None])).sum(1)

    predictions = xr.apply_ufunc(
        dimensions,
        dataset["strengths"].sel(strength=list(STRENGTHS)),
        input_core_dims=[["strength"]],
        output_core_dims=[["resolution"]],
        vectorize=True,
    )
    predictions = predictions.assign_coords(resolution=dataset.resolution).where(dataset.model == "landscape")
    shape = (parameters["dim"], parameters["key_width"], parameters["dim"])
    ranks = [reduced_rank_stratum(*shape, rank, rank_in=rank, rank_out=rank) for rank in _ranks(dataset)]
    coefficients = xr.DataArray(
        [coefficient.at(parameters["nbeta"]) for coefficient in ranks], {"stage": _ranks(dataset)}, "stage"
    )
    if half:
        coefficients = xr.full_like(coefficients, parameters["dim"] * parameters["key_width"])
    coefficients = coefficients.reindex_like(dataset.stage).where(dataset.model == "attention")
    return dataset.assign(effective_dimension_theory=predictions, learning_coefficient_theory=coefficients)


def _ranks(dataset: xr.Dataset) -> list[int]:
    return [int(rank) for rank in dataset.stage.values if rank <= fixed_values(dataset)["key_width"]]


def check(dataset: xr.Dataset) -> list[Finding]:
    """Heads gain dimensions, networks lose some at fine ones, all do later; ranks have their coefficients."""
    models, findings = dataset.model.values.tolist(), []
    for name in ("landscape", "head"):
        findings += _head(dataset.sel(model=name, drop=True), name) if name in models else []
    findings += _ranks_climbed(dataset.sel(model="attention", drop=True)) if "attention" in models else []
    for name in NETWORKS:
        findings += _network(dataset.sel(model=name, drop=True), name) if name in models else []
    quantity = "heads, linear attention and networks"
    return [*findings, *checks.complete("models", quantity, len(models) == len(MODELS))]


def _head(part: xr.Dataset, name: str) -> list[Finding]:
    """More dimensions after the cliff than before, and fewer late; quadrature and curvature agree."""
    at, dimension = {"model": name}, part["effective_dimension"]
    before, after, late = (dimension.sel(stage=stage, drop=True) for stage in (BEFORE, AFTER, LATE))
    quantity = "effective dimension after the cliff - before"
    findings = checks.above("rise", quantity, estimates.mean(after - before), GAINED, at=at)
    findings += checks.below(
        "fall", "effective dimension late / after", estimates.geometric_mean(late / after), FALLEN, at=at
    )
    early = part.sel(stage=[BEFORE, AFTER])
    if name == "landscape":
        closed_form = early["effective_dimension_theory"]
        deviation = abs(early["effective_dimension"] / closed_form - 1).max("seed")
        quantity = "effective dimension by derivatives / closed form, less one"
        findings += checks.below("closed_form", quantity, Estimate(deviation, 0.0), 1e-4, at=at)
        flat = Estimate(early["flat_share"].max("seed"), 0.0)
        findings += checks.below("two_numbers", "least eigenvalue / largest", flat, ROUNDING, at=at)
    twice = 2 * early["resolved_coefficient"] / early["effective_dimension"]
    error = (2 * early["resolved_coefficient_error"] / early["effective_dimension"]).max("seed")
    ratio = Estimate(twice.mean("seed"), error)
    quantity = "twice the coefficient by quadrature / effective dimension"
    findings += checks.near("quadrature", quantity, ratio, 1.0, margin=AGREE, at=at)
    quiet = bool((early["sampler_warnings"] == 0).all())
    return [*findings, *checks.complete("quiet", "no warning of the quadrature", quiet, at=at)]


def _ranks_climbed(part: xr.Dataset) -> list[Finding]:
    """Each plateau has its rank, and the coefficient of that rank's stratum."""
    part = part.sel(stage=_ranks(part))
    exact, at, sound = part["learning_coefficient_theory"], {"model": "attention"}, part["sampler_warnings"] == 0
    lower, upper = part["learned_rank"].min("seed"), part["learned_rank"].max("seed")
    findings = checks.equal("rank", "least rank on the plateau", lower, part.stage.astype(float), at=at)
    findings += checks.equal("rank_most", "largest rank on the plateau", upper, part.stage.astype(float), at=at)
    enough = bool((sound.mean("seed") >= SOUND).all())
    part = part.isel(seed=sound.all("stage").values)  # a seed with an estimate that warns is left out
    if part.sizes["seed"] < 2:
        return [*findings, *checks.complete("quiet", "estimates without a warning", False, at=at)]
    estimate = estimates.mean(part["learning_coefficient"])
    within_chains = estimates.stored(part, "learning_coefficient").average("seed")
    larger = estimate.error >= within_chains.error
    left_out = REMAINDER * exact / checks.SIGMAS
    sampled = Estimate(
        estimate.value,
        xr.where(larger, estimate.error, within_chains.error) + left_out,
        freedom=estimate.freedom.where(larger, np.inf),
    )
    quantity = "sampled coefficient (3 % left to the expansion)"
    findings += checks.agrees("coefficient", quantity, sampled, exact, largest_error=LARGEST * exact + left_out, at=at)
    steps = estimates.mean(part["learning_coefficient"].diff("stage"))
    findings += checks.above("step", "coefficient less that of one rank fewer", steps, at=at)
    quantity = "no warning in six of ten estimates of every rank"
    return [*findings, *checks.complete("quiet", quantity, enough, at=at)]


def _network(part: xr.Dataset, name: str) -> list[Finding]:
    """At its jump a network's answers lose dimensions at fine resolutions, and its logits gain some."""
    at, success = {"model": name}, part["label_loss"].sel(stage=LATE, drop=True) < np.log(NETWORK_PAIRS) * FOOT
    findings = checks.complete("learned", "every network has learned the task", bool(success.all()), at=at)
    before, after, late = (part.sel(stage=stage, drop=True) for stage in (BEFORE, AFTER, LATE))
    ratio = estimates.geometric_mean(late["effective_dimension"] / after["effective_dimension"])
    jump = estimates.geometric_mean(after["effective_dimension"] / before["effective_dimension"])
    scale = part.resolution.values
    gain = estimates.geometric_mean(
        (after["logit_dimension"] / before["logit_dimension"]).sel(resolution=scale >= FINEST)
    )
    words = "effective dimension after the jump / before"
    return [
        *findings,
        *checks.below("late", "effective dimension late / after", ratio, 1.0, at=at),
        *checks.below("fine", words, jump.sel(resolution=scale[scale <= FINE]), 1.0, at=at),
        *checks.above("logits", "effective dimension of the logits after the jump / before", gain, 1.0, at=at),
    ]


def figure(dataset: xr.Dataset):
    """Draw the effective dimension against the resolution by stage, or coefficients of linear attention by rank."""
    names = {BEFORE: "before", AFTER: "after", LATE: "late"}
    models = [name for name in ("landscape", "head", *NETWORKS) if name in dataset.model.values]
    if not models:
        ranks = dataset.assign(learning_coefficient_line=dataset["learning_coefficient_theory"])
        return panels(ranks, [Panel("learning_coefficient", "learning_coefficient_line")], x="stage", hue="model")
    part = dataset.sel(model=models, stage=list(names)).assign_coords(stage=list(names.values()))
    table = part[["effective_dimension"]].assign(
        effective_dimension_line=part["effective_dimension_theory"].mean("seed")
    )
    rows = [
        Panel("effective_dimension", "effective_dimension_line", yscale="log", at={"model": name}) for name in models
    ]
    return panels(table.assign_attrs(dataset.attrs), rows, x="resolution", xscale="log", hue="stage", columns=3)


COMMON = {"strength": STRENGTHS, "stage": (0, 1, 2, 3), "resolution": (0.1, 0.01, 0.001, 0.0001)}
HEADS = {"model": ("landscape", "head"), "seed": tuple(range(5))}
claim = Claim(
    title="It rises with learning",
    sentence=(
        "Effective dimension of probabilities rises where heads acquire structure; linear attention's rises by exact "
        "steps; in networks that of probabilities falls at fine resolutions, and that of logits rises."
    ),
    conditions=(
        "Dimensions of answers, whatever the loss does, at resolutions from 0.1 to 0.0001: half-way to the cliff, at "
        "its foot and late, where it has fallen. Networks of 1440 weights, judged from 0.001 on; at 0.1 it rises by "
        "a factor of 1.03 to 1.27, undecided on two keys. Linear attention on each plateau, at n beta = 72,382; "
        "estimates that warn are left out, at most four of ten. Ten seeds were too few."
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
        "small": COMMON | {"model": MODELS, "seed": 18},
        "medium": COMMON | {"model": MODELS, "seed": Seeds(20, block=5)},
    },
    precision="float64",
    key=504,  # the sentence spoke of a rise at a coarse resolution, and of networks of three sizes
    controls={
        "formed": Control(
            "both attentions are formed at the start: there is no cliff", measure={"formed": 8.0}, axes=HEADS
        ),
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
            axes={"model": ("network 8",), "seed": tuple(range(18))},
        ),
        "backwards": Control(
            "training runs backwards",
            measure={"backwards": True},
            axes={"model": ("attention", "network 8"), "seed": tuple(range(10))},
        ),
        "after_the_jump": Control(
            "every stage is the next one: the structure is there before it is looked for",
            measure={"later": True},
            axes={"model": ("network 8",), "seed": tuple(range(10))},
        ),
        "items": Control(
            "items of the landscape are random",
            measure={"items": True},
            axes={"model": ("landscape",), "seed": tuple(range(5))},
        ),
        "wide": Control(
            "the posterior is so wide that the divergence is not quadratic",
            measure={"wide": True},
            axes={"model": ("landscape",)},
        ),
    },
)
