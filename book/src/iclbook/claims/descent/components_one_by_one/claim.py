r"""Linear attention with separate keys and queries learns one principal component a head, from the largest.

With W diagonal, :math:`a_d = 1/((1+1/N)\lambda_d + (\mathrm{tr}\,\Lambda+\rho)/N)` on the first m eigenvectors, the
gradient vanishes for heads of rank one: a plateau. Its loss is exact. A component is learned where it has a quarter of
:math:`1/\lambda_d` in W. The network of a plateau is that where the loss falls least between two such steps; its loss
is exact, from W. Plateaus that are predicted to last are those judged, in units of the time in which the next component
grows e-fold in a head that has its last size, :math:`1/(2\lambda_{m+1}^2a_m^{1/3})`: heads of a higher rank, which
learn on, need a few of these units for the next component and wait for no other head.
"""

import numpy as np
import xarray as xr

from iclbook.claims.descent._plateaus import SETTINGS
from icllab.core.axes import Axis, Quantity
from icllab.core.grid import Seeds
from icllab.figures.curves import Panel, panels
from icllab.lab import Claim, Control, Finding, checks, estimates
from icllab.lab.checks import Outcome
from icllab.lab.results import fixed_values
from icllab.theory import saddles

DIM = 4
IDENTIFIED = "authors"
RANK_ONE = ("authors", "steep", "short", "long", "noisy")
RANKS = ("rank 2", "rank 3", "rank 4")
LEVEL = 0.01  # of a plateau's loss
TIMES = 0.25  # of a time
LASTS = 8.0  # e-folds of the next component in a head that has learned: a drop of another head comes later


def rank_of(setting: str) -> tuple[str, int]:
    """The distribution of a setting, and the rank of the heads."""
    return ("authors", int(setting[-1])) if setting in RANKS else (setting, 1)


def theory(dataset: xr.Dataset, *, length: int | None = None, ascending: bool = False) -> xr.Dataset:
    """Add the closed form of plateaus, and waits for the next component in e-folds. ``length``: another N."""
    levels, waits, order = [], [], []
    for setting in dataset.setting.values:
        name, _ = rank_of(str(setting))
        spectrum, examples, noise = SETTINGS[name]
        values = np.array(spectrum)
        weights = saddles.component_weights(values, length=length or examples, noise_variance=noise)
        gains = values**2 * weights
        levels.append(values.sum() - np.append(0, np.cumsum(gains[::-1] if ascending else gains)))
        units = 2 * values[1:] ** 2 * np.cbrt(weights[:-1])
        learned = dataset["learned_step"].sel(setting=setting).transpose("seed", "component").values
        ordered = np.sort(learned, axis=1)
        with np.errstate(invalid="ignore"):
            waits.append(np.diff(ordered, axis=1) * fixed_values(dataset)["rate"] * units)
        known = np.where(np.isfinite(learned), learned, np.inf)
        right = np.diff(known[:, ::-1] if ascending else known, axis=1)
        order.append(np.nansum(right < 0, axis=1) > 0)
    axes = ("setting", "seed", "wait")
    dataset = dataset.assign_coords(wait=dataset.component.values[: DIM - 1])
    closed = xr.DataArray(np.array(levels), dims=("setting", "plateau"), coords={"plateau": np.arange(DIM + 1)})
    dataset = dataset.assign(plateau_loss_theory=closed.sel(plateau=dataset.plateau), waiting=(axes, np.array(waits)))
    return dataset.assign(disordered=(("setting", "seed"), np.array(order)))


def check(dataset: xr.Dataset) -> list[Finding]:
    """Levels, order, number of drops by rank, and times from the start."""
    settings = [s for s in dataset.setting.values if s in RANK_ONE]
    rank_one = dataset.sel(setting=settings).stack(network=("setting", "seed"))
    lasting = _lasting(rank_one)
    ratio = (rank_one["plateau_loss"] / rank_one["plateau_loss_theory"]).where(lasting)
    enough = bool((ratio.notnull().sum("network") >= 3).all())
    findings = checks.near("levels", "loss / closed form", estimates.mean(ratio, "network"), 1.0, margin=LEVEL)
    findings += checks.equal("order", "networks that learn out of order", int(dataset["disordered"].sum()), 0)
    for rank in sorted({rank_of(str(s))[1] for s in dataset.setting.values}):
        part = dataset["waiting"].isel(setting=[rank_of(str(s))[1] == rank for s in dataset.setting.values])
        drops = (1 + (part > LASTS).sum("wait")).where(part.notnull().all("wait"))
        number = float(drops.median())
        otherwise = Outcome.UNDECIDED if np.isnan(number) else Outcome.FAILS  # no network has learned all
        phrase, expected = "median number of drops", -(-DIM // rank)
        findings += checks.equal("drops", phrase, number, expected, otherwise=otherwise, at={"rank": rank})
    times = (rank_one["learned_step"] / rank_one["start_step"]).where(np.isfinite(rank_one["learned_step"]))
    findings += checks.near("times", "step / predicted", estimates.geometric_mean(times, "network"), 1.0, margin=TIMES)
    return findings + checks.complete("plateaus", "every plateau in three networks", enough)


def _lasting(dataset: xr.Dataset) -> xr.DataArray:
    """Whether each plateau lasts; the first and the last do."""
    waits = dataset["waiting"].rename(wait="plateau").assign_coords(plateau=np.arange(1, DIM))
    return waits.reindex(plateau=dataset.plateau.values).fillna(np.inf) > LASTS


def figure(dataset: xr.Dataset):
    """Draw the loss of every plateau that lasts against the closed form, for heads of rank one."""
    part = dataset.sel(setting=[s for s in dataset.setting.values if s in RANK_ONE])
    part = part.assign(plateau_loss=part["plateau_loss"].where(_lasting(part)))
    rows = [Panel("plateau_loss", "plateau_loss_theory", "log")]
    return panels(part, rows, x="plateau", hue="setting", line_name="closed form")


ROWS = {"component": tuple(range(DIM)), "plateau": tuple(range(DIM + 1))}
ROWS |= {"candidate": tuple(f"{kind} {m}" for m in range(1, DIM + 1) for kind in ("step", "least squares"))}
STEPS = (*range(0, 1000, 20), *range(1000, 6001, 40))
FEW = {"setting": ("authors",), "seed": (0, 1, 2)}

claim = Claim(
    title="Components one by one",
    sentence=(
        "Linear attention with keys and queries of rank one learns principal components one by one, in order; the "
        "loss of each plateau is one-step regression's on those, to 1 %."
    ),
    conditions=(
        "d = 4, five distributions (10 to 60 examples, label noise 0 or 0.5), six heads, gradient descent at rate 0.7"
        " on 8000 fixed prompts from N(0, 0.02²). Judged are plateaus that last eight e-folds of the next component. "
        "Heads of rank R make 4/R drops, rounded up, in the median network; times of drops are those of the start "
        "within a quarter. Bounds were set on other keys, on one of which it was undecided whether the answers are "
        "those of one step, too."
    ),
    sources=("Zhang25",),
    axes=(
        Axis("component", "d", "principal component, 0 the largest", least=0),
        Axis("plateau", "m", "components learned", least=0),
        Axis("wait", "d", "component that is waited from", least=0),
    ),
    quantities=(
        Quantity("loss_curve", "L", "error of the noiseless answer, exact"),
        Quantity("component_weight", "W_{dd}", "weight along a component"),
        Quantity("learned_step", "t_d", "step at which a component is learned", "updates"),
        Quantity("start_step", r"\hat t_d", "step predicted from the start", "updates"),
        Quantity("plateau_loss", "L_m", "error on a plateau, exact"),
        Quantity("waiting", r"\Delta t", "wait for the next component", "e-folds"),
        Quantity("disordered", "!", "whether components come out of order"),
        Quantity("unexplained", "u", "fraction of variance unexplained"),
    ),
    static=("setting",),
    outputs=("step", *ROWS),
    fixed={"heads": 6, "std": 0.02, "rate": 0.7, "prompts": 8000, "judged": 1000},
    sizes={
        "smoke": {"setting": ("steep",), "step": tuple(range(0, 601, 50)), "seed": 2, "prompts": 400, "judged": 40}
        | ROWS
        | {"std": 0.05},
        "small": {"setting": (*RANK_ONE, *RANKS), "step": STEPS, "seed": 5} | ROWS,
        "medium": {"setting": (*RANK_ONE, *RANKS), "step": STEPS, "seed": Seeds(4, block=4)} | ROWS,
    },
    key=405,
    controls={
        "merged": Control("keys and queries are one matrix", measure={"merged": True}, axes=FEW),
        "half_start": Control(
            "times are predicted from a start half as large", measure={"start_factor": 0.5}, axes=FEW
        ),
        "without_length": Control("the closed form lacks its terms in 1/N", theory={"length": 10**9}),
        "smallest_first": Control("the smallest component is taken to come first", theory={"ascending": True}),
    },
)
